"""Is this machine fit, and if not, what to do: one finding per thing that training needs."""

import os
import platform
import shutil
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, NamedTuple

from ambs.errors import EXTRAS, UserError, one_line
from ambs.storage.provenance import PACKAGES

LEAST_PYTHON = (3, 11)
LEAST_DISK, ENOUGH_DISK = 1.0, 10.0
"""Gigabytes: below the first nothing can be trained; the second holds several runs with their replay buffers."""
LEAST_MEMORY = 2.0
"""Gigabytes for the quickstart."""
State = Literal["ok", "note", "problem"]


class Finding(NamedTuple):
    """What was looked at, how it is, and what to do about it (empty if nothing)."""

    what: str
    state: State
    said: str
    advice: str = ""


def examine(folder: Path, test: bool = True) -> list[Finding]:
    """All findings; `folder` is where runs would be written. A check that breaks is a problem, not a traceback."""
    checks: list[tuple[str, Callable[[], Finding]]] = [
        ("machine", machine),
        ("Python", python),
        ("packages", packages),
        ("JAX", jax_backend),
        ("MuJoCo", mujoco_steps),
        ("OpenGL", opengl),
        ("disk", lambda: disk(folder)),
    ]
    if test:
        checks.append(("self-test", self_test))
    return [_guarded(what, check) for what, check in checks]


def machine() -> Finding:
    """Operating system, cores, memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = memory_gb()
    said = f"{platform.platform()}, {cores} {'core' if cores == 1 else 'cores'}"
    if memory is None:
        return Finding("machine", "ok", said)
    said += f", {memory:.1f} GB of memory free"
    if memory < LEAST_MEMORY:
        return Finding("machine", "problem", said, f"free some memory: training needs {LEAST_MEMORY:g} GB at least")
    if cores < 2:
        return Finding("machine", "note", said, "on one core the quickstart takes twice as long")
    return Finding("machine", "ok", said)


def python(found: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """The interpreter's version."""
    said = f"{'.'.join(map(str, found))} at {sys.executable}"
    if found < LEAST_PYTHON:
        return Finding("Python", "problem", said, "install Python 3.11 or newer, then `make install`")
    return Finding("Python", "ok", said)


def packages(names: tuple[str, ...] = PACKAGES) -> Finding:
    """Versions of what training uses."""
    found: list[str] = []
    missing: list[str] = []
    left_out: list[str] = []
    for name in names:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            (left_out if name in EXTRAS else missing).append(name)
    if left_out and not missing:
        wanted = ",".join(EXTRAS[name][1] for name in left_out)
        advice = f"enough to train on the small worlds; `pip install 'ambs[{wanted}]'` brings the rest"
        return Finding("packages", "note", f"{', '.join(found)}; without {', '.join(left_out)}", advice)
    if missing:
        said = f"missing: {', '.join(missing)}"
        return Finding("packages", "problem", said, "install them with `make install` or `pip install ambs`")
    return Finding("packages", "ok", ", ".join(found))


def jax_backend() -> Finding:
    """Where JAX computes, with the GPU's memory."""
    import jax

    devices = jax.devices()
    kind = f"{jax.default_backend()}: " + ", ".join(sorted({device.device_kind for device in devices}))
    if jax.default_backend() == "cpu":
        if nvidia_driver():
            advice = "there is an NVIDIA driver, but JAX does not use it: install `ambs[cuda]`, and unset JAX_PLATFORMS"
            return Finding("JAX", "problem", kind, advice)
        advice = (
            "enough for the quickstart; for pictures and the paper's sizes use a machine with a GPU and `ambs[cuda]`"
        )
        return Finding("JAX", "note", kind, advice)
    memory = [
        stats["bytes_limit"] / 1e9 for device in devices if (stats := device.memory_stats()) and "bytes_limit" in stats
    ]
    if memory:
        kind += f", {sum(memory):.0f} GB of its memory for JAX"
        if min(memory) < 4:
            return Finding("JAX", "note", kind, "little memory: train with --size s or smaller, or free the GPU")
    return Finding("JAX", "ok", kind)


def nvidia_driver() -> bool:
    """Whether the machine has one."""
    return shutil.which("nvidia-smi") is not None or Path("/proc/driver/nvidia").exists()


def mujoco_steps() -> Finding:
    """One episode's first steps in PointGoal1, with a picture from the ray-caster."""
    import numpy as np

    import ambs

    try:
        env = ambs.make("PointGoal1", observation="vision")
    except UserError as error:
        return Finding("MuJoCo", "note", str(error), "only the small worlds can be played and trained on")
    try:
        env.reset(seed=0)
        picture = env.step(np.zeros(2))[0]
    finally:
        env.close()
    if not np.asarray(picture).any():
        return Finding("MuJoCo", "problem", "PointGoal1 gives black pictures", "reinstall the package mujoco")
    return Finding("MuJoCo", "ok", f"{version('mujoco')}, PointGoal1 steps and gives {np.shape(picture)} pictures")


def opengl() -> Finding:
    """Whether MuJoCo's renderer could start; nothing needs it."""
    import ctypes.util

    found = [name for name in ("EGL", "OSMesa", "GL") if ctypes.util.find_library(name)]
    said = f"found {', '.join(found)}" if found else "none found"
    return Finding("OpenGL", "ok", f"{said}; none is needed: pictures come from the ray-caster")


def disk(folder: Path) -> Finding:
    """Free space where runs go, and whether they may go there."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(path))
    if not there.is_dir():
        return Finding("disk", "problem", f"{there} is no folder", "choose another folder with --out")
    try:
        folder.absolute().stat()
    except FileNotFoundError:
        pass
    except OSError as error:  # A name that is too long, say.
        return Finding("disk", "problem", f"{one_line(folder)}: {error.strerror}", "choose another folder with --out")
    free = shutil.disk_usage(there).free / 1e9
    said = f"{free:.1f} GB free for {folder.absolute()}"
    if not os.access(there, os.W_OK):
        return Finding("disk", "problem", f"{said}, but it cannot be written to", "choose another folder with --out")
    if free < LEAST_DISK:
        return Finding("disk", "problem", said, f"free at least {LEAST_DISK:g} GB, or choose another folder with --out")
    if free < ENOUGH_DISK:
        advice = "enough for small runs; replay buffers of pictures take several GB: lower --training.capacity"
        return Finding("disk", "note", said, advice)
    return Finding("disk", "ok", said)


def self_test() -> Finding:
    """Act, shield and learn, with figures."""
    from ambs.apps.selftest import ENVS, self_test

    found = self_test()
    said = (
        f"{ENVS} decisions {found.act_ms:.1f} ms, with the shield {found.shield_ms:.1f} ms, one update "
        f"{found.update_ms:.0f} ms (quickstart's networks, on a CPU compiled without optimisations, in {found.compile_s:.0f} s: "
        f"to compare machines); a NaN is {'overridden' if found.fails_safe else 'NOT overridden'}"
    )
    if not found.finite:
        advice = "actions or losses were not finite: reinstall jax and jaxlib, and try JAX_PLATFORMS=cpu"
        return Finding("self-test", "problem", said, advice)
    if not found.fails_safe:
        return Finding("self-test", "problem", said, "do not rely on the shield here: please report this with `--json`")
    return Finding("self-test", "ok", said)


def memory_gb() -> float | None:
    """Memory that programs can have now, in gigabytes; None where that cannot be told."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024 / 1e9
    except OSError:
        pass
    return None


def _guarded(what: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except Exception as error:
        words = " ".join(str(error).split())[:300]
        said = f"{type(error).__name__}: {words}"
        advice = "reinstall with `make clean install`; if it stays, report it with the output of `ambs doctor --json`"
        return Finding(what, "problem", said, advice)

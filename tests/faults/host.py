"""A process for trials with a whole trainer, as small as it gets: `python -m tests.faults FOLDER JOB [JOB …]`.

Each job prints one line of JSON. All that is compiled is kept in FOLDER/cache for the next process.
"""

import contextlib
import io
import json
import os
import random
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_cpu_multi_thread_eigen=false --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false",
)
os.environ["JAX_PLATFORMS"] = "cpu"

import jax

from ambs import config
from ambs.cli.main import main
from ambs.storage import checkpoint
from ambs.training.asking import Life
from ambs.training.trainer import Trainer
from tests.faults.counts import count as how_many
from tests.faults.same import differences
from tests.tiny import TINY

INTERVAL = 400
FRAMES = how_many(1600, 6000)
SETTINGS: dict[str, Any] = {
    "env": "ambs/Grid-v0",
    "agent": {"imagination": 3, "imagine_from": 8},
    "shield": {"horizon": 4, "rolled": 3, "critics": "max", "traces": 40, "chunk": 20},
    "training": {
        "frames": FRAMES, "envs": 8, "action_repeat": 1, "prefill": 200, "batch": 2, "length": 6, "train_ratio": 0.6,
        "updates_per_call": 2, "log_every": INTERVAL, "checkpoint_every": INTERVAL, "capacity": 4000,
    },
    "calibration": {"every": 40, "windows": 16},
}  # fmt: skip


def prepare(folder: Path) -> None:
    """Small networks, and what was compiled once is not compiled again."""
    config.SIZES["xxs"] = TINY
    jax.config.update("jax_compilation_cache_dir", str(folder / "cache"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def train(folder: Path, name: str, **changes: Any) -> int | str | None:
    """`ambs train` into FOLDER/name; returns its exit code."""
    settings = {**SETTINGS, **changes}
    file = folder / f"{name}.json"
    file.write_text(json.dumps(settings))
    words = ("--preset", "quickstart", "--config", str(file), "--env", settings["env"], "--out", str(folder / name))
    return ambs("train", *words)


def ambs(*arguments: str) -> int | str | None:
    """The command line in this process; returns its exit code."""
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            main(list(arguments))
        except SystemExit as end:
            return end.code
    return None


def run_in(folder: Path) -> Path:
    """The one run folder in a folder."""
    (path,) = (file.parent for file in folder.glob("*/config.json"))
    return path


def straight(folder: Path) -> Path:
    """The run that nothing happens to, made once."""
    if not (folder / "straight").exists():
        assert train(folder, "straight") == 0
    return run_in(folder / "straight")


def job_straight(folder: Path, _count: int) -> dict[str, Any]:
    return {"frames": checkpoint.load(straight(folder) / "checkpoints").step}


def job_finish(folder: Path, _count: int) -> dict[str, Any]:
    """Resume what others killed, to the end."""
    run = run_in(folder / "killed")
    code = ambs("resume", str(run))
    return {"code": code, "differences": differences(straight(folder), run)}


def job_sigterm(folder: Path, count: int) -> dict[str, Any]:
    """Runs that are asked to stop at random moments, again and again until they are finished."""
    rng = random.Random(1)
    reference = straight(folder)
    late: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: late.append(number))
    found = {"signals": 0, "stopped": 0, "resumable": 0, "finished": 0, "differences": 0, "codes": []}
    while found["stopped"] < count:
        home = folder / "stopped"
        shutil.rmtree(home, ignore_errors=True)
        first = True
        while True:
            seen = len(late)
            with signalled(rng):
                code = train(folder, "stopped") if first else ambs("resume", str(run_in(home)))
            found["signals"] += code == 75 or len(late) > seen
            if code != 75:
                break
            first = False
            found["stopped"] += 1
            found["resumable"] += not checkpoint.load(run_in(home) / "checkpoints").skipped
        found["codes"].append(code)
        if code == 0:
            found["finished"] += 1
            found["differences"] += differences(reference, run_in(home))
    return found


@contextlib.contextmanager
def signalled(rng: random.Random) -> Iterator[None]:
    """Within, this process gets a SIGTERM: one time in five while it starts, else some steps later, wherever it is then."""
    turns, over = [0], threading.Event()
    inner = Trainer.moves

    def moves(trainer: Trainer) -> Life[None]:
        turns[0] += 1
        yield from inner(trainer)

    wanted, moment = (
        (0, rng.uniform(0, 2)) if rng.random() < 0.2 else (rng.randrange(1, FRAMES // 20), rng.uniform(0, 0.03))
    )

    def send() -> None:
        while turns[0] < wanted and not over.wait(0.001):
            pass
        if not over.wait(moment):
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=send)
    Trainer.moves = moves  # type: ignore[method-assign]
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        Trainer.moves = inner  # type: ignore[method-assign]


def cli(folder: Path, arguments: list[str]) -> None:
    """Be `ambs train` or `ambs resume`, for somebody who will kill this process; FOLDER/progress tells the frames played."""
    told = os.open(folder / "progress", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    inner = Trainer.moves

    def moves(trainer: Trainer) -> Life[None]:
        yield from inner(trainer)
        os.pwrite(told, f"{trainer.accounts.frames:12d}".encode(), 0)

    Trainer.moves = moves  # type: ignore[method-assign]
    sys.exit(train(folder, "killed") if arguments == ["train"] else ambs(*arguments))


def start(folder: Path, jobs: list[str]) -> None:
    prepare(folder)
    if jobs[0] == "cli":
        cli(folder, jobs[1:])
    from tests.faults import numbers, worlds

    known = {"straight": job_straight, "finish": job_finish, "sigterm": job_sigterm}
    known |= {"numbers": numbers.job_numbers, "observations": numbers.job_observations, "envs": worlds.job_envs}
    for job in jobs:
        name, _, number = job.partition(":")
        print(json.dumps({"job": name, **known[name](folder, int(number or 0))}), flush=True)

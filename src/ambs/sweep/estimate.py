"""How long a sweep takes: from its own runs where some are there, else from measured speeds of the parts of a run."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ambs.config import TrainingConfig
from ambs.errors import UserError
from ambs.storage.run_folder import METRICS, read_rows
from ambs.sweep.plan import Job
from ambs.sweep.status import Found

SIZES = ("xxs", "xs", "s", "m", "l")
"""Sizes of networks, ascending."""


@dataclass(frozen=True)
class Speed:
    """Milliseconds that the parts of a run take on one device."""

    device: str
    update: dict[str, float]
    """One update of 1024 replayed pictures, by size of the networks."""
    decision: dict[str, float]
    """One shielded decision, thirty steps ahead, by size; 16 environments."""
    plain: float
    """One decision without a shield, whatever the size."""
    world: dict[str, float]
    """Two frames of 8 environments and their pictures, by task."""
    source: str


SPEEDS = (
    Speed(
        "NVIDIA H200",
        update={"xs": 9.6, "s": 12.2, "l": 26.8},
        decision={"s": 5.2, "l": 9.2},
        plain=4.0,
        world={"PointGoal1": 7.5, "PointGoal2": 14.0, "CarGoal1": 18.2},
        source="benchmarks/update.py and end_to_end.py on it with 16 environments, benchmarks/envs.py on one core with 8",
    ),
)


class Kind(NamedTuple):
    """What runs have in common that take the same time for a frame, near enough."""

    task: str
    size: str
    obs: str
    train_ratio: float
    envs: int


@dataclass(frozen=True)
class Work:
    """What is left of one run."""

    kind: Kind
    frames: int
    turns: float
    """Steps of all environments together."""
    updates: int
    shielded: bool = True


SAMPLED = 3
"""Runs of a kind whose speed is looked up."""


def kind(settings: dict[str, Any]) -> Kind:
    """Of a run with these settings, nested."""
    training = settings["training"]
    task = settings["env"].removeprefix("ambs/").removesuffix("-v0")
    return Kind(task, settings["model"]["size"], settings["obs"], training["train_ratio"], training["envs"])


def work(job: Job, done: int = 0) -> Work:
    """What a run has still to do, which has so many frames."""
    training = TrainingConfig(**job.settings["training"])
    done = min(done, training.frames)
    before, after = (part // training.action_repeat for part in (done, training.frames))
    updates = training.updates_due(after) - training.updates_due(before)
    turns = (after - before) / training.envs
    return Work(kind(job.settings), training.frames - done, turns, updates, job.settings["shielded"])


def seconds(one: Work, speed: Speed) -> float | None:
    """Alone on this device; None where nothing as large has been measured."""
    update = _at_least_as_large(speed.update, one.kind.size)
    decision = _at_least_as_large(speed.decision, one.kind.size) if one.shielded else speed.plain
    world = speed.world.get(one.kind.task)
    if update is None or decision is None or world is None:
        return None
    return (one.updates * update + one.turns * (decision + world)) / 1000


def _at_least_as_large(table: dict[str, float], size: str) -> float | None:
    """The figure of this size, or that of the next larger one."""
    larger = [name for name in SIZES[SIZES.index(size) :] if name in table]
    return table[larger[0]] if larger else None


def measured(found: Iterable[tuple[Job, Found]]) -> dict[Kind, float]:
    """Frames per second of the sweep's own runs, by kind: the median of what a few of them logged."""
    rates: dict[Kind, list[float]] = {}
    for job, one in found:
        if one.path is None or one.others or len(rates.get(kind(job.settings), ())) >= SAMPLED:
            continue
        try:
            rows = read_rows(one.path / METRICS)
        except UserError:
            continue
        logged = [row["time/frames_per_second"] for row in rows if row.get("time/frames_per_second")]
        if logged:
            rates.setdefault(kind(job.settings), []).append(float(np.median(logged)))
    return {kind: float(np.median(values)) for kind, values in rates.items()}


def estimate(left: Sequence[Work], rates: dict[Kind, float], gpus: float | None = None) -> list[str]:
    """In sentences, with what it rests on; `rates` are those of `measured`, `gpus` how much of a GPU each run takes."""
    if not left:
        return ["Nothing is left to run."]
    frames, updates = sum(one.frames for one in left), sum(one.updates for one in left)
    count = "1 run" if len(left) == 1 else f"{len(left):,} runs"
    sizes = " and ".join(sorted({one.kind.size for one in left}, key=SIZES.index))
    said = [f"Left: {count}, {frames:,} frames, {updates:,.0f} updates of networks of size {sizes}."]
    if all(one.kind in rates for one in left):
        time = sum(one.frames / rates[one.kind] for one in left)
        told = f"About {_words(time)}{_gpu_hours(time, gpus)}, one after the other"
        return [*said, f"{told}, by the frames per second of this grid's own runs."]
    for speed in SPEEDS:
        times = [seconds(one, speed) for one in left]
        known = [time for time in times if time is not None]
        if len(known) < len(times):
            said.append(f"How long that takes on one {speed.device} was not measured.")
            continue
        time = sum(known)
        said.append(f"On one {speed.device}: about {_words(time)}, one after the other{_gpu_hours(time, gpus)}.")
        said.append(f"That is from {speed.source}; a size that was not measured counts as the next larger one.")
    return said


def _gpu_hours(time: float, gpus: float | None) -> str:
    """What is paid for: a run that shares a GPU was measured alone on it, and takes longer beside others."""
    return f" ({time / 3600 * gpus:,.1f} GPU hours)" if gpus else ""


def _words(time: float) -> str:
    if time < 90 * 60:
        return f"{max(1, round(time / 60))} min"
    return f"{time / 3600:.0f} h" if time < 48 * 3600 else f"{time / 86400:.1f} days"

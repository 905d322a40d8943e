"""How long a grid takes: from its own runs where some are there, else from measured speeds of the parts of a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ambs.config import TrainingConfig
from ambs.reproduce.grid import Panel
from ambs.reproduce.status import RunStatus

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


@dataclass(frozen=True)
class Work:
    """What is left of one run."""

    panel: Panel
    frames: int
    turns: float
    """Steps of all environments together."""
    updates: int
    size: str
    shielded: bool = True


def work(found: RunStatus, config: dict[str, Any]) -> Work:
    """Of a run with these settings, nested."""
    training = TrainingConfig(**config["training"])
    done = min(found.frames, training.frames) if found.state == "broken" else 0
    left, (before, after) = training.frames - done, (part // training.action_repeat for part in (done, training.frames))
    updates = training.updates_due(after) - training.updates_due(before)
    turns = (after - before) / training.envs
    return Work(found.cell.panel, left, turns, updates, config["model"]["size"], config["shielded"])


def seconds(one: Work, speed: Speed) -> float | None:
    """Alone on this device; None where nothing as large has been measured."""
    update = _at_least_as_large(speed.update, one.size)
    decision = _at_least_as_large(speed.decision, one.size) if one.shielded else speed.plain
    world = speed.world.get(one.panel.task)
    if update is None or decision is None or world is None:
        return None
    return (one.updates * update + one.turns * (decision + world)) / 1000


def _at_least_as_large(table: dict[str, float], size: str) -> float | None:
    """The figure of this size, or that of the next larger one."""
    larger = [name for name in SIZES[SIZES.index(size) :] if name in table]
    return table[larger[0]] if larger else None


def measured(found: Sequence[RunStatus]) -> dict[Panel, float]:
    """Frames per second of the grid's own runs, by panel: the median of what they logged."""
    rates: dict[Panel, list[float]] = {}
    for one in found:
        rows = None if one.run is None or one.others else one.run.metrics.get("time/frames_per_second")
        if rows:
            rates.setdefault(one.cell.panel, []).append(float(np.median(rows.values)))
    return {panel: float(np.median(values)) for panel, values in rates.items()}


def estimate(left: Sequence[Work], rates: dict[Panel, float]) -> list[str]:
    """In sentences, with what it rests on; `rates` are those of `measured`."""
    if not left:
        return ["Nothing is left to run."]
    frames, updates = sum(one.frames for one in left), sum(one.updates for one in left)
    count = "1 run" if len(left) == 1 else f"{len(left)} runs"
    said = [f"Left: {count}, {frames:,} frames, {updates:,.0f} updates of networks of size {left[0].size}."]
    if all(one.panel in rates for one in left):
        time = sum(one.frames / rates[one.panel] for one in left)
        return [*said, f"About {_words(time)}, one after the other, by the frames per second of this grid's own runs."]
    for speed in SPEEDS:
        times = [seconds(one, speed) for one in left]
        known = [time for time in times if time is not None]
        if len(known) < len(times):
            said.append(f"How long that takes on one {speed.device} was not measured.")
            continue
        said.append(f"On one {speed.device}: about {_words(sum(known))}, one after the other.")
        said.append(f"That is from {speed.source}; a size that was not measured counts as the next larger one.")
    return said


def _words(time: float) -> str:
    if time < 90 * 60:
        return f"{max(1, round(time / 60))} min"
    return f"{time / 3600:.0f} h" if time < 48 * 3600 else f"{time / 86400:.1f} days"

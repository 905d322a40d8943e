"""Running what is missing of a sweep: runs are handed to an engine, and again where they broke off, until all have ended."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Protocol, runtime_checkable

from ambs.sweep.attempt import Ended
from ambs.sweep.plan import Job

PAUSE = 0.5
"""Seconds between two looks at what is under way."""
AGAIN = 2.0
"""Seconds before a run is tried again that another process was at."""
PATIENCE = 150.0
"""Seconds after which nothing is waited for but what other processes are at: longer than leases last."""
KILLS = 3
"""Times in a row that a run may be killed without having come any further."""


@runtime_checkable
class Engine(Protocol):
    """Where runs are run."""

    def room(self) -> int:
        """How many more runs it takes now."""

    def begin(self, job: Job) -> None:
        """Start or resume a run."""

    def ended(self) -> list[tuple[Job, Ended]]:
        """Attempts that have ended since this was last asked."""

    def stop(self) -> list[tuple[Job, Ended]]:
        """Ask all that are under way to save and end, and wait until they have."""


@dataclass
class Outcome:
    """How the runs ended, by name."""

    finished: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    """Saved, or killed: `broken` next time."""
    failed: dict[str, str] = field(default_factory=dict)
    """Why."""
    busy: list[str] = field(default_factory=list)
    """Left to other processes."""


@dataclass
class _Waiting:
    """A run that is to begin."""

    job: Job
    since: float = 0.0
    """When it was last tried."""
    kills: int = 0
    frames: int = -1
    """How far it was when it was last killed."""
    busy: bool = False
    """Whether another process was at it then."""


def run_all(jobs: Sequence[Job], engine: Engine, stopping: Event, on_look: Callable[[set[str]], None]) -> Outcome:
    """Run them in order until all have ended or `stopping` is set; then all that are under way save and end.

    A run that fails or is refused does not keep the others from running; one that is stopped by others or killed is resumed. A
    fleet that cannot begin or go on falls apart: its runs are tried one by one, so that what is wrong with one is no other's.
    `on_look` is told, now and then, the names of those that are under way.
    """
    waiting, outcome = [_Waiting(job) for job in jobs], Outcome()
    under_way: dict[str, _Waiting] = {}
    try:
        moved = time.monotonic()
        while (waiting or under_way) and not stopping.is_set():
            for one in _next(waiting, engine.room()):
                waiting.remove(one)
                under_way[one.job.name] = one
                engine.begin(one.job)
            ended = engine.ended()
            for job, how in ended:
                _note(under_way.pop(job.name), how, waiting, outcome)
            on_look(set(under_way))
            if any(how.kind != "busy" for _, how in ended) or any(not one.busy for one in under_way.values()):
                moved = time.monotonic()
            elif not under_way and time.monotonic() - moved > PATIENCE:
                break
            if waiting or under_way:
                stopping.wait(PAUSE)
    finally:
        for job, how in engine.stop():
            _note(under_way.pop(job.name), how, waiting, outcome)
    outcome.stopped += [one.job.name for one in waiting if one.since and not one.busy]
    outcome.busy += [one.job.name for one in waiting if one.busy]
    return outcome


def _next(waiting: list[_Waiting], room: int) -> list[_Waiting]:
    """Those that begin now; those that others were at, or that were killed, not at once again."""
    now = time.monotonic()
    return [one for one in waiting if now - one.since >= AGAIN or not one.since][:room]


def _note(one: _Waiting, how: Ended, waiting: list[_Waiting], outcome: Outcome) -> None:
    name = one.job.name
    if one.job.crew and how.kind in ("failed", "busy", "killed"):
        waiting += [_Waiting(member) for member in one.job.crew]
        return
    one.busy = how.kind == "busy"
    if how.kind == "finished":
        outcome.finished.append(name)
        return
    if how.kind == "failed":
        outcome.failed[name] = how.why
        return
    if how.kind == "killed":
        one.kills = one.kills + 1 if how.frames <= one.frames else 1
        one.frames = how.frames
        if one.kills >= KILLS:
            outcome.failed[name] = f"{how.why}, {KILLS} times without coming any further"
            return
    one.since = time.monotonic()
    waiting.append(one)

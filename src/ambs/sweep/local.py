"""Runs side by side on this machine, without Ray."""

import os
from dataclasses import replace

from ambs.sweep.attempt import Attempt, Ended, Means
from ambs.sweep.plan import Job, Needs

SEEDS = 5
"""Seeds of one setting that share a process on a GPU, where nothing else is said: as many as the paper has."""


class Local:
    """So many subprocesses at once; on a GPU they share its memory evenly."""

    def __init__(self, means: Means, parallel: int) -> None:
        self._means, self._parallel = replace(means, share=1 / parallel), parallel
        self._under_way: list[Attempt] = []

    def room(self) -> int:
        """How many more subprocesses may be started."""
        return self._parallel - len(self._under_way)

    def begin(self, job: Job) -> None:
        """Take it among those that are looked at."""
        self._under_way.append(Attempt(job, self._means))

    def ended(self) -> list[tuple[Job, Ended]]:
        """Look at all of them once."""
        found = [(attempt, attempt.poll()) for attempt in self._under_way]
        self._under_way = [attempt for attempt, how in found if how is None]
        return [(attempt.job, how) for attempt, how in found if how is not None]

    def stop(self) -> list[tuple[Job, Ended]]:
        """All at once, then one after the other."""
        for attempt in self._under_way:
            attempt.ask()
        found = [(attempt.job, attempt.stop()) for attempt in self._under_way]
        self._under_way = []
        return found


def side_by_side(parallel: int | None, needs: Needs, device: str) -> int:
    """How many runs fit on this machine: as told, else as many as there are processors for, or one on a GPU."""
    if parallel is not None:
        return parallel
    if device != "cpu" and has_gpu() and needs.gpus != 0:
        return max(1, int(1 / needs.gpus)) if needs.gpus else 1
    return max(1, int(len(os.sched_getaffinity(0)) / needs.cpus)) if hasattr(os, "sched_getaffinity") else 1


def fleet_size(told: int | None, parallel: int | None, needs: Needs, device: str) -> int:
    """How many seeds of one setting are trained in one process: as told, else several on a GPU that a run has for itself."""
    if told is not None:
        return told
    return SEEDS if device != "cpu" and has_gpu() and parallel in (None, 1) and needs.gpus in (None, 1) else 1


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU; without asking JAX, which takes seconds and memory of it."""
    return os.path.exists("/dev/nvidia0") and os.environ.get("CUDA_VISIBLE_DEVICES", "0") not in ("", "-1")

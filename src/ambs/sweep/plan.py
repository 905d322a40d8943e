"""A sweep as data: a list of runs, each with its settings and its folder, and what each needs of a machine."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ambs.config.resolve import from_dict
from ambs.config.seeds import HERE, refuse_alone
from ambs.errors import UserError
from ambs.storage.files import to_json

MOST = 100_000
"""Runs of a sweep that can still be listed."""


@dataclass(frozen=True)
class Job:
    """One run of a sweep."""

    name: str
    """Of its folder, below the sweep's; a path."""
    home: Path
    """That folder: the run folder is made in it."""
    settings: dict[str, Any]
    """All of them, nested."""
    varied: dict[str, Any] = field(default_factory=dict)
    """Those in which the sweep's runs differ, by dotted name, but for the seed."""
    strict: bool = True
    """Whether a run that is there with other settings is refused, and not taken for this one."""
    crew: tuple["Job", ...] = ()
    """Runs that differ in the seed alone and are trained in one process; empty: this one alone."""

    @property
    def frames(self) -> int:
        """How many it is to have."""
        return int(self.settings["training"]["frames"])

    @property
    def members(self) -> tuple["Job", ...]:
        """The runs that it is."""
        return self.crew or (self,)

    @property
    def pattern(self) -> str | None:
        """Its folder with `{seed}` for the seed; None where the folder's name does not end with it."""
        seed, home = str(self.settings["seed"]), str(self.home)
        return home.removesuffix(seed) + HERE if home.endswith(f"s{seed}") and HERE not in home else None


def as_fleets(jobs: Iterable[Job], most: int) -> list[Job]:
    """The same runs, those that differ in the seed alone together, so many at most; where the first of them was."""
    groups: dict[Any, list[Job]] = defaultdict(list)
    fleets: list[list[Job]] = []
    for job in jobs:
        alike = to_json(job.settings | {"seed": 0}) if most > 1 and _can_sail(job) else job.name
        group = groups[job.pattern, alike]
        if len(group) == most or not group:
            group = groups[job.pattern, alike] = []
            fleets.append(group)
        group.append(job)
    return [crew[0] if len(crew) == 1 else replace(crew[0], name=_together(crew), crew=tuple(crew)) for crew in fleets]


def _can_sail(job: Job) -> bool:
    """Whether its settings can be those of a fleet."""
    try:
        refuse_alone(from_dict(job.settings), 2)
    except UserError:
        return False
    return job.pattern is not None


def _together(crew: list[Job]) -> str:
    """`copt-s0,1,2`."""
    return ",".join([crew[0].name, *(str(one.settings["seed"]) for one in crew[1:])])


@dataclass(frozen=True)
class Needs:
    """What one run takes of a machine."""

    cpus: float = 1.0
    gpus: float | None = None
    """Less than 1 shares a GPU; None: one, where there are any."""


@dataclass(frozen=True)
class Sweep:
    """All runs of a sweep, in the order in which they begin."""

    name: str
    out: Path
    jobs: tuple[Job, ...]
    needs: Needs = field(default_factory=Needs)
    says: str = ""
    """What it is, in a line."""

"""A sweep as data: a list of runs, each with its settings and its folder, and what each needs of a machine."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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

    @property
    def frames(self) -> int:
        """How many it is to have."""
        return int(self.settings["training"]["frames"])


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

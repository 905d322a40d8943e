"""What there is of a sweep's runs: the folders are the truth, and nothing in them is changed here."""

import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ambs.errors import UserError
from ambs.report.groups import INERT, ONCE_ABSENT
from ambs.report.runs import flat
from ambs.storage.claim import is_claimed
from ambs.storage.lock import held
from ambs.storage.run_folder import CONFIG, RunFolder
from ambs.sweep.plan import Job

State = Literal["missing", "partial", "broken", "running", "finished"]
"""`partial`: short, and without a checkpoint to go on from. `broken`: can be resumed. `running`: by another process, now."""
ORDER: tuple[State, ...] = ("missing", "partial", "broken", "running", "finished")
IDENTITY = ("env", "method", "seed")


@dataclass(frozen=True)
class Found:
    """The best run at a job's folder."""

    state: State = "missing"
    path: Path | None = None
    frames: int = 0
    status: dict[str, Any] = field(default_factory=dict)
    """`status.json`; empty where there is none."""
    others: tuple[str, ...] = ()
    """Settings of the run that are not the job's, as `name=value`."""
    wanted: int = 0
    """Frames to which it goes, by its own settings."""

    @property
    def due(self) -> bool:
        """Whether there is something to do."""
        return self.state not in ("finished", "running")


def find(job: Job, *, claimed: bool = False) -> Found:
    """What there is of a run of the sweep; `claimed`: by whoever asks."""
    return look(job.home, job.frames, job.settings, claimed=claimed)


def look(home: Path, frames: int, settings: dict[str, Any] | None = None, *, claimed: bool = False) -> Found:
    """The best run at a folder, that was to have so many frames and these settings: finished before running, before broken off;
    then the longest."""
    found = [_one(place, frames, settings) for place in places(home)]
    best = max(found, key=lambda one: (ORDER.index(one.state), one.frames), default=Found())
    if best.state in ("missing", "partial") and not claimed and is_claimed(home):
        return replace(best, state="running")  # It has only just begun.
    return best


def progress(home: Path) -> dict[str, Any]:
    """What the run that is under way at a folder says of itself; nothing is locked, and so nobody is disturbed."""
    latest = max(places(home), key=lambda path: path.stat().st_mtime, default=None)
    try:
        return {} if latest is None else RunFolder.open(latest).read_status()
    except UserError:
        return {}


def places(home: Path) -> list[Path]:
    """Run folders at a job's folder: itself, or those in it."""
    try:
        with os.scandir(home) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []
    return [path for path in (home, *(home / name for name in names)) if (path / CONFIG).is_file()]


def state_of(path: Path, status: dict[str, Any]) -> State:
    """Of one run folder."""
    if status.get("state") == "finished":
        return "finished"
    if held(path / CONFIG):
        return "running"
    # One that was being written has another name.
    return "broken" if any((path / "checkpoints").glob("[0-9]*/manifest.json")) else "partial"


def others(config: dict[str, Any], wanted: dict[str, Any]) -> tuple[str, ...]:
    """Settings of a run that are not those that are wanted, other than those that teach nothing."""
    if config == wanted:
        return ()
    ours = ONCE_ABSENT | {name: _named(name, value) for name, value in flat(config).items()}
    theirs = {name: _named(name, value) for name, value in flat(wanted).items()}
    names = [name for name in theirs if name not in INERT or name in IDENTITY]
    return tuple(f"{name}={ours[name]}" for name in names if name in ours and ours[name] != theirs[name])


def _one(path: Path, frames: int, settings: dict[str, Any] | None) -> Found:
    try:
        folder = RunFolder.open(path)
    except UserError:
        return Found()  # Not a run, whatever it is.
    try:
        status = folder.read_status()
    except UserError:
        status = {}
    state, done = state_of(path, status), status.get("frames", 0)
    done = done if isinstance(done, int) else 0
    if state == "finished" and done < frames and not status.get("stopped"):
        state = "broken"  # The sweep has been told to go on for longer.
    differing = () if settings is None else others(folder.config, settings)
    return Found(state, path, done, status, differing, folder.config.get("training", {}).get("frames", 0))


def _named(name: str, value: str) -> str:
    """`"ambs/PointGoal1-v0"` and `"PointGoal1"` are the same task."""
    return re.sub(r'^"(?:ambs/)?(.*?)(?:-v\d+)?"$', r'"\1"', value) if name == "env" else value

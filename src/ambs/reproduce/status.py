"""What there is of a grid: run folders, and results kept of runs, below the grid's folder. Nothing is changed here."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ambs.errors import UserError
from ambs.report.groups import INERT, ONCE_ABSENT
from ambs.report.outcomes import takes_part
from ambs.report.runs import Run, flat, read_run
from ambs.reproduce.grid import Cell, Scale, settings
from ambs.storage.lock import Held
from ambs.storage.run_folder import RunFolder

State = Literal["missing", "partial", "broken", "running", "finished"]
"""`partial`: short, and without a checkpoint to go on from. `broken`: can be resumed. `running`: by another process, now."""
_ORDER: tuple[State, ...] = ("missing", "partial", "broken", "running", "finished")
IDENTITY = ("env", "method", "seed")


@dataclass(frozen=True)
class RunStatus:
    """A cell and the best run of it that is there."""

    cell: Cell
    state: State = "missing"
    run: Run | None = None
    others: tuple[str, ...] = ()
    """Settings of the run that are not the grid's, as `name=value`."""

    @property
    def frames(self) -> int:
        """Frames that the run has."""
        return 0 if self.run is None else self.run.frames


def find_run(cell: Cell, out: Path, scale: Scale, semantics: str = "corrected") -> RunStatus:
    """The best run at the cell's folder: the folder itself, or a run folder in it; finished before broken, then the longest."""
    home = out / cell.folder
    places = [path.parent for path in (home / "config.json", *sorted(home.glob("*/config.json"))) if path.is_file()]
    found: list[RunStatus] = []
    for place in places:
        try:
            run = read_run(place)
        except UserError:
            continue  # Not a run, whatever it is.
        found.append(RunStatus(cell, _state(run, cell.panel.frames), run))
    if not found:
        return RunStatus(cell)
    best = max(found, key=lambda one: (_ORDER.index(one.state), one.frames))
    assert best.run is not None
    return RunStatus(cell, best.state, best.run, _others(best.run, wanted(cell, scale, semantics)))


def wanted(cell: Cell, scale: Scale, semantics: str = "corrected") -> dict[str, Any]:
    """All settings that the cell's run has, nested; what `command` makes of it."""
    from ambs.config.resolve import resolve, to_dict

    changes: dict[str, Any] = {"env": cell.panel.task}
    for name, value in settings(cell, scale):
        part, _, last = name.rpartition(".")
        (changes.setdefault(part, {}) if part else changes)[last] = value
    return to_dict(resolve(scale.preset, semantics=semantics, method=cell.variant.method, changes=changes))


def _state(run: Run, frames: int) -> State:
    if run.state == "finished" or takes_part(run, min(frames, run.wanted or frames)):
        return "finished"
    if not any((run.path / "checkpoints").glob("*/manifest.json")):
        return "partial"
    folder = RunFolder.open(run.path)
    try:
        folder.claim()
    except Held:
        return "running"
    except UserError:
        return "broken"  # Not ours to write; resuming will say so.
    folder.unlock()
    return "broken"


def _others(run: Run, config: dict[str, Any]) -> tuple[str, ...]:
    """Settings that differ, other than those that teach nothing."""
    ours = ONCE_ABSENT | {name: _named(name, value) for name, value in flat(run.config).items()}
    theirs = {name: _named(name, value) for name, value in flat(config).items()}
    names = [name for name in theirs if name not in INERT or name in IDENTITY]
    return tuple(f"{name}={ours[name]}" for name in names if name in ours and ours[name] != theirs[name])


def _named(name: str, value: str) -> str:
    """`"ambs/PointGoal1-v0"` and `"PointGoal1"` are the same task."""
    return re.sub(r'^"(?:ambs/)?(.*?)(?:-v\d+)?"$', r'"\1"', value) if name == "env" else value

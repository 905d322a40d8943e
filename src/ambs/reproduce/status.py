"""What there is of a grid: run folders, and results kept of runs, below the grid's folder. Nothing is changed here."""

from dataclasses import dataclass

from ambs.errors import UserError
from ambs.report.outcomes import takes_part
from ambs.report.runs import Run, read_run
from ambs.reproduce.grid import Cell
from ambs.sweep.plan import Job
from ambs.sweep.status import ORDER, Found, State, others, places, state_of


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

    @property
    def found(self) -> Found:
        """The same, as of any sweep's run."""
        if self.run is None:
            return Found(self.state)
        return Found(self.state, self.run.path, self.frames, self.run.status, self.others)


def find_run(cell: Cell, job: Job) -> RunStatus:
    """The best run at the cell's folder: the folder itself, or a run folder in it; finished before broken, then the longest."""
    found: list[RunStatus] = []
    for place in places(job.home):
        try:
            run = read_run(place)
        except UserError:
            continue  # Not a run, whatever it is.
        found.append(RunStatus(cell, _state(run, cell.panel.frames), run))
    if not found:
        return RunStatus(cell)
    best = max(found, key=lambda one: (ORDER.index(one.state), one.frames))
    assert best.run is not None
    return RunStatus(cell, best.state, best.run, others(best.run.config, job.settings))


def _state(run: Run, frames: int) -> State:
    """As of any run; one that was kept without its checkpoints is finished where it went far enough to be compared."""
    enough = takes_part(run, min(frames, run.wanted or frames))
    return "finished" if enough else state_of(run.path, run.status)

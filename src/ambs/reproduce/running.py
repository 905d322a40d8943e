"""Running what is missing of a grid: a process per run, a few side by side, each of which can be broken off and resumed."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from ambs.errors import STOPPED
from ambs.reproduce.grid import Scale, command
from ambs.reproduce.status import RunStatus
from ambs.storage.subprocesses import AMBS, Child, launch, stop

COMPILED = Path("ambs", "compiled")
"""Folder, among the user's caches, of compiled programs: runs that differ in their seed only have the same ones. Not the
grid's, which may come from elsewhere: such a program is run as it is."""
BAD_INPUT = 2
"""Exit code of a run that never began; the next would not either."""
PAUSE = 0.5
"""Seconds between two looks at the children."""


@dataclass
class Outcome:
    """How the runs ended, by the name of their folder."""

    finished: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    """Saved, or killed: `broken` next time."""
    failed: dict[str, str] = field(default_factory=dict)
    """Why."""


@dataclass(frozen=True)
class Plan:
    """Where and how a grid is run."""

    out: Path
    scale: Scale
    semantics: str = "corrected"
    device: str = "auto"
    parallel: int = 1
    program: Sequence[str] = AMBS

    def begin(self, found: RunStatus) -> Child:
        """Start a run, or go on with one that broke off."""
        home = self.out / found.cell.folder
        place = ["--device", self.device]
        environment = _defaults(self.parallel) | os.environ
        options: dict[str, Any] = {"program": self.program, "environment": environment}
        name = str(found.cell.folder)
        if found.state == "broken" and found.run is not None:
            run = found.run.path
            return launch(
                name, ["resume", str(run), "--env", found.cell.panel.task, *place], home, resumed=run, **options
            )
        words = command(found.cell, self.scale, self.semantics)
        return launch(name, [*words, "--out", str(home), *place], home, **options)


def _defaults(parallel: int) -> dict[str, str]:
    """Variables for the children, where the user has not set them."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    found = {"JAX_COMPILATION_CACHE_DIR": str(caches.absolute() / COMPILED)}
    if parallel > 1:
        # JAX takes three quarters of a GPU's memory for one process.
        found["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.9 / parallel:.3f}"
    return found


def run_all(
    plan: Plan, todo: Sequence[RunStatus], stopping: Event, on_progress: Callable[[str, dict[str, Any]], None]
) -> Outcome:
    """Run them in order until all have ended or `stopping` is set; then all that are under way save and end.

    A run that fails does not keep the others from running; a new one that is refused (bad input, no such device) does,
    because the next would be, too.
    """
    waiting, outcome = list(todo), Outcome()
    under_way: list[Child] = []
    try:
        while (waiting or under_way) and not stopping.is_set():
            while waiting and len(under_way) < plan.parallel:
                under_way.append(plan.begin(waiting.pop(0)))
            for child in list(under_way):
                code = child.process.poll()
                on_progress(child.name, child.status())
                if code is None:
                    continue
                under_way.remove(child)
                _note(outcome, child, code)
                if code == BAD_INPUT and child.resumed is None:
                    waiting = []
            if under_way:
                stopping.wait(PAUSE)
    finally:
        stop(under_way)
        for child in under_way:
            _note(outcome, child, child.process.returncode)
    return outcome


def _note(outcome: Outcome, child: Child, code: int) -> None:
    if code == 0:
        outcome.finished.append(child.name)
    elif code == STOPPED or code < 0:
        outcome.stopped.append(child.name)
    else:
        outcome.failed[child.name] = f"ended with code {code}: {child.last_words()}; see {child.log}"

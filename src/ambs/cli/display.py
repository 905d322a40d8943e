"""What a training run shows while it lasts: a live panel on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import collections
import functools
import os
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from ambs.storage.tensorboard import MISSING
from ambs.training.observers import Observer, Row, shown_to

if TYPE_CHECKING:
    from ambs.training.session import Session


LEFT = "left"
"""The fact that a bar tells, where there is one."""


class _Console(Console):
    """A console whose reader may go away: the run goes on and says no more. Rich would end it."""

    def on_broken_pipe(self) -> None:
        """Write to nobody from now on."""
        self.quiet = True
        silence()


def silence() -> None:
    """Let what is still to be printed go nowhere; Python would fail when it flushes at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


class Display:
    """Shows rows of metrics of a run, or of several side by side; a context manager."""

    def __init__(self) -> None:
        self.console = _Console()
        self.live: Live | None = None
        self.runs: list[_Run] = []
        self.bar = Progress(
            TextColumn("{task.description}"),
            TextColumn("{task.completed:,.0f} of {task.total:,.0f} frames"),
            BarColumn(),
            TimeRemainingColumn(),
        )
        self._lock = threading.Lock()

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def begin(self, *sessions: Session) -> None:
        """Say what is being trained, now that nothing was refused."""
        trainer = sessions[0].trainer
        config, replay = trainer.config, trainer.replay
        shield = "on" if config.shielded else "off"
        for one in sessions:
            seed, path = one.trainer.config.seed, one.folder.path
            self.console.print(f"{config.env}, {config.obs}, {config.method}, shield {shield}, seed {seed} → {path}")
        each = f", for each of {len(sessions)} seeds" if len(sessions) > 1 else ""
        self.console.print(
            f"replay buffer: {replay.nbytes / 1e9:.2f} GB in {replay.place} memory when full{each}", style="dim"
        )
        if MISSING:
            self.console.print(f"note: {MISSING}", style="dim", highlight=False, soft_wrap=True, markup=False)
        for caveat in (trainer.caveat, config.shield.caveat if config.shielded else ""):
            if caveat:
                self.console.print(f"note: {caveat}", style="yellow", soft_wrap=True)
        self.console.print("Compiling, which takes up to a minute or two …", style="dim")
        for run, one in zip(self.runs, sessions, strict=True):
            run.wanted = config.training.frames
            run.task = self.bar.add_task(run.name, total=run.wanted, completed=one.trainer.accounts.frames)
        if self.console.is_terminal:
            self.live = Live(self.bar, console=self.console, refresh_per_second=4)
            self.live.start()

    def observer(self, name: str = "") -> Observer:
        """Shows rows of one more run as they come; `name` tells it from others."""
        run = _Run(name)
        self.runs.append(run)
        return replace(shown_to(functools.partial(self._show, run)), episode=run.episode)

    def _show(self, run: _Run, row: Row) -> None:
        with self._lock:  # Runs of a fleet are in threads of their own.
            run.take(row)
            if self.live is None:
                facts = [f"{name} {value}" for name, value in run.facts.items()]
                words = "  ".join([f"{row['frames']:>9,} frames", *facts])
                self.console.print(f"{run.name}  {words}" if run.name else words, soft_wrap=True, highlight=False)
                return
            self.bar.update(run.task, completed=row["frames"])
            outer = Table.grid()
            outer.add_row(self.bar)
            outer.add_row(self._grid())
            self.live.update(outer)

    def _grid(self) -> Table:
        """A row for every fact, a column for every run of which there is any."""
        known = [run for run in self.runs if run.facts]
        grid = Table.grid(padding=(0, 2))
        if len(self.runs) > 1:
            grid.add_row("", *(run.name for run in known))
        for fact in dict.fromkeys(fact for run in known for fact in run.facts if fact != LEFT):
            grid.add_row(fact, *(f"[bold]{run.facts.get(fact, '-')}[/]" for run in known))
        return grid


class _Run:
    """What is shown of one run."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.wanted = 0
        """Frames in all."""
        self.returns: collections.deque[float] = collections.deque(maxlen=20)
        self.costs: collections.deque[float] = collections.deque(maxlen=20)
        self.since: tuple[float, int] | None = None
        """Clock and frames at the first row by which something had been learned: random play and compiling, which come before,
        say nothing about how fast the rest will be."""
        self.facts: dict[str, str] = {}
        """What is told of the latest row, by name."""
        self.task = TaskID(0)

    def episode(self, row: Row) -> None:
        """An episode has ended."""
        self.returns.append(row["return"])
        self.costs.append(row["violations"])

    def take(self, row: Row) -> None:
        """A new row of metrics."""
        self.facts = dict(self._facts(row))
        if self.since is None and row["updates"]:
            self.since = (time.monotonic(), row["frames"])

    def _facts(self, row: Row) -> list[tuple[str, str]]:
        facts = []
        if self.returns:
            facts.append(("return", f"{sum(self.returns) / len(self.returns):.2f}"))
            facts.append(("violations/episode", f"{sum(self.costs) / len(self.costs):.1f}"))
        facts.append(("violations so far", f"{row['violations']}"))
        if "shield/override_rate" in row:
            facts.append(("overridden", f"{row['shield/override_rate']:.1%}"))
        if "model/total" in row:
            facts += [("model loss", f"{row['model/total']:.2f}"), ("KL", f"{row['model/kl']:.2f}")]
        if row["updates/skipped"]:
            facts.append(("updates skipped", str(row["updates/skipped"])))
        if self.since is not None:
            facts.append(("frames/s", f"{row['time/frames_per_second']:.0f}"))
            facts.append((LEFT, self.left(row["frames"])))
        return facts

    def left(self, frames: int) -> str:
        """Time to the end, at the speed since something was learned."""
        clock, before = self.since or (time.monotonic(), frames)
        rate = (frames - before) / max(time.monotonic() - clock, 1e-9)
        seconds = max(self.wanted - frames, 0) / rate if rate > 0 else 0
        return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"

"""What a training run shows while it lasts: a live panel on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import collections
import os
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ambs.storage.tensorboard import MISSING
from ambs.training.observers import Observer, Row, shown_to

if TYPE_CHECKING:
    from ambs.training.session import Session


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
    """Shows rows of metrics; a context manager."""

    def __init__(self) -> None:
        self.console = _Console()
        self.live: Live | None = None
        self.returns: collections.deque[float] = collections.deque(maxlen=20)
        self.costs: collections.deque[float] = collections.deque(maxlen=20)
        self.since: tuple[float, int] | None = None
        """Clock and frames at the first row by which something had been learned: random play and compiling, which come before,
        say nothing about how fast the rest will be."""

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def begin(self, session: Session) -> None:
        """Say what is being trained, now that nothing was refused."""
        trainer = session.trainer
        config, replay = trainer.config, trainer.replay
        self.wanted = config.training.frames
        shield = "on" if config.shielded else "off"
        self.console.print(
            f"{config.env}, {config.obs}, {config.method}, shield {shield}, seed {config.seed} → {session.folder.path}"
        )
        self.console.print(
            f"replay buffer: {replay.nbytes / 1e9:.2f} GB in {replay.place} memory when full", style="dim"
        )
        if MISSING:
            self.console.print(f"note: {MISSING}", style="dim", highlight=False, soft_wrap=True, markup=False)
        for caveat in (trainer.caveat, config.shield.caveat if config.shielded else ""):
            if caveat:
                self.console.print(f"note: {caveat}", style="yellow", soft_wrap=True)
        self.console.print("Compiling, which takes up to a minute or two …", style="dim")
        if self.console.is_terminal:
            self.bar = Progress(
                TextColumn("{task.completed:,.0f} of {task.total:,.0f} frames"), BarColumn(), TimeRemainingColumn()
            )
            self.task = self.bar.add_task("", total=self.wanted, completed=trainer.accounts.frames)
            self.live = Live(self.bar, console=self.console, refresh_per_second=4)
            self.live.start()

    def observer(self) -> Observer:
        """Shows rows as they come."""
        return replace(shown_to(self.show), episode=self._episode)

    def _episode(self, row: Row) -> None:
        self.returns.append(row["return"])
        self.costs.append(row["violations"])

    def show(self, row: Row) -> None:
        """A new row of metrics."""
        facts = self._facts(row)
        if self.since is None and row["updates"]:
            self.since = (time.monotonic(), row["frames"])
        if self.live is None:
            self.console.print(
                "  ".join([f"{row['frames']:>9,} frames", *(f"{name} {value}" for name, value in facts)]),
                soft_wrap=True,
                highlight=False,
            )
            return
        grid = Table.grid(padding=(0, 2))
        for name, value in facts:
            grid.add_row(name, f"[bold]{value}[/]")
        self.bar.update(self.task, completed=row["frames"])
        outer = Table.grid()
        outer.add_row(self.bar)
        outer.add_row(grid)
        self.live.update(outer)

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
            facts += [("left", self._left(row["frames"], *self.since))] if self.live is None else []
        return facts

    def _left(self, frames: int, clock: float, before: int) -> str:
        rate = (frames - before) / max(time.monotonic() - clock, 1e-9)
        seconds = max(self.wanted - frames, 0) / rate if rate > 0 else 0
        return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"

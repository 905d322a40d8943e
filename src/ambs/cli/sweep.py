"""`ambs sweep`: many runs from one file, on this machine or on many."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from ambs.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

COMPARISONS = ("table1", "figure3", "figure4", "appendix")
"""What `ambs reproduce` knows by name."""


@dataclass(frozen=True)
class Sweep:
    """Run many trainings: those that a file declares (a grid or a list of settings, and seeds), or one of the comparisons of
    `ambs reproduce`. On Ray, on one machine or a cluster, or without it side by side on this machine.

    The run folders are the truth: runs that are finished are skipped and those that broke off are resumed, so the same command
    goes on after anything. Ctrl-C saves what is under way, and the exit code is then 75.

    Example: ambs sweep examples/sweep.toml --dry-run
    Example: ambs sweep status runs/sweep
    """

    what: tyro.conf.Positional[str]
    """A sweep's file (.toml), or table1, figure3, figure4 or appendix; or `status`, followed by a sweep's file or folder."""
    of: tyro.conf.Positional[Path | None] = None
    """With status: the sweep's file or folder."""
    on: Literal["local", "ray"] | None = None
    """local: subprocesses on this machine. ray: Ray, which is started for this machine where it belongs to none. None: ray where
    that is installed, else local."""
    address: str | None = None
    """Of a Ray cluster to join: its head, host:port, or auto for the one that this machine belongs to."""
    dry_run: bool = False
    """List the runs and how long they would take; run and write nothing."""
    out: Path | None = None
    """Folder of the sweep; None: the file's own, or runs/reproduce-<scale>."""
    parallel: int | None = None
    """Without Ray, runs side by side; None: as many as there are processors for, on a GPU as many as share it."""
    fleet: int | None = None
    """Seeds of one setting that are trained in one process, as by ambs train --seeds; None: 5 on a GPU that a run has for itself,
    else 1."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to compute."""
    env: str | None = None
    """The sweep's environment once more, where it is one of your own (module:factory): a file's word does not run code."""
    scale: Literal["paper", "small", "tiny"] = "small"
    """Of a comparison of the paper; see ambs reproduce --help."""

    def run(self) -> int:
        """List, run, say what is left."""
        from rich.console import Console

        from ambs.config.checks import whole
        from ambs.config.seeds import MOST as FLEET

        console = Console(highlight=False)
        if self.parallel is not None:
            whole("--parallel", self.parallel, 1)
        if self.fleet is not None:
            whole("--fleet", self.fleet, 1, FLEET)
        if self.what == "status":
            return self._status(console)
        if self.of is not None:
            raise UserError(f"{self.of} is one too many: ambs sweep FILE, or ambs sweep status FILE")
        if self.what in COMPARISONS and not Path(self.what).exists():
            return self._reproduce()
        return self._sweep(console)

    def _sweep(self, console: Console) -> int:
        from ambs.cli.sweeping import close, engine_meant, list_runs, run_sweep
        from ambs.sweep.attempt import Means
        from ambs.sweep.file import read_sweep
        from ambs.sweep.status import find

        sweep = read_sweep(self._file(Path(self.what)), out=self.out, env=self.env)
        on = engine_meant(self.on, self.address)
        found = [(job, find(job)) for job in sweep.jobs]
        console.print(f"{sweep.says}: {len(found):,} runs in {sweep.out}\n", soft_wrap=True)
        list_runs(console, found, sweep.needs.gpus)
        if self.dry_run:
            return 0
        todo = [job for job, one in found if one.state != "finished" or one.others]
        means = Means("cpu" if sweep.needs.gpus == 0 else self.device)  # A run that needs none is not to take one.
        outcome = run_sweep(
            console, sweep, todo, on, means, parallel=self.parallel, fleet=self.fleet, address=self.address
        )
        code = close(console, [find(job) for job in sweep.jobs], outcome)
        console.print(f"See what it shows:  ambs report {sweep.out}", soft_wrap=True)
        return code

    def _reproduce(self) -> int:
        from ambs.cli.reproduce import Reproduce
        from ambs.cli.sweeping import engine_meant

        return Reproduce(
            self.what,  # type: ignore[arg-type]  # One of `COMPARISONS`.
            scale=self.scale,
            out=self.out,
            parallel=1 if self.parallel is None else self.parallel,
            fleet=self.fleet,
            device=self.device,
            dry_run=self.dry_run,
            on=engine_meant(self.on, self.address),
            address=self.address,
        ).run()

    def _status(self, console: Console) -> int:
        from ambs.sweep.file import read_sweep
        from ambs.sweep.ledger import Entry, read_ledger
        from ambs.sweep.status import find

        if self.of is None:
            raise UserError("ambs sweep status needs the sweep's file or folder, such as ambs sweep status runs/sweep")
        if self.of.is_dir():
            found = read_ledger(self.of)
        else:
            sweep = read_sweep(self._file(self.of), out=self.out, env=self.env)
            found = [(Entry(job.name, job.frames), find(job)) for job in sweep.jobs]
        _show(console, found)
        return 0

    def _file(self, path: Path) -> Path:
        if path.is_dir():
            raise UserError(
                f"{path} is a folder, and a sweep is declared in a file; ambs sweep status {path} tells of it"
            )
        if not path.exists():
            raise UserError(f"there is no {path}; a sweep is a file (.toml) or one of {', '.join(COMPARISONS)}")
        return path


def _show(console: Console, found: list) -> None:
    """A row per run that is not finished, and how many there are of each state."""
    from collections import Counter

    from rich import box
    from rich.table import Table

    from ambs.cli.sweeping import LISTED

    rest = [(entry, one) for entry, one in found if one.state != "finished"]
    if rest:
        table = Table("run", "there is", "of frames", "", box=box.SIMPLE_HEAD, pad_edge=False)
        for entry, one in rest[:LISTED]:
            there = one.state if one.state == "missing" else f"{one.state} at {one.frames:,}"
            table.add_row(entry.name, there, f"{entry.frames:,}", entry.why or one.status.get("message", ""))
        console.print(table)
    counts = Counter(one.state for _, one in found)
    done, wanted = (
        sum(values) for values in ([min(o.frames, e.frames) for e, o in found], [e.frames for e, _ in found])
    )
    early = sum(bool(one.status.get("stopped")) for _, one in found)
    told = ", ".join(f"{count:,} {state}" for state, count in counts.most_common())
    told += f" ({early:,} of them stopped early)" if early else ""
    console.print(f"{len(found):,} runs: {told}; {done:,} of {wanted:,} frames.", soft_wrap=True)

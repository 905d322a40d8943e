"""`ambs reproduce`: the paper's table and figures, as a grid of runs."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal

import tyro

from ambs.cli.words import refuse_file
from ambs.errors import UserError


@dataclass(frozen=True)
class Reproduce:
    """Run what a table or figure of the paper compares, and draw it beside the paper's figures.

    table1: PENL, PLPG, COPT and LAG (both rules for its μ) on PointGoal1, PointGoal2, CarGoal1, and on PointGoal1 for 10M
    frames. figure3: its first three tasks. figure4: its long runs. appendix: DreamerV3, LAG and PENL on three tasks; AMBS
    against its penalties in the long run.

    Runs that are finished are skipped and those that broke off are resumed, so the same command goes on where it ended;
    comparisons share their runs. Ctrl-C saves what is under way. Writes <what>.png, .md and .html from what is there.

    Example: ambs reproduce table1 --scale small --dry-run
    """

    what: tyro.conf.Positional[Literal["table1", "figure3", "figure4", "appendix"]]
    """Which table or figure."""
    scale: Literal["paper", "small", "tiny"] = "small"
    """paper: the paper's sizes and 5 seeds. small: its frames, networks of size xs, a quarter of its train ratio, one seed;
    a day or two on one GPU. tiny: PointWorld for a few hundred steps, to try the command itself."""
    seeds: int | None = None
    """Seeds of each method; None: the scale's."""
    methods: tuple[str, ...] | None = None
    """Only these of its methods: names that `ambs train --method` knows, and lag-max; None: all."""
    tasks: tuple[str, ...] | None = None
    """Only these of its tasks; None: all."""
    semantics: Literal["corrected", "paper"] = "corrected"
    """The paper with its slips repaired, or what its code did."""
    out: Path | None = None
    """Folder of the grid, <task>/<method>-s<seed>/ below it; None: runs/reproduce-<scale>. Results kept of runs may lie in it."""
    parallel: int = 1
    """Runs side by side; on a GPU they share its memory evenly, unless XLA_PYTHON_CLIENT_MEM_FRACTION is set."""
    fleet: int | None = None
    """Seeds of a cell that are trained in one process, as by ambs train --seeds; None: 5 on a GPU that a run has for itself, else
    1."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to compute."""
    dry_run: bool = False
    """List the runs and how long they would take; run and write nothing."""
    on: Literal["local", "ray"] = "local"
    """local: subprocesses on this machine. ray: as `ambs sweep --on ray`, --parallel being what the machines have room for."""
    address: str | None = None
    """Of a Ray cluster to join; see ambs sweep --help."""

    def run(self) -> int:
        """List, run, draw."""
        from rich.console import Console

        from ambs.cli.sweeping import close, engine_meant, list_runs, run_sweep
        from ambs.config.checks import whole
        from ambs.config.seeds import MOST as FLEET
        from ambs.reproduce.grid import COMPARISONS, SCALES, cells, job, panels
        from ambs.reproduce.render import render
        from ambs.reproduce.status import find_run
        from ambs.sweep.attempt import Means
        from ambs.sweep.plan import Sweep

        whole("--parallel", self.parallel, 1)
        if self.fleet is not None:
            whole("--fleet", self.fleet, 1, FLEET)
        for name in ("methods", "tasks"):
            if getattr(self, name) == ():
                raise UserError(f"--{name} names none: name at least one, or leave it out for all")
        comparison, scale, out = COMPARISONS[self.what], SCALES[self.scale], self._out()
        chosen = cells(
            panels(comparison, scale, self.methods or (), self.tasks or ()),
            scale.seeds if self.seeds is None else self.seeds,
        )
        jobs = {cell: job(cell, out, scale, self.semantics) for cell in chosen}
        found = [find_run(cell, one) for cell, one in jobs.items()]
        console = Console(highlight=False)
        console.print(f"{comparison.name}: {comparison.says}\nscale {scale.name}: {scale.says}\nin {out}\n")
        list_runs(console, [(jobs[one.cell], one.found) for one in found])
        on = engine_meant(self.on, self.address)
        if self.dry_run:
            return 0
        import_module("ambs.report.plots")  # What is missing is said at once, not after days of training.
        sweep = Sweep(comparison.name, out, tuple(jobs.values()), says=comparison.says)
        todo = [jobs[one.cell] for one in found if one.state != "finished"]
        means = Means(self.device)
        outcome = run_sweep(
            console, sweep, todo, on, means, parallel=self.parallel, fleet=self.fleet, address=self.address
        )
        found = [find_run(cell, one) for cell, one in jobs.items()]
        for path in render(comparison, found, out):
            console.print(f"Wrote {path}", soft_wrap=True)
        return close(console, [one.found for one in found], outcome)

    def _out(self) -> Path:
        if self.out is not None:
            refuse_file("--out", self.out)
            return self.out
        return Path("runs") / (f"reproduce-{self.scale}" + ("-paper" if self.semantics == "paper" else ""))

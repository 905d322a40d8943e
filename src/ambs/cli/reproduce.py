"""`ambs reproduce`: the paper's table and figures, as a grid of runs."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from ambs.cli.words import refuse_file
from ambs.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from ambs.reproduce.running import Outcome, Plan
    from ambs.reproduce.status import RunStatus


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
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to compute."""
    dry_run: bool = False
    """List the runs and how long they would take; run and write nothing."""

    def run(self) -> int:
        """List, run, draw."""
        from rich.console import Console

        from ambs.reproduce.grid import COMPARISONS, SCALES, cells, panels
        from ambs.reproduce.render import render
        from ambs.reproduce.running import Plan
        from ambs.reproduce.status import find_run

        if self.parallel < 1:
            raise UserError(f"--parallel must be at least 1, got {self.parallel}")
        for name in ("methods", "tasks"):
            if getattr(self, name) == ():
                raise UserError(f"--{name} names none: name at least one, or leave it out for all")
        comparison, scale = COMPARISONS[self.what], SCALES[self.scale]
        chosen = cells(
            panels(comparison, scale, self.methods or (), self.tasks or ()),
            scale.seeds if self.seeds is None else self.seeds,
        )
        plan = Plan(self._out(), scale, self.semantics, self.device, self.parallel)
        found = [find_run(cell, plan.out, scale, self.semantics) for cell in chosen]
        console = Console(highlight=False)
        console.print(f"{comparison.name}: {comparison.says}\nscale {scale.name}: {scale.says}\nin {plan.out}\n")
        _list(console, found, plan)
        if self.dry_run:
            return 0
        import_module("ambs.report.plots")  # What is missing is said at once, not after days of training.
        outcome = _run(console, found, plan)
        found = [find_run(cell, plan.out, scale, self.semantics) for cell in chosen]
        for path in render(comparison, found, plan.out):
            console.print(f"Wrote {path}", soft_wrap=True)
        return _close(console, found, outcome)

    def _out(self) -> Path:
        if self.out is not None:
            refuse_file("--out", self.out)
            return self.out
        return Path("runs") / (f"reproduce-{self.scale}" + ("-paper" if self.semantics == "paper" else ""))


def _list(console: Console, found: list[RunStatus], plan: Plan) -> None:
    from rich import box
    from rich.table import Table

    from ambs.reproduce.estimate import estimate, measured, work
    from ambs.reproduce.status import wanted

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("run", "frames", "train ratio", "there is", "to do"):
        table.add_column(column, justify="right" if column in ("frames", "train ratio") else "left")
    todo = {"finished": "–", "running": "leave it to the other process", "broken": "resume"}
    for one in found:
        there = one.state if one.state in ("missing", "finished") else f"{one.state} at {one.frames:,}"
        there += f" ({', '.join(one.others)})" if one.others else ""
        if one.state == "finished" and one.frames < 0.98 * one.cell.panel.frames:
            there += f" after {one.frames:,} frames"
        panel = one.cell.panel
        table.add_row(
            str(one.cell.folder), f"{panel.frames:,}", f"{panel.train_ratio:g}", there, todo.get(one.state, "train")
        )
    console.print(table)
    left = [work(one, wanted(one.cell, plan.scale, plan.semantics)) for one in found if _due(one)]
    for sentence in estimate(left, measured(found)):
        console.print(sentence, soft_wrap=True)


def _due(one: RunStatus) -> bool:
    return one.state not in ("finished", "running")


def _run(console: Console, found: list[RunStatus], plan: Plan) -> Outcome:
    """Run what is due, with a bar for each run that is under way."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from ambs.reproduce.running import run_all
    from ambs.training.signals import stopping

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[facts]}"), TimeRemainingColumn())
    with stopping() as stop, Progress(*columns, console=console) as bars:
        tasks: dict[str, Any] = {}

        def progress(name: str, status: dict[str, Any]) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, facts="compiling", total=None)
                if not console.is_terminal:
                    console.print(f"{name} begins")
            if status:
                done, violations = status.get("frames", 0), status.get("violations", 0)
                facts = f"{done:,} frames, {violations:,} violating"
                bars.update(tasks[name], completed=done, total=status.get("wanted_frames"), facts=facts)

        return run_all(plan, [one for one in found if _due(one)], stop, progress)


def _close(console: Console, found: list[RunStatus], outcome: Outcome) -> int:
    """Say what is left; 0 if nothing is, 75 if the same command goes on with it, 1 if some run failed."""
    from ambs.errors import STOPPED

    for name, why in outcome.failed.items():
        console.print(f"{name} {why}", soft_wrap=True, markup=False)
    left = [one for one in found if one.state != "finished"]
    console.print(f"{len(found) - len(left)} of {len(found)} runs are finished.")
    if outcome.failed:
        return 1
    if left:
        console.print("Everything that ran is saved; the same command goes on with it.")
        return STOPPED
    return 0

"""`ambs quickstart`: watch a shielded and an unshielded agent learn, in minutes."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ambs.cli.words import refuse_file
from ambs.config.methods import title_with_shield
from ambs.errors import STOPPED


@dataclass(frozen=True)
class Quickstart:
    """Train an unshielded DreamerV3 and an AMBS agent on point_world side by side, and compare them.

    Takes less than eight minutes on two cores. Ends with a table, a picture, a report to open in a browser, and what to try next.
    """

    seed: int = 0
    """Worlds, weights, noise; both agents have the same."""
    episodes: int = 20
    """Episodes to evaluate each agent on."""
    frames: int | None = None
    """Train for so many frames instead of the preset's."""
    out: Path = Path("runs")
    """Folder in which a new folder `quickstart-…` is made."""

    def run(self) -> int:
        """Train both, show progress, compare."""
        import time

        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        from ambs.apps.quickstart import SHIELDED, UNSHIELDED, compare, start, wait
        from ambs.config.checks import MOST_EPISODES, whole
        from ambs.config.resolve import resolve
        from ambs.storage.subprocesses import stop

        refuse_file("--out", self.out)
        whole("--seed", self.seed, 0)
        whole("--episodes", self.episodes, 2, MOST_EPISODES)
        if self.frames is not None:
            resolve("quickstart", changes={"training": {"frames": self.frames}}).refuse_futile()
        import_module("ambs.report.quickstart_plot")  # What is missing is said at once, not after the training.
        console = Console()
        out = self.out / f"quickstart-s{self.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
        extra = [] if self.frames is None else ["--frames", str(self.frames)]
        console.print(
            f"Training two agents on point_world, side by side, into {out}; the first minute goes into compiling."
        )
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        children = [start(method, self.seed, out, extra) for method in (UNSHIELDED, SHIELDED)]
        columns = (
            TextColumn("{task.description:<20}"),
            BarColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeRemainingColumn(),
        )
        try:
            with Progress(*columns, console=console) as bars:
                tasks = {
                    child.name: bars.add_task(title_with_shield(child.name), facts="compiling", total=None)
                    for child in children
                }
                shown = dict.fromkeys(tasks, 0)

                def progress(method: str, status: dict[str, Any]) -> None:
                    if not status:
                        return
                    facts = f"{status['frames']:,} frames, {status.get('violations', 0)} violating"
                    bars.update(
                        tasks[method], completed=status["frames"], total=status.get("wanted_frames"), facts=facts
                    )
                    if not console.is_terminal and status["frames"] >= shown[method] + 10_000:
                        shown[method] = status["frames"]
                        console.print(f"{title_with_shield(method)}: {facts}", highlight=False)

                wait(children, progress)
        except KeyboardInterrupt:
            stop(children)
            for child in children:
                if child.process.returncode == STOPPED and child.run is not None:
                    console.print(f"Stopped and saved; go on with:  ambs resume {child.run}", soft_wrap=True)
                elif child.process.returncode != 0:
                    console.print(f"{child.name} was stopped before there was anything to save; see {child.log}")
            return STOPPED
        runs = {child.name: child.run for child in children if child.run is not None}
        console.print("Evaluating both in the same unseen worlds …")
        _print(console, compare(runs, out, self.seed, self.episodes), runs[SHIELDED])
        return 0


def _print(console: Any, result: dict[str, Any], shielded: Path) -> None:
    from rich.table import Table

    from ambs.apps.quickstart import SHIELDED, UNSHIELDED

    table = Table(title=f"{result['evaluation']['random']['episodes']} evaluation episodes, mean [95 % CI]")
    for column in ("", "random", title_with_shield(UNSHIELDED), title_with_shield(SHIELDED)):
        table.add_column(column)
    sides = ("random", UNSHIELDED, SHIELDED)
    evaluation = result["evaluation"]
    for title, key in (
        ("return per episode", "return"),
        ("violating frames per 1000", "violations_per_1000"),
        ("override rate", "override_rate"),
    ):
        table.add_row(title, *(_cell(evaluation[side].get(key)) for side in sides))
    for title, values in (
        ("violating frames in training", result["cumulative_violations"]),
        (
            "… per 1000, last quarter",
            {k: round(v["violations_per_1000"], 1) for k, v in result["last_quarter"].items()},
        ),
        ("return, last quarter", {k: round(v["return"], 1) for k, v in result["last_quarter"].items()}),
    ):
        table.add_row(title, "-", str(values[UNSHIELDED]), str(values[SHIELDED]))
    console.print(table)
    for check, held in result["checks"].items():
        console.print(f"  {'yes' if held else 'NO ':<3} {check}", highlight=False)
    said = "held" if result["held"] else "did NOT hold"
    console.print(f"The comparison {said} for seed {result['seed']}.")
    console.print("Wrote " + " and ".join(result["files"]), soft_wrap=True, highlight=False)
    console.print(f"Look at all of it:  {result['report']}", soft_wrap=True, highlight=False)
    for title, command in (
        ("Next, see what the shield itself is worth:", f"ambs eval {shielded} --shield paired"),
        ("And why it stepped in:", f"ambs eval {shielded} --episodes 10 --record recorded && ambs inspect recorded"),
    ):
        console.print(f"{title}  {command}", soft_wrap=True, highlight=False)


def _cell(values: dict[str, float | None] | None) -> str:
    from ambs.cli.evaluate import interval_cell

    return "-" if values is None else interval_cell(values)

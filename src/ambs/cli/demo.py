"""`ambs demo`: see a shield work, without training anything."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any

from ambs.cli.words import refuse_file

MOST_EPISODES = 10_000
"""Whose pictures and futures are kept until all are over."""


@dataclass(frozen=True)
class Demo:
    """Drive a reckless hand-written policy through point_world, shield off and on in the same worlds, and compare.

    Takes less than a minute on two cores. Writes a picture and the figures as JSON.
    """

    episodes: int = 16
    """Episodes with and without shield."""
    seed: int = 0
    """Worlds and noise; the same seed gives the same figures."""
    out: Path = Path("runs/demo")
    """Folder for demo.png and demo.json."""
    safety_level: float = 0.1
    """Δ: an action is executed only if it keeps clear of hazards for the horizon with probability at least 1 − Δ."""
    horizon: int = 30
    """Steps ahead that must be safe."""

    def run(self) -> int:
        """Run, show progress, print the comparison."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        from ambs.apps.demo import run
        from ambs.config.checks import whole
        from ambs.errors import UserError
        from ambs.shield import ShieldConfig

        refuse_file("--out", self.out)
        whole("--episodes", self.episodes, 1, MOST_EPISODES)
        whole("--seed", self.seed, 0)
        if not 0 < self.safety_level < 1:
            raise UserError(f"--safety-level must lie strictly between 0 and 1, got {self.safety_level}")
        error = float(Decimal("0.9") * Decimal(str(self.safety_level)))
        config = ShieldConfig(safety_level=self.safety_level, approximation_error=error, horizon=self.horizon)
        import_module("ambs.report.demo_plot")  # What is missing is said at once.
        console = Console()
        console.print("Driving straight at the goal through a field of hazards, first without a shield, then with one.")
        columns = (TextColumn("shield {task.description:<3}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
        with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
            tasks = {name: progress.add_task(name) for name in ("off", "on")}

            def on_step(name: str, done: int, total: int) -> None:
                progress.update(tasks[name], completed=done, total=total)

            result = run(self.episodes, self.seed, self.out, config, on_step)
        _print(console, result)
        return 0


def _print(console: Any, result: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(title=f"{result['episodes']} episodes of {result['steps_per_episode']} steps, mean [95 % CI]")
    for column in ("", "shield off", "shield on"):
        table.add_column(column)
    rows = (
        ("episodes with a violation (share)", "episodes_with_violation"),
        ("violating steps per episode", "violating_steps_per_episode"),
        ("return per episode", "return_per_episode"),
        ("goals per episode", "goals_per_episode"),
        ("override rate", "override_rate"),
    )
    for title, key in rows:
        table.add_row(title, *(_interval(result[side][key]) for side in ("shield_off", "shield_on")))
    table.add_row("imagined futures per decision", "-", f"{result['shield_on']['traces_per_decision']:.1f}")
    console.print(table)
    saved = result["violations_saved_per_episode"]
    console.print(f"The shield saved {_interval(saved)} violating steps per episode in the same worlds.")
    console.print("Wrote " + " and ".join(result["files"]), soft_wrap=True, highlight=False)


def _interval(values: dict[str, float | None]) -> str:
    if values["low"] is None:
        return f"{values['mean']:.3g}"
    return f"{values['mean']:.3g} [dim]\\[{values['low']:.3g}, {values['high']:.3g}][/]"

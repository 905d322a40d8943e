"""`ambs foresight`: does the shield's imagination foresee danger?"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Foresight:
    """Measure whether a trained shield's imagination foresees danger, on layouts that training never used.

    The task policy plays without the shield; in every state imagination says how likely Ψ fails within the horizon, and what
    then happens tells how right it was. Also written to `foresight.json` in the run folder, where `ambs report` finds it.
    What the figures mean: docs/foresight.md.
    """

    run_folder: tyro.conf.Positional[Path]
    """The run folder."""
    horizon: int | None = None
    """Agent steps to look ahead; None: as the shield does."""
    episodes: int | None = None
    """Episodes to play without the shield, and a quarter as many with it and by the backup policy; None: as many as make
    20 000 agent steps, or 10 000 in a small world."""
    traces: int = 64
    """Imagined futures per state."""
    branched: int | None = None
    """States to try in real futures, 64 each, where the environment can be saved; None: 200 in a small world, else 0."""
    policy: str | None = None
    """The policy that the run guards, module:factory or file.py:factory; without it, its clone plays."""
    seed: int = 0
    """Worlds and noise; other than those of the training."""
    frames: int | None = None
    """Use the checkpoint at this frame; None: the newest."""
    env: str | None = None
    """The run's environment once more, where it is one of your own (module:factory): a folder's word does not run code."""
    trust: bool = False
    """Take the folder's word, as in `ambs eval`."""
    json: bool = False
    """Print the figures as JSON and nothing else."""

    def run(self) -> int:
        """Play, measure, report."""
        from ambs.cli.train import prepare_device
        from ambs.config.checks import MOST_EPISODES, whole
        from ambs.config.resolve import from_dict
        from ambs.shield.config import MOST_STEPS, MOST_TRACES
        from ambs.storage.files import finite, to_json, write_atomic
        from ambs.storage.run_folder import RunFolder

        most = {"episodes": MOST_EPISODES, "horizon": MOST_STEPS, "traces": MOST_TRACES, "branched": MOST_EPISODES}
        for name, least in (("episodes", 1), ("horizon", 1), ("traces", 1), ("branched", 0), ("seed", 0)):
            value = getattr(self, name)
            if value is not None:
                whole(f"--{name}", value, least, most.get(name))
        prepare_device("auto", from_dict(RunFolder.open(self.run_folder).config).model.size)
        result = finite({"run": str(self.run_folder), **self._measure()})
        path = self.run_folder / "foresight.json"
        write_atomic(path, to_json(result))
        if self.json:
            print(json.dumps(result))
        else:
            _print(result)
            print(f"Wrote {path}")
        return 0

    def _measure(self) -> dict[str, Any]:
        from contextlib import nullcontext

        from rich.console import Console
        from rich.progress import Progress

        from ambs.acting.agent import load
        from ambs.acting.foreign import load_policy
        from ambs.cli.evaluate import CLONE_ACTS, tell
        from ambs.foresight.measure import measure

        agent = load(self.run_folder, self.frames, env=self.env, trust=self.trust, say=tell)
        policy = None if self.policy is None else load_policy(self.policy)
        if agent.config.guards and policy is None:
            tell(CLONE_ACTS)
        console = Console(stderr=True)
        bar = Progress(console=console, transient=True) if console.is_terminal and not self.json else None
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, whole: int | None) -> None:
            if bar is not None:
                task = tasks.get(what)
                tasks[what] = bar.add_task(what, total=whole) if task is None else task
                bar.update(tasks[what], completed=done)

        with bar or nullcontext():
            return measure(
                agent,
                horizon=self.horizon,
                episodes=self.episodes,
                traces=self.traces,
                branches=self.branched,
                seed=self.seed,
                progress=show,
                policy=policy,
            )


def _print(result: dict[str, Any]) -> None:
    from rich.console import Console

    console = Console()
    console.print(
        f"{result['run']}: {result['steps']} steps of {result['episodes']} episodes in fresh layouts, shield off; "
        f"does {result['psi']} fail within {result['horizon']} steps?",
        highlight=False,
    )
    console.print(_what(result), highlight=False)
    states = result["states"]
    console.print(
        f"Of {states['counted']} states {states['fail']} do; {states['violating_now']} violate it already and do not count.",
        highlight=False,
    )
    _scores(console, result)
    _steps(console, result["by_step"])
    _rest(console, result)


def _what(result: dict[str, Any]) -> str:
    """Which agent was measured, and what its shield tolerates."""
    frames, level, asked = result["checkpoint"], result["level"], result["asked"]
    told = "The agent" if frames is None else f"The checkpoint at {frames:,} frames"
    force = "is in force, as asked for" if level == asked else f"is in force where Δ = {_short(asked)} was asked for"
    return f"{told}; behind its shield Δ = {_short(level)} {force}."


def _scores(console: Console, result: dict[str, Any]) -> None:
    from rich.table import Table

    both = {"labels drawn": result["drawn"], f"the shield's ({result['shield_labels']})": result["shield"]}
    table = Table(title="how well danger is foreseen, [95 % CI]")
    for column in ("scoring", "AUROC", "calibration error", "Brier score", "mean risk", "real"):
        table.add_column(column)
    for title, one in both.items():
        means = (f"{_short(one[name])}" for name in ("predicted", "observed"))
        table.add_row(title, *(_cell(one[name]) for name in ("auroc", "ece", "brier")), *means)
    console.print(table)
    for title, one in both.items():
        table = Table(title=f"share flagged, at this share of false alarms; scoring: {title}")
        for column in ("", *(f"{float(rate):.0%}" for rate in one["flagged_windows"])):
            table.add_column(column)
        table.add_row("all that fail", *map(_cell, one["flagged_windows"].values()))
        for lead, shares in one["detection"].items():
            cells = (_cell(share) for name, share in shares.items() if name != "states")
            table.add_row(f"{lead} step{'s' * (lead != '1')} before", *cells)
        console.print(table)


def _steps(console: Console, rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    if not rows:
        return
    table = Table(title="violations by steps ahead, imagined with the actions really taken")
    for column in ("step", "AUROC", "calibration error", "foreseen", "real"):
        table.add_column(column)
    shown = range(len(rows)) if len(rows) <= 8 else sorted({0, len(rows) - 1, *range(4, len(rows), 5)})
    for row in (rows[index] for index in shown):
        cells = (_cell(row["auroc"]), _cell(row["ece"]), _short(row["predicted"]), _short(row["observed"]))
        table.add_row(str(row["step"]), *cells)
    console.print(table)


def _rest(console: Console, result: dict[str, Any]) -> None:
    for name, cost in result["costs"].items():
        console.print(
            f"discounted cost, {name} policy: {result['horizon']} steps imagined {_short(cost['imagined'])}, "
            f"real {_short(cost['real'])}; critic {_short(cost['critic'])}, real to the end {_short(cost['real_to_the_end'])}",
            highlight=False,
        )
    for side, title in (("off", "shield off"), ("on", "shield on")):
        stays, entries = result["stays"][side], result["entries"][side]
        how = (
            f"{entries['forwards']} forwards, {entries['backwards']} backwards, {entries['out_of_view']} out of view"
            if entries["told"]
            else "how is not told by this world"
            if entries["entries"]
            else "none"
        )
        told = f"{title}, {stays['steps']} steps: {entries['entries']} entries ({how})"
        if stays["stays"]:
            told += (
                f"; {stays['stays']} stays of {_short(stays['median'])} steps (median; mean {_short(stays['mean'])}, "
                f"longest {_short(stays['max'])}), the backup policy acting in {_short(stays['backup_acted'])} of their steps"
            )
        console.print(told, highlight=False)
    if result["branched"] is not None:
        found = result["branched"]
        console.print(
            f"{found['states']} states tried in {found['futures']} real futures each: risk foreseen is off by "
            f"{_short(found['error'])} on average ({_short(found['chance_error'])} by chance), correlation "
            f"{_short(found['correlation'])}, calibration error {_short(found['ece'])}",
            highlight=False,
        )


def _cell(values: dict[str, float | None]) -> str:
    from ambs.cli.evaluate import interval_cell

    return "-" if values["mean"] is None else interval_cell({**values})


def _short(value: float | int | None) -> str:
    return "-" if value is None else f"{value:.3g}"

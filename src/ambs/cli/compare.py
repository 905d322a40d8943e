"""`ambs compare`: which differences between methods the runs support."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

EXPLAINED = (
    "Difference of means with Welch's interval; g: Hedges' g, in pooled standard deviations; P(>): how often a seed of the "
    "first exceeds one of the second; supported: the interval leaves out 0, after Holm's correction over the pairs."
)


@dataclass(frozen=True)
class Compare:
    """Print what runs reached, with 95 % intervals over seeds, and which differences between methods they support.

    Example: ambs compare runs/*
    """

    runs: tyro.conf.Positional[list[Path]]
    """Run folders, or folders of them."""
    at: int | None = None
    """Compare at so many frames, leaving out runs that are shorter by over 2 %; None: at the most that half of each method's
    runs have reached."""
    spec: str | None = None
    """Count violations by this Ψ, e.g. '!hazard', or by that of a property, from the labels that runs store; None: by the runs'
    own, or where they differ by that of the first run shown."""
    json: bool = False
    """Print one JSON object instead of tables."""

    def run(self) -> int:
        """Read, compare, print."""
        from ambs.report.summary import summarise
        from ambs.storage.files import finite

        summary = summarise(self.runs, curves=False, at=self.at, psi=self.spec)
        if self.json:
            print(json.dumps(finite(summary), allow_nan=False))
        else:
            _print(summary)
        return 0


def _print(summary: dict[str, Any]) -> None:
    from rich.console import Console

    from ambs.report import tables
    from ambs.report.paper import SOURCE

    console = Console()
    for part in summary["environments"]:
        for sentence in tables.notes(part):
            _say(console, sentence)
        for row in part["asked"]:
            _say(console, f"{part['env']}, {row['label']}: {row['sentence']}.")
        for sentence in part["unlike"]:
            _say(console, f"{part['env']}: {sentence}.")
        _table(
            console,
            f"{part['env']} at {part['frames']:,} frames: violations in all of them, the rest over their last quarter",
            tables.outcomes(part, brief=True),
            apart=True,
        )
        _table(console, "Which differences the intervals support", tables.comparisons(part, brief=True), apart=True)
        if part["comparisons"]:
            _say(console, EXPLAINED)
        _table(console, "Beside the paper", tables.paper(part))
        if part["paper"]:
            _say(console, f"The paper's figures: {SOURCE}. {tables.caveat(part)}")
        for sentence in part["left_out"]:
            _say(console, sentence)
    _table(console, "Across environments", tables.across(summary))
    for sentence in summary["coverage"].values():
        _say(console, sentence)
    if any(row["verdict"] == "no interval" for part in summary["environments"] for row in part["comparisons"]):
        _say(
            console,
            "One seed tells nothing about seeds that were not run: train at least two, better five, per method.",
        )
    for sentence in summary["notes"]:
        _say(console, f"note: {sentence}")
    for run in summary["runs"]:
        for sentence in run["missing"]:
            _say(console, f"{run['name']}: {sentence}")


def _table(console: Any, title: str, found: Any, apart: bool = False) -> None:
    """Print a table; `apart` makes one of the rows under each entry of the first column."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    if not found.rows:
        return
    console.print(Text(title, style="bold"))
    for label in dict.fromkeys(row[0] for row in found.rows) if apart else [None]:
        table = Table(
            title=None if label is None else Text(label), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
        )
        for column in found.head[apart:]:
            table.add_column(Text(column), overflow="fold")
        for row in found.rows:
            if label in (None, row[0]):
                table.add_row(*(Text(cell) for cell in row[apart:]))
        console.print(table)


def _say(console: Any, sentence: str) -> None:
    console.print(sentence, highlight=False, markup=False, soft_wrap=True)

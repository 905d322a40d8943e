"""Plot and table of a comparison from what is there of its runs, beside the paper's figures at the same number of frames."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ambs.report.groups import group_runs
from ambs.report.runs import Run
from ambs.report.summary import Part, assemble
from ambs.report.write import Format, write
from ambs.reproduce.grid import Comparison, Panel
from ambs.reproduce.status import RunStatus

NAMED = 6
"""Runs that are missing and named."""
FORMATS: tuple[Format, ...] = ("png", "md", "html")


def render(comparison: Comparison, found: Sequence[RunStatus], out: Path) -> list[Path]:
    """Write `<comparison>.png` (return left, cumulative violations right), `.md` and `.html`; none if there is no run."""
    summary = show(found)
    if summary is None:
        return []
    paths = [out / f"{comparison.name}.{kind}" for kind in FORMATS]
    for path, kind in zip(paths, FORMATS, strict=True):
        write(summary, path, kind)
    return paths


def show(found: Sequence[RunStatus]) -> dict[str, Any] | None:
    """A report with a part per panel; None if there is no run."""
    by_panel: dict[Panel, list[Run]] = {}
    notes = _absent([str(one.cell.folder) for one in found if one.run is None], len(found))
    for one in found:
        if one.run is not None:
            by_panel.setdefault(one.cell.panel, []).append(one.run)
        if one.others:
            notes.append(f"{one.cell.folder} was run with settings that are not this grid's: {', '.join(one.others)}")
    parts = [
        Part(panel.title, groups, panel.frames)
        for panel, runs in by_panel.items()
        for groups in group_runs(runs).values()
    ]
    return assemble(parts, notes) if parts else None


def _absent(names: list[str], count: int) -> list[str]:
    if not names:
        return []
    rest = f" and {len(names) - NAMED} others" if len(names) > NAMED else ""
    return [f"{len(names)} of the {count} runs of this comparison are not there yet: {', '.join(names[:NAMED])}{rest}"]

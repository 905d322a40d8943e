"""Plot and table of a comparison from what is there of its runs, beside the paper's figures at the same number of frames."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ambs.report.groups import group_runs
from ambs.report.runs import Run
from ambs.report.summary import Part, assemble
from ambs.report.write import Format, write
from ambs.reproduce.grid import Comparison, Panel
from ambs.reproduce.there import Found

FORMATS: tuple[Format, ...] = ("png", "md", "html")


def render(comparison: Comparison, found: Sequence[Found], out: Path) -> list[Path]:
    """Write `<comparison>.png` (return left, cumulative violations right), `.md` and `.html`; none if there is no run."""
    summary = show(found)
    if summary is None:
        return []
    paths = [out / f"{comparison.name}.{kind}" for kind in FORMATS]
    for path, kind in zip(paths, FORMATS, strict=True):
        write(summary, path, kind)
    return paths


def show(found: Sequence[Found]) -> dict[str, Any] | None:
    """A report with a part per panel; None if there is no run."""
    by_panel: dict[Panel, list[Run]] = {}
    notes = []
    for one in found:
        name = one.cell.folder
        if one.run is None:
            notes.append(f"{name} has not been run")
            continue
        by_panel.setdefault(one.cell.panel, []).append(one.run)
        if one.others:
            notes.append(f"{name} was run with settings that are not this grid's: {', '.join(one.others)}")
    parts = [
        Part(panel.title, groups, panel.frames)
        for panel, runs in by_panel.items()
        for groups in group_runs(runs).values()
    ]
    return assemble(parts, notes) if parts else None

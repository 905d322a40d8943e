"""A summary in each of the formats."""

import csv
import io
import json
from pathlib import Path
from typing import Any, Literal

from ambs.report import tables
from ambs.report.paper import SOURCE
from ambs.storage.files import finite, write_atomic

Format = Literal["html", "md", "png", "csv", "json"]


def write(summary: dict[str, Any], path: Path, format: Format) -> None:  # noqa: A002
    """Write a report; the file is there as a whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if format == "png":
        from ambs.report.plots import draw

        temporary = path.with_name(f".tmp-{path.name}")
        try:
            draw(summary, temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        return
    # JSON may hold halves of characters, which UTF-8 does not.
    write_atomic(path, text_of(summary, format).encode(errors="backslashreplace"))


def text_of(summary: dict[str, Any], format: str) -> str:  # noqa: A002
    """The report as text."""
    if format == "html":
        from ambs.report.document import document

        return document(summary)
    if format == "json":
        return json.dumps(finite(summary), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return markdown(summary) if format == "md" else curves_csv(summary)


def markdown(summary: dict[str, Any]) -> str:
    """All tables."""
    lines = ["# What happened", ""]
    sentences = [*summary["notes"], *(f"{run['name']}: {text}" for run in summary["runs"] for text in run["missing"])]
    sentences += [text for part in summary["environments"] for text in part["left_out"]]
    lines += [f"- {_plain(text)}" for text in sentences]
    for part in summary["environments"]:
        lines += ["", f"## {_plain(part['env'])} at {part['frames']:,} frames", ""]
        lines += [line for text in tables.notes(part) for line in (_plain(text), "")]
        lines += [line for row in part["asked"] for line in (f"{_plain(row['label'])}: {_plain(row['sentence'])}.", "")]
        lines += [line for text in part["unlike"] for line in (f"{_plain(text)}.", "")]
        lines += _table(tables.outcomes(part))
        told = [f"- {_plain(row['label'])}: {_plain(row['sentence'])}." for row in part["levels"]]
        lines += ["", *told] if told else []
        lines += _table(tables.comparisons(part), "Which differences the intervals support")
        lines += _table(tables.foresight(part), tables.FORESIGHT, tables.foresight_note(part))
        note = f"The paper's figures: {SOURCE}. {tables.caveat(part)}"
        lines += _table(tables.paper(part), "Beside the paper", note)
        lines += _table(tables.differences(part), "Settings that differ")
    lines += _table(tables.across(summary), "Across environments")
    lines += ["", *summary["coverage"].values(), "", "## Commands", ""]
    # Not as a block of code, whose text renderers are trusted not to act upon.
    lines += [f"- {_plain(run['command'])}" for run in summary["runs"]]
    return "\n".join(lines) + "\n"


def curves_csv(summary: dict[str, Any]) -> str:
    """All curves: a row per environment, quantity, method and frame."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["environment", "quantity", "method", "frames", "mean", "low", "high", "seeds"])
    for part in summary["environments"]:
        for panel in part["panels"]:
            at = part["x"][(len(part["x"]) - 1) % panel["step"] :: panel["step"]]
            for series in panel["series"]:
                label = part["groups"][series["group"]]["label"]
                none = [None] * len(at)
                columns = (series["mean"], series["low"] or none, series["high"] or none, series["seeds"])
                for frames, mean, *rest in zip(at, *columns, strict=True):
                    if mean is not None:
                        writer.writerow([cell(part["env"]), cell(panel["key"]), cell(label), frames, mean, *rest])
    return out.getvalue()


def cell(text: str) -> str:
    """Text that no spreadsheet takes for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def _table(found: tables.Table, title: str = "", note: str = "") -> list[str]:
    if not found.rows:
        return []
    lines = ["", f"### {title}", ""] if title else []
    lines += [_plain(note), ""] if note else []
    lines += [_row(found.head), _row(["---"] * len(found.head)), *map(_row, found.rows)]
    return lines


def _row(row: list[str]) -> str:
    return "| " + " | ".join(_plain(cell) for cell in row) + " |"


def _plain(text: str) -> str:
    """Text with nothing in it that Markdown or HTML would act upon."""
    text = " ".join(str(text).split())
    for char in "\\|`*_[]<>":
        text = text.replace(char, "&lt;" if char == "<" else "&gt;" if char == ">" else f"\\{char}")
    return text

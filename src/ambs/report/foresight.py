"""Whether imagination foresaw danger, as `ambs foresight` wrote it into a run folder: read with care, shown as a diagram."""

import json
from pathlib import Path
from typing import Any

from ambs.errors import UserError
from ambs.report.page import Html, tag
from ambs.storage.files import read_plain, reason

FILE = "foresight.json"
LEADS, RATE = ("1", "5", "10", "20"), "0.05"
"""Steps before an entry, and the share of false alarms, that are shown."""
SCORINGS = ("drawn", "shield")
WRONG = (TypeError, KeyError, ValueError, OverflowError, AttributeError)
"""What reading a file of another shape ends in."""
SIDE, EDGE = 200, 42
"""Of the diagram and of the margins that its labels need, in its own unit."""


def read_foresight(folder: Path) -> dict[str, Any] | None:
    """What a report shows of a run's foresight; None where it was never measured, a UserError where that cannot be read."""
    try:
        found = json.loads(read_plain(folder / FILE, limit=1 << 22))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        why = reason(error) if isinstance(error, OSError) else "it is no JSON"
        raise UserError(f"{FILE} cannot be read ({why})") from None
    try:
        facts = {name: _whole(found[name]) for name in ("horizon", "steps", "episodes")}
        labels = str(found["shield_labels"])[:20]
        return {**facts, "labels": labels, **_agent(found), **{name: _scoring(found[name]) for name in SCORINGS}}
    except WRONG:
        raise UserError(f"{FILE} does not hold what `ambs foresight` writes") from None


def brief(found: dict[str, Any]) -> dict[str, Any]:
    """Of what `read_foresight` returns, what is told beside a recorded episode, by the scoring nearest to the shield's."""
    scoring = found["drawn" if found["labels"] == "sample" else "shield"]
    names = ("horizon", "steps", "checkpoint", "level", "asked", "labels")
    figures = ("auroc", "flagged", "detection", "ece")
    return {name: found[name] for name in names} | {name: scoring[name] for name in figures}


def read_brief(found: Any) -> dict[str, Any]:
    """The same, read back from a file that anybody may have written; a ValueError if it is not what `brief` gives."""
    try:
        leads = [lead for lead in LEADS if lead in found["detection"]]
        return {
            **{name: _whole(found[name]) for name in ("horizon", "steps")},
            **_agent(found),
            "labels": str(found["labels"])[:20],
            **{name: _interval(found[name]) for name in ("auroc", "flagged", "ece")},
            "detection": {lead: _interval(found["detection"][lead]) for lead in leads},
        }
    except WRONG as error:
        raise ValueError("not what `ambs foresight` measures") from error


def diagram(found: dict[str, Any], title: str) -> Html:
    """The reliability diagram of the risk with labels drawn: foreseen along, real upwards, with exact intervals."""
    marks: list[Html] = []
    for row in found["drawn"]["reliability"]:
        x = _x(row["predicted"])
        told = f"foreseen {row['predicted']:.2f}, real {row['observed']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"
        told = f"{told}, {row['states']} states"
        bar = tag("line", x1=x, x2=x, y1=_y(row["low"]), y2=_y(row["high"]), class_="bar")
        marks.append(
            tag("g", tag("title", told), bar, tag("circle", cx=x, cy=_y(row["observed"]), r=4, class_="point"))
        )
    ticks = [
        mark
        for value in (0.0, 0.5, 1.0)
        for mark in (
            tag("text", f"{value:g}", x=_x(value), y=_y(0.0) + 15, text_anchor="middle"),
            tag("text", f"{value:g}", x=EDGE - 6, y=_y(value) + 4, text_anchor="end"),
        )
    ]
    names = [
        tag("text", "risk foreseen", x=_x(0.5), y=_y(0.0) + 29, text_anchor="middle"),
        tag("text", "share that failed", x=-_y(0.5), y=11, text_anchor="middle", transform="rotate(-90)"),
    ]
    frame = tag("rect", x=EDGE, y=8, width=SIDE, height=SIDE, class_="axis")
    ideal = tag("line", x1=_x(0.0), y1=_y(0.0), x2=_x(1.0), y2=_y(1.0), class_="reference")
    box = f"0 0 {SIDE + EDGE + 8} {SIDE + EDGE}"
    return tag(
        "svg", frame, ideal, *ticks, *names, *marks, viewBox=box, role="img", aria_label=f"reliability of {title}"
    )


def _x(value: float) -> float:
    return round(EDGE + SIDE * value, 1)


def _y(value: float) -> float:
    return round(8 + SIDE * (1 - value), 1)


def _scoring(found: dict[str, Any]) -> dict[str, Any]:
    detection = {lead: _interval(found["detection"][lead][RATE]) for lead in LEADS if lead in found["detection"]}
    names = ("predicted", "observed", "low", "high")
    rows = [row for row in found["reliability"][:10] if row["states"]]
    return {
        **{name: _interval(found[name]) for name in ("auroc", "ece")},
        "flagged": _interval(found["flagged_windows"][RATE]),
        "detection": detection,
        "reliability": [{"states": int(row["states"]), **{name: _share(row[name]) for name in names}} for row in rows],
    }


def _agent(found: dict[str, Any]) -> dict[str, Any]:
    """Frames of the checkpoint that was measured, Δ in force and Δ asked for; None where a file does not tell."""
    frames, level, asked = (found.get(name) for name in ("checkpoint", "level", "asked"))
    return {
        "checkpoint": None if frames is None else _whole(frames),
        "level": None if level is None else _share(level),
        "asked": None if asked is None else _share(asked),
    }


def _interval(found: dict[str, Any] | None) -> dict[str, float | None] | None:
    """With its limits, if it has both; None where there is no figure."""
    if found is None or found["mean"] is None:
        return None
    limits = [None if found[name] is None else _share(found[name]) for name in ("low", "high")]
    low, high = [None, None] if None in limits else limits
    return {"mean": _share(found["mean"]), "low": low, "high": high}


def _whole(value: Any) -> int:
    """A number of steps or frames; a ValueError for whatever else a file may hold."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 10**15:
        raise ValueError(value)
    return value


def _share(value: Any) -> float:
    """A number from 0 to 1; a ValueError for whatever else a file may hold."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(value)
    return float(value)

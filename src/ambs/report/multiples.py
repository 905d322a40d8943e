"""Small multiples of a sweep: a little chart per experiment, all on the same axes, the others' curves behind it in grey."""

from typing import Any

from ambs.report.formatting import number
from ambs.report.page import Html, tag

WIDE, HIGH, EDGE = 180.0, 96.0, 4.0
"""Of a chart, in pixels."""
SHOWN = ("return", "violations")
MOST = 48
"""Charts of a kind that a reader still compares."""


def multiples(part: dict[str, Any]) -> Html | None:
    """Charts of return and of violations; None where the runs are not those of a sweep."""
    if not part["swept"] or not part["x"]:
        return None
    panels = [panel for key in SHOWN for panel in part["panels"] if panel["key"] == key]
    return tag("section", tag("h3", "What varies, one by one"), *(_kind(panel, part) for panel in panels))


def _kind(panel: dict[str, Any], part: dict[str, Any]) -> Html:
    known = [value for one in panel["series"] for name in ("mean", "low", "high") for value in one[name] or ()]
    values = [value for value in known if value is not None]
    low, high = min(values), max(values)
    xs = part["x"][(len(part["x"]) - 1) % panel["step"] :: panel["step"]]
    lines = [_points(one["mean"], xs, low, high) for one in panel["series"]]
    charts = [
        _chart(part["groups"][one["group"]], one, lines, index, _points(one["mean"], xs, low, high))
        for index, one in enumerate(panel["series"][:MOST])
    ]
    rest = len(panel["series"]) - len(charts)
    told = f"{panel['title']}: from {number(low)} to {number(high)}, over {xs[-1]:,} frames"
    told += f"; {rest} more are in the tables" if rest > 0 else ""
    return tag("div", tag("p", told, class_="soft"), tag("div", *charts, class_="multiples"))


def _chart(group: dict[str, Any], one: dict[str, Any], lines: list[str], index: int, own: str) -> Html:
    others = [tag("polyline", points=line, class_="other") for at, line in enumerate(lines) if at != index]
    last = next((value for value in reversed(one["mean"]) if value is not None), None)
    told = "–" if last is None else number(last)
    return tag(
        "figure",
        tag("figcaption", group["label"], tag("strong", told)),
        tag(
            "svg",
            *others,
            tag("polyline", points=own, class_="own"),
            viewBox=f"0 0 {WIDE:g} {HIGH:g}",
            role="img",
            aria_label=f"{group['label']}: {told} in the end",
        ),
        class_=f"c{group['colour'] % 8}",
    )


def _points(values: list[float | None], xs: list[int], low: float, high: float) -> str:
    """A curve in the chart's pixels; what is not known is left out."""
    span, last = (high - low) or 1.0, xs[-1] or 1
    return " ".join(
        f"{EDGE + x / last * (WIDE - 2 * EDGE):.1f},{HIGH - EDGE - (value - low) / span * (HIGH - 2 * EDGE):.1f}"
        for x, value in zip(xs, values, strict=True)
        if value is not None
    )

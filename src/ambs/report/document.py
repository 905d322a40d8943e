"""The report as one HTML file."""

from typing import Any

from ambs.report import formatting as cells
from ambs.report import tables
from ambs.report.curves import WINDOW
from ambs.report.foresight import diagram
from ambs.report.multiples import multiples
from ambs.report.page import Html, join, page, table, tag
from ambs.report.panels import LOSSES, OUTCOME, REST, SECTIONS
from ambs.report.paper import SOURCE

MANY = 12
"""Comparisons of which all are shown at once."""
CARD = (
    ("violations_per_1000", "violations / 1000 frames"), ("override_rate", "override rate"),
    ("switches", "switches / 1000 steps"), ("traces", "traces / decision"),
)  # fmt: skip


def document(summary: dict[str, Any]) -> str:
    """The whole page."""
    environments = summary["environments"]
    names = ", ".join(part["env"] for part in environments)
    states = sorted({run["state"] for run in summary["runs"]})
    head = tag(
        "header",
        tag("h1", "What happened"),
        tag(
            "p",
            f"{names}: {len(summary['runs'])} {'run' if len(summary['runs']) == 1 else 'runs'} ({', '.join(states)}), "
            f"reported {summary['created'].replace('T', ' ').replace('+00:00', ' UTC')} by ambs {summary['ambs']}",
            class_="soft",
        ),
        _notes("Not everything is there", _shortcomings(summary)),
        tag("noscript", tag("p", "The curves need JavaScript; all tables are complete without it.", class_="note")),
    )
    parts = [_environment(index, part, summary["coverage"]) for index, part in enumerate(environments)]
    body = join(
        head,
        tag("main", *parts, _across(summary), _runs(summary)),
        tag("footer", "Intervals are 95 % unless said otherwise."),
    )
    data = [
        {
            "x": part["x"],
            "groups": [{"label": group["label"], "colour": group["colour"]} for group in part["groups"]],
            "panels": part["panels"],
        }
        for part in environments
    ]
    return page(f"ambs report: {names}", body, data=data, scripts=("charts.js",), styles=("report.css",))


def _shortcomings(summary: dict[str, Any]) -> list[str]:
    found = list(summary["notes"])
    found += [f"{run['name']}: {sentence}" for run in summary["runs"] for sentence in run["missing"]]
    return found + [sentence for part in summary["environments"] for sentence in part["left_out"]]


def _notes(title: str, sentences: list[str]) -> Html | None:
    if not sentences:
        return None
    return tag("div", tag("strong", title), tag("ul", *(tag("li", sentence) for sentence in sentences)), class_="note")


def _environment(index: int, part: dict[str, Any], coverage: dict[str, str]) -> Html:
    counts = sorted({len(found["values"]) for group in part["groups"] for found in group["outcomes"].values()})
    sentences = [coverage[str(n)] for n in counts if str(n) in coverage]
    if 1 in counts:
        sentences.insert(0, "From a single seed there is no interval at all: another seed may end anywhere.")
    return tag(
        "section",
        tag("h2", part["env"]),
        tag(
            "p",
            f"Compared at {part['frames']:,} frames: violations in all of them, other figures over their last quarter; "
            f"curves are means over the {WINDOW:.0%} of the frames before each point.",
            class_="soft",
        ),
        *(tag("p", tag("strong", row["label"]), f": {row['sentence']}.", class_="asked") for row in part["asked"]),
        *(tag("p", f"{sentence}.", class_="note unlike") for sentence in part["unlike"]),
        tag("div", *map(_card, part["groups"]), class_="cards"),
        *(tag("p", tag("strong", row["label"]), f": {row['sentence']}.", class_="level") for row in part["levels"]),
        *(tag("p", sentence, class_="soft coverage") for sentence in sentences),
        multiples(part),
        tag("div", _legend(index, part), *(_section(index, part, section) for section in SECTIONS)),
        _table("Outcomes", tables.outcomes(part)),
        _comparisons(part),
        _foresight(part),
        _table("Beside the paper", tables.paper(part), f"The paper's figures: {SOURCE}. {tables.caveat(part)}"),
        _table("Settings that differ", tables.differences(part), class_="differences"),
    )


def _card(group: dict[str, Any]) -> Html:
    found = group["outcomes"]
    lines = [
        tag("div", tag("dt", title), tag("dd", *_big(found.get(key))), class_="headline")
        for key, title in (("return", "return, last quarter"), ("violations", "violations in all"))
    ]
    small = [
        join(tag("dt", title), tag("dd", cells.interval(found[key]["mean"])))
        for key, title in CARD
        if key in found and (key != "switches" or "override_rate" in found)  # Without a shield nothing can switch.
    ]
    count = max((len(value["values"]) for value in found.values()), default=0)
    told = cells.seeds(count) if found else "no figures yet"
    return tag(
        "article",
        tag("h3", tag("span", class_="dot"), group["label"]),
        tag("p", group["note"], class_="soft settings") if group["note"] else None,
        tag("dl", *lines, *small),
        tag("p", told, class_="soft"),
        class_=f"card c{group['colour'] % 8}",
    )


def _big(found: dict[str, Any] | None) -> list[Html]:
    if found is None:
        return [tag("strong", "–")]
    mean = found["mean"]
    shown = [tag("strong", cells.number(mean["mean"]))]
    return shown if mean["low"] is None else [*shown, tag("span", f" {cells.limits(mean)}", class_="interval")]


def _legend(index: int, part: dict[str, Any]) -> Html | None:
    if not part["panels"]:
        return None
    buttons = [
        tag(
            "button", tag("span", class_="dot"), group["label"], type="button", class_=f"c{group['colour'] % 8}",
            aria_pressed="true", data_environment=index, data_group=number,
        )
        for number, group in enumerate(part["groups"])
    ]  # fmt: skip
    if any("each" in series for panel in part["panels"] for series in panel["series"]):
        buttons.append(tag("button", "single runs", type="button", class_="singles", aria_pressed="true"))
    return tag("div", *buttons, class_="legend", role="group", aria_label="curves to show")


def _section(index: int, part: dict[str, Any], section: str) -> Html | None:
    figures = [
        tag(
            "figure",
            tag("figcaption", panel["title"], tag("span", panel["note"]) if panel["note"] else None),
            tag("div", class_="plot"),
            tag("div", class_="tooltip", role="status", hidden=True),
            class_="chart", data_environment=index, data_panel=number,
        )
        for number, panel in enumerate(part["panels"])
        if panel["section"] == section
    ]  # fmt: skip
    if not figures:
        return None
    title = f"{SECTIONS[section]} ({len(figures)})" if section in (LOSSES, REST) else SECTIONS[section]
    size = "two" if section == OUTCOME else "three" if len(figures) % 3 == 0 else "four"
    charts = tag("div", *figures, class_=f"charts {size}")
    if section in (LOSSES, REST):
        return tag("details", tag("summary", title), charts)
    return join(tag("h3", title), charts)


def _comparison_note(part: dict[str, Any]) -> str:
    pairs = len({(row["first"], row["second"]) for row in part["comparisons"]})
    return (
        "Welch's t-interval of the difference of means; Hedges' g is the difference in pooled standard deviations; "
        f"Holm's correction is over the {pairs} pairs of one outcome."
        if pairs > 1
        else "Welch's t-interval of the difference of means; Hedges' g is the difference in pooled standard deviations."
    )


def _comparisons(part: dict[str, Any]) -> Html | None:
    """All of them, or where they are many those that hold, and the rest folded."""
    found = tables.comparisons(part)
    title, note = "Which differences the intervals support", _comparison_note(part)
    if len(found.rows) <= MANY:
        return _table(title, found, note)
    sure = [text for text, row in zip(found.rows, part["comparisons"], strict=True) if row["verdict"] == "supported"]
    return join(
        tag("h3", title),
        tag(
            "p",
            f"{note} {len(sure)} of {len(found.rows)} differences are supported after the correction.",
            class_="soft",
        ),
        table(found.head, sure) if sure else None,
        tag("details", tag("summary", f"All {len(found.rows)} differences"), table(found.head, found.rows)),
    )


def _foresight(part: dict[str, Any]) -> Html | None:
    """Reliability diagrams, some of them if there are many, and the table."""
    if not part["foresight"]:
        return None
    figures = [
        tag(
            "figure",
            tag("figcaption", tag("span", class_="dot"), row["label"], tag("span", row["run"], class_="soft")),
            diagram(row, row["run"]),
            class_=f"reliability c{row['colour'] % 8}",
        )
        for row in part["foresight"][:MANY]
    ]
    found = tables.foresight(part)
    return join(
        tag("h3", tables.FORESIGHT),
        tag("p", tables.foresight_note(part), class_="soft"),
        tag("div", *figures, class_="reliabilities"),
        table(found.head, found.rows),
    )


def _table(title: str, found: tables.Table, note: str = "", **attributes: Any) -> Html | None:
    if not found.rows:
        return None
    shown = table(found.head, found.rows, **attributes)
    return join(tag("h3", title), tag("p", note, class_="soft") if note else None, shown)


def _across(summary: dict[str, Any]) -> Html | None:
    found = tables.across(summary)
    return tag("section", _table("Across environments", found)) if found.rows else None


def _runs(summary: dict[str, Any]) -> Html:
    head = ["run", "method", "seed", "state", "frames", "in the figures", "what is missing"]
    rows = [
        [
            run["name"],
            run["label"],
            str(run["seed"]),
            tag("span", run["state"], class_=f"state-{run['state']}"),
            f"{run['frames']:,}" + (f" of {run['wanted']:,}" if run["wanted"] else ""),
            "yes" if run["counted"] else "no",
            tag("ul", *(tag("li", sentence) for sentence in run["missing"])) if run["missing"] else "nothing",
        ]
        for run in summary["runs"]
    ]
    again = [
        join(
            tag("p", tag("strong", run["name"]), f" · ambs {run['version']}, ", _source(run), f", on {run['device']}"),
            tag("code", run["command"] or "the command was not recorded", class_="command"),
            tag("p", "or, with every setting as it was:", class_="soft"),
            tag("code", run["reproduce"], class_="command"),
        )
        for run in summary["runs"]
    ]
    return tag(
        "section",
        tag("h2", "Runs"),
        table(head, rows, class_="runs"),
        tag("details", tag("summary", "Commands that reproduce them"), *again),
    )


def _source(run: dict[str, Any]) -> str:
    if not run["commit"]:
        return "not from a checkout"
    return f"commit {str(run['commit'])[:12]}" + (" with local changes" if run["modified"] else "")

"""The tables of a report as heads and rows of text, for any format."""

from typing import Any, NamedTuple

from ambs.config.methods import TITLES
from ambs.report import formatting as cells
from ambs.report.foresight import LEADS, SCORINGS
from ambs.report.outcomes import OUTCOMES

FORESIGHT = "Does imagination foresee danger?"


class Table(NamedTuple):
    """A head and rows of the same length."""

    head: list[str]
    rows: list[list[str]]


def outcomes(environment: dict[str, Any], brief: bool = False) -> Table:
    """A row per group and outcome; `brief` for a terminal."""
    head = ["method", "outcome", "seeds", "mean [95 % t-interval]", "IQM [95 % bootstrap]"]
    rows = []
    for group in environment["groups"]:
        for outcome in OUTCOMES:
            found = group["outcomes"].get(outcome.key)
            if found:
                count = str(len(found["values"]))
                row = [
                    group["label"],
                    outcome.brief if brief else outcome.title,
                    count,
                    cells.interval(found["mean"]),
                    cells.interval(found["iqm"]),
                ]
                rows.append(row)
    return Table(head, rows)


def notes(environment: dict[str, Any]) -> list[str]:
    """Which settings stand behind labels that do not name them."""
    return [f"{group['label']}: {group['note']}" for group in environment["groups"] if group["note"]]


def comparisons(environment: dict[str, Any], brief: bool = False) -> Table:
    """A row per pair of groups and compared outcome; `brief` for a terminal."""
    head = ["first − second", "outcome", "difference [95 % CI]", "ratio", "Hedges' g", "P(first > second)", "supported"]
    if brief:
        head[4:6] = ["g", "P(>)"]
    return Table(
        head,
        [
            [
                f"{row['first']} − {row['second']}",
                row["brief"] if brief else row["title"],
                cells.interval(row["difference"]),
                cells.number(row["ratio"]),
                cells.number(row["hedges_g"]),
                cells.share(row["superiority"]),
                cells.BRIEF[row["verdict"]] if brief else cells.said(row),
            ]
            for row in environment["comparisons"]
        ],
    )


def paper(environment: dict[str, Any]) -> Table:
    """The paper's Table 1 beside our figures."""
    head = ["frames", "method", "return, paper", "return, ours", "violations, paper", "violations, ours", "our seeds"]
    rows = []
    for row in environment["paper"]:
        ours = row["ours"] or {}
        why = row["why"] or "–"
        rows.append(
            [
                cells.frames(row["frames"]),
                row["label"] or TITLES[row["method"]],
                cells.plus_minus(row["paper"]["return"]),
                cells.interval(ours["return"]) if "return" in ours else why,
                cells.plus_minus(row["paper"]["violations"]),
                cells.interval(ours["violations"]) if "violations" in ours else why,
                str(ours.get("seeds", "–")),
            ]
        )
    return Table(head, rows)


def across(summary: dict[str, Any]) -> Table:
    """IQM over several environments."""
    head = ["method", "outcome", "environments", "runs", "IQM [95 % stratified bootstrap]"]
    rows = [
        [row["label"], row["title"], ", ".join(row["environments"]), str(row["runs"]), cells.interval(row["iqm"])]
        for row in summary["across"]
    ]
    return Table(head, rows)


def differences(environment: dict[str, Any]) -> Table:
    """Settings in which the groups differ."""
    labels = [group["label"] for group in environment["groups"]]
    return Table(["setting", *labels], [[name, *values] for name, values in environment["differences"].items()])


def foresight(environment: dict[str, Any]) -> Table:
    """How well the imagination of each run foresees danger: a row for labels drawn, and one as its shield scores."""
    leads = [lead for lead in LEADS if any(lead in row["drawn"]["detection"] for row in environment["foresight"])]
    before = [f"{lead} step{'s' * (lead != '1')} before" for lead in leads]
    head = ["run", "scoring", "AUROC", "all that fail", *before, "calibration error"]
    rows = [
        [
            _measured(row),
            "labels drawn" if scoring == "drawn" else f"the shield's ({row['labels']})",
            *(cells.interval(row[scoring][name]) for name in ("auroc", "flagged")),
            *(cells.interval(row[scoring]["detection"].get(lead)) for lead in leads),
            cells.interval(row[scoring]["ece"]),
        ]
        for row in environment["foresight"]
        for scoring in SCORINGS
    ]
    return Table(head, rows)


def _measured(row: dict[str, Any]) -> str:
    """The run, and where they are known the checkpoint that was measured and the Δ that its shield has in force."""
    told = row["run"] if row["checkpoint"] is None else f"{row['run']} at {row['checkpoint']:,} frames"
    return told if row["level"] is None else f"{told}, Δ = {cells.number(row['level'])} in force"


def foresight_note(environment: dict[str, Any]) -> str:
    """What the table of foresight is about."""
    horizons = sorted({row["horizon"] for row in environment["foresight"]})
    return (
        f"The task policy played fresh layouts without its shield; does Ψ fail within {' or '.join(map(str, horizons))} "
        "steps? Shares flagged are at 5 % false alarms, of all states after which it fails and of those so many steps before."
    )


def caveat(environment: dict[str, Any]) -> str:
    """How the paper's runs and ours differ where that can be told."""
    obs = {name for row in environment["paper"] for name in row.get("obs", [])}
    return "The paper's agents saw 64×64 pictures; " + (
        f"ours saw: {', '.join(sorted(obs))}." if obs else "ours have not trained for as many frames yet."
    )

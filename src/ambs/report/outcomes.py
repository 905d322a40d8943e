"""What came of a run, in a few numbers, and of a group of them, with intervals."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ambs.report.curves import Measure, recent_mean, recent_ratio, total
from ambs.report.groups import Group
from ambs.report.runs import Run
from ambs.statistics import Interval, difference, holm, iqm_interval, mean_interval

END = 0.25
"""Figures of the "last quarter" are means over this last share of the frames, here and in the quickstart's verdict."""
ENOUGH = 0.98
"""A run that has this share of the compared frames takes part."""


@dataclass(frozen=True)
class Outcome:
    """One number per run."""

    key: str
    title: str
    brief: str
    """The title, where room is short."""
    measure: Measure
    better: str
    """`more`, `less`, or empty."""
    least: float = 0.0
    most: float = np.inf
    compared: bool = False
    """Whether differences between methods are judged by it."""


OUTCOMES = (
    Outcome(
        "return", "episode return, last quarter", "return", recent_mean("episodes", "return"), "more", -np.inf, compared=True,
    ),
    Outcome("violations", "cumulative violations", "violations", total("violations"), "less", compared=True),
    Outcome(
        "violations_per_1000", "violations per 1000 frames, last quarter", "violations / 1000",
        recent_ratio("violations", "frames", 1000.0), "less", most=1000.0, compared=True,
    ),
    Outcome(
        "override_rate", "override rate, last quarter", "override rate", recent_ratio("overrides", "decisions"), "", most=1.0,
    ),
    Outcome(
        "switches", "control switches per 1000 steps, last quarter", "switches / 1000",
        recent_ratio("switches", "agent_steps", 1000.0), "", most=1000.0,
    ),
    Outcome("traces", "traces per decision, last quarter", "traces / decision", recent_ratio("traces", "decisions"), ""),
)  # fmt: skip


def compared_frames(groups: list[Group]) -> int:
    """Frames at which groups are compared: the most that at least half of every group's finished runs have reached.

    So a short trial among the runs does not make all others short. Where nothing has finished, what is under way counts.
    """
    parts = [[run for run in group.runs if run.frames] for group in groups]
    if any(run.state == "finished" for runs in parts for run in runs):
        parts = [[run for run in runs if run.state == "finished"] for runs in parts]
    lengths = [sorted((run.frames for run in runs), reverse=True) for runs in parts if runs]
    return min((frames[(len(frames) - 1) // 2] for frames in lengths), default=0)


def takes_part(run: Run, frames: int) -> bool:
    """Whether a run went far enough to be compared at so many frames."""
    return 0 < ENOUGH * frames <= run.frames


def outcome_of(run: Run, outcome: Outcome, frames: int) -> float | None:
    """A run's number at `frames`, or None if it has none."""
    at = np.array([float(min(frames, run.frames))])
    value = float(outcome.measure(run, at, END * frames)[0])
    return value if np.isfinite(value) else None


def group_outcomes(group: Group, frames: int) -> dict[str, Any]:
    """For every outcome `{"values", "seeds", "mean", "iqm"}` over the seeds that went far enough."""
    runs = [run for run in group.runs if takes_part(run, frames)]
    found = {}
    for outcome in OUTCOMES:
        pairs = [(run.seed, outcome_of(run, outcome, frames)) for run in runs]
        values = np.array([value for _, value in pairs if value is not None])
        if not values.size:
            continue
        middle = iqm_interval([values])
        found[outcome.key] = {
            "seeds": [seed for seed, value in pairs if value is not None],
            "values": values.tolist(),
            "mean": as_json(mean_interval(values, least=outcome.least, most=outcome.most)),
            "iqm": as_json(middle),
        }
    return found


def comparisons(
    labels: list[str], outcomes: list[dict[str, Any]], judged_by: dict[str, list[str]] | None = None
) -> list[dict[str, Any]]:
    """All pairs of groups by all compared outcomes: difference, effect sizes, and what the intervals support.

    `judged_by`: of outcomes that depend on Ψ, by which each group's was counted; pairs with different ones are left out.
    Holm's correction is over the pairs of one outcome. `verdict`: `supported` also after the correction, `alone` by the
    interval alone, `not supported`, or `no interval` where seeds are too few or do not vary.
    """
    found = []
    for outcome in OUTCOMES:
        if not outcome.compared:
            continue
        rows = []
        for first in range(len(labels)):
            for second in range(first + 1, len(labels)):
                a, b = outcomes[first].get(outcome.key), outcomes[second].get(outcome.key)
                measures = (judged_by or {}).get(outcome.key)
                if a and b and (measures is None or measures[first] == measures[second]):
                    rows.append(_pair(outcome, labels[first], labels[second], a["values"], b["values"]))
        for row, adjusted in zip(rows, holm([row["p"] for row in rows]), strict=True):
            row["p_holm"] = adjusted
            row["verdict"] = _verdict(row["p"], adjusted)
        found += rows
    return found


def _pair(outcome: Outcome, first: str, second: str, a: list[float], b: list[float]) -> dict[str, Any]:
    found = difference(np.array(a), np.array(b))
    base = float(np.mean(b))
    return {
        "outcome": outcome.key,
        "title": outcome.title,
        "brief": outcome.brief,
        "better": outcome.better,
        "first": first,
        "second": second,
        "seeds": [len(a), len(b)],
        "difference": as_json(found.difference),
        "ratio": float(np.mean(a)) / base if base > 0 and outcome.least == 0 else None,
        "p": found.p,
        "hedges_g": found.hedges_g,
        "superiority": found.superiority,
    }


def _verdict(p: float | None, adjusted: float | None) -> str:
    if p is None or adjusted is None:
        return "no interval"
    if adjusted < 0.05:
        return "supported"
    return "alone" if p < 0.05 else "not supported"


def as_json(interval: Interval) -> dict[str, float | None]:
    """An interval as an object."""
    return dict(interval._asdict())

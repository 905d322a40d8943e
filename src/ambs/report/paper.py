"""Table 1 of the paper, to be shown beside our own figures and never mixed with them.

Goodall and Belardinelli, *Leveraging Approximate Model-based Shielding for Probabilistic Safety Guarantees in Continuous
Environments* (AAMAS 2024): episode return and cumulative violations at the end of training, ± half of the 95 % interval over
5 seeds. Violations are frames in which Ψ fails, in training episodes, as here.
"""

import re
from typing import Any

import numpy as np

from ambs.report.groups import Group
from ambs.report.outcomes import OUTCOMES, as_json, outcome_of, takes_part
from ambs.statistics import mean_interval

SOURCE = "Goodall and Belardinelli, AAMAS 2024, Table 1; mean ± 95 % interval over 5 seeds"
COLUMNS = ("penl", "plpg", "copt", "lag")
# Environment, frames: then per method (return, ±), (violations, ±), in the order of `COLUMNS`.
TABLE_1 = {
    ("PointGoal1", 1_000_000): (
        ((17.32, 3.29), (9354, 3734)), ((17.76, 2.18), (13937, 1722)), ((18.19, 1.72), (10766, 2877)),
        ((19.15, 0.92), (24996, 6627)),
    ),
    ("PointGoal2", 1_500_000): (
        ((10.64, 2.61), (29720, 3850)), ((10.30, 3.44), (30673, 1800)), ((9.16, 4.07), (30839, 4647)),
        ((15.78, 1.84), (52157, 6151)),
    ),
    ("CarGoal1", 1_000_000): (
        ((8.87, 2.95), (11423, 1479)), ((5.86, 2.30), (13236, 3294)), ((5.96, 4.15), (14500, 4675)),
        ((11.23, 4.10), (28639, 4644)),
    ),
    ("PointGoal1", 10_000_000): (
        ((16.60, 2.23), (19039, 2339)), ((19.45, 1.62), (17049, 1321)), ((18.66, 2.15), (18320, 3080)),
        ((19.74, 1.43), (46153, 4637)),
    ),
}  # fmt: skip


def beside_the_paper(groups: list[Group], length: int | None = None) -> list[dict[str, Any]]:
    """Rows of Table 1 for these groups' environment with our figures at the same number of frames, where runs reached it.

    The paper's longer runs are shown only beside runs of ours that went at least half as far, or if they are asked for:
    `length` leaves all others out.
    """
    name = re.sub(r"-v\d+$", "", groups[0].env) if groups else ""
    furthest = max((run.frames for group in groups for run in group.runs), default=0)
    lengths = sorted(frames for task, frames in TABLE_1 if task == name and length in (None, frames))
    return [
        _row(frames, method, cell, group)
        for frames in lengths
        if frames == lengths[0] or furthest >= frames / 2
        for method, cell in zip(COLUMNS, TABLE_1[name, frames], strict=True)
        for group in [group for group in groups if group.method == method] or (None,)
    ]


def _row(frames: int, method: str, cell: Any, group: Group | None) -> dict[str, Any]:
    theirs = {
        key: {"mean": float(mean), "half": float(half)}
        for key, (mean, half) in zip(("return", "violations"), cell, strict=True)
    }
    row: dict[str, Any] = {"frames": frames, "method": method, "paper": theirs, "ours": None}
    if group is None:
        return row | {"label": None, "why": "no run of this method"}
    row["label"] = group.label
    runs = [run for run in group.runs if takes_part(run, frames)]
    if not runs:
        reached = max((run.frames for run in group.runs), default=0)
        return row | {"why": f"reached {reached:,} frames"}
    ours: dict[str, Any] = {"seeds": len(runs)}
    for outcome in OUTCOMES:
        values = [outcome_of(run, outcome, frames) for run in runs] if outcome.key in theirs else []
        known = np.array([value for value in values if value is not None])
        if known.size:
            ours[outcome.key] = as_json(mean_interval(known, least=outcome.least))
    return row | {"ours": ours, "why": "", "obs": sorted({str(run.config.get("obs", "unknown")) for run in runs})}

"""Which level of the shield is in force, and why, in a sentence per group of runs."""

from typing import Any

from ambs.report.formatting import number
from ambs.report.groups import Group
from ambs.report.runs import Run

LEVEL, JUDGED = "shield/level", "labels/unsafe_windows"
"""Metrics: the Δ in force, and one that is there as soon as the shield has been calibrated."""
BASIS, BY_DECISIONS = "shield/calibrated_on", "shield/by_decisions"
"""Of `ambs.training.calibration`; runs from before the shield's decisions counted have not got them."""
MOST_LENIENT = 0.98
"""`ambs.shield.config.HIGHEST_LEVEL`, which cannot be had without loading JAX."""


def levels_in_force(groups: list[Group]) -> list[dict[str, Any]]:
    """Per group whose shields have been given a level: what was asked for, what is in force by seed, and the sentence."""
    found = []
    for group in groups:
        runs = [run for run in group.runs if LEVEL in run.metrics and run.config.get("shielded") is not False]
        asked = _setting(runs[0], "shield", "safety_level") if runs else None
        if asked is not None:
            levels = [float(run.metrics[LEVEL].values[-1]) for run in runs]
            found.append(
                {"label": group.label, "asked": asked, "in_force": levels, "sentence": _sentence(runs, asked, levels)}
            )
    return found


def _sentence(runs: list[Run], asked: float, levels: list[float]) -> str:
    share = _setting(runs[0], "calibration", "false_alarms")
    most = "the share that is allowed" if share is None else f"{100 * share:.3g} %"
    told = f"asked for Δ = {number(asked)}; in force Δ = {_range(levels)}"
    if not any(_last(run, BASIS, float(JUDGED in run.metrics)) for run in runs):
        if max(levels) < MOST_LENIENT:
            return f"{told}: there was nothing to calibrate it on"
        return f"{told}: the most lenient, until enough has been learnt to calibrate it"
    decided = {_last(run, BY_DECISIONS, 0.0) == 1 for run in runs}
    cases = "the safe windows of held-out worlds" if decided == {False} else "the decisions that turn out safe"
    cases += "" if len(decided) == 1 else ", or of safe windows of held-out worlds,"
    if max(levels) <= asked:
        return f"{told}: no more than {most} of {cases} are flagged"
    told = f"{told}: at less, more than {most} of {cases} would be flagged"
    lenient = f"; {number(MOST_LENIENT)} is the highest there is, and in force before the first calibration, too"
    lenient = lenient if max(levels) >= MOST_LENIENT else ""
    return told + lenient


def _last(run: Run, name: str, missing: float) -> float:
    return float(run.metrics[name].values[-1]) if name in run.metrics else missing


def _range(levels: list[float]) -> str:
    low, high = number(min(levels)), number(max(levels))
    return low if low == high else f"{low} to {high} ({len(levels)} seeds)"


def _setting(run: Run, part: str, name: str) -> float | None:
    """A probability among the settings of a run, or None: settings are whatever a file holds."""
    settings = run.config.get(part)
    value = settings.get(name) if isinstance(settings, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        return None
    return float(value)

"""Intervals for what was measured over a handful of episodes or seeds."""

import numbers
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from ambs.errors import UserError, one_line


class Interval(NamedTuple):
    """An estimate with its confidence interval; None where the values say nothing about it."""

    mean: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.mean:.3g}"
        return f"{self.mean:.3g} [{self.low:.3g}, {self.high:.3g}]"


def mean_interval(values: np.ndarray, level: float = 0.95, least: float = -np.inf, most: float = np.inf) -> Interval:
    """Mean and Student-t interval of independent values that lie in [least, most].

    No interval for a single value, nor for values that are all the same: that they do not vary here is no proof.
    """
    values = _numbers(values)
    mean = float(values.mean())
    if values.size < 2 or values.min() == values.max():
        return Interval(mean, None, None)
    half = float(stats.t.ppf((1 + level) / 2, values.size - 1) * values.std(ddof=1) / np.sqrt(values.size))
    return Interval(mean, max(mean - half, least), min(mean + half, most))


def _numbers(values: Any) -> np.ndarray:
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        found = np.zeros(())
    if found.ndim != 1:
        raise UserError(f"values must be a list of numbers, got {one_line(values)}")
    return found


def share_interval(successes: int, trials: int, level: float = 0.95) -> Interval:
    """A share of independent trials with its exact (Clopper–Pearson) interval."""
    whole = all(isinstance(count, numbers.Integral) for count in (successes, trials))
    if not whole or not 0 <= successes <= trials or trials < 1:
        raise UserError(
            f"successes and trials must be whole numbers, 0 ≤ successes ≤ trials > 0, got {successes}, {trials}"
        )
    exact = stats.binomtest(successes, trials).proportion_ci(level, "exact")
    return Interval(successes / trials, float(exact.low), float(exact.high))


def bootstrap_interval(values: np.ndarray, level: float = 0.95, seed: int = 0) -> Interval:
    """Mean and bias-corrected, accelerated bootstrap interval; none where values say nothing, as in `mean_interval`."""
    values = _numbers(values)
    mean = float(values.mean())
    if values.size < 2 or values.min() == values.max():
        return Interval(mean, None, None)
    found = stats.bootstrap((values,), np.mean, confidence_level=level, rng=np.random.default_rng(seed))
    return Interval(mean, float(found.confidence_interval.low), float(found.confidence_interval.high))


def iqm(values: np.ndarray) -> float:
    """Interquartile mean: the mean without the lowest and the highest quarter (rounded down) of the values."""
    return float(stats.trim_mean(_numbers(values), 0.25))


def iqm_interval(strata: list[np.ndarray], level: float = 0.95, draws: int = 2000, seed: int = 0) -> Interval:
    """IQM of all values with a stratified percentile-bootstrap interval: each stratum is redrawn from itself.

    A stratum holds the seeds of one environment. None where values say nothing, as in `mean_interval`.
    """
    parts = [_numbers(part) for part in strata]
    values = np.concatenate(parts)
    centre = iqm(values)
    if min(part.size for part in parts) < 2 or values.min() == values.max():
        return Interval(centre, None, None)
    rng = np.random.default_rng(seed)
    drawn = np.concatenate([part[rng.integers(0, part.size, (draws, part.size))] for part in parts], axis=1)
    low, high = np.quantile(stats.trim_mean(drawn, 0.25, axis=1), [(1 - level) / 2, (1 + level) / 2])
    return Interval(centre, float(low), float(high))


class Difference(NamedTuple):
    """How two groups of independent values differ: `a` minus `b`; None where their spread says nothing."""

    difference: Interval
    """Of the means, with Welch's t-interval."""
    p: float | None
    """Two-sided p-value of Welch's test."""
    hedges_g: float | None
    """Difference in pooled standard deviations, corrected for few values."""
    superiority: float | None
    """Probability that a value of `a` exceeds one of `b`; ties count half. None if one side has a single value."""


def difference(a: np.ndarray, b: np.ndarray, level: float = 0.95) -> Difference:
    """Compare the values of two groups."""
    a, b = _numbers(a), _numbers(b)
    mean = float(a.mean() - b.mean())
    more = float((a[:, None] > b[None]).mean() + (a[:, None] == b[None]).mean() / 2)
    if min(a.size, b.size) < 2:
        return Difference(Interval(mean, None, None), None, None, None)
    if a.var() + b.var() == 0:
        return Difference(Interval(mean, None, None), None, None, more)
    found = stats.ttest_ind(a, b, equal_var=False)
    limits = found.confidence_interval(level)
    freedom = a.size + b.size - 2
    pooled = np.sqrt(((a.size - 1) * a.var(ddof=1) + (b.size - 1) * b.var(ddof=1)) / freedom)
    g = float(mean / pooled * (1 - 3 / (4 * freedom - 1)))
    return Difference(Interval(mean, float(limits.low), float(limits.high)), float(found.pvalue), g, more)


def holm(p_values: list[float | None]) -> list[float | None]:
    """Holm's adjusted p-values: the chance of a single false one among all is bounded. None stays None."""
    order = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, index) in enumerate(order):
        highest = max(highest, min(1.0, p * (len(order) - rank)))
        adjusted[index] = highest
    return adjusted

"""Intervals for what was measured over a handful of episodes or seeds."""

from typing import NamedTuple

import numpy as np
from scipy import stats


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
    values = np.asarray(values, dtype=np.float64)
    mean = float(values.mean())
    if values.size < 2 or values.min() == values.max():
        return Interval(mean, None, None)
    half = float(stats.t.ppf((1 + level) / 2, values.size - 1) * values.std(ddof=1) / np.sqrt(values.size))
    return Interval(mean, max(mean - half, least), min(mean + half, most))


def share_interval(successes: int, trials: int, level: float = 0.95) -> Interval:
    """A share of independent trials with its exact (Clopper–Pearson) interval."""
    exact = stats.binomtest(successes, trials).proportion_ci(level, "exact")
    return Interval(successes / trials, float(exact.low), float(exact.high))


def bootstrap_interval(values: np.ndarray, level: float = 0.95, seed: int = 0) -> Interval:
    """Mean and bias-corrected, accelerated bootstrap interval; none where values say nothing, as in `mean_interval`."""
    values = np.asarray(values, dtype=np.float64)
    mean = float(values.mean())
    if values.size < 2 or values.min() == values.max():
        return Interval(mean, None, None)
    found = stats.bootstrap((values,), np.mean, confidence_level=level, rng=np.random.default_rng(seed))
    return Interval(mean, float(found.confidence_interval.low), float(found.confidence_interval.high))

"""Curves over frames: every run on one grid, then mean and interval over seeds at each point of it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from ambs.report.runs import Run, Series

POINTS = 160
"""Points of a curve; a screen shows no more."""
WINDOW = 0.05
"""Values are means over this share of the frames before a point."""
SAME = 0.98
"""Runs that reach this share of the longest one's frames count as equally long."""

Measure = Callable[[Run, np.ndarray, float], np.ndarray]
"""`(run, frames [points], window) -> values [points]`, NaN where there are none."""


@dataclass(frozen=True)
class Curve:
    """Mean over seeds with its 95 % t-interval, all `[points]`; NaN where there is none."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    seeds: np.ndarray
    """How many runs have a value there."""
    each: np.ndarray
    """`[runs, points]`."""


def common_frames(runs: list[Run]) -> int:
    """Frames up to which runs are drawn: the longest one's, or a little less if that lets others end there too."""
    longest = max((run.frames for run in runs), default=0)
    return min((run.frames for run in runs if run.frames >= SAME * longest), default=0)


def grid(frames: int, points: int = POINTS) -> np.ndarray:
    """Equally spaced frames, the last of them `frames`."""
    return np.linspace(frames / points, frames, points)


def aggregate(runs: list[Run], measure: Measure, at: np.ndarray, least: float = -np.inf, most: float = np.inf) -> Curve:
    """A quantity of several seeds on one grid; limits of the interval are cut at `least` and `most`."""
    window = WINDOW * at[-1]
    each = np.stack([np.where(at <= run.frames, measure(run, at, window), np.nan) for run in runs])
    there = np.isfinite(each)
    seeds = there.sum(axis=0)
    values = np.where(there, each, 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(seeds > 0, values.sum(axis=0) / seeds, np.nan)
        spread = np.sqrt((np.where(there, each - mean, 0.0) ** 2).sum(axis=0) / (seeds - 1) / seeds)
        half = stats.t.ppf(0.975, np.maximum(seeds - 1, 1)) * spread
    # As `mean_interval` has it: values that do not vary here are no proof that they never do.
    half = np.where((seeds > 1) & (spread > 0), half, np.nan)
    return Curve(mean, np.maximum(mean - half, least), np.minimum(mean + half, most), seeds, each)


def recent_mean(part: str, name: str) -> Measure:
    """Mean of the rows in the window; `part` is `metrics` or `episodes`. Rare rows widen the window to two of them."""

    def measure(run: Run, at: np.ndarray, window: float) -> np.ndarray:
        rows: Series | None = getattr(run, part).get(name)
        if not rows:
            return np.full(at.shape, np.nan)
        gaps = np.diff(np.unique(rows.frames))
        width = max(window, 2 * float(np.median(gaps))) if gaps.size else window
        sums = np.concatenate([[0.0], np.cumsum(rows.values)])
        upto = np.searchsorted(rows.frames, at, side="right")
        since = np.searchsorted(rows.frames, at - width, side="right")
        count = upto - since
        return np.where(count > 0, (sums[upto] - sums[since]) / np.maximum(count, 1), np.nan)

    return measure


def total(name: str) -> Measure:
    """A running total, straight lines between the rows."""

    def measure(run: Run, at: np.ndarray, _: float) -> np.ndarray:
        rows = run.metrics.get(name)
        return total_at(rows, at) if rows else np.full(at.shape, np.nan)

    return measure


def recent_ratio(above: str, below: str, scale: float = 1.0) -> Measure:
    """Growth of one running total over that of another within the window; `below` may be `frames`."""

    def measure(run: Run, at: np.ndarray, window: float) -> np.ndarray:
        rows, base = run.metrics.get(above), run.metrics.get(below)
        if not rows or (below != "frames" and not base):
            return np.full(at.shape, np.nan)
        before = np.maximum(at - window, 0.0)
        grown = total_at(rows, at) - total_at(rows, before)
        by = at - before if not base else total_at(base, at) - total_at(base, before)
        return np.where(by > 0, scale * grown / np.where(by > 0, by, 1.0), np.nan)

    return measure


def total_at(rows: Series, at: np.ndarray) -> np.ndarray:
    """A running total at frames; 0 at frame 0, constant after the last row."""
    return np.interp(at, np.concatenate([[0.0], rows.frames]), np.concatenate([[0.0], rows.values]))

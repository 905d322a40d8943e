"""How often intervals from a few seeds hold the true value, measured; `python -m ambs.report.coverage` measures anew.

The figures are in `coverage.json` beside this file. Seeds are drawn from populations whose mean and IQM are known: normal,
and log-normal (σ = .8), which is skewed as counts of violations are. The intervals are those the report prints.
"""

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from ambs.statistics import Interval, iqm_interval, mean_interval

SIZES = (2, 3, 4, 5, 6, 8, 10, 20, 50)
SIGMA = 0.8
POPULATIONS = ("normal", "log-normal")
REPETITIONS = 4000
FILE = Path(__file__).with_name("coverage.json")


def sentence(seeds: int) -> str:
    """What intervals from so many seeds are worth, for a reader; empty if there is no interval."""
    if seeds < 2:
        return ""
    measured = figures()["coverage"]
    size = max(n for n in SIZES if n <= seeds)
    of = f"{size} seeds" if size == seeds else f"{size} seeds (the nearest that was simulated below {seeds})"
    parts = [
        f"{title} held the truth in {measured[kind]['normal'][str(size)]:.1%} of simulations with normal and "
        f"{measured[kind]['log-normal'][str(size)]:.1%} with skewed seeds"
        for kind, title in (("mean", "the mean's t-interval"), ("iqm", "the IQM's bootstrap interval"))
    ]
    return f"Nominally 95 %; with {of}, " + "; ".join(parts) + "."


@cache
def figures() -> dict[str, Any]:
    """The committed measurement."""
    return json.loads(FILE.read_text())


def measure(kind: str, population: str, seeds: int, repetitions: int, seed: int = 0) -> float:
    """Share of `repetitions` in which the 95 % interval of `kind` (mean or iqm) holds the population's own."""
    rng = np.random.default_rng((seed, seeds))
    values = rng.normal(size=(repetitions, seeds))
    if population == "log-normal":
        values = np.exp(SIGMA * values)
    truth = true_value(kind, population)
    hits = 0
    for index, row in enumerate(values):
        found = mean_interval(row) if kind == "mean" else iqm_interval([row], seed=index)
        hits += _holds(found, truth)
    return hits / repetitions


def true_value(kind: str, population: str) -> float:
    """Mean or IQM of a population; the latter is E[X | X between its quartiles]."""
    if population == "normal":
        return 0.0
    mean = float(np.exp(SIGMA**2 / 2))
    if kind == "mean":
        return mean
    quartile = stats.norm.ppf(0.75)
    return float(mean * (stats.norm.cdf(quartile - SIGMA) - stats.norm.cdf(-quartile - SIGMA)) / 0.5)


def _holds(found: Interval, truth: float) -> bool:
    return found.low is not None and found.high is not None and found.low <= truth <= found.high


def main() -> None:
    """Measure all and write `coverage.json`."""
    coverage = {
        kind: {
            population: {str(n): round(measure(kind, population, n, REPETITIONS), 4) for n in SIZES}
            for population in POPULATIONS
        }
        for kind in ("mean", "iqm")
    }
    record = {"command": "python -m ambs.report.coverage", "repetitions": REPETITIONS, "sigma": SIGMA}
    FILE.write_text(json.dumps(record | {"coverage": coverage}, indent=1) + "\n")
    json.dump(coverage, sys.stdout)


if __name__ == "__main__":
    main()

"""Coverage of the intervals, simulated anew; the committed figures are those of the same simulation."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from ambs.report.coverage import POPULATIONS, REPETITIONS, SIGMA, SIZES, figures, measure, sentence, true_value


@pytest.mark.parametrize(("kind", "repetitions"), [("mean", 2000), ("iqm", 500)])
def test_fifty_seeds_cover_as_they_should(kind, repetitions):
    assert 0.93 <= measure(kind, "normal", 50, repetitions) <= 0.97


@pytest.mark.parametrize("population", POPULATIONS)
@pytest.mark.parametrize(("kind", "repetitions"), [("mean", 1000), ("iqm", 400)])
def test_committed_figures_at_five_seeds(kind, population, repetitions):
    committed = figures()["coverage"][kind][population]["5"]
    error = math.sqrt(committed * (1 - committed) * (1 / repetitions + 1 / REPETITIONS))
    assert abs(measure(kind, population, 5, repetitions, seed=1) - committed) < 4 * error


def test_truth_against_integration():
    skewed = stats.lognorm(SIGMA)
    low, high = skewed.ppf([0.25, 0.75])
    assert true_value("mean", "log-normal") == pytest.approx(skewed.mean())
    assert true_value("iqm", "log-normal") == pytest.approx(
        2 * integrate.quad(lambda x: x * skewed.pdf(x), low, high)[0]
    )


def test_t_interval_is_exact_for_normal_seeds():
    for size in SIZES:
        assert figures()["coverage"]["mean"]["normal"][str(size)] == pytest.approx(0.95, abs=0.015)


def test_sentence():
    five = figures()["coverage"]["iqm"]["normal"]["5"]
    assert f"{five:.1%}" in sentence(5)
    assert "the nearest that was simulated below 7" in sentence(7)
    assert sentence(1) == ""
    assert np.isfinite(five)

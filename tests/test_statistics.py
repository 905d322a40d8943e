"""Intervals against SciPy and by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from ambs.statistics import difference, holm, iqm, iqm_interval, mean_interval, share_interval


def test_by_hand():
    # 1, 2, 3: mean 2, s = 1, t(.975, 2) = 4.30265.
    found = mean_interval(np.array([1, 2, 3]))
    assert found.mean == 2
    assert found.high == pytest.approx(2 + 4.302653 / math.sqrt(3), rel=1e-6)
    assert found.low == pytest.approx(2 - 4.302653 / math.sqrt(3), rel=1e-6)


def test_against_scipy():
    values = np.random.default_rng(0).normal(size=17)
    exact = stats.ttest_1samp(values, 0).confidence_interval(0.9)
    found = mean_interval(values, 0.9)
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high))


def test_no_spread_is_no_certainty():
    assert mean_interval(np.array([4.0])) == (4.0, None, None)
    assert mean_interval(np.zeros(16)) == (0.0, None, None)
    assert str(mean_interval(np.zeros(16))) == "0"
    assert str(mean_interval(np.array([1, 2, 3]))).startswith("2 [")


def test_intervals_stay_in_range():
    found = mean_interval(np.array([0.0, 0.0, 0.1]), least=0.0, most=1.0)
    assert found.low == 0
    assert found.high is not None
    assert 0 < found.high < 1


def test_shares_by_hand():
    # No success in 16: the upper limit solves (1 − p)^16 = .025.
    found = share_interval(0, 16)
    assert found.low == 0
    assert found.high == pytest.approx(1 - 0.025 ** (1 / 16))


def test_iqm_by_hand():
    # Of eight values the lowest and highest two go: mean of 3, 4, 5, 6. Of five, one at each end: 2, 3, 4.
    assert iqm(np.array([8, 1, 7, 2, 6, 3, 5, 4])) == 4.5
    assert iqm(np.array([1, 2, 3, 4, 100])) == 3


def test_iqm_interval_by_hand():
    # Two values 0 and 1: a redrawn pair has mean 0, ½ or 1 with probability ¼, ½, ¼, so the 95 % limits are 0 and 1.
    assert iqm_interval([np.array([0.0, 1.0])]) == (0.5, 0.0, 1.0)
    # Strata are redrawn from themselves: with no spread inside any of them, nothing varies.
    assert iqm_interval([np.array([1.0, 1.0]), np.array([3.0, 3.0])]) == (2.0, 2.0, 2.0)
    assert iqm_interval([np.array([1.0]), np.array([3.0])]) == (2.0, None, None)


def test_iqm_interval_against_scipy():
    values = np.random.default_rng(1).gamma(2, size=12)
    found = iqm_interval([values], draws=20_000)
    theirs = stats.bootstrap(
        (values,), lambda x, axis: stats.trim_mean(x, 0.25, axis=axis), n_resamples=20_000, method="percentile",
        rng=np.random.default_rng(2),
    ).confidence_interval  # fmt: skip
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=0.03)


def test_difference_by_hand():
    # 1, 2, 3 against 4, 6, 8: variances 1 and 4, standard error √(5/3), Welch's freedom (5/3)²/((1/3)²/2 + (4/3)²/2).
    found = difference(np.array([1, 2, 3]), np.array([4, 6, 8]))
    error, freedom = math.sqrt(5 / 3), (5 / 3) ** 2 / ((1 / 9 + 16 / 9) / 2)
    half = stats.t.ppf(0.975, freedom) * error
    assert found.difference == pytest.approx((-4, -4 - half, -4 + half))
    assert found.p == pytest.approx(2 * stats.t.cdf(-4 / error, freedom))
    # Pooled standard deviation √2.5; correction 1 − 3/(4·4 − 1).
    assert found.hedges_g == pytest.approx(-4 / math.sqrt(2.5) * 0.8)
    assert found.superiority == 0
    assert difference(np.array([1, 2]), np.array([1, 3])).superiority == pytest.approx((0.5 + 1) / 4)
    assert difference(np.array([5]), np.array([1, 3])).superiority is None


def test_difference_of_what_does_not_vary():
    found = difference(np.array([1.0, 1.0]), np.array([2.0, 2.0]))
    assert found.difference == (-1, None, None)
    assert found.p is found.hedges_g is None


def test_holm_by_hand():
    # Sorted .01, .03, .04 times 3, 2, 1: .03, .06, then not below its predecessor.
    assert holm([0.04, 0.01, None, 0.03]) == pytest.approx([0.06, 0.03, None, 0.06])

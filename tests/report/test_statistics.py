"""Intervals against SciPy and by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from ambs.report.statistics import mean_interval, share_interval


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

"""Statistics against arrays worked by hand and closed forms."""

import numpy as np
import pytest
from scipy import stats

from ambs.foresight import figures
from ambs.foresight.figures import Truth, auroc, bootstrap, calibration_error, cut, reliability, share_above, truth


def test_what_happened_after_each_state():
    """Two episodes of six and three steps, n = 2. The first violates in its steps 3 and 4 (and is inside after step 3)."""
    episode = np.array([0] * 6 + [1] * 3)
    violated = np.array([0, 0, 1, 1, 0, 0, 0, 0, 0], bool)
    unsafe_now = np.array([0, 0, 0, 1, 0, 0, 0, 0, 0], bool)
    over = np.zeros(9, bool)
    found = truth(episode, unsafe_now, violated, over, 2)
    assert found.ahead.tolist() == [0, 2, 1, 1, 0, 0, 0, 0, 0]
    # Not: the state inside, and the last of each episode, of whose two steps only one was played.
    assert found.counts.tolist() == [True, True, True, False, True, False, True, True, False]
    assert found.fails.sum() == 2
    over[8] = True
    ended = truth(episode, unsafe_now, violated, over, 2)
    assert ended.counts.tolist()[-3:] == ended.whole.tolist()[-3:] == [True] * 3
    assert found.whole.tolist() == [True] * 5 + [False] + [True] * 2 + [False]


def test_auroc_with_ties_is_the_u_statistic():
    rng = np.random.default_rng(0)
    score, fails = rng.integers(0, 5, 200) / 4, rng.uniform(size=200) < 0.3
    statistic = stats.mannwhitneyu(score[fails], score[~fails]).statistic
    assert auroc(score, fails) == pytest.approx(statistic / fails.sum() / (~fails).sum())
    assert auroc(np.array([0.1, 0.2, 0.2, 0.9]), np.array([False, False, True, True])) == 3.5 / 4
    assert np.isnan(auroc(np.array([0.1, 0.2]), np.array([False, False])))


def test_flagged_at_a_false_alarm_rate():
    """Safe states score 1 … 10 once each: at 10 % only the 10 is flagged, at 15 % half of the nines as well."""
    scores = np.arange(1, 12)
    safe, wanted = scores <= 10, np.flatnonzero(np.isin(scores, [5, 9, 10, 11]))

    def flagged(safe, rate):
        return share_above(wanted, np.ones(4), *cut(safe.astype(float), rate))

    assert flagged(safe, 0.1) == pytest.approx(0.5)
    assert flagged(safe, 0.15) == pytest.approx(2.5 / 4)
    assert flagged(safe, 0.0) == pytest.approx(0.25), "nothing safe scores as high as 11"
    assert flagged(safe, 1.0) == 1.0
    assert np.isnan(flagged(np.zeros(11), 0.1)), "there are no false alarms to speak of"
    assert figures.threshold(np.arange(1, 11), 0.1) == 9


def test_detection_tells_near_from_far():
    """100 safe states at 0, one entry each: 1 step before at 1, 5 steps before at 0; nobody is flagged by chance but 1 %."""
    ahead = np.array([0] * 100 + [1] * 4 + [5] * 4)
    score = (ahead == 1).astype(float)
    found = figures.score_figures(score, Truth(ahead, np.ones(108, bool), np.ones(108, bool)), np.arange(108) % 9, 5)
    assert found["detection"]["1"]["0.01"] == {"mean": 1.0, "low": 1.0, "high": 1.0}
    assert found["detection"]["5"]["0.01"]["mean"] == pytest.approx(0.01)
    assert found["detection"]["5"]["states"] == 4
    assert "10" not in found["detection"], "10 steps are more than the horizon"
    assert found["flagged_windows"]["0.05"]["mean"] == pytest.approx((4 + 4 * 0.05) / 8)
    assert found["auroc"]["mean"] == pytest.approx(0.75)


def test_calibration_by_hand():
    """Bins .0–.1 and .9–1: |.05 − 1/4|·4/6 + |.95 − 1|·2/6."""
    chance = np.array([0.05, 0.05, 0.05, 0.05, 0.95, 0.95])
    happened = np.array([True, False, False, False, True, True])
    assert calibration_error(chance, happened) == pytest.approx((4 * 0.2 + 2 * 0.05) / 6)
    assert figures.brier(chance, happened) == pytest.approx((0.95**2 + 3 * 0.05**2 + 2 * 0.05**2) / 6)
    rows = reliability(chance, happened)
    exact = stats.binomtest(1, 4).proportion_ci(0.95, "exact")
    assert (rows[0]["predicted"], rows[0]["observed"]) == pytest.approx((0.05, 0.25))
    assert (rows[0]["low"], rows[0]["high"]) == pytest.approx((exact.low, exact.high))
    assert rows[9]["low"] == pytest.approx(0.025**0.5)
    assert [row["states"] for row in rows] == [4, 0, 0, 0, 0, 0, 0, 0, 0, 2]


def test_bootstrap_redraws_episodes_not_rows():
    """The mean over episodes of one value each: its interval has the width of the known standard error; and copying every
    row ten times changes nothing."""
    rng = np.random.default_rng(1)
    values = rng.normal(size=200)

    def mean(of: np.ndarray) -> list:
        return bootstrap(
            lambda weight: np.array([(weight * of).sum() / weight.sum()]), np.arange(200).repeat(len(of) // 200)
        )

    [once], [often] = mean(values), mean(values.repeat(10))
    half = 1.96 * values.std() / np.sqrt(200)
    assert once["mean"] == pytest.approx(values.mean())
    assert (once["high"] - once["low"]) / 2 == pytest.approx(half, rel=0.15)
    assert often == pytest.approx(once)
    [alone] = bootstrap(lambda weight: np.array([weight.sum()]), np.zeros(5, int))
    assert alone == {"mean": 5.0, "low": None, "high": None}

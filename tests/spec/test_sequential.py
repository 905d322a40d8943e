"""The betting test: its counts, its exact operating characteristics, and simulations that must agree with them."""

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from ambs.errors import UserError
from ambs.shield import Reason, ShieldConfig, replay, rule
from ambs.spec.sequential import betting_test, characteristics

PAPER = betting_test(0.1, 0.09, 0.01)


def test_wealth_by_hand():
    assert PAPER.bet == 1
    assert PAPER.wealth(1, 0) == Fraction(11, 10)
    assert PAPER.wealth(1, 1) == Fraction(1, 10)
    assert PAPER.wealth(3, 1) == Fraction(121, 1000)


def test_counts_per_look():
    assert PAPER.looks == (64, 128, 192, 256, 320, 384, 448, 512)
    accept, override = zip(*PAPER.thresholds(), strict=True)
    assert accept == (0, 3, 5, 8, 10, 13, 15, 18)
    assert override == (5, 8, 10, 13, 15, 18, 20, 23)


@pytest.mark.parametrize(
    ("mu", "accept", "traces"),
    [
        (0.5, 5e-20, 64.00),
        (0.8, 6e-7, 64.13),
        (0.9, 0.0019, 81.03),
        (0.95, 0.216, 195.62),
        (0.99, 0.9995, 97.38),
        (1.0, 1.0, 64.00),
    ],
)
def test_operating_characteristics(mu, accept, traces):
    found = characteristics(PAPER.looks, PAPER.thresholds(), mu)
    assert found.accept == pytest.approx(accept, rel=0.1)
    assert round(found.expected_traces, 2) == traces
    assert sum(a + o for _, a, o in found.stops) == pytest.approx(1)


def test_worst_case_and_validity():
    grid = np.linspace(0.9, 1, 101)
    costs = [characteristics(PAPER.looks, PAPER.thresholds(), mu).expected_traces for mu in grid]
    assert grid[int(np.argmax(costs))] == pytest.approx(0.961)
    assert max(costs) == pytest.approx(221, abs=0.5)
    # Ville: at any μ̂ ≤ p0 a false accept happens with probability at most δ.
    for mu in (0.9, 0.85, 0.5):
        assert characteristics(PAPER.looks, PAPER.thresholds(), mu).accept <= 0.01


def test_half_of_epsilon_for_the_model():
    careful = betting_test(0.1, 0.09, 0.01, model_error=0.045)
    assert careful.null == Fraction(945, 1000)
    assert careful.alternative == Fraction(99, 100)
    assert characteristics(careful.looks, careful.thresholds(), 0.945).accept <= 0.01
    assert characteristics(careful.looks, careful.thresholds(), 1.0).accept == pytest.approx(1)


def test_epsilon_equal_to_delta_allows_no_violation():
    strict = betting_test(0.1, 0.1, 0.01)
    accept, override = zip(*strict.thresholds(), strict=True)
    assert set(accept) == {0}
    assert set(override) == {1}


@pytest.mark.parametrize("mu", [0.85, 0.9, 0.95, 0.961, 0.99])
def test_simulation_agrees_with_dynamic_programming(mu):
    runs = 4000
    table = rule(ShieldConfig())
    traces = np.random.default_rng(int(1000 * mu)).uniform(size=(runs, 512)) >= mu
    outcomes = [replay(table, row) for row in traces]
    exact = characteristics(PAPER.looks, PAPER.thresholds(), mu)
    accepted = sum(reason == Reason.ACCEPTED for reason, _ in outcomes)
    assert stats.binomtest(accepted, runs, min(1.0, exact.accept)).pvalue > 1e-4
    for look, accept, override in exact.stops:
        stopped = sum(used == look for _, used in outcomes)
        assert stats.binomtest(stopped, runs, min(1.0, accept + override)).pvalue > 1e-5


def test_peeking_at_clopper_pearson_is_not_valid():
    """Why the intervals share δ among the looks: looking at all of 512 traces without that, false accepts at μ̂ = .9 are
    six times what is claimed."""
    looks = tuple(range(1, 513))
    thresholds = []
    for look in looks:
        # Accept as soon as the one-sided lower bound at .01 reaches .9.
        counts = np.arange(look)
        proven = stats.beta.ppf(0.01, look - counts, counts + 1) >= 0.9
        thresholds.append((int(proven.sum()) - 1, look + 1))
    assert characteristics(looks, tuple(thresholds), 0.9).accept == pytest.approx(0.060, abs=0.0005)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"safety_level": 0.1, "epsilon": 0.2, "delta": 0.01}, "ε"),
        ({"safety_level": 1.1, "epsilon": 0.2, "delta": 0.01}, "Δ"),
        ({"safety_level": 0.1, "epsilon": 0.05, "delta": 0.0}, "δ"),
        ({"safety_level": 0.1, "epsilon": 0.05, "delta": 0.1, "model_error": 0.05}, "kept for the model"),
        ({"safety_level": 0.1, "epsilon": 0.05, "delta": 0.1, "cap": 100}, "multiple"),
        ({"safety_level": 0.005, "epsilon": 0.0045, "delta": 0.01}, "could never accept.*1021"),
    ],
)
def test_impossible_settings_are_refused(settings, says):
    with pytest.raises(UserError, match=says):
        betting_test(**settings)


def test_a_tiny_margin_is_refused_at_once():
    """ε = 10⁻⁹ asks for ln(1/δ)/ln((1 − Δ + ε)/(1 − Δ)) ≈ 4.6 · .9 · 10⁹ traces, whose exact powers nobody waits for."""
    with pytest.raises(UserError, match=r"could never accept, .*it takes 41446\d{5}$"):
        betting_test(0.1, 1e-9, 0.01)

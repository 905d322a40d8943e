"""Theorems 1–3: the paper's own settings, worked by hand; and where its proof slips, shown on a chain."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from ambs.errors import UserError
from ambs.spec import Atoms, bounds, parse_property
from ambs.spec.chain import Chain


def test_the_papers_settings():
    # ln 200 / (2 · .0081) = 327.05…; Theorem 2 halves ε and so needs four times as many.
    assert bounds.traces_needed(0.09, 0.01) == 328
    assert bounds.traces_needed(0.09, 0.01, model=True) == 1309
    assert bounds.epsilon_achieved(512, 0.01, model=True) == pytest.approx(0.1439, abs=5e-5)
    assert bounds.delta_achieved(512, 0.09, model=True) == pytest.approx(0.2515, abs=5e-5)
    assert bounds.kl_premise(0.09, 30) == pytest.approx(4.5e-6)
    assert bounds.kl_premise_chain_rule(0.09, 30) == pytest.approx(1.35e-4)
    assert bounds.kl_premise_unequal_split(0.09, 0.01, 30, 512) == pytest.approx(2.2e-5, abs=5e-7)
    assert bounds.kl_premise_unequal_split(0.09, 0.01, 30, 300) is None
    assert bounds.kl_premise_binary(0.1, 0.01, 30, 512, 5) == pytest.approx(2.2e-3, abs=5e-5)
    assert bounds.kl_premise_binary(0.1, 0.01, 30, 512, 0) == pytest.approx(5.2e-3, abs=5e-5)
    assert bounds.kl_premise_binary(0.1, 0.01, 30, 512, 60) == 0
    per_episode = [bounds.traces_needed(0.09, 0.01, model=m, decisions=n) for n in (1000, 500) for m in (False, True)]
    assert per_episode == [754, 3014, 711, 2843]
    assert bounds.accept_count(0.1, 0.09, 512) == 5
    assert bounds.acceptance_probability(0.99, 5, 512) == pytest.approx(0.595, abs=5e-4)
    assert bounds.acceptance_probability(0.9, 5, 512) == pytest.approx(2e-17, rel=0.05)


def test_one_sided_needs_fewer():
    # ln 100 / (2 · .0081) = 284.26…
    assert bounds.traces_needed(0.09, 0.01, sides=1) == 285


@pytest.mark.parametrize("model", [False, True])
@pytest.mark.parametrize("sides", [1, 2])
def test_needed_and_achieved_agree(model, sides):
    for epsilon, delta in ((0.05, 0.1), (0.09, 0.01), (0.3, 0.001)):
        m = bounds.traces_needed(epsilon, delta, model=model, sides=sides)
        assert bounds.epsilon_achieved(m, delta, model=model, sides=sides) <= epsilon
        assert bounds.delta_achieved(m, epsilon, model=model, sides=sides) <= delta
        assert bounds.epsilon_achieved(m - 1, delta, model=model, sides=sides) > epsilon


def test_accept_count_is_exact_on_decimals():
    # 1000 · (.3 − .1) is 200; in binary floating point it is 199.99999999999997.
    assert bounds.accept_count(0.3, 0.1, 1000) == 200
    assert math.floor(1000 * (0.3 - 0.1)) == 199
    assert bounds.accept_count(0.1, 0.1, 512) == 0
    rng = np.random.default_rng(0)
    for _ in range(1000):
        level = Decimal(int(rng.integers(1, 1000))) / 1000
        epsilon = level * int(rng.integers(1, 101)) / 100
        m = int(rng.integers(1, 2000))
        accept = bounds.accept_count(float(level), float(epsilon), m)
        bar = 1 - Fraction(level) + Fraction(epsilon)
        for violating in range(m + 1):
            assert (violating <= accept) == (Fraction(m - violating, m) >= bar)


def test_clopper_pearson_against_scipy():
    low, high = bounds.clopper_pearson(64, np.array([0, 1, 7, 64]), 0.05)
    for index, violating in enumerate([0, 1, 7, 64]):
        exact = stats.binomtest(64 - violating, 64).proportion_ci(0.95, "exact")
        assert (low[index], high[index]) == pytest.approx((exact.low, exact.high))
    assert bounds.safe_share_lower_bound(512, 0, 0.01) == pytest.approx(0.01 ** (1 / 512))


def test_binary_kl_by_hand():
    assert bounds.binary_kl(0.9, 0.99) == pytest.approx(0.9 * math.log(0.9 / 0.99) + 0.1 * math.log(10))
    assert bounds.binary_kl(1.0, 0.5) == pytest.approx(math.log(2))
    assert bounds.binary_kl(0.5, 1.0) == math.inf
    assert bounds.binary_kl(0.0, 0.0) == 0


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: bounds.accept_count(0.1, 0.2, 512), "must not exceed"),
        (lambda: bounds.traces_needed(0.0, 0.1), "ε"),
        (lambda: bounds.traces_needed(0.1, 1.0), "δ"),
        (lambda: bounds.traces_needed(0.1, float("nan")), "δ"),
        (lambda: bounds.epsilon_achieved(0, 0.1), "traces"),
        (lambda: bounds.kl_premise(0.1, 0), "horizon"),
        (lambda: bounds.state_divergence_bound(-1.0), "at least 0"),
    ],
)
def test_impossible_settings_are_refused(call, says):
    with pytest.raises(UserError, match=says):
        call()


def lanes(n: int, rotate: float) -> Chain:
    """State 0 leads uniformly to n lanes, the first of them unsafe; then stay, or move on to the next lane."""
    matrix = np.zeros((n + 1, n + 1))
    matrix[0, 1:] = 1 / n
    for lane in range(n):
        matrix[1 + lane, 1 + lane] += 1 - rotate
        matrix[1 + lane, 1 + (lane + 1) % n] += rotate
    unsafe = np.zeros((n + 1, 1), bool)
    unsafe[1] = True
    return Chain(matrix, unsafe, Atoms(("unsafe",)))


def test_averaged_state_distributions_do_not_bound_the_gap():
    """The printed proof's step |μ − μ̂| ≤ TV(averaged distributions) fails; the path-measure bounds hold."""
    n = 30
    path = parse_property(f"P=? [ G<={n} !unsafe ]")
    stay, turn = lanes(n, 0.0), lanes(n, 1.0)
    assert stay.check(path)[0] == pytest.approx(29 / 30)
    assert turn.check(path)[0] == pytest.approx(0, abs=1e-15)
    marginals = []
    for chain in (stay, turn):
        state, average = np.eye(n + 1)[0], np.zeros(n + 1)
        for _ in range(n):
            state = state @ chain.transitions
            average += state / n
        marginals.append(average)
    np.testing.assert_allclose(*marginals, atol=1e-12)
    # A premise that holds, KL(stay ‖ slightly rotating) = α per step: the gap is positive, TV is 0, and √(nα/2) bounds it.
    alpha = bounds.kl_premise(0.09, n)
    gap = stay.check(path)[0] - lanes(n, -math.expm1(-alpha)).check(path)[0]
    assert 4.2e-6 < gap < 4.4e-6
    assert gap <= math.sqrt(n * alpha / 2)
    assert gap <= n * math.sqrt(alpha / 2)


def test_theorem_3_on_random_beliefs():
    """State divergence ≤ belief divergence for a shared p(s | b): data processing, for KL and total variation."""
    rng = np.random.default_rng(1)
    for _ in range(200):
        emission = rng.dirichlet(np.ones(4), size=6)
        p, q = rng.dirichlet(np.ones(6), size=2)
        for divergence in (lambda x, y: float(stats.entropy(x, y)), lambda x, y: float(np.abs(x - y).sum() / 2)):
            between_states = divergence(p @ emission, q @ emission)
            assert between_states <= bounds.state_divergence_bound(divergence(p, q)) + 1e-12

"""One trace: where it violates first, whom it blames, what its labels, frames and costs count for."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ambs.shield import SafetyConfig, ShieldConfig, Trace
from ambs.shield.traces import judge
from ambs.spec import parse_formula
from ambs.spec.risk import step_risk
from ambs.streams import at, stream
from tests.shield.worlds import ATOMS, PSI, coin_problem, script

KEY = stream(0, "shield")


def evidence(labels, config=None, psi=PSI, continues=None, probabilities=False, critics=None, key=KEY):
    config = config or ShieldConfig(horizon=len(labels))
    trace = script(labels, continues, probabilities)(None, jnp.zeros(1), None, None)
    found = judge(key, trace, coin_problem(0.0, config, psi=psi, critics=critics))
    return int(found.first_violation), int(found.atom), bool(found.finite)


def test_first_violation_and_blame():
    safe, hazard, collision, both = [0, 0], [1, 0], [0, 1], [1, 1]
    assert evidence([safe, safe, safe]) == (0, -1, True)
    assert evidence([safe, hazard, collision]) == (2, 0, True)
    assert evidence([collision, hazard, safe]) == (1, 1, True)
    assert evidence([safe, safe, both]) == (3, 0, True)
    implication = parse_formula("hazard -> collision", ATOMS)
    assert evidence([both, safe, hazard], psi=implication) == (3, 0, True)
    assert evidence([safe, safe], psi=parse_formula("false")) == (1, -1, True)


def test_every_pattern_of_violations():
    """All 2^5 traces: violating iff any step violates, first step as plain Python finds it."""
    for pattern in itertools.product([0, 1], repeat=5):
        first, _, _ = evidence([[bit, 0] for bit in pattern])
        assert first == (pattern.index(1) + 1 if any(pattern) else 0)


def test_nothing_counts_after_the_episode_has_ended():
    labels = [[0, 0], [0, 0], [1, 0]]
    assert evidence(labels, continues=[1, 1, 1])[0] == 3
    assert evidence(labels, continues=[1, 0, 1])[0] == 0
    # The state in which the episode ends still counts, and continue is taken by its mode.
    assert evidence(labels, continues=[1, 1, 0])[0] == 3
    assert evidence(labels, continues=[0.9, 0.6, 0.2])[0] == 3
    assert evidence(labels, continues=[0.9, 0.4, 0.9])[0] == 0


def test_a_step_of_several_frames_is_drawn_once():
    """As risky as its most dangerous frame, for any Ψ, both where it is drawn and where its expected cost counts."""
    frames = jnp.array([[[0.1, 0.2], [0.5, 0.1]]])  # P(¬Ψ) = .28 and .55
    either = jnp.array([[[0.9, 0.5], [0.4, 0.6]]])  # hazard -> collision fails with .45 and .16
    implication = parse_formula("hazard -> collision", ATOMS)
    for number, (labels, psi, risk) in enumerate(((frames, PSI, 0.55), (either, implication, 0.45))):
        trace = Trace(labels, jnp.ones(1), jnp.ones(1, bool), jnp.zeros(1))
        drawn, blamed = jax.vmap(
            lambda key, trace=trace, psi=psi: judge(
                key, trace, coin_problem(0.0, ShieldConfig(horizon=1, labels="sample"), psi=psi)
            )[:2]
        )(jax.random.split(at(KEY, number), 10_000))
        assert np.mean(np.asarray(drawn) == 1) == pytest.approx(risk, abs=0.015)
        assert (np.asarray(blamed)[np.asarray(drawn) == 1] >= 0).all()
        mean = ShieldConfig(horizon=1, labels="mean")
        costly = coin_problem(0.0, mean, psi=psi, safety=SafetyConfig(cost=7.0))
        assert float(judge(KEY, trace, costly).cost) == pytest.approx(7 * risk, rel=1e-5)
        assert float(step_risk(psi, ATOMS, labels)[0]) == pytest.approx(risk, rel=1e-5)


def test_label_rules():
    labels = [[0.4, 0.2], [0.4, 0.2]]
    mode = ShieldConfig(horizon=2, labels="mode")
    assert evidence(labels, mode, probabilities=True)[0] == 0
    assert evidence([[0.4, 0.2], [0.6, 0.2]], mode, probabilities=True)[:2] == (2, 0)
    calibrated = ShieldConfig(horizon=2, labels="mode", label_threshold=(0.5, 0.15))
    assert evidence(labels, calibrated, probabilities=True)[:2] == (1, 1)
    sampling = ShieldConfig(horizon=2, labels="sample")
    trace = script(labels, probabilities=True)(None, jnp.zeros(1), None, None)
    draws = jax.vmap(lambda key: judge(key, trace, coin_problem(0.0, sampling)).first_violation)(
        jax.random.split(KEY, 10_000)
    )
    # A step violates with 1 − .6 · .8 = .52.
    assert np.mean(np.asarray(draws) == 1) == pytest.approx(0.52, abs=0.02)
    assert np.mean(np.asarray(draws) == 2) == pytest.approx(0.48 * 0.52, abs=0.02)
    # Thresholded expected costs let .03 per step pass over 30 steps although P(violation) is .60.
    mean = ShieldConfig(labels="mean")
    assert evidence([[0.03, 0.0]] * 30, mean, probabilities=True)[0] == 0
    assert evidence([[0.04, 0.0]] * 30, mean, probabilities=True)[0] > 0


def test_cost_of_a_trace_against_the_threshold():
    """A violation at exactly t = T flags in float32; one at H + 1 … T is the critics' to see."""
    config = ShieldConfig(labels="mean")
    at_the_end = [[0, 0]] * 29 + [[1, 0]]
    assert evidence(at_the_end, config)[0] == 30
    assert evidence([[0, 0]] * 30, config)[0] == 0
    short = ShieldConfig(rolled=15, critics="max")
    nothing = [[0, 0]] * 15
    gamma, cost = 0.997, 10.0
    # V(s_H) = γ^{k−1}·C for a violation k steps beyond H: the last one inside the horizon is k = 15, the first outside 16.
    inside, outside = gamma**14 * cost, gamma**15 * cost
    assert evidence(nothing, short, critics=lambda _s: jnp.array([inside, 0.0]))[:2] == (16, -2)
    assert evidence(nothing, short, critics=lambda _s: jnp.array([outside, 0.0]))[0] == 0
    least = ShieldConfig(rolled=15, critics="min")
    assert evidence(nothing, least, critics=lambda _s: jnp.array([inside, 0.0]))[0] == 0
    assert evidence(nothing, least, critics=lambda _s: jnp.array([inside, inside]))[0] == 16
    # γ^{T−1−H}·C = 9.59 of 10 is what a critic must reach.
    assert inside == pytest.approx(9.59, abs=0.005)
    # Values are clipped to [0, C]: a wild critic cannot outweigh, nor a negative one excuse, what was seen.
    seen = [[0, 0]] * 14 + [[1, 0]]
    assert evidence(seen, short, critics=lambda _s: jnp.array([-1e9, -1e9]))[0] == 15
    ended = evidence(nothing, short, continues=[1] * 14 + [0], critics=lambda _s: jnp.array([1e9, 1e9]))
    assert ended[0] == 0


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, bool])
def test_whole_numbers_are_labels_too(dtype):
    """`hazard -> collision` is violated in every step; read as probabilities, every atom would seem to hold."""
    labels = np.array([[1, 0]] * 3, dtype)
    trace = script(labels)(None, jnp.zeros(1), None, None)._replace(labels=jnp.asarray(labels)[:, None])
    psi = parse_formula("hazard -> collision", ATOMS)
    found = judge(KEY, trace, coin_problem(0.0, ShieldConfig(horizon=3), psi=psi))
    assert int(found.first_violation) == 1


def test_continue_is_taken_by_its_mode_and_ties_count_as_going_on():
    assert evidence([[0, 0], [1, 0]], continues=[0.5, 1.0])[0] == 2


def test_seen_violations_do_not_depend_on_arithmetic():
    """With critics on, a hard violation at the last imagined step counts, whatever the threshold's exponent."""
    for exponent in (0.0, -0.5, -0.999):
        config = ShieldConfig(critics="max", threshold_exponent=exponent)
        assert evidence([[0, 0]] * 29 + [[1, 0]], config, critics=lambda _s: jnp.zeros(2))[:2] == (30, 0)


def test_frames_of_a_step():
    """Two frames at p = .5: P(any) is .75, the paper's clipped sum is 1."""
    trace = script([[0.0, 0.0]], probabilities=True)(None, jnp.zeros(1), None, None)
    trace = trace._replace(labels=jnp.array([[[0.5, 0.0], [0.5, 0.0]]]))
    for frame_costs, flagged in (("any", False), ("sum", True)):
        config = ShieldConfig(horizon=1, labels="mean", frame_costs=frame_costs)
        found = judge(KEY, trace, coin_problem(0.0, config))
        assert (int(found.first_violation) > 0) == flagged

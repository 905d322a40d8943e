"""Each penalty's weights, worked by hand, and where gradients stop."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ambs.agent.penalties import (
    PENALTIES,
    Imagined,
    Multiplier,
    copt,
    lagrangian,
    lagrangian_objective,
    none,
    penalty,
    penl,
    plpg,
    remaining_cost,
)
from ambs.config import AgentConfig

NOTHING = Multiplier(jnp.zeros(()), jnp.zeros(()))


def imagined(cost_next, safe_value=None, end=0.0, cost_return=None) -> Imagined:
    cost = jnp.asarray(cost_next, jnp.float32)[:, None]
    safe = jnp.zeros(cost.shape[0] + 1) if safe_value is None else jnp.asarray(safe_value, jnp.float32)
    returns = cost if cost_return is None else jnp.asarray(cost_return, jnp.float32)[:, None]
    return Imagined(cost, returns, safe[:, None], jnp.array([end]))


def test_none_and_penl():
    seen = imagined([0.0, 10.0])
    assert none().apply(seen, NOTHING).reward.tolist() == [[1], [1]]
    assert not none().apply(seen, NOTHING).cost.any()
    assert penl(1.5).apply(seen, NOTHING).cost.tolist() == [[1.5], [1.5]]
    assert penl(1.5).apply(seen, NOTHING).reward.tolist() == [[1], [1]]


def test_plpg_by_hand():
    """δ_t = −(c_{t+1} + V(s_{t+1}) − V(s_t)): rising danger shrinks the weight, falling danger does not raise it."""
    costs, values = np.array([0.0, 2.0, 0.0, 10.0]), np.array([1.0, 1.5, 1.5, 0.5, 9.5])
    weights = [math.exp(-0.5), math.exp(-2.0), 1.0, 1e-6]
    for cost in (10.0, 0.3):  # As printed, or the same dangers at another price: the weights are the same.
        unit = cost / 10
        found = plpg(0.8, cost).apply(imagined((unit * costs).tolist(), (unit * values).tolist()), NOTHING)
        np.testing.assert_allclose(found.reward[:, 0], weights, rtol=1e-4)
        np.testing.assert_allclose(found.cost[:, 0], 0.8)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"penalty": "none"}, set()),
        ({"penalty": "penl"}, set()),
        ({"penalty": "plpg"}, set()),
        ({"penalty": "plpg", "plpg_stop_gradient": False}, {"cost_next", "safe_value"}),
        ({"penalty": "copt", "kappa": 1.0}, set()),
        ({"penalty": "lag", "lag_mu": 0.1}, set()),
        ({"penalty": "lag", "lag_mu": 0.1, "lag_rule": "max"}, set()),
    ],
)
def test_what_the_weights_send_back(settings, expected):
    """Weights are numbers to the policy; only PLPG can be had as the paper's code has it, without the stop-gradient."""
    rule = penalty(AgentConfig(**settings), 30, 10.0, 0.997)
    seen = imagined([1.0, 0.5], [1.0, 1.5, 1.2], end=3.0, cost_return=[2.0, 3.0])
    gradient = jax.grad(lambda seen: sum(weight.sum() for weight in rule.apply(seen, rule.init())[:2]))(seen)
    assert {name for name, part in gradient._asdict().items() if part.any()} == expected


def test_remaining_cost_by_hand():
    # H = 3, costs 0, 4, 2 and V(s_H) = 8, γ = ½: 2 + 4 = 6; 4 + 3 = 7; 0 + 3.5.
    np.testing.assert_allclose(remaining_cost(jnp.array([0.0, 4.0, 2.0]), jnp.array(8.0), 0.5), [3.5, 7.0, 6.0])


def test_copt_by_hand():
    """A trace with a violation within the horizon is a counter-example and its reward is not followed; a clean one is."""
    rule = copt(1.0, 0.1, 0.997, 30, 10.0)
    clean = rule.apply(imagined([0.0] * 15), NOTHING).reward
    broken = rule.apply(imagined([0.0] * 14 + [10.0]), NOTHING).reward
    np.testing.assert_allclose(clean, 1.0, atol=1e-6)
    np.testing.assert_allclose(broken, 0.0, atol=0.05)
    # Exactly at the threshold γ^{T−1}·C the weight is one half.
    on_border = rule.apply(imagined([0.997**29 * 10.0]), NOTHING).reward
    np.testing.assert_allclose(on_border, 0.5, atol=1e-3)
    # κ = 10 as printed: w(0) = .29 and w(C) = .52 tell hardly anything apart.
    printed = copt(1.0, 10.0, 0.997, 30, 10.0)
    assert 1 - float(printed.apply(imagined([0.0]), NOTHING).reward[0, 0]) == pytest.approx(0.29, abs=0.005)
    assert 1 - float(printed.apply(imagined([10.0]), NOTHING).reward[0, 0]) == pytest.approx(0.52, abs=0.005)


def test_lagrangian_over_several_steps():
    """λ and μ by hand: λ ← max(0, λ + μg), μ ← min(μ(1 + σ), 1)."""
    rule = lagrangian(0.5, 0.1, 0.5, 1.0)
    state = rule.init()
    lam, mu = 0.5, 0.1
    for cost in (3.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0):
        found = rule.apply(imagined([0.0, 0.0], cost_return=[cost, cost]), state)
        np.testing.assert_allclose(found.cost, max(0.0, lam + mu * (cost - 1.0)), rtol=1e-5)
        assert found.raw_cost
        state = rule.step(state, jnp.array(cost))
        lam, mu = max(0.0, lam + mu * (cost - 1.0)), min(1.5 * mu, 1.0)
        assert (float(state.lam), float(state.mu)) == pytest.approx((lam, mu), rel=1e-5)


def test_lagrangian_as_the_papers_code_has_it():
    rule = lagrangian(0.01, 5e-9, 1e-6, 1.0, per_state=True)
    state = rule.step(rule.init(), jnp.array(3.0))
    assert float(state.mu) == 1
    assert float(state.lam) == pytest.approx(0.01 + 5e-9 * 2, rel=1e-6)
    found = rule.apply(imagined([0.0, 0.0], cost_return=[0.5, 4.0]), state)
    np.testing.assert_allclose(found.cost[:, 0], [0.0, 3.01], rtol=1e-4)


@pytest.mark.parametrize("gap", [-2.0, -0.5, 0.0, 1.5])
def test_the_weight_is_the_objectives_derivative(gap):
    state = Multiplier(jnp.array(0.3), jnp.array(0.4))
    slope = jax.grad(lambda g: lagrangian_objective(state, g))(jnp.array(gap))
    weight = lagrangian(0.0, 0.0, 0.0, 1.0).apply(imagined([0.0], cost_return=[gap + 1.0]), state).cost[0, 0]
    assert float(weight) == pytest.approx(float(slope), abs=1e-6)


@pytest.mark.parametrize(("settings", "mu"), [({}, 1.0), ({"lag_sigma": 1e-6}, 5e-9 * math.exp(0.25))])
def test_the_printed_growth_rate_leaves_mu_inert(settings, mu):
    """A run's 250 000 updates bring μ from 5e-9 to its limit with our σ; with the printed 1e-6 it hardly grows."""
    rule = penalty(AgentConfig(penalty="lag", **settings), 30, 1.0, 0.997)
    run = jax.jit(lambda: jax.lax.fori_loop(0, 250_000, lambda _, state: rule.step(state, jnp.ones(())), rule.init()))
    assert float(run().mu) == pytest.approx(mu, rel=0.05)


@pytest.mark.parametrize("name", PENALTIES)
def test_contract(name):
    """One signature: shapes, finite weights, reward weights in [0, 1], cost weights ≥ 0."""
    rule = penalty(AgentConfig(penalty=name), 30, 10.0, 0.997)
    rng = np.random.default_rng(0)
    seen = Imagined(
        *(jnp.asarray(rng.uniform(0, 10, shape), jnp.float32) for shape in ((15, 8), (15, 8), (16, 8), (8,)))
    )
    state = rule.init()
    found = jax.jit(lambda seen, state: rule.apply(seen, state)[:2])(seen, state)
    for weights in found:
        assert weights.shape == (15, 8)
        assert (weights >= 0).all()
    assert (found[0] <= 1).all()
    assert AgentConfig(penalty=name).penalty_weight == (0.8 if name == "plpg" else 1.0)

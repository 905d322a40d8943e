"""Distributions against hand-worked values and SciPy."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from ambs.nn.distributions import (
    BoundedNormal,
    OneHotCategorical,
    bernoulli_loss,
    bins,
    categorical_kl,
    cross_entropy,
    sample_straight_through,
    symexp,
    symlog,
    two_hot,
    two_hot_loss,
    two_hot_mean,
    unimix_log_probs,
    value_mean,
    value_two_hot,
)


def fresh(seed=0):
    """A key that has not been used."""
    return jax.random.key(seed)


def test_symlog_by_hand():
    assert symlog(jnp.array(math.e - 1)) == pytest.approx(1)
    assert symlog(jnp.array(-(math.e**2) + 1)) == pytest.approx(-2)
    x = jnp.array([-300.0, -1.0, 0.0, 0.5, 1e4])
    np.testing.assert_allclose(symexp(symlog(x)), x, rtol=1e-5)


def test_two_hot_by_hand():
    # Eleven bins from −20 to 20, 4 apart: symlog(e² − 1) = 2 lies halfway between 0 and 4.
    weights = two_hot(jnp.array(math.e**2 - 1), 11)
    np.testing.assert_allclose(weights, np.eye(11)[5] * 0.5 + np.eye(11)[6] * 0.5, atol=1e-6)
    np.testing.assert_allclose(two_hot(jnp.array(0.0), 11), np.eye(11)[5], atol=1e-6)
    np.testing.assert_allclose(two_hot(jnp.array(1e12), 11), np.eye(11)[10])
    np.testing.assert_allclose(two_hot(jnp.array(-1e12), 11), np.eye(11)[0])


@pytest.mark.parametrize("value", [-50.0, -1.0, -0.01, 0.0, 0.3, 7.0, 900.0])
def test_two_hot_mean_inverts_two_hot(value):
    weights = two_hot(jnp.array(value), 255)
    assert two_hot_mean(jnp.log(weights + 1e-30)) == pytest.approx(value, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("count", [63, 255, 64])
def test_zero_logits_mean_exactly_zero(count):
    assert float(two_hot_mean(jnp.zeros(count))) == 0.0
    assert float(bins(count)[0]) == pytest.approx(-20)


def test_two_hot_loss_by_hand():
    logits = jnp.zeros(11).at[5].set(2.0).at[6].set(1.0)
    normaliser = math.log(9 + math.e**2 + math.e)
    assert two_hot_loss(logits, jnp.array(math.e**2 - 1)) == pytest.approx(normaliser - 1.5, rel=1e-5)
    # The gradient is softmax − target.
    gradient = jax.grad(two_hot_loss)(logits, jnp.array(0.0))
    np.testing.assert_allclose(gradient, jax.nn.softmax(logits) - np.eye(11)[5], atol=1e-6)
    assert jax.grad(two_hot_loss, argnums=1)(logits, jnp.array(3.0)) == 0


def test_bernoulli_by_hand():
    logit = jnp.array(math.log(3.0))  # p = .75
    assert bernoulli_loss(logit, jnp.array(1.0)) == pytest.approx(-math.log(0.75))
    assert bernoulli_loss(logit, jnp.array(0.0)) == pytest.approx(-math.log(0.25))
    assert bernoulli_loss(logit, jnp.array(1.0), 5.0) == pytest.approx(-5 * math.log(0.75))
    # With weight w the loss is least at logit ln(w·p/(1 − p)): subtracting ln w gives the probability back.
    w, p = 5.0, 0.1
    slope = jax.grad(
        lambda x: p * bernoulli_loss(x, jnp.array(1.0), w) + (1 - p) * bernoulli_loss(x, jnp.array(0.0), w)
    )
    assert float(slope(jnp.array(math.log(w * p / (1 - p))))) == pytest.approx(0, abs=1e-6)


def test_unimix_by_hand():
    probs = jnp.exp(unimix_log_probs(jnp.array([100.0, 0.0, 0.0, 0.0])))
    np.testing.assert_allclose(probs, [0.9925, 0.0025, 0.0025, 0.0025], atol=1e-6)


def test_kl_by_hand():
    p, q = jnp.log(jnp.array([[0.5, 0.5], [0.9, 0.1]])), jnp.log(jnp.array([[0.25, 0.75], [0.9, 0.1]]))
    assert categorical_kl(p, q) == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), rel=1e-5)


def test_straight_through_samples_and_gradient():
    log_probs = jnp.log(jnp.array([[0.2, 0.3, 0.5]]))
    evenly = (jnp.arange(1000.0)[:, None] + 0.5) / 1000
    draws = jax.vmap(lambda drawn: sample_straight_through(drawn, log_probs))(evenly)
    np.testing.assert_allclose(draws.mean(axis=0)[0], [0.2, 0.3, 0.5], atol=0.0011)
    assert set(np.unique(np.round(draws, 5))) == {0.0, 1.0}
    drawn = jnp.array([0.7])
    gradient = jax.grad(lambda logits: sample_straight_through(drawn, jax.nn.log_softmax(logits))[0, 1])(log_probs)
    np.testing.assert_allclose(gradient[0], [-0.3 * 0.2, 0.3 * 0.7, -0.3 * 0.5], atol=1e-6)


def test_normal_against_scipy():
    policy = BoundedNormal.from_outputs(jnp.array([0.5, -1.0, 0.0, 1.0]))
    deviation = 0.9 / (1 + np.exp(-np.array([2.0, 3.0]))) + 0.1
    np.testing.assert_allclose(policy.mean, np.tanh([0.5, -1.0]), rtol=1e-5)
    np.testing.assert_allclose(policy.deviation, deviation, rtol=1e-5)
    exact = stats.norm(np.tanh([0.5, -1.0]), deviation)
    assert policy.log_prob(jnp.array([0.1, 0.2])) == pytest.approx(exact.logpdf([0.1, 0.2]).sum(), rel=1e-5)
    assert policy.entropy() == pytest.approx(exact.entropy().sum(), rel=1e-5)
    # Reparameterised: the gradient of a sample with respect to the mean is 1.
    drawn = BoundedNormal.draw(jax.random.key(2), 1)
    slope = jax.grad(lambda mean: BoundedNormal(mean, jnp.ones(1)).sample(drawn)[0])(jnp.zeros(1))
    assert slope.tolist() == [1]


def test_categorical_by_hand():
    policy = OneHotCategorical.from_outputs(jnp.log(jnp.array([0.25, 0.75])))
    mixed = 0.99 * np.array([0.25, 0.75]) + 0.005
    assert policy.log_prob(jnp.array([0.0, 1.0])) == pytest.approx(math.log(mixed[1]), rel=1e-5)
    assert policy.entropy() == pytest.approx(-(mixed * np.log(mixed)).sum(), rel=1e-5)
    assert policy.mode().tolist() == [0, 1]


def test_value_two_hot_by_hand():
    """Bins at symexp(−2 … 2) = ±(e² − 1), ±(e − 1), 0: halfway between 0 and e − 1 is half on each."""
    np.testing.assert_allclose(value_two_hot(jnp.array((math.e - 1) / 2), 5, 2.0), [0, 0, 0.5, 0.5, 0], atol=1e-6)
    np.testing.assert_allclose(value_two_hot(jnp.array(-100.0), 5, 2.0), np.eye(5)[0], atol=1e-6)
    np.testing.assert_allclose(value_two_hot(jnp.array(100.0), 5, 2.0), np.eye(5)[4], atol=1e-6)


def test_value_mean_is_that_of_the_targets():
    """Half 0 and half 10 is 5; the mean of symlog would say √11 − 1 = 2.3."""
    coin = (value_two_hot(jnp.array(0.0), 255) + value_two_hot(jnp.array(10.0), 255)) / 2
    assert value_mean(jnp.log(coin + 1e-30)) == pytest.approx(5.0, rel=1e-4)
    by_symlog = (two_hot(jnp.array(0.0), 255) + two_hot(jnp.array(10.0), 255)) / 2
    assert two_hot_mean(jnp.log(by_symlog + 1e-30)) == pytest.approx(math.sqrt(11) - 1, rel=1e-3)
    assert float(value_mean(jnp.zeros(255))) == 0.0
    logits = jnp.arange(5.0)
    expected = math.log(sum(math.exp(i) for i in range(5))) - 2.5
    weights = value_two_hot(jnp.array((math.e - 1) / 2), 5, 2.0)
    assert cross_entropy(logits, weights) == pytest.approx(expected, rel=1e-5)

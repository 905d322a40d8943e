"""λ-returns and normalisation, worked by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ambs.agent.returns import Normaliser, lambda_returns


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_lambda_returns_by_hand(wrap):
    reward, discount, value = jnp.array([1.0, 2.0, 3.0]), jnp.array([0.5, 0.5, 0.5]), jnp.array([10.0, 20.0, 40.0])
    # R_2 = 3 + .5·40 = 23; R_1 = 2 + .5(.2·20 + .8·23) = 13.2; R_0 = 1 + .5(.2·10 + .8·13.2) = 7.28.
    found = wrap(lambda r, d, v: lambda_returns(r, d, v, 0.8))(reward, discount, value)
    np.testing.assert_allclose(found, [7.28, 13.2, 23.0], rtol=1e-6)


def test_ends_of_lambda():
    reward, discount, value = jnp.array([1.0, 2.0]), jnp.array([0.9, 0.9]), jnp.array([5.0, 7.0])
    np.testing.assert_allclose(lambda_returns(reward, discount, value, 0.0), [1 + 0.9 * 5, 2 + 0.9 * 7], rtol=1e-6)
    np.testing.assert_allclose(
        lambda_returns(reward, discount, value, 1.0), [1 + 0.9 * (2 + 0.9 * 7), 2 + 0.9 * 7], rtol=1e-6
    )


def test_many_traces_at_once():
    rng = np.random.default_rng(0)
    reward, discount, value = (jnp.asarray(rng.uniform(size=(6, 4)), jnp.float32) for _ in range(3))
    together = lambda_returns(reward, discount, value, 0.95)
    for trace in range(4):
        alone = lambda_returns(reward[:, trace], discount[:, trace], value[:, trace], 0.95)
        np.testing.assert_allclose(together[:, trace], alone, rtol=1e-6)


def test_normaliser_by_hand():
    values = jnp.arange(101.0)
    first = Normaliser.initial().update(values, 0.99)
    assert (float(first.low), float(first.high)) == pytest.approx((0.05, 0.95), rel=1e-5)
    assert float(first.scale(1.0)) == 1
    later = jax.lax.fori_loop(0, 2000, lambda _, old: old.update(values, 0.99), first)
    assert float(later.scale(1.0)) == pytest.approx(90, rel=1e-3)

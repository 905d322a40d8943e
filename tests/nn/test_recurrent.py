"""Recurrence with deferred parameter gradients against a plain scan."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from ambs.nn.recurrent import recur
from tests.tiny import quick_jit


def cell(params, carry, given):
    inputs, keep = given
    carry = jnp.where(keep, carry, 0.0)
    after = jnp.tanh(params["carry"] @ carry + params["input"] @ inputs)
    return after, (after * params["out"]).sum()


def loss(run, params, start, inputs, keep, weights):
    carries, outs = run(params, start, (inputs, keep))
    return (weights * carries).sum() + (outs**2).sum()


def scanned(params, start, given):
    def step(carry, item):
        carry, out = jax.vmap(cell, in_axes=(None, 0, 0))(params, carry, item)
        return carry, (carry, out)

    return jax.lax.scan(step, start, given)[1]


def test_values_and_gradients_are_those_of_a_scan():
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        draw = lambda *shape: jnp.asarray(rng.normal(size=shape))  # noqa: E731
        params = {"carry": draw(3, 3), "input": draw(3, 2), "out": draw(3)}
        keep = jnp.asarray(rng.random((5, 4, 1)) < 0.8)
        given = (params, draw(4, 3), draw(5, 4, 2), keep, draw(5, 4, 3))
        ours = lambda params, start, given: recur(cell, params, start, given)  # noqa: E731
        slopes = [jax.value_and_grad(functools.partial(loss, run), (0, 1, 2)) for run in (ours, scanned)]
        results = [quick_jit(function)(*given) for function in slopes]
        for one, other in zip(*map(jax.tree.leaves, results), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-10)

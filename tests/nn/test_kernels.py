"""The GPU's kernels, interpreted, against differentiation of the formula itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ambs.nn import kernels
from tests.tiny import quick_jit


def plain(x, scale, shift):
    """SiLU(LayerNorm(x)), written out for one row."""
    y = (x - x.mean()) / jnp.sqrt(x.var() + 1e-3) * scale + shift
    return y * jax.nn.sigmoid(y)


def kernel(x, scale, shift):
    return kernels.norm_silu(x, scale, shift, interpret=True)


def drawn(*shapes):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=shape) + 0.5, jnp.float32) for shape in shapes]


def assert_same(one, other, args):
    """Values and gradients of all arguments."""
    weights = drawn(args[0].shape)[0]

    def both(function):
        def weighed(*args):
            y = function(*args)
            return (weights * y).sum(), y

        return quick_jit(jax.value_and_grad(weighed, (0, 1, 2), has_aux=True))(*args)

    ((_, y), grads), ((_, y_other), grads_other) = both(one), both(other)
    np.testing.assert_allclose(y, y_other, rtol=1e-5, atol=1e-5)
    for a, b in zip(grads, grads_other, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("features", [24, 64])
def test_rows_mapped_or_not(features, monkeypatch):
    """Widths that are no power of two, a last tile that is not full, several turns to a program."""
    monkeypatch.setattr(kernels, "ENTRIES", 256)
    for name in ("PROGRAMS", "BACKWARD_PROGRAMS"):
        monkeypatch.setattr(kernels, name, 2)
    args = drawn((3, 7, features), (features,), (features,))
    rows = jax.vmap(jax.vmap(plain, (0, None, None)), (0, None, None))
    assert_same(kernel, rows, args)
    assert_same(jax.vmap(jax.vmap(kernel, (0, None, None)), (0, None, None)), rows, args)


def test_stacked_networks():
    """Critics side by side: parameters of their own, mapped inside the examples or outside."""
    args = drawn((5, 3, 24), (3, 24), (3, 24))
    inside = lambda f: jax.vmap(jax.vmap(f), (0, None, None))  # noqa: E731
    assert_same(inside(kernel), inside(plain), args)
    outside = lambda f: jax.vmap(jax.vmap(f, (0, None, None)))  # noqa: E731
    args[0] = jnp.swapaxes(args[0], 0, 1)
    assert_same(outside(kernel), outside(plain), args)


def test_it_compiles_for_a_gpu():
    """As far as that can be seen without one: the kernels are lowered to Triton in half precision."""
    x, scale, shift = (leaf.astype(jnp.bfloat16) for leaf in drawn((40, 48), (48,), (48,)))
    grads = jax.jit(jax.grad(lambda *args: kernels.norm_silu(*args).astype(jnp.float32).sum(), (0, 1, 2)))
    text = grads.trace(x, scale, shift).lower(lowering_platforms=("cuda",)).as_text()
    assert "norm_silu_backward" in text


def test_nan_stays_nan_in_its_row():
    x, scale, shift = drawn((4, 24), (24,), (24,))
    y = kernel(x.at[2, 3].set(jnp.nan), scale, shift)
    assert np.isnan(y[2]).all()
    assert np.isfinite(y[jnp.array([0, 1, 3])]).all()

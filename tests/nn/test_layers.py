"""Layers against plain NumPy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ambs.nn.layers import GRU, MLP, Conv, Dense, LayerNorm, Linear, as_products, trunc_normal
from ambs.nn.precision import at_least_float32, cast, compute_dtype
from tests.tiny import quick_jit


def fresh(seed=0):
    """A key that has not been used."""
    return jax.random.key(seed)


def normalised(x, scale, shift):
    return (x - x.mean()) / np.sqrt(x.var() + 1e-3) * scale + shift


def test_initial_weights():
    weights = trunc_normal(fresh(), (400, 600), 500.0, 1.0)
    assert float(weights.std()) == pytest.approx(np.sqrt(1 / 500), rel=0.01)
    assert float(jnp.abs(weights).max()) <= 2.28 * np.sqrt(1 / 500)
    assert not Linear(3, 4, key=fresh(), scale=0.0).weight.any()


def test_dense_and_norm_by_hand():
    layer = Dense(3, 4, key=fresh())
    x = np.array([1.0, -2.0, 0.5])
    hidden = normalised(x @ np.asarray(layer.linear.weight), 1.0, 0.0)
    np.testing.assert_allclose(layer(jnp.asarray(x, jnp.float32)), hidden / (1 + np.exp(-hidden)), rtol=1e-5)
    norm = LayerNorm(2)
    np.testing.assert_allclose(norm(jnp.array([[1.0, 3.0], [0.0, 0.0]])), [[-0.9995, 0.9995], [0, 0]], atol=1e-4)


def test_gru_by_hand():
    gru = GRU(2, 3, key=fresh())
    x, h = np.array([0.3, -0.7]), np.array([0.1, 0.2, -0.4])
    gates = normalised(np.concatenate([h, x]) @ np.asarray(gru.linear.weight), 1.0, 0.0)
    reset, candidate, update = np.split(gates, 3)
    sigmoid = lambda z: 1 / (1 + np.exp(-z))  # noqa: E731
    candidate = np.tanh(sigmoid(reset) * candidate)
    gate = sigmoid(update - 1)
    expected = gate * candidate + (1 - gate) * h
    np.testing.assert_allclose(gru(jnp.asarray(x, jnp.float32), jnp.asarray(h, jnp.float32)), expected, rtol=1e-5)


def test_convolutions_halve_and_double():
    down, up = Conv(3, 5, key=fresh()), Conv(5, 3, key=fresh(), up=True, plain=True)
    image = jax.random.normal(jax.random.key(1), (16, 16, 3))
    small = down(image)
    assert small.shape == (8, 8, 5)
    assert up(small).shape == (16, 16, 3)
    # One output pixel by hand: SAME padding puts one row and column of zeros before the image.
    raw = Conv(3, 5, key=fresh(), plain=True)
    patch = np.pad(np.asarray(image), ((1, 1), (1, 1), (0, 0)))[4:8, 6:10]
    np.testing.assert_allclose(raw(image)[2, 3], np.einsum("hwi,hwio->o", patch, raw.weight), rtol=1e-4, atol=1e-5)


def test_halving_as_a_product_is_the_same():
    """And so are its gradients, of the image and of the kernel; nothing but the way is changed, and back again."""
    plain = Conv(3, 5, key=fresh())
    product = as_products({"a": (plain, 1.0)})["a"][0]
    image = jax.random.normal(jax.random.key(1), (8, 12, 3))
    total = lambda conv, image: (conv(image) ** 3).sum()  # noqa: E731
    ours, theirs = (jax.tree.leaves(jax.grad(total, (0, 1))(conv, image)) for conv in (product, plain))
    for one, other in zip((*ours, product(image)), (*theirs, plain(image)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
    back = as_products(product, False)
    assert (plain.product, product.product, jax.tree.structure(back)) == (False, True, jax.tree.structure(plain))
    assert "conv_general" in str(jax.make_jaxpr(plain)(image))
    assert "conv_general" not in str(jax.make_jaxpr(product)(image))


@pytest.mark.parametrize("inputs", [5, 16])
def test_doubling_is_a_transposed_convolution(inputs):
    """Both ways of it: pixels side by side, or their shares added up."""
    up = Conv(inputs, 3, key=fresh(), up=True, plain=True)
    image = jax.random.normal(jax.random.key(1), (1, 6, 4, inputs))
    reference = jax.lax.conv_transpose(image, up.weight, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    np.testing.assert_allclose(up(image[0]), reference[0], rtol=1e-4, atol=1e-5)


def test_norm_and_silu_and_their_gradient():
    """Against differentiation of the formula itself, in double precision, through leading axes too."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        x, weights = (jnp.asarray(rng.normal(size=(2, 3, 7))) for _ in range(2))
        norm = eqx.tree_at(lambda n: (n.scale, n.shift), LayerNorm(7), tuple(jnp.asarray(rng.normal(size=(2, 7)))))
        ours = lambda norm, x: (weights * norm.silu(x)).sum()  # noqa: E731
        plain = lambda norm, x: (weights * jax.nn.silu(norm(x))).sum()  # noqa: E731
        (value, slopes), (expected, exact) = (
            quick_jit(jax.value_and_grad(function, (0, 1)))(norm, x) for function in (ours, plain)
        )
        assert float(value) == pytest.approx(float(expected), rel=1e-12)
        for one, other in zip(jax.tree.leaves(slopes), jax.tree.leaves(exact), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


def test_vectorised_equals_looped_and_low_precision_is_close():
    mlp = quick_jit(lambda key: MLP(6, 4, layers=2, units=32, key=key))(fresh())
    x = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    apply = quick_jit(lambda mlp, row: mlp(row))
    many = quick_jit(lambda mlp, rows: jax.vmap(mlp)(rows))(mlp, x)
    np.testing.assert_allclose(many, np.stack([apply(mlp, row) for row in x]), rtol=1e-5, atol=1e-6)
    low = apply(cast(mlp, jnp.bfloat16), x[0])
    assert low.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(low, np.float32), many[0], atol=0.05)
    assert compute_dtype("cpu") == jnp.float32
    assert compute_dtype("gpu") == jnp.bfloat16


@pytest.mark.parametrize(
    ("given", "expected"),
    [("bfloat16", "float32"), ("float16", "float32"), ("float32", "float32"), ("float64", "float64"),
     ("bool", "float32"), ("uint8", "float32")],
)  # fmt: skip
def test_precision_never_falls(given, expected):
    with jax.enable_x64(True):
        assert at_least_float32(jnp.ones(2, given)).dtype == expected

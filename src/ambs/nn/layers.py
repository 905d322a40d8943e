"""Layers as DreamerV3 has them: LayerNorm + SiLU after every linear map, truncated-normal initialisation.

All are written for one example; `jax.vmap` goes outside. Parameters are float32. Compute follows the dtype of the weights a
caller passes in (`ambs.nn.precision`), normalisation is done in float32 at least.
"""

import copy
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from ambs.nn import kernels
from ambs.nn.precision import at_least_float32


def trunc_normal(key: Key[Array, ""], shape: tuple[int, ...], fan: float, scale: float) -> Float[Array, "..."]:
    """Truncated normal with variance scale/fan (the factor corrects for the truncation at two deviations)."""
    if scale == 0:
        return jnp.zeros(shape)
    deviation = math.sqrt(scale / fan) / 0.87962566103423978
    return deviation * jax.random.truncated_normal(key, -2.0, 2.0, shape)


class Linear(eqx.Module):
    """y = W x + b; `scale` of the initial weights, 0 for heads that must start at zero."""

    weight: Float[Array, "inputs outputs"]
    bias: Float[Array, "outputs"] | None

    def __init__(self, inputs: int, outputs: int, *, key: Key[Array, ""], scale: float = 1.0, bias: bool = True):
        self.weight = trunc_normal(key, (inputs, outputs), (inputs + outputs) / 2, scale)
        self.bias = jnp.zeros(outputs) if bias else None

    def __call__(self, x: Float[Array, "inputs"]) -> Float[Array, "outputs"]:
        """Apply."""
        y = x.astype(self.weight.dtype) @ self.weight
        return y if self.bias is None else y + self.bias


class LayerNorm(eqx.Module):
    """Normalise the last axis, in float32 at least, then scale and shift."""

    scale: Float[Array, "features"]
    shift: Float[Array, "features"]

    def __init__(self, features: int):
        self.scale, self.shift = jnp.ones(features), jnp.zeros(features)

    def __call__(self, x: Float[Array, "*axes features"]) -> Float[Array, "*axes features"]:
        """Apply."""
        return _scaled(_normal(x)[0], self.scale, self.shift).astype(x.dtype)

    def silu(self, x: Float[Array, "*axes features"]) -> Float[Array, "*axes features"]:
        """Apply, then SiLU."""
        apply = kernels.norm_silu if kernels.available() else _norm_silu
        return apply(x, at_least_float32(self.scale), at_least_float32(self.shift))


def _normal(x: Float[Array, "*axes features"]) -> tuple[Float[Array, "*axes features"], Float[Array, "*axes 1"]]:
    """x brought to mean 0 and variance 1 along the last axis, and by what it was multiplied."""
    wide = at_least_float32(x)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    factor = jax.lax.rsqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-3)
    return centred * factor, factor


def _scaled(
    normal: Float[Array, "*axes features"], scale: Float[Array, "features"], shift: Float[Array, "features"]
) -> Float[Array, "*axes features"]:
    lead = (1,) * (normal.ndim - 1)
    return normal * at_least_float32(scale).reshape(*lead, -1) + at_least_float32(shift).reshape(*lead, -1)


@jax.custom_vjp
def _norm_silu(
    x: Float[Array, "*axes features"], scale: Float[Array, "features"], shift: Float[Array, "features"]
) -> Float[Array, "*axes features"]:
    """SiLU(LayerNorm(x)). For its gradient only x is kept: what else it takes is quicker computed again than read back."""
    return jax.nn.silu(_scaled(_normal(x)[0], scale, shift)).astype(x.dtype)


def _norm_silu_forward(x: Array, scale: Array, shift: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    return _norm_silu(x, scale, shift), (x, scale, shift)


def _norm_silu_backward(kept: tuple[Array, Array, Array], grad: Array) -> tuple[Array, Array, Array]:
    """With n the normalised x, r its factor and g the gradient of n: r·(g − mean g − n·mean(g·n))."""
    x, scale, shift = kept
    normal, factor = _normal(x)
    y = _scaled(normal, scale, shift)
    gate = jax.nn.sigmoid(y)
    grad = at_least_float32(grad) * gate * (1 + y * (1 - gate))
    inner = _scaled(grad, scale, jnp.zeros_like(shift))
    inner_x = inner - inner.mean(axis=-1, keepdims=True) - normal * (inner * normal).mean(axis=-1, keepdims=True)
    lead = tuple(range(x.ndim - 1))
    return (
        (factor * inner_x).astype(x.dtype),
        (grad * normal).sum(axis=lead).astype(scale.dtype),
        grad.sum(axis=lead).astype(shift.dtype),
    )


_norm_silu.defvjp(_norm_silu_forward, _norm_silu_backward)


class Dense(eqx.Module):
    """Linear, LayerNorm, SiLU."""

    linear: Linear
    norm: LayerNorm

    def __init__(self, inputs: int, outputs: int, *, key: Key[Array, ""]):
        self.linear = Linear(inputs, outputs, key=key, bias=False)
        self.norm = LayerNorm(outputs)

    def __call__(self, x: Float[Array, "inputs"]) -> Float[Array, "outputs"]:
        """Apply."""
        return self.norm.silu(self.linear(x))


def through(layers: tuple[Dense, ...], x: Float[Array, "inputs"]) -> Float[Array, "units"]:
    """One layer after the other."""
    for layer in layers:
        x = layer(x)
    return x


class MLP(eqx.Module):
    """`layers` dense layers of `units`, then a linear output if `outputs` is given."""

    hidden: tuple[Dense, ...]
    out: Linear | None

    def __init__(
        self,
        inputs: int,
        outputs: int | None,
        *,
        layers: int,
        units: int,
        key: Key[Array, ""],
        out_scale: float = 1.0,
    ):
        keys = jax.random.split(key, layers + 1)
        sizes = [inputs] + [units] * layers
        self.hidden = tuple(Dense(a, b, key=k) for a, b, k in zip(sizes[:-1], sizes[1:], keys[:-1], strict=True))
        self.out = None if outputs is None else Linear(sizes[-1], outputs, key=keys[-1], scale=out_scale)

    def __call__(self, x: Float[Array, "inputs"]) -> Float[Array, "outputs"]:
        """Apply."""
        return self.head(self.body(x))

    def body(self, x: Float[Array, "inputs"]) -> Float[Array, "units"]:
        """The hidden layers."""
        return through(self.hidden, x)

    def head(self, x: Float[Array, "units"]) -> Float[Array, "outputs"]:
        """The output layer, if there is one."""
        return x if self.out is None else self.out(x)


class GRU(eqx.Module):
    """Gated recurrent unit with one LayerNorm over all gates and an update gate biased towards keeping."""

    linear: Linear
    norm: LayerNorm

    def __init__(self, inputs: int, units: int, *, key: Key[Array, ""]):
        self.linear = Linear(inputs + units, 3 * units, key=key, bias=False)
        self.norm = LayerNorm(3 * units)

    def __call__(self, x: Float[Array, "inputs"], h: Float[Array, "units"]) -> Float[Array, "units"]:
        """h_t = f(h_{t−1}, x_t)."""
        gates = self.norm(self.linear(jnp.concatenate([h.astype(x.dtype), x])))
        reset, candidate, update = jnp.split(gates, 3)
        candidate = jnp.tanh(jax.nn.sigmoid(reset) * candidate)
        update = jax.nn.sigmoid(update - 1)
        return update * candidate + (1 - update) * h.astype(x.dtype)


class Conv(eqx.Module):
    """4×4 convolution of stride 2, halving (or, `up`, doubling) an image `[height, width, channels]`; LayerNorm + SiLU
    unless it is an output layer."""

    weight: Float[Array, "4 4 inputs outputs"]
    bias: Float[Array, "outputs"] | None
    norm: LayerNorm | None
    up: bool = eqx.field(static=True)
    product: bool = eqx.field(static=True)
    """Whether halving is a matrix product, as doubling is, and no convolution: mapped over several kernels, convolutions become
    grouped ones, which are slow, and products batched ones."""

    def __init__(self, inputs: int, outputs: int, *, key: Key[Array, ""], up: bool = False, plain: bool = False):
        fan = 16 * (inputs + outputs) / 2
        self.weight = trunc_normal(key, (4, 4, inputs, outputs), fan, 1.0)
        self.bias = jnp.zeros(outputs) if plain else None
        self.norm = None if plain else LayerNorm(outputs)
        self.up, self.product = up, False

    def __call__(self, x: Float[Array, "height width inputs"]) -> Float[Array, "height2 width2 outputs"]:
        """Apply."""
        x = x.astype(self.weight.dtype)
        if self.up:
            y = _doubled(x, self.weight)
        elif self.product:
            y = _halved(x, self.weight)
        else:
            names = ("NHWC", "HWIO", "NHWC")
            y = jax.lax.conv_general_dilated(x[None], self.weight, (2, 2), "SAME", dimension_numbers=names)[0]
        if self.norm is None:
            return y if self.bias is None else y + self.bias.reshape(1, 1, -1)
        return self.norm.silu(y)


def as_products(tree: PyTree, product: bool = True) -> PyTree:
    """The same networks with their convolutions as matrix products, or, with False, as convolutions again."""

    def chosen(part: Any) -> Any:
        if not isinstance(part, Conv):
            return part
        other = copy.copy(part)
        object.__setattr__(other, "product", product)
        return other

    return jax.tree.map(chosen, tree, is_leaf=lambda part: isinstance(part, Conv))


def _halved(
    x: Float[Array, "height width inputs"], weight: Float[Array, "4 4 inputs outputs"]
) -> Float[Array, "height2 width2 outputs"]:
    """The convolution of stride 2 as one matrix product: each pixel of the result depends on 2×2 blocks of 2×2 pixels."""
    height, width, inputs = x.shape
    padded = jnp.pad(x, ((1, 1), (1, 1), (0, 0)))
    blocks = padded.reshape(height // 2 + 1, 2, width // 2 + 1, 2, inputs).transpose(0, 2, 1, 3, 4)
    blocks = blocks.reshape(height // 2 + 1, width // 2 + 1, 4 * inputs)
    around = [blocks[i : i + height // 2, j : j + width // 2] for i in range(2) for j in range(2)]
    # Axes of the kernel: block, pixel in the block, for rows and for columns.
    kernel = weight.reshape(2, 2, 2, 2, inputs, -1).transpose(0, 2, 1, 3, 4, 5)
    return jnp.concatenate(around, axis=-1) @ kernel.reshape(16 * inputs, -1)


def _doubled(
    x: Float[Array, "height width inputs"], weight: Float[Array, "4 4 inputs outputs"]
) -> Float[Array, "height2 width2 outputs"]:
    """The transposed convolution of stride 2 as one matrix product: each 2×2 block of the result, seen from the corner in
    its middle, depends on the 2×2 pixels of `x` around that corner.

    Either those pixels are laid side by side before the product, or what each of them gives to its four blocks is added up
    after it: whichever moves fewer numbers."""
    height, width, inputs = x.shape
    outputs = weight.shape[-1]
    # Axes of the kernel: pixel, place in the block (counted from the other end), for rows and for columns.
    kernel = weight.reshape(2, 2, 2, 2, inputs, outputs)[:, ::-1, :, ::-1]
    if inputs <= 4 * outputs:
        padded = jnp.pad(x, ((1, 1), (1, 1), (0, 0)))
        corners = [padded[i : i + height + 1, j : j + width + 1] for i in range(2) for j in range(2)]
        kernel = kernel.transpose(0, 2, 4, 1, 3, 5).reshape(4 * inputs, 4 * outputs)
        blocks = jnp.concatenate(corners, axis=-1) @ kernel
    else:
        kernel = kernel.transpose(4, 0, 2, 1, 3, 5).reshape(inputs, 16 * outputs)
        given = jnp.split(x @ kernel, 4, axis=-1)
        shares = [jnp.pad(given[2 * i + j], ((1 - i, i), (1 - j, j), (0, 0))) for i in range(2) for j in range(2)]
        blocks = shares[0] + shares[1] + shares[2] + shares[3]
    blocks = blocks.reshape(height + 1, width + 1, 2, 2, outputs).transpose(0, 2, 1, 3, 4)
    return blocks.reshape(2 * height + 2, 2 * width + 2, outputs)[1:-1, 1:-1]

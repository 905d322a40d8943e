"""LayerNorm + SiLU as one GPU kernel forwards and one backwards.

XLA makes two to three passes of it, each at a fraction of the memory's bandwidth; written by hand it is one pass over the
rows either way. Rows of one set of parameters are stacked, whatever `jax.vmap` they come from, so that the kernels see
`[groups, rows, features]` with parameters `[groups, features]`, and the parameters' gradients are summed where they arise:
differentiate a batch, do not map a derivative with respect to parameters over examples.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

ENTRIES = 2048
"""Numbers that a program of the kernel holds at once."""
PROGRAMS = 4096
"""Programs that share the forward pass at most; each reads the parameters once."""
BACKWARD_PROGRAMS = 1024
"""Those of the backward pass; each sums the parameters' gradients over its rows."""


_wanted = ContextVar("wanted", default=True)


@contextmanager
def plain() -> Iterator[None]:
    """Within, what is traced is made of XLA's own operations alone, which it can split among devices."""
    token = _wanted.set(False)
    try:
        yield
    finally:
        _wanted.reset(token)


def available() -> bool:
    """Whether this process computes on an NVIDIA GPU that Triton knows (Ampere or newer), and kernels are wanted."""
    if not _wanted.get():
        return False
    if jax.default_backend() != "gpu":
        return False
    capability = getattr(jax.devices()[0], "compute_capability", "")
    return capability.replace(".", "").isdigit() and float(capability) >= 8.0


def norm_silu(
    x: Float[Array, "*axes features"],
    scale: Float[Array, "features"],
    shift: Float[Array, "features"],
    *,
    eps: float = 1e-3,
    interpret: bool = False,
) -> Float[Array, "*axes features"]:
    """SiLU(LayerNorm(x)), computed in float32; `interpret` runs the kernels without a GPU, for tests."""
    rows = x.reshape(1, -1, x.shape[-1])
    return _apply(eps, interpret, rows, scale[None], shift[None]).reshape(x.shape)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _apply(eps: float, interpret: bool, x: Array, scale: Array, shift: Array) -> Array:
    return _stacking(partial(_forward, eps, interpret), sums=())(x, scale, shift)[0]


def _apply_forward(eps: float, interpret: bool, x: Array, scale: Array, shift: Array) -> tuple[Array, Any]:
    return _apply(eps, interpret, x, scale, shift), (x, scale, shift)


def _apply_backward(eps: float, interpret: bool, kept: tuple[Array, Array, Array], grad: Array) -> tuple[Array, ...]:
    x, scale, shift = kept
    grads = _stacking(partial(_backward, eps, interpret), sums=(1, 2))(x, scale, shift, grad)
    return tuple(given.astype(like.dtype) for given, like in zip(grads, kept, strict=True))


_apply.defvjp(_apply_forward, _apply_backward)


def _stacking(apply: Callable[..., tuple[Array, ...]], sums: tuple[int, ...]) -> Any:
    """A function of rows `[groups, rows, features]` and parameters `[groups, features]` that under `jax.vmap` grows in rows,
    or in groups where the parameters are mapped too. Results numbered in `sums` are those of parameters; where these are
    not mapped, they are sums over what is mapped, which is what the gradient of a batch wants."""

    @custom_vmap
    def stacked(*args: Array) -> tuple[Array, ...]:
        return apply(*args)

    @stacked.def_vmap
    def _(size: int, mapped: list[bool], *args: Array) -> tuple[tuple[Array, ...], tuple[bool, ...]]:
        apart = mapped[1] or mapped[2]
        args = tuple(
            leaf if own or (leaf.ndim == 2 and not apart) else jnp.broadcast_to(leaf[None], (size, *leaf.shape))
            for leaf, own in zip(args, mapped, strict=True)
        )
        if apart:
            results = stacked(*(leaf.reshape(-1, *leaf.shape[2:]) for leaf in args))
            return tuple(leaf.reshape(size, -1, *leaf.shape[1:]) for leaf in results), (True,) * len(results)
        groups, rows = args[0].shape[1:3]
        results = stacked(
            *(jnp.swapaxes(leaf, 0, 1).reshape(groups, size * rows, -1) if leaf.ndim == 4 else leaf for leaf in args)
        )
        flags = tuple(index not in sums for index in range(len(results)))
        return tuple(
            jnp.swapaxes(leaf.reshape(groups, size, rows, -1), 0, 1) if is_rows else leaf
            for leaf, is_rows in zip(results, flags, strict=True)
        ), flags

    return stacked


def _forward(eps: float, interpret: bool, x: Array, scale: Array, shift: Array) -> tuple[Array]:
    cut = _Cut.of(x, PROGRAMS)
    y = pl.pallas_call(
        partial(_forward_kernel, eps=eps, cut=cut),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=cut.grid,
        in_specs=[cut.tiles, cut.parameters, cut.parameters],
        out_specs=cut.tiles,
        interpret=interpret,
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=1),
        name="norm_silu",
    )(x, scale, shift)
    return (y,)


def _backward(eps: float, interpret: bool, x: Array, scale: Array, shift: Array, grad: Array) -> tuple[Array, ...]:
    cut = _Cut.of(x, BACKWARD_PROGRAMS)
    sums = jax.ShapeDtypeStruct((*cut.grid, x.shape[-1]), jnp.float32)
    share = pl.BlockSpec((None, None, x.shape[-1]), lambda group, program: (group, program, 0))
    x_grad, scale_grads, shift_grads = pl.pallas_call(
        partial(_backward_kernel, eps=eps, cut=cut),
        out_shape=(jax.ShapeDtypeStruct(x.shape, x.dtype), sums, sums),
        grid=cut.grid,
        in_specs=[cut.tiles, cut.parameters, cut.parameters, cut.tiles],
        out_specs=(cut.tiles, share, share),
        interpret=interpret,
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=1),
        name="norm_silu_backward",
    )(x, scale, shift, grad)
    return x_grad, scale_grads.sum(axis=1), shift_grads.sum(axis=1)


class _Cut(NamedTuple):
    """How an array `[groups, rows, features]` is shared out: each program takes `turns` tiles of `height` rows."""

    groups: int
    rows: int
    features: int
    height: int
    """A power of two, as is `width`: Triton wants it so."""
    width: int
    programs: int
    turns: int

    @classmethod
    def of(cls, x: Array, most: int) -> "_Cut":
        """With at most this many programs."""
        groups, rows, features = x.shape
        width = pl.next_power_of_2(features)
        height = max(1, ENTRIES // width)
        programs = min(pl.cdiv(rows, height), max(1, most // groups))
        return cls(groups, rows, features, height, width, programs, pl.cdiv(rows, height * programs))

    @property
    def grid(self) -> tuple[int, int]:
        """Groups and programs."""
        return self.groups, self.programs

    @property
    def tiles(self) -> pl.BlockSpec:
        """A program's rows."""
        return pl.BlockSpec((None, self.height * self.turns, self.features), lambda group, program: (group, program, 0))

    @property
    def parameters(self) -> pl.BlockSpec:
        """A group's parameters."""
        return pl.BlockSpec((None, self.features), lambda group, _: (group, 0))

    @property
    def columns(self) -> Array:
        """Which columns of a tile there are."""
        return jnp.arange(self.width) < self.features

    def tile(self, first: Any, turn: Any) -> tuple[Any, Array]:
        """Where in its block a tile lies, and which of its entries there are; `first` is the block's first row."""
        start = turn * self.height
        inside = (first + start + jnp.arange(self.height)) < self.rows
        return (pl.ds(start, self.height), pl.ds(0, self.width)), inside[:, None] & self.columns[None]


def _forward_kernel(x_ref: Any, scale_ref: Any, shift_ref: Any, y_ref: Any, *, eps: float, cut: _Cut) -> None:
    first = pl.program_id(1) * cut.height * cut.turns
    scale, shift = (_row(ref, cut) for ref in (scale_ref, shift_ref))

    def turn(index: Any, _: Any) -> Any:
        tile, inside = cut.tile(first, index)
        normal, _factor = _normal(triton.load(x_ref.at[tile], mask=inside, other=0.0), cut, eps)
        y = normal * scale + shift
        triton.store(y_ref.at[tile], (y * _sigmoid(y)).astype(y_ref.dtype), mask=inside)
        return _

    jax.lax.fori_loop(0, cut.turns, turn, 0)


def _backward_kernel(
    x_ref: Any, scale_ref: Any, shift_ref: Any, grad_ref: Any, x_grad_ref: Any, scale_grad_ref: Any, shift_grad_ref: Any,
    *, eps: float, cut: _Cut,
) -> None:  # fmt: skip
    """With n the normalised x, r its factor and g the gradient of n: r·(g − mean g − n·mean(g·n))."""
    first = pl.program_id(1) * cut.height * cut.turns
    scale, shift = (_row(ref, cut) for ref in (scale_ref, shift_ref))

    def turn(index: Any, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        tile, inside = cut.tile(first, index)
        normal, factor = _normal(triton.load(x_ref.at[tile], mask=inside, other=0.0), cut, eps)
        grad = triton.load(grad_ref.at[tile], mask=inside, other=0.0).astype(jnp.float32)
        y = normal * scale + shift
        gate = _sigmoid(y)
        grad = grad * gate * (1 + y * (1 - gate))
        inner = grad * scale
        mean, along = _sum(inner) / cut.features, _sum(inner * normal) / cut.features
        x_grad = factor * (inner - mean - normal * along)
        triton.store(x_grad_ref.at[tile], x_grad.astype(x_grad_ref.dtype), mask=inside)
        return sums[0] + grad * normal, sums[1] + grad

    none = jnp.zeros((cut.height, cut.width), jnp.float32)
    sums = jax.lax.fori_loop(0, cut.turns, turn, (none, none))
    for ref, total in zip((scale_grad_ref, shift_grad_ref), sums, strict=True):
        triton.store(ref.at[pl.ds(0, cut.width)], total.sum(axis=0), mask=cut.columns)


def _row(ref: Any, cut: _Cut) -> Array:
    return triton.load(ref.at[pl.ds(0, cut.width)], mask=cut.columns, other=0.0).astype(jnp.float32)[None]


def _normal(x: Array, cut: _Cut, eps: float) -> tuple[Array, Array]:
    """x brought to mean 0 and variance 1 along its columns, and by what it was multiplied."""
    wide = x.astype(jnp.float32)
    centred = jnp.where(cut.columns[None], wide - _sum(wide) / cut.features, 0.0)
    factor = jax.lax.rsqrt(_sum(centred * centred) / cut.features + eps)
    return centred * factor, factor


def _sum(x: Array) -> Array:
    return x.sum(axis=1)[:, None]


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + jnp.exp(-x))

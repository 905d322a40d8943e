"""Parameters are float32; on accelerators the arithmetic is bfloat16, in tests of gradients float64."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, Shaped


def compute_dtype(platform: str | None = None) -> Any:
    """float32 on CPU, bfloat16 on GPU and TPU."""
    return jnp.float32 if (platform or jax.default_backend()) == "cpu" else jnp.bfloat16


def cast(tree: PyTree, dtype: Any) -> PyTree:
    """A module with its floating-point parameters in another type; gradients flow back to the originals."""
    return jax.tree.map(lambda leaf: leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf, tree)


def at_least_float32(x: Shaped[Array, "*axes"]) -> Float[Array, "*axes"]:
    """Half precision, integers and truth values as float32, for sums and logarithms; float64 stays what it is."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))

"""How many operations a computation takes, how fast this machine multiplies matrices, and so how fast it could be at best."""

import math
import time
from collections.abc import Callable
from typing import Any


def operations(function: Callable[..., Any], *arguments: Any) -> float:
    """Floating-point operations of all matrix products and convolutions as they are written, those in scans as often as they
    run (in other loops once); some the compiler finds to be the same, or to be of no use, and leaves out."""
    import jax

    return _count(jax.make_jaxpr(function)(*arguments).jaxpr)


def _count(jaxpr: Any) -> float:
    total = 0.0
    for equation in jaxpr.eqns:
        name, settings = equation.primitive.name, equation.params
        if name == "dot_general":
            (contracted, _), _ = settings["dimension_numbers"]
            left = equation.invars[0].aval.shape
            total += 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[axis] for axis in contracted)
        elif name == "conv_general_dilated":
            kernel = equation.invars[1].aval.shape
            outputs = kernel[settings["dimension_numbers"].rhs_spec[0]]
            out = math.prod(equation.outvars[0].aval.shape) / math.prod(settings["lhs_dilation"])
            total += 2 * out * math.prod(kernel) / outputs
        inner = [_count(part) for value in settings.values() for part in _parts(value)]
        if name == "cond":
            total += max(inner)
        else:
            total += sum(inner) * settings.get("length", 1)
    return total


def _parts(value: Any) -> list[Any]:
    if hasattr(value, "eqns"):
        return [value]
    if hasattr(value, "jaxpr"):
        return [value.jaxpr]
    return [part for item in value for part in _parts(item)] if isinstance(value, tuple | list) else []


def matmul_rate(dtype: Any) -> float:
    """Floating-point operations per second in a large product of this type."""
    import jax
    import jax.numpy as jnp

    size = 1024 if jax.default_backend() == "cpu" else 8192
    left, right = (jax.random.normal(jax.random.key(seed), (size, size)).astype(dtype) for seed in range(2))
    multiply = jax.jit(jnp.matmul)
    jax.block_until_ready(multiply(left, right))
    times = []
    for _ in range(10):
        begun = time.perf_counter()
        jax.block_until_ready(multiply(left, right))
        times.append(time.perf_counter() - begun)
    return 2 * size**3 / min(times)


def floor(count: float, dtype: Any, ms: float) -> dict[str, float]:
    """For so many operations done in `ms`: the least time they would take at `matmul_rate`, and its share of `ms`."""
    rate = matmul_rate(dtype)
    least = 1e3 * count / rate
    return {
        "gflop": round(count / 1e9, 2),
        "tflop_per_s": round(rate / 1e12, 3),
        "floor_ms": round(least, 3),
        "share_of_floor": round(least / ms, 4),
    }

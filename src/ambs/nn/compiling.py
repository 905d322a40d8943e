"""Options of XLA for what runs a few dozen times and should not compile longest of all."""

import functools
from typing import Any

import jax

QUICK: dict[str, Any] = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
"""With these it compiles for a CPU in a third of the time."""


def quick_options() -> dict[str, Any]:
    """`QUICK` as far as this version of XLA has it; nothing on accelerators."""
    return known_options(tuple(QUICK.items())) if jax.default_backend() == "cpu" else {}


@functools.cache
def known_options(wanted: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """Those that the compiler takes: versions differ, and one that it has given up would make everything fail."""
    return {name: value for name, value in wanted if _is_known(name, value)}


def _is_known(name: str, value: Any) -> bool:
    try:
        jax.jit(lambda: 0).lower().compile(compiler_options={name: value})
    except Exception:  # Of a kind that differs between versions, too.
        return False
    return True

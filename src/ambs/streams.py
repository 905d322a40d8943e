"""Named random streams: what is drawn for one purpose never shifts what is drawn for another.

Each purpose (layouts, policy noise, shield, replay …) has its own stream, and each step its own key in it. Two runs that
differ only in the shield therefore meet the same worlds.
"""

import numbers
import zlib
from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Array, Int, Key


def stream(seed: int | np.integer | Key[Array, ""], name: str) -> Key[Array, ""]:
    """The key of a named stream under a seed or a parent key."""
    parent = jax.random.key(int(seed)) if isinstance(seed, numbers.Integral) else seed
    return jax.random.fold_in(parent, zlib.crc32(name.encode()))


def streams(parent: Key[Array, ""], names: Sequence[str]) -> Key[Array, "names"]:
    """The keys of several named streams, each the one that `stream` gives."""
    numbers = np.array([zlib.crc32(name.encode()) for name in names], np.uint32)
    return jax.vmap(lambda number: jax.random.fold_in(parent, number))(numbers)


def at(stream_key: Key[Array, ""], step: int | Int[Array, ""]) -> Key[Array, ""]:
    """The key of one step of a stream."""
    return jax.random.fold_in(stream_key, step)

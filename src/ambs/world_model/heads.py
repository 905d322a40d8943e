"""Further heads of the world model, beside reward, continue and labels or cost: what they predict from features, one row each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from jaxtyping import Array, Float

from ambs.config import ModelConfig
from ambs.data import Experience

if TYPE_CHECKING:
    from ambs.world_model.model import WorldSpec


class Head(NamedTuple):
    """A network on features, and what it learns."""

    outputs: Callable[[WorldSpec], int]
    """How many numbers it gives."""
    loss: Callable[[Float[Array, "outputs"], Experience], Float[Array, ""]]
    """Of those numbers at one step, and of what was seen there."""
    weight: Callable[[ModelConfig], float]
    """Of that loss in the world model's."""


HEADS: dict[str, Head] = {}
"""By name, which is also that of the loss term. A model has those that are here when it is made, as `heads.more`."""

"""A world as a transition function: what the shield and its tests roll out."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Array, Key, PyTree, Shaped


class Step(NamedTuple):
    """One transition of a model: where it leads and what holds there."""

    state: PyTree
    labels: Shaped[Array, "frames atoms"]
    """bool, or probabilities; one row per frame of an action repeat."""
    continues: Shaped[Array, ""]
    """1 while the episode goes on after this state, else 0; or its probability."""


Dynamics = Callable[[Key[Array, ""], Any, Any], Step]
"""(key, state, action) -> Step."""


class SplitDynamics(NamedTuple):
    """A model taken apart, so that only what has to wait for the step before does: chance is drawn for all steps beforehand,
    labels are read off all states afterwards."""

    draw: Callable[[Key[Array, ""]], Any]
    """The chance in one step."""
    move: Callable[[Any, Any, Any], Any]
    """(state, action, chance) -> the next state."""
    show: Callable[[Any], Any]
    """What of a state is kept for afterwards; all of it that may fail to be finite."""
    read: Callable[[Any], tuple[Any, Any]]
    """What holds in a state, from what is kept of it: labels `[frames, atoms]`, and whether the episode goes on."""

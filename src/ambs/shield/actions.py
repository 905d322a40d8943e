"""What an environment may be told to do: proposals before the shield looks at them, and actions last before they are executed."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from ambs.errors import UserError


def proposal(action: Any, space: gym.Space) -> tuple[np.ndarray | None, str]:
    """The action as an array of the space, and nothing; or None and what is wrong with it.

    A number beyond the bounds of a Box is cut to them, so that the shield imagines what would be executed; one that is not
    finite passes, for the shield itself overrides it.
    """
    if np.ma.is_masked(action):
        return None, "entries of the proposed action are masked"
    try:
        array = np.asarray(action)
    except Exception:
        return None, f"the proposed action must be an array, got {type(action).__name__}"
    if array.shape != space.shape:
        return None, f"the proposed action must have shape {space.shape}, got {array.shape}"
    if isinstance(space, spaces.Box):
        if not _fits(array, space):
            return None, f"the proposed action must be made of real numbers, got {array.dtype}"
        with np.errstate(over="ignore"):
            return _cut(array, space), ""
    if array.dtype.kind not in "iub" or not space.contains(array):
        return None, f"the proposed action {str(array)[:40]} is not one of {space}"
    return array, ""


def allowed(action: Any, space: gym.Space) -> np.ndarray | None:
    """The action as it is executed: finite, cut to the bounds of a Box, and in the space; None if it cannot be."""
    array = np.asarray(action)
    if isinstance(space, spaces.Box) and array.shape == space.shape and _fits(array, space):
        array = _cut(array, space)
        return array if np.isfinite(array).all() and space.contains(array) else None
    return array if space.contains(array) else None


def last_resort(fallback: Any, space: gym.Space) -> np.ndarray:
    """The declared fallback, which must be in the space; without one zeros, or what is nearest to them there."""
    if fallback is not None:
        wanted = np.asarray(fallback)
        wanted = wanted.astype(space.dtype) if isinstance(space, spaces.Box) else wanted
        if not space.contains(wanted):
            raise UserError(f"the fallback action must lie in the action space {space}, got {fallback}")
        return wanted
    zeros = np.zeros(space.shape or (), space.dtype)
    found = allowed(zeros, space)
    if found is None and isinstance(space, spaces.Discrete):
        found = np.asarray(space.start)
    if found is None:
        raise UserError(f"zeros are no action of {space}: declare a fallback action")
    return found


def outside(observation: Any, space: gym.Space) -> str:
    """What is wrong with an observation: masked, of another shape, or beyond the bounds; empty if nothing is."""
    if isinstance(space, spaces.Dict):
        if not isinstance(observation, dict) or not observation.keys() >= space.spaces.keys():
            return f"the observation must have {', '.join(space.spaces)}"
        found = (outside(observation[name], part) for name, part in space.spaces.items())
        return next((problem for problem in found if problem), "")
    if np.ma.is_masked(observation):
        return "entries of the observation are masked"
    if isinstance(space, spaces.Box):
        array = np.asarray(observation)
        if array.shape != space.shape or array.dtype.kind not in "fiub":
            return f"the observation must have shape {space.shape}, got {array.dtype} of shape {array.shape}"
        if ((array < space.low) | (array > space.high)).any():
            return "the observation lies outside the bounds of its space"
    return ""


def _fits(array: np.ndarray, space: spaces.Box) -> bool:
    """Whether numbers of this kind are those of the space: no fractions where it has whole numbers only."""
    return array.dtype.kind in "iu" or (array.dtype.kind == "f" and np.dtype(space.dtype).kind == "f")


def _cut(array: np.ndarray, space: spaces.Box) -> np.ndarray:
    # Infinity stays what it is: cut, it would look like a decision.
    cut = (
        np.where(np.isfinite(array), np.clip(array, space.low, space.high), np.nan)
        if array.dtype.kind == "f"
        else array
    )
    return np.clip(cut, space.low, space.high).astype(space.dtype)

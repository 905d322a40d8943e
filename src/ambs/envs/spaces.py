"""Spaces that an agent can learn from; of others, what is wrong with them and what would help."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from ambs.config.checks import short
from ambs.errors import UserError

CHANNELS = (3, 6)
"""Of a picture: RGB, or that of two cameras."""
SIDE = 16
"""What divides a picture's side: it is halved four times."""
SMALLEST = 8
"""Side from which on an array of two axes is taken for a picture."""


def check_observation_space(space: spaces.Space[Any]) -> None:
    """Refuse, with advice, what is neither a vector nor a square picture (uint8) nor a Dict of one of each."""
    kinds = []
    for part in parts_of(space):
        check_layout(part)
        shape = part.shape or ()
        kinds.append("picture" if len(shape) == 3 else "vector")
        if len(shape) == 3 and (shape[0] != shape[1] or shape[0] % SIDE):
            raise UserError(
                f"pictures must be square, with a side that is a multiple of {SIDE} pixels, got {shape[0]} × {shape[1]}; "
                "resize them: ambs.envs.with_pictures(env, size=64) does"
            )
    for kind in ("vector", "picture"):
        if kinds.count(kind) > 1:
            help_by = "gymnasium.wrappers.FlattenObservation joins vectors, gymnasium.wrappers.FilterObservation leaves parts out"
            raise UserError(f"an observation may have one {kind}, this one has {kinds.count(kind)}; {help_by}")


def check_action_space(space: spaces.Space[Any]) -> None:
    """Refuse, with advice, what is neither a choice, counted from 0, nor a vector with finite bounds."""
    if isinstance(space, spaces.Discrete):
        if space.start == 0:
            return
        raise UserError(
            f"discrete actions must be counted from 0, this environment has {space}; "
            f"gymnasium.wrappers.TransformAction(env, lambda action: action + {space.start}, Discrete({space.n})) does that"
        )
    if not (isinstance(space, spaces.Box) and len(space.shape) == 1 and np.isfinite([space.low, space.high]).all()):
        raise UserError(
            f"actions must be discrete, or a vector with finite bounds; this environment has {space}, "
            "of which gymnasium.wrappers.TransformAction can make such"
        )


def check_fallback(action: Any, space: spaces.Space[Any]) -> None:
    """Refuse an action of last resort that is none of the space; None is no such action."""
    if action is None:
        return
    if isinstance(space, spaces.Discrete):
        if not 0 <= int(action) < space.n:
            raise UserError(f"fallback_action must be one of the {space.n} actions, got {action}")
    elif isinstance(space, spaces.Box) and not ((np.asarray(action) >= space.low) & (action <= space.high)).all():
        raise UserError(f"fallback_action must lie within the action space, {space.low} to {space.high}, got {action}")


def check_layout(part: spaces.Space[Any]) -> None:
    """Refuse, with advice, what is neither a vector nor a picture of any size."""
    shape = part.shape or ()
    picture = part.dtype == np.uint8 and len(shape) == 3 and shape[2] in CHANNELS
    if not (isinstance(part, spaces.Box) and (len(shape) == 1 or picture)):
        kinds = "a vector, a picture uint8 [height, width, 3 or 6] or a dictionary of such"
        raise UserError(f"observations must be {kinds}, got {part}; {_advice(part)}")


def parts_of(space: spaces.Space[Any]) -> list[spaces.Space[Any]]:
    """The parts of a Dict, or the space itself."""
    return list(space.spaces.values()) if isinstance(space, spaces.Dict) else [space]


def channel_axis(shape: tuple[int, ...]) -> int | None:
    """Where the channels of a picture are: 2, 0, or None if it has two axes only. A UserError for what is no picture."""
    if len(shape) == 2 and min(shape) >= SMALLEST:
        return None
    for axis in (2, 0):
        sides = [size for other, size in enumerate(shape) if other != axis]
        if len(shape) == 3 and shape[axis] in (1, *CHANNELS) and min(sides) >= SMALLEST:
            return axis
    raise UserError(f"a picture has sides of {SMALLEST} pixels or more and 1, 3 or 6 channels, got the shape {shape}")


def is_picture(part: spaces.Space[Any]) -> bool:
    """Whether `ambs.envs.with_pictures` can make a picture of it: numbers with finite bounds in a picture's shape."""
    if not isinstance(part, spaces.Box) or not part.low.min() < part.high.max() < np.inf or part.low.min() == -np.inf:
        return False
    try:
        channel_axis(part.shape)
    except UserError:
        return False
    return True


def _advice(part: spaces.Space[Any]) -> str:
    if not is_picture(part):
        other = "a picture has 1, 3 or 6 channels; " if len(part.shape or ()) == 3 else ""
        return f"{other}gymnasium.wrappers.FlattenObservation makes a vector of it"
    shape: Any = part.shape
    axis = channel_axis(shape)
    steps = ["transpose it to [height, width, channel]"] if axis == 0 else []
    steps += ["repeat its one channel three times"] if axis is None or shape[axis] == 1 else []
    steps += ["scale it to 0 … 255 as uint8"] if part.dtype != np.uint8 else []
    return f"{', '.join(steps)}: ambs.envs.with_pictures(env) does"


def as_array(name: str, value: Any) -> np.ndarray:
    """What can be read as one."""
    try:
        return np.asarray(as_numpy(value))
    except Exception as error:  # Rows of different lengths; or whatever a foreign type raises.
        raise UserError(f"{name} must be an array, got {short(value)}") from error


def as_numpy(value: Any) -> np.ndarray:
    """An array of NumPy as it is, masks and all; numbers, or a tensor of whatever library and device, as one, which shares
    memory with the tensor where that can be done (DLPack)."""
    if isinstance(value, np.ndarray):
        return value
    for wish in ("detach", "cpu"):  # Of PyTorch: leave the gradients behind, and the accelerator.
        value = getattr(value, wish)() if callable(getattr(value, wish, None)) else value
    if "bfloat16" in str(getattr(value, "dtype", "")):  # Which NumPy has not got.
        value = value.float() if hasattr(value, "float") else value.astype(np.float32)
    if hasattr(value, "__dlpack__"):
        try:
            return np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, ValueError):
            pass  # Of a kind or in a place that NumPy cannot share.
    return np.asarray(value)

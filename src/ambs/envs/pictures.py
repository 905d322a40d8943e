"""Pictures of any size, layout and type as the agent takes them: uint8 `[size, size, 3]`, or 6 channels of two cameras."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ambs.config.checks import MOST_PIXELS, short
from ambs.envs.spaces import SIDE, channel_axis, is_picture, parts_of
from ambs.errors import UserError


def with_pictures(env: Any, size: int = 64) -> PictureEnv:
    """Show every picture of `env` as uint8 `[size, size, 3]`; vectors beside it stay as they are.

    Channels go last, a grey picture is repeated for red, green and blue, numbers other than uint8 are brought from the bounds
    of their space to 0 … 255, and every pixel is the mean of the area that it covers.
    """
    if not isinstance(env, gymnasium.Env):
        raise UserError(f"with_pictures needs a gymnasium.Env, got {type(env).__name__}")
    if not isinstance(size, int) or not SIDE <= size <= MOST_PIXELS or size % SIDE:
        raise UserError(f"size must be a multiple of {SIDE} pixels, {MOST_PIXELS} at most, got {short(size)}")
    return PictureEnv(env, size)


class PictureEnv(gymnasium.ObservationWrapper[Any, Any, Any]):
    """An environment whose pictures the agent can take."""

    def __init__(self, env: gymnasium.Env, size: int) -> None:
        super().__init__(env)
        self.size, space = size, env.observation_space
        if not any(map(is_picture, parts_of(space))):
            raise UserError(f"with_pictures finds no picture with finite bounds in {space}")
        if isinstance(space, spaces.Dict):
            self.observation_space = spaces.Dict({name: self._space(part) for name, part in space.spaces.items()})
        else:
            self.observation_space = self._space(space)

    def observation(self, observation: Any) -> Any:
        """What is seen."""
        space: Any = self.env.observation_space
        if isinstance(space, spaces.Dict):
            return {name: self._shown(part, space[name]) for name, part in observation.items()}
        return self._shown(observation, space)

    def _space(self, part: Any) -> Any:
        if not is_picture(part):
            return part
        axis = channel_axis(part.shape)
        channels = max(3, 1 if axis is None else part.shape[axis])
        return spaces.Box(0, 255, (self.size, self.size, channels), np.uint8)

    def _shown(self, part: Any, space: Any) -> Any:
        if not is_picture(space):
            return part
        if np.ma.is_masked(part) or np.shape(part) != space.shape or not np.isfinite(part).all():
            raise ValueError(
                f"a picture must be whole, finite and of shape {space.shape}, got one of shape {np.shape(part)}"
            )
        bounds = None if space.dtype == np.uint8 else (float(space.low.min()), float(space.high.max()))
        return as_picture(np.asarray(part), self.size, bounds)


def as_picture(array: np.ndarray, size: int, bounds: tuple[float, float] | None = None) -> np.ndarray:
    """Grey or colour, channels first or last, as uint8 `[size, size, 3 or 6]`; `bounds` become 0 and 255, None: as it is."""
    axis = channel_axis(array.shape)
    levels = array[..., None] if axis is None else np.moveaxis(array, axis, -1)
    levels = area_means(levels.astype(np.float64), size)
    if bounds is not None:
        low, high = bounds
        levels = (levels - low) * (255 / (high - low))
    whole = np.rint(levels).clip(0, 255).astype(np.uint8)
    return np.repeat(whole, 3, axis=2) if whole.shape[2] == 1 else whole


def area_means(picture: np.ndarray, size: int) -> np.ndarray:
    """`[height, width, channels]` as `[size, size, channels]`: means over areas, parts of pixels counted as parts."""
    rows, columns = shares(picture.shape[0], size), shares(picture.shape[1], size)
    return np.einsum("ih,hwc,jw->ijc", rows, picture, columns, optimize=True)


@functools.lru_cache(maxsize=16)
def shares(old: int, new: int) -> np.ndarray:
    """How much each of `old` pixels in a row has in each of `new` that cover the same length, `[new, old]`; rows sum to 1."""
    edges, pixels = np.arange(new + 1) * (old / new), np.arange(old)
    begin, end = np.maximum(edges[:-1, None], pixels), np.minimum(edges[1:, None], pixels + 1)
    return np.maximum(end - begin, 0) * (new / old)

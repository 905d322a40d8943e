"""A pinhole camera's picture plane: where its samples lie, and which way it looks."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from ambs.envs.safety_gym import appearance as look
from ambs.envs.safety_gym import raycast
from ambs.envs.safety_gym.raycast import Rays

# The usual four-sample pattern of OpenGL hardware and llvmpipe alike, in pixels right of and above the centre.
SAMPLES = {1: ((0.0, 0.0),), 4: ((-0.125, -0.375), (0.375, -0.125), (-0.375, 0.125), (0.125, 0.375))}


class Lens(NamedTuple):
    """Image-plane coordinates of samples, `x[S, 1, C]` and `y[S, R, 1]`, of pixel centres and of 2×2 quads' corners."""

    x: np.ndarray
    y: np.ndarray
    centre: tuple[np.ndarray, np.ndarray]
    corner: tuple[np.ndarray, np.ndarray]
    pixel: float


def make_lens(view: look.View, size: int, samples: int) -> Lens:
    """Of a square picture of `size` pixels with so many samples in each."""
    reach = float(np.tan(np.radians(view.fovy) / 2))
    pixel = 2 * reach / size
    x = ((np.arange(size) + 0.5) * pixel - reach)[None, None, :]
    y = -x.reshape(1, size, 1)
    offsets = np.asarray(SAMPLES[samples])[:, :, None, None] * pixel
    # OpenGL counts rows from the bottom, so a quad's first row is its lower one.
    left, lower = np.arange(size) // 2 * 2, size - 1 - (size - 1 - np.arange(size)) // 2 * 2
    single = np.float32
    return Lens(
        (x + offsets[:, 0]).astype(single),
        (y + offsets[:, 1]).astype(single),
        (x.astype(single), y.astype(single)),
        (x[:, :, left].astype(single), y[:, lower].astype(single)),
        pixel,
    )


def quads(lens: Lens, origin: Any, axes: Any) -> tuple[Rays, Rays, Rays]:
    """Rays of each pixel's quad: its corner, the next column, the next row."""
    (x, y), pixel = lens.corner, np.float32(lens.pixel)
    cast = partial(raycast.cast, origin=origin, axes=axes)
    return cast(x, y), cast(x + pixel, y), cast(x, y + pixel)


def axes_of(view: look.View) -> Float[np.ndarray, "3 3"]:
    """Right, up and forward as columns, orthonormal, with `right` kept as given."""
    right = np.asarray(view.right, np.float64) / np.linalg.norm(view.right)
    up = np.asarray(view.up, np.float64)
    up = up - right * (up @ right)
    up = up / np.linalg.norm(up)
    return np.stack([right, up, np.cross(up, right)], axis=1).astype(np.float32)

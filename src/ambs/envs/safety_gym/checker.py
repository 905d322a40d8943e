"""The floor's checker as OpenGL's mip maps show it."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from ambs.envs.safety_gym import appearance as look
from ambs.envs.safety_gym.raycast import Rays

# Texels of MuJoCo's checker per tile.
TEXELS = 50


def checker_mix(rays: Rays, quads: tuple[Rays, Rays, Rays]) -> Float[Array, "1 R C"]:
    """Share of the second floor colour, through OpenGL's mip maps.

    The level of detail follows, as in OpenGL, from differences within each quad of 2×2 pixels (`quads`: a corner of it
    and its neighbours in the row and in the column).
    """
    u, v = _tiles(rays)
    (u0, v0), (ux, vx), (uy, vy) = (_tiles(corner) for corner in quads)
    steps = [jnp.abs(ux - u0), jnp.abs(vx - v0), jnp.abs(uy - u0), jnp.abs(vy - v0)]
    stretch = jnp.maximum(jnp.maximum(steps[0], steps[1]), jnp.maximum(steps[2], steps[3]))
    detail = jnp.log2(jnp.maximum(TEXELS * stretch, 1e-3)) + 0.25
    level = jnp.clip(jnp.floor(detail), 0, 6)
    # llvmpipe, which drew the recorded frames, moves from one level to the next over half an octave.
    part = jnp.clip(2 * (detail - level) - 1, 0, 1)
    fine = _wave(u, level) * _wave(v, level)
    return 0.5 + 0.5 * (fine + part * (_wave(u, level + 1) * _wave(v, level + 1) - fine))


def _tiles(rays: Rays) -> tuple[Any, Any]:
    """Where rays meet the floor, in tiles."""
    t = -rays.origin[2] / jnp.minimum(rays.direction(2), -1e-5) / look.TILE
    return rays.origin[0] / look.TILE + t * rays.direction(0), rays.origin[1] / look.TILE + t * rays.direction(1)


def _wave(u: Any, level: Any) -> Any:
    """A square wave (+1 on [0, 1), -1 on [1, 2)) in a mip level: linear between texels, so its edges are ramps.

    Levels have 100, 50, 25, 12, 6, 3 and 1 texels in two tiles; where the number is odd, a texel straddles the middle
    edge and makes that ramp twice as wide.
    """
    steep = jnp.where(level < 2.5, 100.0, jnp.where(level < 5.5, 96.0, 0.0)) * jnp.exp2(-level)
    middle = jnp.where((level == 2) | (level == 5), 0.5, 1.0) * steep
    phase = u - 2 * jnp.floor(u / 2)
    inside = 1 - jnp.abs(phase - 1)
    size = jnp.minimum(jnp.minimum(inside * steep, (1 - inside) * middle), 1)
    return jnp.where(phase < 1, size, -size)

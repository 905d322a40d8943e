"""What the camera draws surface by surface: the robot, and things of kinds for which there is no quicker way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from ambs.envs.safety_gym import appearance as look
from ambs.envs.safety_gym import raycast
from ambs.envs.safety_gym.objects import Kind, Vec3
from ambs.envs.safety_gym.raycast import FAR, Rays, Side


class Solid(NamedTuple):
    """Opaque pixels: inverse depth `[S, R, C]` (0 where nothing is) and colours `[3, R, C]`, one for each pixel."""

    inverse: Any
    rgb: Any


class Veil(NamedTuple):
    """One see-through thing: as `Solid`, and where nothing opaque hides it, `[S, R, C]`."""

    inverse: Any
    rgb: Any
    alpha: float
    seen: Any


def robot(rays: Rays, name: str, palette: look.Palette, pos: Any, mat: Any) -> Solid:
    """The robot at a pose."""
    surfaces = [(_part(rays, part, pos, mat), palette.trim if part.trim else palette.body) for part in look.PARTS[name]]
    return _cast(rays, surfaces)


def standing(rays: Rays, kinds: Sequence[Kind], poses: Sequence[Any]) -> list[tuple[Kind, Solid]]:
    """Each thing of these kinds alone; `poses` are centres `[things, 3]` and axes `[things, 3, 3]` of each kind in turn."""
    return [
        (kind, _cast(rays, [(_surface(rays, kind, pos[i], mat[i]), kind.colour)]))
        for kind, pos, mat in zip(kinds, poses[::2], poses[1::2], strict=True)
        for i in range(pos.shape[0])
    ]


def merged(solid: Solid, things: Iterable[tuple[Kind, Solid]]) -> Solid:
    """The opaque ones among the things, and what was there before; a pixel that several share has a mixed colour."""
    for kind, other in things:
        if kind.alpha < 1:
            continue
        before = (solid.inverse >= other.inverse) & (solid.inverse > 0)
        behind = other.inverse > solid.inverse
        mine, its = before.sum(0), behind.sum(0)
        share = (its / jnp.maximum(mine + its, 1))[None]
        rgb = (1 - share) * solid.rgb + share * other.rgb
        solid = Solid(jnp.maximum(solid.inverse, other.inverse), rgb)
    return solid


def veils(things: Iterable[tuple[Kind, Solid]]) -> list[Veil]:
    """The see-through ones among the things, behind goal and discs; it remains to be said where they are seen."""
    return [Veil(one.inverse, one.rgb, kind.alpha, one.inverse > 0) for kind, one in things if kind.alpha < 1]


def _cast(rays: Rays, surfaces: Iterable[tuple[Side, Vec3]]) -> Solid:
    """The nearest of the surfaces on each ray, in these colours."""
    t = jnp.full_like(rays.direction(0), FAR)
    rgb: tuple[Any, Any, Any] = (t, t, t)
    for surface, colour in surfaces:
        light, shine = raycast.shade(rays, surface.normal)
        first = surface.t < t
        shown = [jnp.minimum(colour[k] * light + shine, 1) for k in range(3)]
        rgb = tuple(jnp.where(first, shown[k], rgb[k]) for k in range(3))  # type: ignore[assignment]
        t = jnp.minimum(t, surface.t)
    there = t < FAR
    share = 1 / jnp.maximum(there.sum(0), 1)
    mean = jnp.stack([jnp.where(there, plane, 0).sum(0) * share for plane in rgb])
    return Solid(jnp.where(there, 1 / t, 0.0), mean)


def _surface(rays: Rays, kind: Kind, pos: Any, mat: Any) -> Side:
    centre = (pos[0], pos[1], pos[2])
    if kind.shape == "sphere":
        return raycast.ball(rays, centre, kind.radius)
    if kind.shape == "cylinder":
        return raycast.cylinder(rays, centre, look.ROUND * kind.radius, kind.size[1])
    return raycast.box(rays, pos, mat, (kind.size[0], kind.size[1], kind.size[2]))


def _part(rays: Rays, part: look.Part, pos: Any, mat: Any) -> Side:
    at = pos + jnp.sum(mat * jnp.asarray(part.pos, jnp.float32)[None, :], axis=1)
    if part.shape == "sphere":
        return raycast.ball(rays, (at[0], at[1], at[2]), part.size[0])
    if part.shape == "box":
        return raycast.box(rays, at, mat, (part.size[0], part.size[1], part.size[2]))
    # A wheel: drawn as the box around it, since only its edge ever shows.
    return raycast.box(rays, at, mat, (part.size[1], part.size[0], part.size[0]))

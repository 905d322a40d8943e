"""Rays against the few shapes of a Safety Gym scene, and OpenGL's fixed-function light on them.

One image at a time (`vmap` or `lax.map` outside). A bundle of rays is `[S, R, C]`: samples of a pixel, rows, columns.
A ray is d = x·right + y·up + forward, so the parameter t of a hit is its depth along the optical axis, in metres.
Vectors over rays are tuples of three `[S, R, C]` arrays: unrolled, everything fuses into one pass over the picture.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from ambs.envs.safety_gym import appearance as look

FAR = 1e6
Scalar = Float[Array, ""] | float
OverRays = Float[Array, "S R C"]


class Rays(NamedTuple):
    """A pinhole's bundle in the world frame: `origin` and unit `forward` are scalars, the rest is per ray.

    `length` is |d|; `half` is 1/|v + l| for unit vectors v to the eye and l to the headlight (Blinn's half vector).
    """

    origin: tuple[Scalar, Scalar, Scalar]
    forward: tuple[Scalar, Scalar, Scalar]
    d: tuple[OverRays, OverRays, OverRays]
    length: OverRays
    half: OverRays


class Surface(NamedTuple):
    """First hits: depth t (`FAR` where none), diffuse light, and n·(v + l), from which the highlight is made."""

    t: OverRays
    light: OverRays
    facing: OverRays


def cast(
    x: Float[Array, "S 1 C"], y: Float[Array, "S R 1"], origin: Float[Array, "3"], axes: Float[Array, "3 3"]
) -> Rays:
    """Rays through image-plane points (x, y) at depth 1; the columns of `axes` are right, up and forward."""
    d = tuple(axes[k, 0] * x + (axes[k, 1] * y + axes[k, 2]) for k in range(3))
    length = jnp.sqrt(x * x + (y * y + 1))
    half = jnp.reciprocal(jnp.sqrt(2 + 2 / length))
    return Rays(_scalars(origin), _scalars(axes[:, 2]), d, length, half)  # type: ignore[arg-type]


def mirrored(rays: Rays) -> Rays:
    """The bundle as seen in the floor: the eye moves below it, the headlight stays where it was, as in OpenGL's pass."""
    (ox, oy, oz), (fx, fy, fz) = rays.origin, rays.forward
    d = (rays.d[0], rays.d[1], -rays.d[2])
    cosine = (fx * d[0] + fy * d[1] + fz * d[2]) / rays.length
    half = jnp.reciprocal(jnp.sqrt(jnp.maximum(2 + 2 * cosine, 1e-6)))
    return Rays((ox, oy, -oz), rays.forward, d, rays.length, half)  # type: ignore[arg-type]


def box(rays: Rays, pos: Any, mat: Any, half: tuple[float, float, float]) -> Surface:
    """Front faces of an oriented box: centre `pos[3]`, axes as columns of `mat[3, 3]`, half extents in metres."""
    enter, leave, light, facing = None, None, None, None
    for k in range(3):
        column = tuple(mat[i, k] for i in range(3))
        offset = _dot(tuple(rays.origin[i] - pos[i] for i in range(3)), column)
        ahead = _dot(rays.forward, column)
        side = jnp.sign(offset)
        d = _dot(rays.d, column)
        inverse = jnp.reciprocal(jnp.where(jnp.abs(d) < 1e-9, 1e-9, d))
        middle, reach = -offset * inverse, half[k] * jnp.abs(inverse)
        near, far = middle - reach, middle + reach
        face_light = lambert(-side * ahead, side * column[2])
        face_facing = -side * (ahead + d / rays.length)
        if enter is None:
            enter, leave, facing, light = near, far, face_facing, jnp.full_like(near, 1) * face_light
        else:
            closer = near > enter
            enter, leave = jnp.maximum(enter, near), jnp.minimum(leave, far)
            light, facing = jnp.where(closer, face_light, light), jnp.where(closer, face_facing, facing)
    hit = (enter < leave) & (enter > look.ZNEAR)
    return Surface(jnp.where(hit, enter, FAR), light, facing)


def cylinder(
    rays: Rays, centre: tuple[Scalar, Scalar, Scalar], radius: float, half_height: float, *, axis: int = 2
) -> Surface:
    """Front faces of a cylinder along a world axis. From within there is none: back faces are culled."""
    i, j = ((1, 2), (2, 0), (0, 1))[axis]
    o = tuple(rays.origin[k] - centre[k] for k in range(3))
    a = rays.d[i] * rays.d[i] + rays.d[j] * rays.d[j]
    b = o[i] * rays.d[i] + o[j] * rays.d[j]
    c = o[i] * o[i] + o[j] * o[j] - radius * radius
    root = b * b - a * c
    inverse = jnp.reciprocal(jnp.maximum(a, 1e-12))
    spread = jnp.sqrt(jnp.maximum(root, 0))
    d = jnp.where(jnp.abs(rays.d[axis]) < 1e-9, 1e-9, rays.d[axis])
    middle, reach = -o[axis] / d, half_height / jnp.abs(d)
    around, cap = (-b - spread) * inverse, middle - reach
    enter = jnp.maximum(around, cap)
    hit = (root > 0) & (enter < jnp.minimum((spread - b) * inverse, middle + reach)) & (enter > look.ZNEAR)
    on_cap = cap > around
    n: list[Any] = [0.0, 0.0, 0.0]
    n[axis] = jnp.where(on_cap, jnp.sign(o[axis]), 0.0)
    n[i] = jnp.where(on_cap, 0.0, (o[i] + around * rays.d[i]) / radius)
    n[j] = jnp.where(on_cap, 0.0, (o[j] + around * rays.d[j]) / radius)
    return _lit(rays, jnp.where(hit, enter, FAR), n)


def ball(rays: Rays, centre: tuple[Scalar, Scalar, Scalar], radius: float) -> Surface:
    """The near side of a sphere as OpenGL draws it: a polyhedron of slices and stacks, lit like the sphere."""
    o = tuple(rays.origin[k] - centre[k] for k in range(3))
    planes = jnp.asarray(_ball_planes(), jnp.float32)

    def cut(i: Any, span: Any) -> Any:
        towards, rest = _dot(planes[i], rays.d), radius * planes[i, 3] - _dot(planes[i], o)
        t = rest / jnp.where(jnp.abs(towards) < 1e-9, 1e-9, towards)
        entering = jnp.where(towards < 0, jnp.maximum(span[0], t), span[0])
        return entering, jnp.where(towards > 0, jnp.minimum(span[1], t), span[1])

    start = jnp.full_like(rays.length, -FAR), jnp.full_like(rays.length, FAR)
    enter, leave = jax.lax.fori_loop(0, len(planes), cut, start)
    hit = (enter < leave) & (enter > look.ZNEAR)
    n = [o[k] + enter * rays.d[k] for k in range(3)]
    norm = jnp.sqrt(jnp.maximum(_dot(n, n), 1e-12))
    return _lit(rays, jnp.where(hit, enter, FAR), [component / norm for component in n])


def _ball_planes() -> Float[np.ndarray, "planes 4"]:
    """Normals (not of unit length) and offsets of the unit ball's quads, each between two meridians and two parallels."""
    chord = np.cos(np.pi / look.SLICES)
    edges = np.pi * (np.arange(look.STACKS + 1) / look.STACKS - 0.5)
    tilt, azimuth = np.meshgrid((edges[1:] + edges[:-1]) / 2, (np.arange(look.SLICES) + 0.5) * 2 * np.pi / look.SLICES)
    low = np.broadcast_to(edges[:-1], tilt.shape)
    # Every quad passes through its lower parallel, at the chord's distance from the axis.
    offset = np.cos(tilt) * np.cos(low) * chord + np.sin(tilt) * chord * np.sin(low)
    normal = np.cos(tilt) * np.cos(azimuth), np.cos(tilt) * np.sin(azimuth), np.sin(tilt) * chord
    return np.stack([*normal, offset], axis=-1).reshape(-1, 4)


def nearer(a: Surface, b: Surface) -> Surface:
    """Per ray, whichever surface comes first."""
    first = a.t <= b.t
    return Surface(*(jnp.where(first, u, v) for u, v in zip(a, b, strict=True)))


def highlight(rays: Rays, surface: Surface) -> OverRays:
    """Blinn–Phong: headlight and material specular times (n·h)^64, shininess .5 being an exponent of 64."""
    power = jnp.clip(surface.facing * rays.half, 0, 1)
    for _ in range(6):
        power = power * power
    return look.HEADLIGHT_SPECULAR * look.SPECULAR * power


def lambert(towards_eye: Any, upward: Any) -> Any:
    """Diffuse light on a face: headlight (ambient, and n·l along the optical axis) and a lamp straight above."""
    return look.AMBIENT + look.HEADLIGHT * jnp.maximum(towards_eye, 0) + jnp.maximum(upward, 0)


def floor_depth(rays: Rays) -> tuple[OverRays, Bool[Array, "S R C"]]:
    """Depth of the plane z = 0 and whether the finite floor is there; beyond the horizon the depth is large."""
    t = -rays.origin[2] / jnp.minimum(rays.d[2], -1e-5)
    x, y = (rays.origin[k] + t * rays.d[k] for k in range(2))
    inside = (jnp.abs(x) < look.FLOOR_HALF) & (jnp.abs(y) < look.FLOOR_HALF) & (rays.d[2] < -1e-5)
    return t, inside


def _lit(rays: Rays, t: OverRays, n: list[Any]) -> Surface:
    """Light a surface of unit normals n."""
    ahead = _dot(n, rays.forward)
    return Surface(t, lambert(-ahead, n[2]), -(ahead + _dot(n, rays.d) / rays.length))


def _dot(a: Any, b: Any) -> Any:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def _scalars(vector: Float[Array, "3"]) -> tuple[Array, Array, Array]:
    return vector[0], vector[1], vector[2]

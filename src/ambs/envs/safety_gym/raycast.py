"""Rays against the few shapes of a Safety Gym scene, and OpenGL's fixed-function light on them.

One image at a time (`vmap` or `lax.map` outside). A bundle of rays is `[S, R, C]`: samples of a pixel, rows, columns.
A ray is d = x·right + y·up + forward, so a hit's parameter t is its depth along the optical axis, in metres. Planes are
compared by inverse depth 1/t, which is linear in x and y: no division per ray. Vectors over rays are tuples of three
`[S, R, C]` arrays: unrolled, everything fuses into one pass over the picture.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int32

from ambs.envs.safety_gym import appearance as look

FAR = 1e6
BIG = 1e9
Scalar = Float[Array, ""] | float
OverRays = Float[Array, "S R C"]
Bounds = Float[Array, "things S R"]


class Rays(NamedTuple):
    """A pinhole's bundle in the world frame.

    `origin` and `axes` (right, up, forward) are scalars; `x[S, 1, C]` and `y[S, R, 1]` place each ray on the image
    plane at depth 1; `light` is the optical axis, along which the headlight shines; `reflected` rays left the floor.
    """

    x: Any
    y: Any
    origin: tuple[Scalar, Scalar, Scalar]
    axes: tuple[Any, Any, Any]
    light: tuple[Scalar, Scalar, Scalar]
    reflected: bool = False

    def direction(self, k: int) -> OverRays:
        """World component k of d."""
        right, up, forward = self.axes
        return right[k] * self.x + (up[k] * self.y + forward[k])


class Faces(NamedTuple):
    """The three planes of each box towards the eye: `linear[V, 3, 3]` is n·(right, up, forward), `depth[V, 3]` n·(p-o).

    `light[V, 3]` is the diffuse light on them and `ahead[V, 3]` n·(optical axis). `back[V, 3]` is the offset of the
    planes behind them. A plane is in view where its depth is negative.
    """

    linear: Any
    depth: Any
    back: Any
    light: Any
    ahead: Any


def cast(x: Any, y: Any, origin: Any, axes: Any) -> Rays:
    """Rays through image-plane points (x, y) at depth 1; the columns of `axes[3, 3]` are right, up and forward."""
    right, up, forward = ((axes[0, k], axes[1, k], axes[2, k]) for k in range(3))
    return Rays(x, y, (origin[0], origin[1], origin[2]), (right, up, forward), forward)


def mirrored(rays: Rays) -> Rays:
    """The bundle as seen in the floor: the eye moves below it, the headlight stays, as in OpenGL's pass."""
    ox, oy, oz = rays.origin
    right, up, forward = ((axis[0], axis[1], -axis[2]) for axis in rays.axes)
    return rays._replace(origin=(ox, oy, -oz), axes=(right, up, forward), reflected=True)


def faces(rays: Rays, pos: Float[Array, "V 3"], mat: Float[Array, "V 3 3"], half: float) -> Faces:
    """The planes of V cubes of half extent `half` on the eye's side; columns of `mat` are the cubes' axes."""
    offset = sum((rays.origin[k] - pos[:, k])[:, None] * mat[:, k, :] for k in range(3))
    side = jnp.where(offset < 0, -1.0, 1.0)
    normal = [side * mat[:, k, :] for k in range(3)]
    linear = jnp.stack([_dot(normal, axis) for axis in rays.axes], -1)
    ahead = _dot(normal, rays.light)
    distance = jnp.abs(offset)
    return Faces(linear, half - distance, half + distance, lambert(-ahead, normal[2]), ahead)


def face_rows(rays: Rays, planes: Faces) -> tuple[Bounds, Bounds]:
    """Between which x each row of rays meets each cube: a convex outline, so one interval (empty: the first is larger).

    With f the inverse depth at which a ray crosses a plane, it hits where every f of the planes in view exceeds 0 and
    every f of the others; along a row each of these conditions bounds x on one side.
    """
    count = planes.depth.shape[0]
    in_view = planes.depth < -1e-6
    depth = jnp.where(jnp.abs(planes.depth) < 1e-6, 1e-6, planes.depth)
    front = planes.linear / depth[:, :, None]
    others = jnp.concatenate([-planes.linear / planes.back[:, :, None], front, jnp.zeros((count, 1, 3))], 1)
    stands = jnp.concatenate([jnp.ones_like(in_view), ~in_view, jnp.ones((count, 1), bool)], 1)
    margin = (front[:, :, None, :] - others[:, None, :, :]).reshape(count, 21, 3)
    counts = (in_view[:, :, None] & stands[:, None, :]).reshape(count, 21, 1, 1)
    slope, rise, level = (margin[:, :, k, None, None] for k in range(3))
    slope = jnp.where(jnp.abs(slope) < 1e-9, 1e-9, slope)
    bound = -(rise * rays.y[None, None, :, :, 0] + level) / slope
    left = jnp.max(jnp.where(counts & (slope > 0), bound, -BIG), 1)
    right = jnp.min(jnp.where(counts & (slope < 0), bound, BIG), 1)
    return jnp.where(in_view.any(1)[:, None, None], left, BIG), right


def nearest_face(rays: Rays, planes: Faces, rows: tuple[Bounds, Bounds]) -> Int32[Array, "S R C"]:
    """The nearest cube face on each ray: the bits of its inverse depth, the lowest of which give way to its index.

    Positive floats are ordered like their bits, so one integer maximum finds depth and face together. 0 where none.
    """
    count = planes.depth.shape[0]
    mask = (1 << index_bits(count)) - 1
    in_view = planes.depth < -1e-6
    scale = jnp.where(in_view, 1 / jnp.where(in_view, planes.depth, 1.0), 0.0)
    limit = np.float32(1 / look.ZNEAR).view(np.int32)
    best = jnp.zeros((rays.x.shape[0], rays.y.shape[1], rays.x.shape[2]), jnp.int32)
    for v in range(count):
        key: Any = None
        for k in range(3):
            a, b, c = (planes.linear[v, k, i] * scale[v, k] for i in range(3))
            inverse = a * rays.x + (b * rays.y + jnp.where(in_view[v, k], c, BIG))
            bits = (jax.lax.bitcast_convert_type(inverse, jnp.int32) & ~mask) | (3 * v + k)
            key = bits if key is None else jnp.minimum(key, bits)
        inside = (rays.x > rows[0][v, :, :, None]) & (rays.x < rows[1][v, :, :, None]) & (key < limit)
        best = jnp.maximum(best, jnp.where(inside, key, 0))
    return best


def face_range(key: Int32[Array, "S R C"]) -> tuple[Int32[Array, "1 R C"], Int32[Array, "1 R C"]]:
    """The nearest and the farthest face among each pixel's samples: two shades, enough for all but a few pixels."""
    near, far = key[:1], key[:1]
    for other in key[1:]:
        near = jnp.maximum(near, other[None])
        # Where there is no face at all the key is 0, which must not count as far.
        far = jnp.where((other[None] > 0) & ((other[None] < far) | (far == 0)), other[None], far)
    return near, far


def face_index(key: Int32[Array, "S R C"], count: int) -> Int32[Array, "S R C"]:
    """Which face a key stands for: three times the cube's number plus the axis."""
    return key & ((1 << index_bits(count)) - 1)


def index_bits(count: int) -> int:
    """How many bits the index of a face needs among `count` cubes."""
    return max(1, (3 * count - 1).bit_length())


def face_shade(rays: Rays, planes: Faces, key: Int32[Array, "1 R C"]) -> tuple[OverRays, OverRays]:
    """Diffuse light and highlight of the faces in `nearest_face`'s keys; n·d follows from depth and inverse depth."""
    count = planes.depth.shape[0]
    index = face_index(key, count)
    light = ahead = depth = jnp.zeros(key.shape)
    for v in range(count):
        for k in range(3):
            # Selecting vectorises; a gather from a table would not.
            here = index == 3 * v + k
            light = jnp.where(here, planes.light[v, k], light)
            ahead = jnp.where(here, planes.ahead[v, k], ahead)
            depth = jnp.where(here, planes.depth[v, k], depth)
    return light, highlight(rays, ahead, depth * inverse_depth(key))


def inverse_depth(key: Int32[Array, "S R C"]) -> OverRays:
    """1/t of a face key; 0 where there is none."""
    return jax.lax.bitcast_convert_type(key, jnp.float32)


def disc_rows(rays: Rays, centre: Float[Array, "H 2"], z: float, radius: float) -> tuple[Bounds, Bounds]:
    """Between which x each row of rays meets flat discs at height z below the eye: the roots of a conic."""
    right, up, forward = rays.axes
    y = rays.y[None, :, :, 0]
    drop = z - rays.origin[2]
    away = [(centre[:, k] - rays.origin[k])[:, None, None] for k in range(2)]
    z_row = up[2] * y + forward[2]
    slope = [away[k] * right[2] - drop * right[k] for k in range(2)]
    level = [away[k] * z_row - drop * (up[k] * y + forward[k]) for k in range(2)]
    square = radius * radius
    a = jnp.maximum(slope[0] * slope[0] + slope[1] * slope[1] - square * right[2] * right[2], 1e-9)
    b = slope[0] * level[0] + slope[1] * level[1] - square * right[2] * z_row
    c = level[0] * level[0] + level[1] * level[1] - square * z_row * z_row
    root = b * b - a * c
    middle, reach = -b / a, jnp.sqrt(jnp.maximum(root, 0)) / a
    meets = root > 0
    return jnp.where(meets, middle - reach, BIG), jnp.where(meets, middle + reach, -BIG)


class Side(NamedTuple):
    """Where rays enter an upright cylinder: depth t (`FAR` where they do not), and the unit normal there."""

    t: OverRays
    normal: tuple[OverRays, OverRays, OverRays]


def cylinder(rays: Rays, centre: tuple[Scalar, Scalar, Scalar], radius: float, half_height: float) -> Side:
    """Front faces of an upright cylinder. From within there is none: back faces are culled."""
    o = tuple(rays.origin[k] - centre[k] for k in range(3))
    d = tuple(rays.direction(k) for k in range(3))
    a = jnp.maximum(d[0] * d[0] + d[1] * d[1], 1e-12)
    b = o[0] * d[0] + o[1] * d[1]
    root = b * b - a * (o[0] * o[0] + o[1] * o[1] - radius * radius)
    inverse = jnp.reciprocal(a)
    spread = jnp.sqrt(jnp.maximum(root, 0))
    vertical = jnp.reciprocal(jnp.where(jnp.abs(d[2]) < 1e-9, 1e-9, d[2]))
    middle, reach = -o[2] * vertical, half_height * jnp.abs(vertical)
    around, cap = (-b - spread) * inverse, middle - reach
    enter = jnp.maximum(around, cap)
    hit = (root > 0) & (enter < jnp.minimum((spread - b) * inverse, middle + reach)) & (enter > look.ZNEAR)
    on_cap = cap > around
    nx, ny = (jnp.where(on_cap, 0.0, (o[k] + around * d[k]) / radius) for k in range(2))
    return Side(jnp.where(hit, enter, FAR), (nx, ny, jnp.where(on_cap, jnp.sign(o[2]), 0.0)))


def shade(rays: Rays, normal: tuple[Any, Any, Any]) -> tuple[Any, Any]:
    """Diffuse light and highlight on a surface of unit normals."""
    ahead = _dot(normal, rays.light)
    along = _dot(normal, [rays.direction(k) for k in range(3)])
    return lambert(-ahead, normal[2]), highlight(rays, ahead, along)


def lambert(towards_eye: Any, upward: Any) -> Any:
    """Diffuse light on a face: headlight (ambient, and n·l along the optical axis) and a lamp straight above."""
    return look.AMBIENT + look.HEADLIGHT * jnp.maximum(towards_eye, 0) + jnp.maximum(upward, 0)


def highlight(rays: Rays, ahead: Any, along: Any) -> OverRays:
    """Blinn–Phong: headlight and material specular times (n·h)^64, shininess .5 being an exponent of 64.

    `ahead` is n·(optical axis), `along` n·d; h halves the angle between the headlight and the eye.
    """
    shorten = jax.lax.rsqrt(rays.x * rays.x + (rays.y * rays.y + 1))
    towards_light = _dot([rays.direction(k) for k in range(3)], rays.light) if rays.reflected else 1.0
    half = jax.lax.rsqrt(jnp.maximum(2 + 2 * towards_light * shorten, 1e-6))
    power = jnp.clip(-(ahead + along * shorten) * half, 0, 1)
    for _ in range(6):
        power = power * power
    return look.HEADLIGHT_SPECULAR * look.SPECULAR * power


def floor(rays: Rays) -> tuple[OverRays, Bool[Array, "S R C"]]:
    """Inverse depth of the plane z = 0 (not positive above the horizon), and whether the finite floor is there."""
    inverse = rays.direction(2) / -rays.origin[2]
    reach = look.FLOOR_HALF * inverse
    inside = inverse > 0
    for k in range(2):
        inside &= jnp.abs(rays.origin[k] * inverse + rays.direction(k)) < reach
    return inverse, inside


def ball(rays: Rays, centre: tuple[Scalar, Scalar, Scalar], radius: float) -> Side:
    """The near side of a sphere as OpenGL draws it: a polyhedron of slices and stacks, with the sphere's normals."""
    o = tuple(rays.origin[k] - centre[k] for k in range(3))
    d = tuple(rays.direction(k) for k in range(3))
    planes = jnp.asarray(_ball_planes(), jnp.float32)

    def cut(i: Any, span: Any) -> Any:
        towards, rest = _dot(planes[i], d), radius * planes[i, 3] - _dot(planes[i], o)
        t = rest / jnp.where(jnp.abs(towards) < 1e-9, 1e-9, towards)
        entering = jnp.where(towards < 0, jnp.maximum(span[0], t), span[0])
        return entering, jnp.where(towards > 0, jnp.minimum(span[1], t), span[1])

    start = jnp.full_like(d[0], -FAR), jnp.full_like(d[0], FAR)
    enter, leave = jax.lax.fori_loop(0, len(planes), cut, start)
    hit = (enter < leave) & (enter > look.ZNEAR)
    n = [o[k] + enter * d[k] for k in range(3)]
    norm = jnp.sqrt(jnp.maximum(_dot(n, n), 1e-12))
    return Side(jnp.where(hit, enter, FAR), (n[0] / norm, n[1] / norm, n[2] / norm))


def box(rays: Rays, pos: Any, mat: Any, half: tuple[float, float, float]) -> Side:
    """Front faces of one oriented box: centre `pos[3]`, axes as columns of `mat[3, 3]`, half extents in metres."""
    d = tuple(rays.direction(k) for k in range(3))
    enter, leave = jnp.full_like(d[0], -FAR), jnp.full_like(d[0], FAR)
    normal: tuple[Any, Any, Any] = (enter, enter, enter)
    for k in range(3):
        column = tuple(mat[i, k] for i in range(3))
        offset = _dot(tuple(rays.origin[i] - pos[i] for i in range(3)), column)
        across = _dot(d, column)
        inverse = jnp.reciprocal(jnp.where(jnp.abs(across) < 1e-9, 1e-9, across))
        middle, reach = -offset * inverse, half[k] * jnp.abs(inverse)
        closer, side = middle - reach > enter, jnp.sign(offset)
        normal = tuple(jnp.where(closer, side * column[i], normal[i]) for i in range(3))  # type: ignore[assignment]
        enter, leave = jnp.maximum(enter, middle - reach), jnp.minimum(leave, middle + reach)
    hit = (enter < leave) & (enter > look.ZNEAR)
    return Side(jnp.where(hit, enter, FAR), normal)


def _ball_planes() -> Float[np.ndarray, "planes 4"]:
    """Normals (not of unit length) and offsets of the unit ball's quads, between meridians and parallels."""
    chord = np.cos(np.pi / look.SLICES)
    edges = np.pi * (np.arange(look.STACKS + 1) / look.STACKS - 0.5)
    tilt, azimuth = np.meshgrid((edges[1:] + edges[:-1]) / 2, (np.arange(look.SLICES) + 0.5) * 2 * np.pi / look.SLICES)
    low = np.broadcast_to(edges[:-1], tilt.shape)
    # Every quad passes through its lower parallel, at the chord's distance from the axis.
    offset = np.cos(tilt) * np.cos(low) * chord + np.sin(tilt) * chord * np.sin(low)
    normal = np.cos(tilt) * np.cos(azimuth), np.cos(tilt) * np.sin(azimuth), np.sin(tilt) * chord
    return np.stack([*normal, offset], axis=-1).reshape(-1, 4)


def _dot(a: Any, b: Any) -> Any:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]

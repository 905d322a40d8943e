"""What a Safety Gym robot sees: an analytic ray-caster that agrees with MuJoCo's OpenGL pictures and needs no OpenGL."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, UInt8

from ambs.envs.safety_gym import appearance as look
from ambs.envs.safety_gym import raycast
from ambs.envs.safety_gym.raycast import FAR, Rays, Surface
from ambs.errors import UserError

# The usual four-sample pattern of OpenGL hardware and llvmpipe alike, in pixels right of and above the centre.
SAMPLES = {1: ((0.0, 0.0),), 4: ((-0.125, -0.375), (0.375, -0.125), (-0.375, 0.125), (0.125, 0.375))}
# Texels of MuJoCo's checker per tile.
TEXELS = 50
CLEAR = 1 - look.ALPHA


class Lens(NamedTuple):
    """Image-plane coordinates: of the samples `x[S, 1, C]`, `y[S, R, 1]`, of pixel centres, and of 2×2 quads' corners."""

    x: np.ndarray
    y: np.ndarray
    centre: tuple[np.ndarray, np.ndarray]
    corner: tuple[np.ndarray, np.ndarray]
    pixel: float


class Solid(NamedTuple):
    """Something opaque drawn over the scene: depth `t[S, R, C]` and three colour planes in [0, 1]."""

    t: Any
    rgb: tuple[Any, Any, Any]


class Camera:
    """Draws batches of scenes on CPU or GPU; every method is a jitted pure function of its array arguments.

    Arguments of `render`, `chase` and `top_down`, all in metres and the world frame: robot_pos `[N, 3]`, robot_mat
    `[N, 3, 3]` (columns are the body's axes), goal `[N, 2]` or None, hazards `[N, H, 2]`, vase_pos `[N, V, 3]`,
    vase_mat `[N, V, 3, 3]`; H and V may be 0. They return uint8 RGB `[N, size, size, 3]`, row 0 at the top.

    `samples` is the number of rays per pixel (4 = MuJoCo's default anti-aliasing), `mirror` draws the reflections of
    goal and vases in the floor, `palette` picks Safety-Gymnasium's colours or those of OpenAI's original.
    """

    def __init__(
        self,
        robot: look.Robot,
        size: int = 64,
        samples: Literal[1, 4] = 4,
        mirror: bool = True,
        palette: look.PaletteName = "safety_gymnasium",
    ) -> None:
        _check(robot, size, samples, palette)
        self.robot: look.Robot = robot
        self.size = size
        self.samples = samples
        self.mirror = mirror
        self.palette: look.PaletteName = palette
        self._vision = jax.jit(self._mounted(look.VISION[robot], size))
        self._human: dict[tuple[str, int], Any] = {}

    def render(
        self,
        robot_pos: Float[Array, "N 3"],
        robot_mat: Float[Array, "N 3 3"],
        goal: Float[Array, "N 2"] | None,
        hazards: Float[Array, "N H 2"],
        vase_pos: Float[Array, "N V 3"],
        vase_mat: Float[Array, "N V 3 3"],
    ) -> UInt8[Array, "N size size 3"]:
        """The robot's own view."""
        return self._vision(robot_pos, robot_mat, goal, hazards, vase_pos, vase_mat)

    def chase(self, *scene: Any, size: int = 256) -> UInt8[Array, "N size size 3"]:
        """The robot from behind and above."""
        if ("chase", size) not in self._human:
            self._human["chase", size] = jax.jit(self._mounted(look.CHASE[self.robot], size))
        return self._human["chase", size](*scene)

    def top_down(self, *scene: Any, size: int = 256) -> UInt8[Array, "N size size 3"]:
        """The whole floor from above, world x to the right and y up."""
        if ("top_down", size) not in self._human:
            self._human["top_down", size] = jax.jit(self._overhead(size))
        return self._human["top_down", size](*scene)

    def _mounted(self, view: look.View, size: int) -> Any:
        """A view fixed to the robot: in its own frame the robot never moves, so its pixels are computed here, once."""
        lens, palette = _lens(view, size, self.samples), look.PALETTES[self.palette]
        pos, axes = np.asarray(view.pos, np.float32), _axes(view)
        rays = raycast.cast(lens.x, lens.y, pos, axes)
        solid = jax.tree.map(np.asarray, _robot(rays, self.robot, palette, jnp.zeros(3), jnp.eye(3)))

        def draw(robot_pos: Any, robot_mat: Any, goal: Any, hazards: Any, vase_pos: Any, vase_mat: Any) -> Any:
            origin = robot_pos + jnp.sum(robot_mat * pos[None, :], axis=1)
            turned = jnp.sum(robot_mat[:, :, None] * axes[None, :, :], axis=1)
            rays, centre, quads = _bundles(lens, origin, turned)
            return _compose(rays, centre, quads, solid, goal, hazards, vase_pos, vase_mat, palette, self.mirror)

        return partial(_batched, draw)

    def _overhead(self, size: int) -> Any:
        """A view fixed to the world, in which the robot is cast anew in every picture."""
        view, palette = look.TOP_DOWN, look.PALETTES[self.palette]
        lens, pos, axes = _lens(view, size, self.samples), jnp.asarray(view.pos, jnp.float32), jnp.asarray(_axes(view))

        def draw(robot_pos: Any, robot_mat: Any, goal: Any, hazards: Any, vase_pos: Any, vase_mat: Any) -> Any:
            rays, centre, quads = _bundles(lens, pos, axes)
            solid = _robot(rays, self.robot, palette, robot_pos, robot_mat)
            return _compose(rays, centre, quads, solid, goal, hazards, vase_pos, vase_mat, palette, self.mirror)

        return partial(_batched, draw)


def _batched(draw: Any, *scene: Any) -> UInt8[Array, "N size size 3"]:
    scene = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), scene)
    if jax.default_backend() == "cpu":
        return jax.lax.map(lambda one: draw(*one), scene)
    return jax.vmap(draw)(*scene)


def _compose(
    rays: Rays,
    centre: Rays,
    quads: tuple[Rays, Rays, Rays],
    solid: Solid,
    goal: Any,
    hazards: Any,
    vase_pos: Any,
    vase_mat: Any,
    palette: look.Palette,
    mirror: bool,
) -> UInt8[Array, "R C 3"]:
    """One picture: sky, floor with its mirror, vases and robot by depth, then the transparent layers over them."""
    t_floor, on_floor = raycast.floor_depth(rays)
    t_floor = jnp.where(on_floor, t_floor, FAR)
    vases = _vases(rays, vase_pos, vase_mat)
    t = jnp.minimum(jnp.minimum(t_floor, vases.t), solid.t)
    ground, sky = _floor(centre, quads, palette), _sky(rays, palette)
    if mirror:
        ground = _add(ground, _reflection(centre, goal, vase_pos, vase_mat))
    shine = raycast.highlight(rays, vases)
    is_solid, is_vase = solid.t <= t, vases.t <= t_floor
    layers = _layers(rays, t, goal, hazards)
    planes = []
    for k in range(3):
        vase = jnp.minimum(look.VASE_COLOUR[k] * vases.light + shine, 1)
        colour = jnp.where(is_vase & (vases.t < FAR), vase, jnp.where(on_floor, ground[k], sky[k]))
        colour = _blend(jnp.where(is_solid & (solid.t < FAR), solid.rgb[k], colour), layers, k)
        planes.append(jnp.mean(colour, axis=0))
    return jnp.floor(jnp.stack(planes, -1) * 255 + 0.5).astype(jnp.uint8)


class _Layers(NamedTuple):
    """Transparent layers on each ray: what passes the hazards before and behind the goal, and the goal, and colours."""

    before: Any
    behind: Any
    goal: Any
    hazard_light: Any
    hazard_shine: Any
    goal_light: Any
    goal_shine: Any


def _layers(rays: Rays, t: Any, goal: Any, hazards: Any) -> _Layers:
    clear = jnp.ones_like(t)
    cylinder, goal_distance = None, jnp.float32(-FAR)
    if goal is not None:
        cylinder = raycast.cylinder(rays, (goal[0], goal[1], look.GOAL_Z), look.ROUND * look.GOAL_RADIUS, look.GOAL_HALF_HEIGHT)
        goal_distance = _sorting_distance(rays, goal, look.GOAL_Z, look.GOAL_RADIUS, look.GOAL_HALF_HEIGHT)
    top, bottom = look.HAZARD_Z + look.HAZARD_HALF_HEIGHT, look.HAZARD_Z - look.HAZARD_HALF_HEIGHT
    down = jnp.reciprocal(jnp.minimum(rays.d[2], -1e-5))
    t_top = (top - rays.origin[2]) * down
    seen = (t_top < t) & (rays.d[2] < -1e-5)
    across = jnp.sqrt(rays.d[0] * rays.d[0] + rays.d[1] * rays.d[1])
    heading = rays.d[0] / across, rays.d[1] / across
    run = (bottom - top) * down * across
    px, py = rays.origin[0] + t_top * rays.d[0], rays.origin[1] + t_top * rays.d[1]
    before, behind, on_top, wx, wy = clear, clear, jnp.zeros_like(seen), clear, clear
    square = (look.ROUND * look.HAZARD_RADIUS) ** 2
    for k in range(hazards.shape[0]):
        ux, uy = hazards[k, 0] - px, hazards[k, 1] - py
        distance = ux * ux + uy * uy
        along = ux * heading[0] + uy * heading[1]
        nearest = jnp.clip(along, 0, run)
        hit = seen & (distance - nearest * (2 * along - nearest) < square)
        first = _sorting_distance(rays, hazards[k], look.HAZARD_Z, look.HAZARD_RADIUS, look.HAZARD_HALF_HEIGHT) < goal_distance
        before = jnp.where(hit & first, before * CLEAR, before)
        behind = jnp.where(hit & ~first, behind * CLEAR, behind)
        on_top = on_top | (distance < square)
        wx, wy = jnp.where(hit, ux, wx), jnp.where(hit, uy, wy)
    along = wx * heading[0] + wy * heading[1]
    enter = along - jnp.sqrt(jnp.maximum(square - (wx * wx + wy * wy - along * along), 0))
    nx, ny = ((enter * heading[i] - w) / look.HAZARD_RADIUS for i, w in ((0, wx), (1, wy)))
    ahead = nx * rays.forward[0] + ny * rays.forward[1]
    facing = -(ahead + (nx * rays.d[0] + ny * rays.d[1]) / rays.length)
    side = Surface(t_top, raycast.lambert(-ahead, 0.0), facing)
    hazard_light = jnp.where(on_top, 1.0, side.light)
    hazard_shine = jnp.where(on_top, 0.0, raycast.highlight(rays, side))
    if cylinder is None:
        return _Layers(before, behind, clear, hazard_light, hazard_shine, clear, clear)
    passes = jnp.where(cylinder.t < t, CLEAR, 1.0)
    return _Layers(
        before, behind, passes, hazard_light, hazard_shine, cylinder.light, raycast.highlight(rays, cylinder)
    )


def _blend(colour: Any, layers: _Layers, k: int) -> Any:
    """MuJoCo draws transparent geoms front to back and then back to front, so each is blended twice."""
    hazard = jnp.minimum(look.HAZARD_COLOUR[k] * layers.hazard_light + layers.hazard_shine, 1)
    goal = jnp.minimum(look.GOAL_COLOUR[k] * layers.goal_light + layers.goal_shine, 1)
    colour = hazard + layers.before * (colour - hazard)
    colour = goal + layers.goal * (colour - goal)
    colour = hazard + layers.behind * layers.behind * (colour - hazard)
    colour = goal + layers.goal * (colour - goal)
    return hazard + layers.before * (colour - hazard)


def _sorting_distance(rays: Rays, xy: Any, z: float, radius: float, half_height: float) -> Any:
    """MuJoCo orders transparent geoms by the distance of their centres less their bounding radius."""
    dx, dy, dz = rays.origin[0] - xy[0], rays.origin[1] - xy[1], rays.origin[2] - z
    return jnp.sqrt(dx * dx + dy * dy + dz * dz) - float(np.hypot(radius, half_height))


def _vases(rays: Rays, pos: Any, mat: Any) -> Surface:
    none = jnp.full_like(rays.length, FAR)
    nearest = Surface(none, none, none)
    for k in range(pos.shape[0]):
        nearest = raycast.nearer(raycast.box(rays, pos[k], mat[k], (look.VASE_HALF,) * 3), nearest)
    return nearest


def _reflection(centre: Rays, goal: Any, vase_pos: Any, vase_mat: Any) -> tuple[Any, Any, Any]:
    """Light the floor adds: MuJoCo scales a reflected geom's colour by the reflectance, but not its highlight."""
    rays = raycast.mirrored(centre)
    vases = _vases(rays, vase_pos, vase_mat)
    shine = raycast.highlight(rays, vases)
    planes = [
        jnp.where(vases.t < FAR, look.REFLECTANCE * look.VASE_COLOUR[k] * vases.light + shine, 0.0) for k in range(3)
    ]
    if goal is not None:
        body = raycast.cylinder(rays, (goal[0], goal[1], look.GOAL_Z), look.ROUND * look.GOAL_RADIUS, look.GOAL_HALF_HEIGHT)
        shine, passes = raycast.highlight(rays, body), jnp.where(body.t < vases.t, CLEAR**2, 1.0)
        for k in range(3):
            colour = look.REFLECTANCE * look.GOAL_COLOUR[k] * body.light + shine
            planes[k] = colour + passes * (planes[k] - colour)
    return planes[0], planes[1], planes[2]


def _floor(rays: Rays, quads: tuple[Rays, Rays, Rays], palette: look.Palette) -> tuple[Any, Any, Any]:
    """The checker through OpenGL's mip maps; the two lamps together saturate, so it shows at its full colour.

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
    fine = _checker(u, level) * _checker(v, level)
    wave = fine + part * (_checker(u, level + 1) * _checker(v, level + 1) - fine)
    mix = 0.5 + 0.5 * wave
    one, two = palette.floor
    return one[0] + mix * (two[0] - one[0]), one[1] + mix * (two[1] - one[1]), one[2] + mix * (two[2] - one[2])


def _tiles(rays: Rays) -> tuple[Any, Any]:
    """Where rays meet the floor, in tiles."""
    t, _ = raycast.floor_depth(rays)
    return (rays.origin[0] + t * rays.d[0]) / look.TILE, (rays.origin[1] + t * rays.d[1]) / look.TILE


def _checker(u: Any, level: Any) -> Any:
    """A square wave (+1 on [0, 1), -1 on [1, 2)) as a mip level shows it: linear between texels, so its edges are ramps.

    Levels have 100, 50, 25, 12, 6, 3 and 1 texels in two tiles; where the number is odd, a texel straddles the middle
    edge and makes that ramp twice as wide.
    """
    steep = jnp.where(level < 2.5, 100.0, jnp.where(level < 5.5, 96.0, 0.0)) * jnp.exp2(-level)
    middle = jnp.where((level == 2) | (level == 5), 0.5, 1.0) * steep
    phase = u - 2 * jnp.floor(u / 2)
    inside = 1 - jnp.abs(phase - 1)
    size = jnp.minimum(jnp.minimum(inside * steep, (1 - inside) * middle), 1)
    return jnp.where(phase < 1, size, -size)


def _sky(rays: Rays, palette: look.Palette) -> tuple[Any, Any, Any]:
    """A flat colour, or MuJoCo's gradient from nadir to zenith on the faces of a cube."""
    low, high = palette.sky[1], palette.sky[0]
    if low == high:
        return tuple(jnp.float32(channel) for channel in low)  # type: ignore[return-value]
    rise = rays.d[2] / jnp.maximum(jnp.maximum(jnp.abs(rays.d[0]), jnp.abs(rays.d[1])), 1e-6)
    mix = jnp.clip(0.5 + jnp.sqrt(0.5) * rise / jnp.sqrt(1 + rise * rise), 0, 1)
    return low[0] + mix * (high[0] - low[0]), low[1] + mix * (high[1] - low[1]), low[2] + mix * (high[2] - low[2])


def _robot(rays: Rays, robot: look.Robot, palette: look.Palette, pos: Any, mat: Any) -> Solid:
    """The robot's parts at a pose."""
    t = jnp.full_like(rays.length, FAR)
    rgb: tuple[Any, Any, Any] = (t, t, t)
    for part in look.PARTS[robot]:
        surface = _part(rays, part, pos, mat)
        shine, first = raycast.highlight(rays, surface), surface.t < t
        colour = palette.trim if part.trim else palette.body
        shown = [jnp.minimum(colour[k] * surface.light + shine, 1) for k in range(3)]
        rgb = tuple(jnp.where(first, shown[k], rgb[k]) for k in range(3))  # type: ignore[assignment]
        t = jnp.minimum(t, surface.t)
    return Solid(t, rgb)


def _part(rays: Rays, part: look.Part, pos: Any, mat: Any) -> Surface:
    at = pos + jnp.sum(mat * jnp.asarray(part.pos, jnp.float32)[None, :], axis=1)
    if part.shape == "sphere":
        return raycast.ball(rays, (at[0], at[1], at[2]), part.size[0])
    if part.shape == "box":
        return raycast.box(rays, at, mat, (part.size[0], part.size[1], part.size[2]))
    # A wheel: drawn as the box around it, since only its edge ever shows.
    return raycast.box(rays, at, mat, (part.size[1], part.size[0], part.size[0]))


def _add(a: tuple[Any, Any, Any], b: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    return jnp.minimum(a[0] + b[0], 1), jnp.minimum(a[1] + b[1], 1), jnp.minimum(a[2] + b[2], 1)


def _lens(view: look.View, size: int, samples: int) -> Lens:
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


def _bundles(lens: Lens, origin: Any, axes: Any) -> tuple[Rays, Rays, tuple[Rays, Rays, Rays]]:
    """Rays of the samples, of the pixel centres, and of each pixel's quad: corner, next column, next row."""
    (x, y), pixel = lens.corner, np.float32(lens.pixel)
    quads = (
        raycast.cast(x, y, origin, axes),
        raycast.cast(x + pixel, y, origin, axes),
        raycast.cast(x, y + pixel, origin, axes),
    )
    return raycast.cast(lens.x, lens.y, origin, axes), raycast.cast(*lens.centre, origin, axes), quads


def _axes(view: look.View) -> Float[np.ndarray, "3 3"]:
    """Right, up and forward as columns, orthonormal, with `right` kept as given."""
    right = np.asarray(view.right, np.float64) / np.linalg.norm(view.right)
    up = np.asarray(view.up, np.float64)
    up = up - right * (up @ right)
    up = up / np.linalg.norm(up)
    return np.stack([right, up, np.cross(up, right)], axis=1).astype(np.float32)


def _check(robot: str, size: int, samples: int, palette: str) -> None:
    if robot not in look.PARTS:
        raise UserError(f"robot={robot!r}: the camera knows {', '.join(map(repr, look.PARTS))}.")
    if palette not in look.PALETTES:
        raise UserError(f"palette={palette!r}: the camera knows {', '.join(map(repr, look.PALETTES))}.")
    if samples not in SAMPLES:
        raise UserError(f"samples={samples}: 1 or 4 rays per pixel.")
    if size < 1:
        raise UserError(f"size={size}: the picture's side in pixels must be at least 1.")

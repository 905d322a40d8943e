"""What a Safety Gym robot sees: an analytic ray-caster that draws MuJoCo's pictures without OpenGL."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int32, UInt8

from ambs.envs.safety_gym import appearance as look
from ambs.envs.safety_gym import raycast
from ambs.envs.safety_gym.checker import checker_mix
from ambs.envs.safety_gym.raycast import FAR, Rays
from ambs.errors import UserError

# The usual four-sample pattern of OpenGL hardware and llvmpipe alike, in pixels right of and above the centre.
SAMPLES = {1: ((0.0, 0.0),), 4: ((-0.125, -0.375), (0.375, -0.125), (-0.375, 0.125), (0.125, 0.375))}
CLEAR = 1 - look.ALPHA
# Codes of what a ray meets: bits 0-1 the opaque thing, 2-3 and 4-5 how many hazards before and behind the goal,
# then the goal, whether the hazard shows its top, and whether the vase shows its pixel's farther face.
FLOOR, VASE, ROBOT, BEFORE, BEHIND, GOAL, TOP, FARTHER = 1, 2, 3, 4, 16, 64, 128, 256


class Lens(NamedTuple):
    """Image-plane coordinates of samples, `x[S, 1, C]` and `y[S, R, 1]`, of pixel centres and of 2×2 quads' corners."""

    x: np.ndarray
    y: np.ndarray
    centre: tuple[np.ndarray, np.ndarray]
    corner: tuple[np.ndarray, np.ndarray]
    pixel: float


class Solid(NamedTuple):
    """The robot's pixels: inverse depth `[S, R, C]` (0 where it is not) and colours `[3, R, C]`, one for each pixel."""

    inverse: Any
    rgb: Any


class Camera:
    """Draws batches of scenes on CPU or GPU; every method is a jitted pure function of its array arguments.

    Arguments of `render`, `back`, `chase` and `top_down`, all in metres and the world frame: robot_pos `[N, 3]`, robot_mat
    `[N, 3, 3]` (columns are the body's axes), goal `[N, 2]` or None, hazards `[N, H, 2]`, vase_pos `[N, V, 3]`,
    vase_mat `[N, V, 3, 3]`; H and V may be 0. They return uint8 RGB `[N, size, size, 3]`, row 0 at the top.

    `samples` is the number of rays per pixel (4 = MuJoCo's default anti-aliasing), `mirror` draws the reflections of
    goal and vases in the floor, `palette` picks Safety-Gymnasium's colours or those of OpenAI's original.
    """

    def __init__(
        self,
        robot: str,
        size: int = 64,
        samples: int = 4,
        mirror: bool = True,
        palette: str = "safety_gymnasium",
    ) -> None:
        look.check(robot, size, palette)
        if samples not in SAMPLES:
            raise UserError(f"samples={samples}: the camera casts 1 or 4 rays per pixel.")
        self.robot = robot
        self.size = size
        self.samples = samples
        self.mirror = mirror
        self.palette = palette
        self._vision = jax.jit(self._mounted(look.VISION[robot], size))
        self._others: dict[tuple[str, int], Any] = {}

    def render(
        self,
        robot_pos: Float[Array | np.ndarray, "N 3"],
        robot_mat: Float[Array | np.ndarray, "N 3 3"],
        goal: Float[Array | np.ndarray, "N 2"] | None,
        hazards: Float[Array | np.ndarray, "N H 2"],
        vase_pos: Float[Array | np.ndarray, "N V 3"],
        vase_mat: Float[Array | np.ndarray, "N V 3 3"],
    ) -> UInt8[Array, "N size size 3"]:
        """The robot's own view."""
        return self._vision(robot_pos, robot_mat, goal, hazards, vase_pos, vase_mat)

    def back(self, *scene: Any) -> UInt8[Array, "N size size 3"]:
        """What lies behind the robot: the view of its rear camera, as large as `render`'s."""
        if ("back", self.size) not in self._others:
            self._others["back", self.size] = jax.jit(self._mounted(look.VISION_BACK[self.robot], self.size))
        return self._others["back", self.size](*scene)

    def chase(self, *scene: Any, size: int = 256) -> UInt8[Array, "N size size 3"]:
        """The robot from behind and above."""
        if ("chase", size) not in self._others:
            self._others["chase", size] = jax.jit(self._mounted(look.CHASE[self.robot], size))
        return self._others["chase", size](*scene)

    def top_down(self, *scene: Any, size: int = 256) -> UInt8[Array, "N size size 3"]:
        """The whole floor from above, world x to the right and y up."""
        if ("top_down", size) not in self._others:
            self._others["top_down", size] = jax.jit(self._overhead(size))
        return self._others["top_down", size](*scene)

    def _mounted(self, view: look.View, size: int) -> Any:
        """A view fixed to the robot: in its own frame the robot never moves, so its pixels are computed here, once."""
        lens, options = _lens(view, size, self.samples), Options(self.mirror, look.PALETTES[self.palette])
        pos, axes = np.asarray(view.pos, np.float32), axes_of(view)
        still = jax.jit(partial(_robot, lens, self.robot, options.palette))
        solid = jax.tree.map(np.asarray, still(pos, axes, jnp.zeros(3), jnp.eye(3)))

        def draw(robot_pos: Any, robot_mat: Any, *scene: Any) -> Any:
            origin = robot_pos + jnp.sum(robot_mat * pos[None, :], axis=1)
            turned = jnp.sum(robot_mat[:, :, None] * axes[None, :, :], axis=1)
            return _compose(lens, origin, turned, solid, Scene(*scene), options)

        return partial(_batched, draw)

    def _overhead(self, size: int) -> Any:
        """A view fixed to the world, in which the robot is cast anew in every picture."""
        view, options = look.TOP_DOWN, Options(self.mirror, look.PALETTES[self.palette], from_above=True)
        lens, pos, axes = (
            _lens(view, size, self.samples),
            jnp.asarray(view.pos, jnp.float32),
            jnp.asarray(axes_of(view)),
        )

        def draw(robot_pos: Any, robot_mat: Any, *scene: Any) -> Any:
            solid = _robot(lens, self.robot, options.palette, pos, axes, robot_pos, robot_mat)
            return _compose(lens, pos, axes, solid, Scene(*scene), options)

        return partial(_batched, draw)


def _batched(draw: Any, *scene: Any) -> UInt8[Array, "N size size 3"]:
    scene = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), scene)
    if jax.default_backend() == "cpu":
        return jax.lax.map(lambda one: draw(*one), scene)
    return jax.vmap(draw)(*scene)


def _fence(always: Any) -> Any:
    """Compute a function's arrays on their own: XLA on a CPU fuses across its barriers, but not out of a branch."""
    if jax.default_backend() != "cpu":
        return lambda function: function()

    def fenced(function: Any) -> Any:
        shapes = jax.eval_shape(function)
        return jax.lax.cond(always, function, lambda: jax.tree.map(lambda one: jnp.zeros(one.shape, one.dtype), shapes))

    return fenced


class Options(NamedTuple):
    """What does not change from picture to picture."""

    mirror: bool
    palette: look.Palette
    from_above: bool = False


class Scene(NamedTuple):
    """One layout in metres: goal `[2]` or None, hazards `[H, 2]`, vase_pos `[V, 3]`, vase_mat `[V, 3, 3]`."""

    goal: Any
    hazards: Any
    vase_pos: Any
    vase_mat: Any


def _compose(lens: Lens, origin: Any, axes: Any, solid: Solid, scene: Scene, options: Options) -> UInt8[Array, "R C 3"]:
    """One picture: visibility per sample, colours per pixel (as OpenGL does), and their weighted mean.

    Runs in stages that each leave one array behind; without the fences XLA's CPU compiler would fuse them all into the
    last loop and compute the same hits again for every colour channel.
    """
    rays, centre = (raycast.cast(x, y, origin, axes) for x, y in ((lens.x, lens.y), lens.centre))
    fence = _fence(origin[2] < FAR)
    planes = raycast.faces(rays, scene.vase_pos, scene.vase_mat, look.VASE_HALF)
    rows = fence(lambda: raycast.face_rows(rays, planes))
    vases = fence(lambda: raycast.nearest_face(rays, planes, rows))
    near, far = fence(lambda: raycast.face_range(vases))
    hazard_rows = fence(lambda: _hazard_rows(rays, scene.hazards))
    layers = fence(lambda: _layers(rays, vases, near, solid, hazard_rows, scene))
    checker = fence(lambda: checker_mix(centre, _quads(lens, origin, axes)))
    glow = fence(lambda: _reflection(centre, scene, fence)) if options.mirror else None
    vase_paint = [fence(lambda key=key: raycast.face_shade(centre, planes, key)) for key in (near, far)]
    paint = fence(lambda: _paint(centre, checker, glow, scene, options.palette))
    pixels = [fence(lambda k=k: _resolve(k, centre, layers, paint, vase_paint, solid, options)) for k in range(3)]
    return jnp.stack([plane.astype(jnp.uint8) for plane in pixels], -1)


def _hazard_rows(rays: Rays, hazards: Any) -> tuple[Any, Any, Any, Any]:
    """Intervals of x in which each row meets each hazard at all (as a stack of discs), and its top."""
    radius, top = look.ROUND * look.HAZARD_RADIUS, look.HAZARD_Z + look.HAZARD_HALF_HEIGHT
    discs = [raycast.disc_rows(rays, hazards, top - i * look.HAZARD_HALF_HEIGHT, radius) for i in range(3)]
    left = jnp.minimum(jnp.minimum(discs[0][0], discs[1][0]), discs[2][0])
    right = jnp.maximum(jnp.maximum(discs[0][1], discs[1][1]), discs[2][1])
    return left, right, *discs[0]


def _layers(rays: Rays, vases: Any, near: Any, solid: Solid, rows: Any, scene: Scene) -> Int32[Array, "S R C"]:
    """What each ray meets, as a sum of codes: the opaque thing behind all, and the transparent layers before it."""
    ground, on_floor = raycast.floor(rays)
    ground, box = jnp.where(on_floor, ground, 0.0), raycast.inverse_depth(vases)
    opaque = jnp.maximum(jnp.maximum(box, solid.inverse), ground)
    other = raycast.face_index(vases, len(scene.vase_pos)) != raycast.face_index(near, len(scene.vase_pos))
    code = jnp.where(box > ground, jnp.where(other, VASE + FARTHER, VASE), jnp.where(on_floor, FLOOR, 0))
    code = jnp.where((solid.inverse >= opaque) & (opaque > 0), ROBOT, code)
    goal_distance = jnp.float32(-FAR)
    if scene.goal is not None:
        body = _goal(rays, scene.goal)
        code = code + jnp.where((body.t * opaque < 1) & (body.t < FAR), GOAL, 0)
        goal_distance = _sorting_distance(rays, scene.goal, look.GOAL_Z, look.GOAL_RADIUS, look.GOAL_HALF_HEIGHT)
    top = look.HAZARD_Z + look.HAZARD_HALF_HEIGHT
    seen = rays.direction(2) / (top - rays.origin[2]) > opaque
    hits, on_top = jnp.zeros_like(vases), jnp.zeros(vases.shape, bool)
    for k in range(scene.hazards.shape[0]):
        left, right, top_left, top_right = (bound[k, :, :, None] for bound in rows)
        distance = _sorting_distance(rays, scene.hazards[k], look.HAZARD_Z, look.HAZARD_RADIUS, look.HAZARD_HALF_HEIGHT)
        layer = jnp.where(distance < goal_distance, BEFORE, BEHIND)
        hits = hits + jnp.where((rays.x > left) & (rays.x < right), layer, 0)
        on_top = on_top | ((rays.x > top_left) & (rays.x < top_right))
    return code + jnp.where(seen, hits + jnp.where(on_top, TOP, 0), 0)


def _paint(centre: Rays, checker: Any, glow: Any, scene: Scene, palette: look.Palette) -> tuple[Any, ...]:
    """Colours at pixel centres: the floor's three, and the goal's highlight and green."""
    one, two = (_texel(colour) for colour in palette.floor)
    planes = [one[k] + checker * (two[k] - one[k]) for k in range(3)]
    if glow is not None:
        white, vase, goal = glow
        added = white, white + vase + goal, white + vase
        planes = [jnp.minimum(plane + added[k], 1) for k, plane in enumerate(planes)]
    light = shine = checker
    if scene.goal is not None:
        light, shine = raycast.shade(centre, _goal(centre, scene.goal).normal)
    return (*(plane[0] for plane in planes), shine[0], jnp.minimum(light + shine, 1)[0])


def _texel(colour: look.Vec3) -> look.Vec3:
    """MuJoCo truncates the colours of a built-in texture to whole levels."""
    return (int(255 * colour[0]) / 255, int(255 * colour[1]) / 255, int(255 * colour[2]) / 255)


def _resolve(
    k: int, centre: Rays, layers: Any, paint: Any, vase_paint: Any, solid: Solid, options: Options
) -> Float[Array, "R C"]:
    """Channel k: the mean over samples, from what they meet and how that looks at the pixel's centre."""
    sky = _sky(centre, options.palette)[k]
    ahead = centre.light[0] * centre.light[0] + centre.light[1] * centre.light[1]
    # The visible half of a round side, seen from afar, faces the eye by pi/4 on average.
    side = look.AMBIENT + look.HEADLIGHT * jnp.sqrt(ahead) * np.float32(np.pi / 4)
    near, far = (jnp.minimum(look.VASE_COLOUR[k] * light + shine, 1)[0] for light, shine in vase_paint)
    goal, total = paint[4 if k == 1 else 3], jnp.zeros_like(paint[0])
    # The flat top of a hazard throws the headlight back only to an eye above it.
    shine = raycast.highlight(centre, centre.light[2], centre.direction(2))[0] if options.from_above else 0.0
    for code in layers:
        thing = code & ROBOT
        vase = jnp.where(code < FARTHER, near, far)
        colour = jnp.where(thing == FLOOR, paint[k], jnp.where(thing == VASE, vase, sky))
        colour = jnp.where(thing == ROBOT, solid.rgb[k], colour)
        hazard = jnp.where((code & TOP) > 0, 1.0, side) if k == 2 else shine
        total = total + _blend(colour, hazard, goal, *_passes(code))
    return jnp.floor(total * (255 / len(layers)) + 0.5)


def _passes(code: Any) -> tuple[Any, Any, Any]:
    """How much light passes the hazards before the goal, those behind it, and the goal."""
    before, behind = (code & 12) // BEFORE, (code & 48) // BEHIND
    powers = [CLEAR**i for i in range(4)]
    through = [
        jnp.where(n == 0, 1.0, jnp.where(n == 1, powers[1], jnp.where(n == 2, powers[2], powers[3])))
        for n in (before, behind)
    ]
    return through[0], through[1], jnp.where((code & GOAL) > 0, CLEAR, 1.0)


def _blend(colour: Any, hazard: Any, goal: Any, before: Any, behind: Any, through_goal: Any) -> Any:
    """MuJoCo draws transparent geoms front to back and then back to front, so each is blended twice."""
    colour = hazard + before * (colour - hazard)
    colour = goal + through_goal * (colour - goal)
    colour = hazard + behind * behind * (colour - hazard)
    colour = goal + through_goal * (colour - goal)
    return hazard + before * (colour - hazard)


def _goal(rays: Rays, goal: Any) -> raycast.Side:
    at = (goal[0], goal[1], look.GOAL_Z)
    return raycast.cylinder(rays, at, look.ROUND * look.GOAL_RADIUS, look.GOAL_HALF_HEIGHT)


def _sorting_distance(rays: Rays, xy: Any, z: float, radius: float, half_height: float) -> Any:
    """MuJoCo orders transparent geoms by the distance of their centres less their bounding radius."""
    dx, dy, dz = rays.origin[0] - xy[0], rays.origin[1] - xy[1], rays.origin[2] - z
    return jnp.sqrt(dx * dx + dy * dy + dz * dz) - float(np.hypot(radius, half_height))


def _reflection(centre: Rays, scene: Scene, fence: Any) -> tuple[Any, Any, Any]:
    """Light the floor adds: highlights (white), light of vases (green and blue) and of the goal (green).

    MuJoCo scales a reflected geom's colour by the reflectance, but not its highlight.
    """
    rays = raycast.mirrored(centre)
    planes = raycast.faces(rays, scene.vase_pos, scene.vase_mat, look.VASE_HALF)
    rows = fence(lambda: raycast.face_rows(rays, planes))
    vases = fence(lambda: raycast.nearest_face(rays, planes, rows))
    light, shine = fence(lambda: raycast.face_shade(rays, planes, vases))
    light = jnp.where(vases > 0, look.REFLECTANCE * light, 0.0)
    shine = jnp.where(vases > 0, shine, 0.0)
    if scene.goal is None:
        return shine, light, jnp.zeros_like(light)
    body = _goal(rays, scene.goal)
    goal_light, goal_shine = raycast.shade(rays, body.normal)
    share = jnp.where((body.t < FAR) & (body.t * raycast.inverse_depth(vases) < 1), 1 - CLEAR**2, 0.0)
    white = shine + share * (goal_shine - shine)
    return white, (1 - share) * light, share * look.REFLECTANCE * goal_light


def _sky(rays: Rays, palette: look.Palette) -> tuple[Any, Any, Any]:
    """A flat colour, or a gradient over .45 of the elevation's sine, close to MuJoCo's up to 45 degrees."""
    low, high = palette.sky[1], palette.sky[0]
    if low == high:
        return low
    mix = 0.5 + 0.45 * (rays.direction(2) * jax.lax.rsqrt(rays.x * rays.x + (rays.y * rays.y + 1)))[0]
    return low[0] + mix * (high[0] - low[0]), low[1] + mix * (high[1] - low[1]), low[2] + mix * (high[2] - low[2])


def _robot(lens: Lens, robot: str, palette: look.Palette, origin: Any, axes: Any, pos: Any, mat: Any) -> Solid:
    """The robot at a pose, seen by a camera at `origin[3]` with `axes[3, 3]`."""
    rays = raycast.cast(lens.x, lens.y, origin, axes)
    t = jnp.full_like(rays.direction(0), FAR)
    rgb: tuple[Any, Any, Any] = (t, t, t)
    for part in look.PARTS[robot]:
        surface = _part(rays, part, pos, mat)
        light, shine = raycast.shade(rays, surface.normal)
        first, colour = surface.t < t, palette.trim if part.trim else palette.body
        shown = [jnp.minimum(colour[k] * light + shine, 1) for k in range(3)]
        rgb = tuple(jnp.where(first, shown[k], rgb[k]) for k in range(3))  # type: ignore[assignment]
        t = jnp.minimum(t, surface.t)
    there = t < FAR
    share = 1 / jnp.maximum(there.sum(0), 1)
    mean = jnp.stack([jnp.where(there, plane, 0).sum(0) * share for plane in rgb])
    return Solid(jnp.where(there, 1 / t, 0.0), mean)


def _part(rays: Rays, part: look.Part, pos: Any, mat: Any) -> raycast.Side:
    at = pos + jnp.sum(mat * jnp.asarray(part.pos, jnp.float32)[None, :], axis=1)
    if part.shape == "sphere":
        return raycast.ball(rays, (at[0], at[1], at[2]), part.size[0])
    if part.shape == "box":
        return raycast.box(rays, at, mat, (part.size[0], part.size[1], part.size[2]))
    # A wheel: drawn as the box around it, since only its edge ever shows.
    return raycast.box(rays, at, mat, (part.size[1], part.size[0], part.size[0]))


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


def _quads(lens: Lens, origin: Any, axes: Any) -> tuple[Rays, Rays, Rays]:
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

"""What a Safety Gym robot sees: an analytic ray-caster that draws MuJoCo's pictures without OpenGL."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int32, UInt8

from ambs.envs.safety_gym import appearance as look
from ambs.envs.safety_gym import raycast, solids
from ambs.envs.safety_gym.checker import checker_mix
from ambs.envs.safety_gym.lens import SAMPLES, Lens, axes_of, make_lens, quads
from ambs.envs.safety_gym.objects import GOAL as GOAL_KIND
from ambs.envs.safety_gym.objects import HAZARD, Drawn, Kind, Vec3, drawn
from ambs.envs.safety_gym.objects import VASE as VASE_KIND
from ambs.envs.safety_gym.raycast import FAR, Rays
from ambs.envs.safety_gym.solids import Solid, Veil
from ambs.errors import UserError

# Codes of what a ray meets: bits 0-1 the opaque thing, 2-3 and 4-5 how many discs before and behind the goal,
# then the goal, whether the disc shows its top, and whether the cube shows its pixel's farther face.
FLOOR, CUBE, SOLID, BEFORE, BEHIND, GOAL, TOP, FARTHER = 1, 2, 3, 4, 16, 64, 128, 256


class Camera:
    """Draws batches of scenes on CPU or GPU; every method is a jitted pure function of its array arguments.

    Arguments of `render`, `back`, `chase` and `top_down`, all in metres and the world frame: robot_pos `[N, 3]`, robot_mat
    `[N, 3, 3]` (columns are the body's axes), goal `[N, 2]` or None, discs `[N, H, 2]`, cube_pos `[N, V, 3]`,
    cube_mat `[N, V, 3, 3]`; H and V may be 0. In the Goal tasks the discs are hazards and the cubes vases; which kinds of
    things there are is told by `kinds`, and those that are neither (`objects.drawn`) follow as pos and mat of each kind, like
    the cubes'. They return uint8 RGB `[N, size, size, 3]`, row 0 at the top.

    `samples` is the number of rays per pixel (4 = MuJoCo's default anti-aliasing), `mirror` draws the reflections of
    goal and cubes in the floor, `palette` picks Safety-Gymnasium's colours or those of OpenAI's original.
    """

    def __init__(
        self,
        robot: str,
        size: int = 64,
        samples: int = 4,
        mirror: bool = True,
        palette: str = "safety_gymnasium",
        *,
        goal: Kind = GOAL_KIND,
        kinds: Sequence[Kind] = (HAZARD, VASE_KIND),
    ) -> None:
        look.check(robot, size, palette)
        if samples not in SAMPLES:
            raise UserError(f"samples={samples}: the camera casts 1 or 4 rays per pixel.")
        self.robot = robot
        self.size = size
        self.samples = samples
        self.mirror = mirror
        self.palette = palette
        self._options = Options(mirror, look.PALETTES[palette], goal, drawn(kinds))
        self._vision = jax.jit(self._mounted(look.VISION[robot], size))
        self._others: dict[tuple[str, int], Any] = {}

    def render(
        self,
        robot_pos: Float[Array | np.ndarray, "N 3"],
        robot_mat: Float[Array | np.ndarray, "N 3 3"],
        goal: Float[Array | np.ndarray, "N 2"] | None,
        discs: Float[Array | np.ndarray, "N H 2"],
        cube_pos: Float[Array | np.ndarray, "N V 3"],
        cube_mat: Float[Array | np.ndarray, "N V 3 3"],
        *others: Float[Array | np.ndarray, "N ..."],
    ) -> UInt8[Array, "N size size 3"]:
        """The robot's own view."""
        return self._vision(robot_pos, robot_mat, goal, discs, cube_pos, cube_mat, *others)

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
        lens, options = make_lens(view, size, self.samples), self._options
        pos, axes = np.asarray(view.pos, np.float32), axes_of(view)
        still = jax.jit(
            lambda origin, axes, at, mat: solids.robot(
                raycast.cast(lens.x, lens.y, origin, axes), self.robot, options.palette, at, mat
            )
        )
        solid = jax.tree.map(np.asarray, still(pos, axes, jnp.zeros(3), jnp.eye(3)))

        def draw(robot_pos: Any, robot_mat: Any, *scene: Any) -> Any:
            origin = robot_pos + jnp.sum(robot_mat * pos[None, :], axis=1)
            turned = jnp.sum(robot_mat[:, :, None] * axes[None, :, :], axis=1)
            return _compose(lens, origin, turned, solid, _scene(*scene), options)

        return partial(_batched, draw)

    def _overhead(self, size: int) -> Any:
        """A view fixed to the world, in which the robot is cast anew in every picture."""
        view, options = look.TOP_DOWN, self._options._replace(from_above=True)
        lens, pos, axes = (
            make_lens(view, size, self.samples),
            jnp.asarray(view.pos, jnp.float32),
            jnp.asarray(axes_of(view)),
        )

        def draw(robot_pos: Any, robot_mat: Any, *scene: Any) -> Any:
            rays = raycast.cast(lens.x, lens.y, pos, axes)
            solid = solids.robot(rays, self.robot, options.palette, robot_pos, robot_mat)
            return _compose(lens, pos, axes, solid, _scene(*scene), options)

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
    goal: Kind
    kinds: Drawn
    from_above: bool = False

    @property
    def discs(self) -> Kind:
        """As they look; of no kind if there are none."""
        return self.kinds.discs or HAZARD

    @property
    def cubes(self) -> Kind:
        """As they look; of no kind if there are none."""
        return self.kinds.cubes or VASE_KIND


class Scene(NamedTuple):
    """One layout in metres: goal `[2]` or None, discs `[H, 2]`, cube_pos `[V, 3]`, cube_mat `[V, 3, 3]`, others' poses."""

    goal: Any
    discs: Any
    cube_pos: Any
    cube_mat: Any
    others: tuple[Any, ...]


def _scene(goal: Any, discs: Any, cube_pos: Any, cube_mat: Any, *others: Any) -> Scene:
    return Scene(goal, discs, cube_pos, cube_mat, others)


def _compose(lens: Lens, origin: Any, axes: Any, solid: Solid, scene: Scene, options: Options) -> UInt8[Array, "R C 3"]:
    """One picture: visibility per sample, colours per pixel (as OpenGL does), and their weighted mean.

    Runs in stages that each leave one array behind; without the fences XLA's CPU compiler would fuse them all into the
    last loop and compute the same hits again for every colour channel.
    """
    rays, centre = (raycast.cast(x, y, origin, axes) for x, y in ((lens.x, lens.y), lens.centre))
    fence = _fence(origin[2] < FAR)
    planes = raycast.faces(rays, scene.cube_pos, scene.cube_mat, options.cubes.radius)
    rows = fence(lambda: raycast.face_rows(rays, planes))
    cubes = fence(lambda: raycast.nearest_face(rays, planes, rows))
    near, far = fence(lambda: raycast.face_range(cubes))
    things = solids.standing(rays, options.kinds.others, scene.others)
    if things:
        solid = fence(lambda: solids.merged(solid, things))
    disc_rows = fence(lambda: _disc_rows(rays, scene.discs, options.discs))
    layers = fence(lambda: _layers(rays, cubes, near, solid, disc_rows, scene, options))
    veils = [veil._replace(seen=veil.inverse > _opaque(rays, cubes, solid)[0]) for veil in solids.veils(things)]
    checker = fence(lambda: checker_mix(centre, quads(lens, origin, axes)))
    glow = fence(lambda: _reflection(centre, scene, options, fence)) if options.mirror else None
    cube_paint = [fence(lambda key=key: raycast.face_shade(centre, planes, key)) for key in (near, far)]
    paint = fence(lambda: _paint(centre, checker, glow, scene, options))
    pixels = [
        fence(lambda k=k: _resolve(k, centre, layers, paint, cube_paint, solid, veils, options)) for k in range(3)
    ]
    return jnp.stack([plane.astype(jnp.uint8) for plane in pixels], -1)


def _disc_rows(rays: Rays, centres: Any, kind: Kind) -> tuple[Any, Any, Any, Any]:
    """Intervals of x in which each row meets each plate at all (as a stack of discs), and its top."""
    radius, top = look.ROUND * kind.radius, kind.height + kind.size[1]
    discs = [raycast.disc_rows(rays, centres, top - i * kind.size[1], radius) for i in range(3)]
    left = jnp.minimum(jnp.minimum(discs[0][0], discs[1][0]), discs[2][0])
    right = jnp.maximum(jnp.maximum(discs[0][1], discs[1][1]), discs[2][1])
    return left, right, *discs[0]


def _opaque(rays: Rays, cubes: Any, solid: Solid) -> tuple[Any, Any, Any, Any]:
    """Inverse depth of the nearest opaque thing, that of cubes and of the floor, and whether the floor is there."""
    ground, on_floor = raycast.floor(rays)
    ground, box = jnp.where(on_floor, ground, 0.0), raycast.inverse_depth(cubes)
    return jnp.maximum(jnp.maximum(box, solid.inverse), ground), box, ground, on_floor


def _layers(
    rays: Rays, cubes: Any, near: Any, solid: Solid, rows: Any, scene: Scene, options: Options
) -> Int32[Array, "S R C"]:
    """What each ray meets, as a sum of codes: the opaque thing behind all, and the transparent layers before it."""
    opaque, box, ground, on_floor = _opaque(rays, cubes, solid)
    other = raycast.face_index(cubes, len(scene.cube_pos)) != raycast.face_index(near, len(scene.cube_pos))
    code = jnp.where(box > ground, jnp.where(other, CUBE + FARTHER, CUBE), jnp.where(on_floor, FLOOR, 0))
    code = jnp.where((solid.inverse >= opaque) & (opaque > 0), SOLID, code)
    goal_distance = jnp.float32(-FAR)
    if scene.goal is not None:
        body = _goal(rays, scene.goal, options.goal)
        code = code + jnp.where((body.t * opaque < 1) & (body.t < FAR), GOAL, 0)
        goal_distance = _sorting_distance(rays, scene.goal, options.goal)
    top = options.discs.height + options.discs.size[1]
    seen = rays.direction(2) / (top - rays.origin[2]) > opaque
    hits, on_top = jnp.zeros_like(cubes), jnp.zeros(cubes.shape, bool)
    for k in range(scene.discs.shape[0]):
        left, right, top_left, top_right = (bound[k, :, :, None] for bound in rows)
        distance = _sorting_distance(rays, scene.discs[k], options.discs)
        layer = jnp.where(distance < goal_distance, BEFORE, BEHIND)
        hits = hits + jnp.where((rays.x > left) & (rays.x < right), layer, 0)
        on_top = on_top | ((rays.x > top_left) & (rays.x < top_right))
    return code + jnp.where(seen, hits + jnp.where(on_top, TOP, 0), 0)


def _paint(centre: Rays, checker: Any, glow: Any, scene: Scene, options: Options) -> tuple[Any, ...]:
    """Colours at pixel centres: the floor's three and the goal's three."""
    one, two = (_texel(colour) for colour in options.palette.floor)
    planes = [one[k] + checker * (two[k] - one[k]) for k in range(3)]
    if glow is not None:
        white, cubes, goal = glow
        added = [_tinted(_tinted(white, k, options.cubes, cubes), k, options.goal, goal) for k in range(3)]
        planes = [jnp.minimum(plane + added[k], 1) for k, plane in enumerate(planes)]
    light = shine = checker
    if scene.goal is not None:
        light, shine = raycast.shade(centre, _goal(centre, scene.goal, options.goal).normal)
    lit = [_tinted(shine, k, options.goal, light) for k in range(3)]
    return (*(plane[0] for plane in planes), *((one if one is shine else jnp.minimum(one, 1))[0] for one in lit))


def _tinted(white: Any, k: int, kind: Kind, light: Any) -> Any:
    """Channel k of white light and of what a surface of the kind's colour throws back."""
    share = kind.colour[k]
    return white if share == 0 else white + (light if share == 1 else share * light)


def _texel(colour: Vec3) -> Vec3:
    """MuJoCo truncates the colours of a built-in texture to whole levels."""
    return (int(255 * colour[0]) / 255, int(255 * colour[1]) / 255, int(255 * colour[2]) / 255)


def _resolve(
    k: int,
    centre: Rays,
    layers: Any,
    paint: Any,
    cube_paint: Any,
    solid: Solid,
    veils: Sequence[Veil],
    options: Options,
) -> Float[Array, "R C"]:
    """Channel k: the mean over samples, from what they meet and how that looks at the pixel's centre."""
    sky = _sky(centre, options.palette)[k]
    ahead = centre.light[0] * centre.light[0] + centre.light[1] * centre.light[1]
    # The visible half of a round side, seen from afar, faces the eye by pi/4 on average.
    side = look.AMBIENT + look.HEADLIGHT * jnp.sqrt(ahead) * np.float32(np.pi / 4)
    near, far = (jnp.minimum(options.cubes.colour[k] * light + shine, 1)[0] for light, shine in cube_paint)
    goal, total = paint[3 + k], jnp.zeros_like(paint[0])
    # The flat top of a disc throws the headlight back only to an eye above it.
    shine = raycast.highlight(centre, centre.light[2], centre.direction(2))[0] if options.from_above else 0.0
    share = options.discs.colour[k]
    for sample, code in enumerate(layers):
        thing = code & SOLID
        cube = jnp.where(code < FARTHER, near, far)
        colour = jnp.where(thing == FLOOR, paint[k], jnp.where(thing == CUBE, cube, sky))
        colour = jnp.where(thing == SOLID, solid.rgb[k], colour)
        for veil in veils:
            colour = jnp.where(veil.seen[sample], veil.rgb[k] + (1 - veil.alpha) ** 2 * (colour - veil.rgb[k]), colour)
        disc = jnp.where((code & TOP) > 0, 1.0, side) if share else shine
        disc = disc if share in (0, 1) else share * disc
        total = total + _blend(colour, disc, goal, *_passes(code, options))
    return jnp.floor(total * (255 / len(layers)) + 0.5)


def _passes(code: Any, options: Options) -> tuple[Any, Any, Any]:
    """How much light passes the discs before the goal, those behind it, and the goal."""
    before, behind = (code & 12) // BEFORE, (code & 48) // BEHIND
    powers = [(1 - options.discs.alpha) ** i for i in range(4)]
    through = [
        jnp.where(n == 0, 1.0, jnp.where(n == 1, powers[1], jnp.where(n == 2, powers[2], powers[3])))
        for n in (before, behind)
    ]
    return through[0], through[1], jnp.where((code & GOAL) > 0, 1 - options.goal.alpha, 1.0)


def _blend(colour: Any, disc: Any, goal: Any, before: Any, behind: Any, through_goal: Any) -> Any:
    """MuJoCo draws transparent geoms front to back and then back to front, so each is blended twice."""
    colour = disc + before * (colour - disc)
    colour = goal + through_goal * (colour - goal)
    colour = disc + behind * behind * (colour - disc)
    colour = goal + through_goal * (colour - goal)
    return disc + before * (colour - disc)


def _goal(rays: Rays, goal: Any, kind: Kind) -> raycast.Side:
    return raycast.cylinder(rays, (goal[0], goal[1], kind.height), look.ROUND * kind.radius, kind.size[1])


def _sorting_distance(rays: Rays, xy: Any, kind: Kind) -> Any:
    """MuJoCo orders transparent geoms by the distance of their centres less their bounding radius."""
    dx, dy, dz = rays.origin[0] - xy[0], rays.origin[1] - xy[1], rays.origin[2] - kind.height
    return jnp.sqrt(dx * dx + dy * dy + dz * dz) - float(np.hypot(kind.radius, kind.size[1]))


def _reflection(centre: Rays, scene: Scene, options: Options, fence: Any) -> tuple[Any, Any, Any]:
    """Light the floor adds: highlights (white), light of cubes and of the goal, each to be tinted.

    MuJoCo scales a reflected geom's colour by the reflectance, but not its highlight.
    """
    rays = raycast.mirrored(centre)
    planes = raycast.faces(rays, scene.cube_pos, scene.cube_mat, options.cubes.radius)
    rows = fence(lambda: raycast.face_rows(rays, planes))
    cubes = fence(lambda: raycast.nearest_face(rays, planes, rows))
    light, shine = fence(lambda: raycast.face_shade(rays, planes, cubes))
    light = jnp.where(cubes > 0, look.REFLECTANCE * light, 0.0)
    shine = jnp.where(cubes > 0, shine, 0.0)
    if scene.goal is None:
        return shine, light, jnp.zeros_like(light)
    body = _goal(rays, scene.goal, options.goal)
    goal_light, goal_shine = raycast.shade(rays, body.normal)
    share = jnp.where(
        (body.t < FAR) & (body.t * raycast.inverse_depth(cubes) < 1), 1 - (1 - options.goal.alpha) ** 2, 0.0
    )
    white = shine + share * (goal_shine - shine)
    return white, (1 - share) * light, share * look.REFLECTANCE * goal_light


def _sky(rays: Rays, palette: look.Palette) -> tuple[Any, Any, Any]:
    """A flat colour, or a gradient over .45 of the elevation's sine, close to MuJoCo's up to 45 degrees."""
    low, high = palette.sky[1], palette.sky[0]
    if low == high:
        return low
    mix = 0.5 + 0.45 * (rays.direction(2) * jax.lax.rsqrt(rays.x * rays.x + (rays.y * rays.y + 1)))[0]
    return low[0] + mix * (high[0] - low[0]), low[1] + mix * (high[1] - low[1]), low[2] + mix * (high[2] - low[2])

"""How the Safety Gym worlds look, apart from their things: floor, robots, lights and camera mounts.

Lengths in metres, colours in [0, 1]. Shared by the ray-caster and by the OpenGL fallback, so that both draw the same scene.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ambs.envs.safety_gym.objects import Vec3
from ambs.errors import UserError

FLOOR_HALF = 3.5
TILE = 0.35
REFLECTANCE = 0.1
FLOOR_SPECULAR = 0.1
FLOOR_SHININESS = 0.1
# MuJoCo draws round things with 28 slices and 16 stacks; ROUND is the radius of the circle of equal area, relative.
SLICES, STACKS = 28, 16
ROUND = 0.99579
ZNEAR = 0.0396
# MuJoCo's defaults: headlight ambient, diffuse and specular, and a geom's specular and shininess (times 128 in OpenGL).
AMBIENT, HEADLIGHT, HEADLIGHT_SPECULAR = 0.1, 0.4, 0.5
SPECULAR, SHININESS = 0.5, 0.5


@dataclass(frozen=True)
class Palette:
    """Colours that differ between the two looks; `sky` is (zenith, nadir), equal for a flat sky."""

    floor: tuple[Vec3, Vec3]
    sky: tuple[Vec3, Vec3]
    body: Vec3
    trim: Vec3


PALETTES: dict[str, Palette] = {
    "safety_gymnasium": Palette(
        floor=((0.859, 0.843, 0.765), (0.949, 0.914, 0.855)),
        sky=((0.004, 0.004, 0.0), (0.004, 0.004, 0.0)),
        body=(0.7412, 0.0431, 0.1843),
        trim=(0.0039, 0.1529, 0.3961),
    ),
    "openai": Palette(
        floor=((0.7, 0.7, 0.7), (0.8, 0.8, 0.8)),
        sky=((0.527, 0.582, 0.906), (0.1, 0.1, 0.35)),
        body=(1.0, 0.0, 0.0),
        trim=(1.0, 0.0, 0.0),
    ),
}


@dataclass(frozen=True)
class Part:
    """One geom of a robot in its body frame; `size` holds half extents (box), (r,) or, along x, (r, half length)."""

    shape: Literal["sphere", "box", "cylinder"]
    pos: Vec3
    size: tuple[float, ...]
    trim: bool = False


@dataclass(frozen=True)
class View:
    """A pinhole camera: position, image-right and image-up axes (made orthonormal by the user) and vertical opening."""

    pos: Vec3
    right: Vec3
    up: Vec3
    fovy: float


PARTS: dict[str, tuple[Part, ...]] = {
    "point": (Part("sphere", (0.0, 0.0, 0.0), (0.1,)), Part("box", (0.1, 0.0, 0.0), (0.05, 0.05, 0.05), trim=True)),
    "car": (
        Part("box", (0.0, 0.0, 0.0), (0.1, 0.1, 0.05)),
        Part("box", (0.0, 0.15, 0.0), (0.1, 0.01, 0.05), trim=True),
        Part("box", (0.0, 0.125, 0.0), (0.01, 0.025, 0.03), trim=True),
        Part("box", (0.0, -0.165, 0.0), (0.05, 0.01, 0.05), trim=True),
        Part("box", (0.0, -0.13, 0.04), (0.05, 0.03, 0.01), trim=True),
        Part("cylinder", (-0.13, 0.1, -0.05), (0.05, 0.025)),
        Part("cylinder", (0.13, 0.1, -0.05), (0.05, 0.025)),
        Part("sphere", (0.0, -0.1, -0.05), (0.05,)),
    ),
}

# Both tilt down by atan(.4) = 21.8 degrees; the Point drives along +x, the Car along -y.
VISION: dict[str, View] = {
    "point": View((0.0, 0.0, 0.15), (0.0, -1.0, 0.0), (0.4, 0.0, 1.0), 90.0),
    "car": View((0.0, 0.0, 0.2), (-1.0, 0.0, 0.0), (0.0, -0.4, 1.0), 90.0),
}
# These look straight back, along the floor.
VISION_BACK: dict[str, View] = {
    "point": View((0.0, 0.0, 0.15), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), 90.0),
    "car": View((0.0, 0.0, 0.2), (1.0, 0.0, 0.0), (0.0, 0.0, 1.0), 90.0),
}
CHASE: dict[str, View] = {
    "point": View((-1.2, 0.0, 0.9), (0.0, -1.0, 0.0), (0.6, 0.0, 1.0), 60.0),
    "car": View((0.0, 1.2, 0.9), (-1.0, 0.0, 0.0), (0.0, -0.6, 1.0), 60.0),
}
TOP_DOWN = View((0.0, 0.0, 9.0), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), 45.0)


def check(robot: str, size: int, palette: str) -> None:
    """Refuse an unknown robot or palette and an empty picture, each in a sentence."""
    if robot not in PARTS:
        raise UserError(f"robot={robot!r}: the camera knows {', '.join(map(repr, PARTS))}.")
    if palette not in PALETTES:
        raise UserError(f"palette={palette!r}: the camera knows {', '.join(map(repr, PALETTES))}.")
    if size < 1:
        raise UserError(f"size={size}: the picture's side in pixels must be at least 1.")

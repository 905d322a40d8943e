"""What stands where, for a map: an environment that can be drawn from above says so by two methods.

`map_scene()` is the current state. `map_imagined(now, observation)` is what an observation that was foreseen in the state `now`
tells of the place of things; it may be rougher, and in coordinates of its own (`extent`). The second one may be missing.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ambs.envs.safety_gym import objects

KINDS = ("goal", "hazard", "vase", "wall")
"""What all maps know; Safety Gym's other objects come after them."""
NOTHING = -1


class Scene(NamedTuple):
    """One state from above; lengths in the environment's own unit."""

    robot: np.ndarray
    """x, y, heading (rad, counter-clockwise from +x; NaN: it has none), `[3]`."""
    items: np.ndarray
    """Per thing: its kind (index into `kind_names()`), x, y, and radius, or half the side of a square, `[things, 4]`."""
    extent: np.ndarray
    """What a map should show: least and greatest x, least and greatest y, `[4]`."""
    square: bool = False
    """Whether things are squares, cells of a grid."""


class Outlook(NamedTuple):
    """How n robots move and what of the things to be avoided they have before their eyes."""

    forwards: np.ndarray
    """Speed in the direction in which the robot looks (m/s), `[n]`."""
    gaps: np.ndarray
    """From the robot's centre to the edge of each thing (m), negative inside, `[n, things]`."""
    seen: np.ndarray
    """Whether the thing's centre lies in the picture, were nothing in front of it, bool `[n, things]`."""


Number = int | float


def kind_names() -> tuple[str, ...]:
    """Kinds of things by the numbers that scenes have for them."""
    return tuple(dict.fromkeys((*KINDS, *objects.KINDS)))


def kind_looks() -> dict[str, dict[str, str | bool]]:
    """How maps show kinds that they do not know of themselves: a colour's name, and whether the thing is a square."""
    return {
        name: {"colour": kind.map_colour, "square": kind.shape == "box"}
        for name, kind in objects.KINDS.items()
        if name not in KINDS
    }


def scene(
    robot: Sequence[Number],
    things: Sequence[tuple[str, Sequence[Number], Number]],
    half: Number,
    square: bool = False,
) -> Scene:
    """A scene from (kind, place, radius) of each thing, shown from −half to +half."""
    kinds = kind_names()
    rows = [(kinds.index(kind), place[0], place[1], radius) for kind, place, radius in things]
    return Scene(
        np.array([*robot, *[np.nan] * (3 - len(robot))], np.float32),
        np.array(rows, np.float32).reshape(-1, 4),
        np.array([-half, half, -half, half], np.float32),
        square,
    )


def stacked(scenes: Sequence[Scene]) -> dict[str, np.ndarray]:
    """Scenes one after the other: `robot` `[n, 3]`, `items` `[n, most, 4]` with the kind `NOTHING` where there are fewer."""
    most = max(found.items.shape[0] for found in scenes)
    items = np.zeros((len(scenes), most, 4), np.float32)
    items[..., 0] = NOTHING
    for row, found in zip(items, scenes, strict=True):
        row[: found.items.shape[0]] = found.items
    return {"robot": np.stack([found.robot for found in scenes]), "items": items}

"""What can stand in a Safety Gym world: one row for each kind of thing, read by layout, physics, lidar, camera and map.

A task names kinds and how many of each (`ambs.envs.safety_gym.tasks`); everything else about a thing is told here. Lengths
in metres, densities in kg/m³, speeds in m/s, colours in [0, 1].
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

Vec3 = tuple[float, float, float]


@dataclass(frozen=True)
class Kind:
    """One kind of thing. Atoms that are left empty are not labelled; what has none costs nothing."""

    name: str
    """Singular; names of bodies and map legends are made of it."""
    shape: Literal["box", "cylinder", "sphere"]
    size: tuple[float, ...]
    """Half extents (box), radius and half height (cylinder, upright), or radius (sphere)."""
    height: float
    """Of the centre above the floor, at the start."""
    keepout: float
    """Least distance to others in a layout is the sum of both keep-outs."""
    colour: Vec3
    alpha: float = 1.0
    """Below 1 it is see-through; MuJoCo blends such things twice, and so does the camera."""
    body: Literal["none", "fixed", "free"] = "none"
    """`none`: drawn and sensed, but driven through; `fixed`: solid and immovable, square to the axes; `free`: pushed about."""
    density: float = 0.001
    """Of a free body."""
    inside: str = ""
    """Atom that holds while the robot's origin is within `radius` of a centre."""
    touched: str = ""
    """Atom that holds while the robot touches one (not of body `none`)."""
    moving: str = ""
    """Atom that holds while one moves faster than `speed` (body `free`)."""
    speed: float = 1e-4
    lidar: bool = True
    """Whether a vector observation has 16 readings for the kind."""
    avoided: bool = True
    """Whether it is to be avoided, as far as the outlook of a robot is concerned."""
    map_colour: str = "brown"
    """On the inspector's maps: a word that CSS knows."""

    @property
    def radius(self) -> float:
        """Of the circle, or half the side of the square, that it is from above."""
        return self.size[0]

    @property
    def plural(self) -> str:
        """As saved states and summaries call it."""
        return f"{self.name}s"

    @property
    def atoms(self) -> tuple[str, ...]:
        """What may be said of the robot because of it."""
        return tuple(atom for atom in (self.inside, self.touched, self.moving) if atom)

    @property
    def geom(self) -> str:
        """Shape and colour as attributes of an MJCF geom."""
        size, colour = (" ".join(map(str, values)) for values in (self.size, (*self.colour, self.alpha)))
        return f'type="{self.shape}" size="{size}" rgba="{colour}"'

    @property
    def cube(self) -> bool:
        """Whether it is an opaque cube, for which the camera has a quick way."""
        return self.shape == "box" and self.alpha == 1 and len(set(self.size)) == 1

    @property
    def disc(self) -> bool:
        """Whether it is a see-through plate on the floor, for which the camera has another."""
        return self.shape == "cylinder" and self.alpha < 1 and self.body == "none" and self.size[1] <= FLAT


FLAT = 0.02
"""Half height up to which a cylinder is drawn as a plate."""

GOAL = Kind(
    "goal", "cylinder", (0.3, 0.15), 0.16, keepout=0.305, colour=(0.0, 1.0, 0.0), alpha=0.25,
    avoided=False, map_colour="green",
)  # fmt: skip
"""Reached when the robot's origin is within its radius."""
HAZARD = Kind(
    "hazard", "cylinder", (0.2, 0.01), 0.02, keepout=0.18, colour=(0.0, 0.0, 1.0), alpha=0.25,
    inside="hazard", map_colour="blue",
)  # fmt: skip
# At the start a vase is sunk into the floor by about as much as its weight sinks it.
VASE = Kind(
    "vase", "box", (0.1, 0.1, 0.1), 0.1 - 4e-5, keepout=0.15, colour=(0.0, 1.0, 1.0), body="free",
    touched="collision", moving="vase_moving", map_colour="teal",
)  # fmt: skip

KINDS = {kind.name: kind for kind in (GOAL, HAZARD, VASE)}
"""All kinds by name; maps and recordings know those that are here."""

Things = tuple[tuple[Kind, int], ...]
"""Kinds and how many of each, in the order of placement; a number may be 0."""


class Drawn(NamedTuple):
    """Kinds by the way in which the camera draws them."""

    discs: Kind | None
    cubes: Kind | None
    others: tuple[Kind, ...]
    """One surface after the other, which is slower."""


def drawn(kinds: Iterable[Kind]) -> Drawn:
    """The first kind of plates and of cubes has a quick way; all the rest is drawn one by one."""
    kinds = tuple(kinds)
    discs = next((kind for kind in kinds if kind.disc), None)
    cubes = next((kind for kind in kinds if kind.cube), None)
    return Drawn(discs, cubes, tuple(kind for kind in kinds if kind not in (discs, cubes)))

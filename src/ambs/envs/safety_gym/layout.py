"""Where things stand at the start of an episode, and where the next goal goes.

Objects are placed one after another: a centre is drawn uniformly from the arena shrunk by the object's own keep-out
radius, and kept if its distance to every earlier one is at least the sum of the two keep-outs. Lengths in metres.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from ambs.envs.safety_gym.objects import Things
from ambs.envs.safety_gym.tasks import AGENT_KEEPOUT, Task

TRIES_PER_OBJECT = 100
TRIES_PER_LAYOUT = 10_000
TRIES_PER_GOAL = 10_000
_DRAWN_TOGETHER = 10


@dataclass(frozen=True)
class Layout:
    """Centres in the plane, and headings in [0, 2π); those of things by the name of their kind."""

    agent: Float[np.ndarray, "2"]
    agent_yaw: float
    goal: Float[np.ndarray, "2"]
    spots: Mapping[str, Float[np.ndarray, "_ 2"]]
    yaws: Mapping[str, Float[np.ndarray, "_"]]
    """Of free bodies."""


def keepouts(task: Task) -> Float[np.ndarray, "objects"]:
    """Keep-out radii in the order of placement: agent, goal, things."""
    radii = [kind.keepout for kind, count in task.things for _ in range(count)]
    return np.array([AGENT_KEEPOUT, task.goal.keepout, *radii])


def sample_layout(task: Task, rng: np.random.Generator) -> Layout:
    """Draw a layout in which no two keep-out discs overlap."""
    radii = keepouts(task)
    for _ in range(TRIES_PER_LAYOUT):
        centres = _place_all(radii, task.extent, rng)
        if centres is not None:
            turning = tuple((kind, count) for kind, count in task.things if kind.body == "free")
            yaws = rng.uniform(0, 2 * np.pi, 1 + sum(count for _, count in turning))
            spots = _by_kind(task.things, centres[2:])
            return Layout(centres[0], float(yaws[0]), centres[1], spots, _by_kind(turning, yaws[1:]))
    raise RuntimeError(f"no layout of {task.name} found in {TRIES_PER_LAYOUT} tries")


def sample_goal(
    task: Task,
    agent: Float[np.ndarray, "2"],
    spots: Mapping[str, Float[np.ndarray, "_ 2"]],
    rng: np.random.Generator,
) -> Float[np.ndarray, "2"] | None:
    """A new goal clear of everything where it stands now; None if there is no room for one."""
    placed = np.concatenate([agent[None], *(spots[kind.name] for kind in task.kinds)])
    radii = np.delete(keepouts(task), 1)
    for _ in range(TRIES_PER_GOAL // TRIES_PER_OBJECT):
        goal = _place_one(placed, radii, task.goal.keepout, task.extent, rng)
        if goal is not None:
            return goal
    return None


def _by_kind(things: Things, rows: np.ndarray) -> dict[str, np.ndarray]:
    """One row for each thing, shared out among the kinds."""
    ends = np.cumsum([count for _, count in things])[:-1]
    return {kind.name: part for (kind, _), part in zip(things, np.split(rows, ends), strict=True)} if things else {}


def _place_all(
    radii: Float[np.ndarray, "objects"], extent: float, rng: np.random.Generator
) -> Float[np.ndarray, "objects 2"] | None:
    centres = np.empty((len(radii), 2))
    for index, radius in enumerate(radii):
        centre = _place_one(centres[:index], radii[:index], float(radius), extent, rng)
        if centre is None:
            return None
        centres[index] = centre
    return centres


def _place_one(
    placed: Float[np.ndarray, "placed 2"],
    radii: Float[np.ndarray, "placed"],
    radius: float,
    extent: float,
    rng: np.random.Generator,
) -> Float[np.ndarray, "2"] | None:
    """The first of `TRIES_PER_OBJECT` uniform candidates that keeps its distance from everything placed."""
    reach = extent - radius
    nearest = (radii + radius) ** 2
    for _ in range(TRIES_PER_OBJECT // _DRAWN_TOGETHER):
        candidates = rng.uniform(-reach, reach, (_DRAWN_TOGETHER, 2))
        gaps = candidates[:, None] - placed
        clear = (np.einsum("cpi,cpi->cp", gaps, gaps) >= nearest).all(-1)
        first = int(clear.argmax())
        if clear[first]:
            return candidates[first]
    return None

"""Where things stand at the start of an episode, and where the next goal goes.

Objects are placed one after another: a centre is drawn uniformly from the arena shrunk by the object's own keep-out
radius, and kept if its distance to every earlier one is at least the sum of the two keep-outs. Lengths in metres.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from ambs.envs.safety_gym.tasks import AGENT_KEEPOUT, GOAL_KEEPOUT, HAZARD_KEEPOUT, VASE_KEEPOUT, Task

TRIES_PER_OBJECT = 100
TRIES_PER_LAYOUT = 10_000
TRIES_PER_GOAL = 10_000
_DRAWN_TOGETHER = 10


@dataclass(frozen=True)
class Layout:
    """Centres in the plane, and headings in [0, 2π)."""

    agent: Float[np.ndarray, "2"]
    agent_yaw: float
    goal: Float[np.ndarray, "2"]
    hazards: Float[np.ndarray, "hazards 2"]
    vases: Float[np.ndarray, "vases 2"]
    vase_yaws: Float[np.ndarray, "vases"]


def keepouts(task: Task) -> Float[np.ndarray, "objects"]:
    """Keep-out radii in the order of placement: agent, goal, hazards, vases."""
    return np.array([AGENT_KEEPOUT, GOAL_KEEPOUT] + [HAZARD_KEEPOUT] * task.hazards + [VASE_KEEPOUT] * task.vases)


def sample_layout(task: Task, rng: np.random.Generator) -> Layout:
    """Draw a layout in which no two keep-out discs overlap."""
    radii = keepouts(task)
    for _ in range(TRIES_PER_LAYOUT):
        centres = _place_all(radii, task.extent, rng)
        if centres is not None:
            yaws = rng.uniform(0, 2 * np.pi, 1 + task.vases)
            hazards, vases = np.split(centres[2:], [task.hazards])
            return Layout(centres[0], float(yaws[0]), centres[1], hazards, vases, yaws[1:])
    raise RuntimeError(f"no layout of {task.name} found in {TRIES_PER_LAYOUT} tries")


def sample_goal(
    task: Task,
    agent: Float[np.ndarray, "2"],
    hazards: Float[np.ndarray, "hazards 2"],
    vases: Float[np.ndarray, "vases 2"],
    rng: np.random.Generator,
) -> Float[np.ndarray, "2"] | None:
    """A new goal clear of everything where it stands now; None if there is no room for one."""
    placed = np.concatenate([agent[None], hazards, vases])
    radii = np.delete(keepouts(task), 1)
    for _ in range(TRIES_PER_GOAL // TRIES_PER_OBJECT):
        goal = _place_one(placed, radii, GOAL_KEEPOUT, task.extent, rng)
        if goal is not None:
            return goal
    return None


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

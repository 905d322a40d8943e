"""Our small worlds as true models: a state from a snapshot, its transitions and what is seen of it, all in JAX."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ambs.envs.grid import GridEnv
from ambs.envs.model import Dynamics
from ambs.envs.point_world import PointWorld, PointWorldEnv, State
from ambs.envs.snapshot import Snapshot


class TrueWorld(NamedTuple):
    """A world whose physics can be rolled out by the thousand."""

    state: Callable[[Snapshot], Any]
    dynamics: Dynamics
    """(key, state, action as the environment takes it) -> Step of one frame."""
    observe: Callable[[Any], Any]


def true_world(env: Any) -> TrueWorld | None:
    """The true model of `grid` or `point_world`; None of any other environment."""
    if isinstance(env, GridEnv):
        cells = env.grid.cells.size
        return TrueWorld(
            lambda snapshot: np.asarray(snapshot["cell"], np.int32),
            env.grid.dynamics(),
            lambda cell: jax.nn.one_hot(cell, cells),
        )
    if isinstance(env, PointWorldEnv):
        return TrueWorld(
            lambda snapshot: State(*(np.asarray(snapshot[name]) for name in State._fields)),
            env.world.dynamics(),
            lambda state: observe(env.world, state),
        )
    return None


def observe(world: PointWorld, state: State) -> Any:
    """What `PointWorldEnv` observes, in JAX."""
    place, velocity = state.robot[:2], state.robot[2:]

    def nearness(gap: Any) -> Any:
        return jnp.maximum(0.0, 1 - gap / world.sensor_range)

    walls = jnp.copysign(nearness(world.half_size - jnp.abs(place)), place)
    ways = state.hazards - place[None]
    distances = jnp.sqrt((ways**2).sum(axis=-1))
    nearest = jnp.argsort(distances)[: world.sensed]
    readings = nearness(distances[nearest] - world.hazard_radius)[:, None]
    courses = ways[nearest] / jnp.maximum(distances[nearest], 1e-9)[:, None]
    hazards = jnp.concatenate([courses * readings, readings], axis=-1).reshape(-1)
    return jnp.concatenate([velocity, state.goal - place, walls, hazards])

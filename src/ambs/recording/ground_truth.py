"""How safe an action really was, in worlds whose physics is known: the shield's question put to the true world.

The policy has memory, so no table of states answers it; the true world is rolled out instead, with the very policy and
filter that act, often enough for a narrow exact interval.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from ambs.acting.act import Player, in_precision
from ambs.acting.adapter import Interface
from ambs.config import Config
from ambs.dynamics import Dynamics, Step
from ambs.envs.snapshot import Snapshot
from ambs.envs.worlds.grid import GridEnv
from ambs.envs.worlds.point_world import PointWorld, PointWorldEnv, State
from ambs.nn.precision import cast
from ambs.shield.problem import ShieldProblem
from ambs.shield.traces import rollout, sample, trace_keys
from ambs.world_model.rssm import Latent

FUTURES = 500


class TrueWorld(NamedTuple):
    """A world whose physics can be rolled out by the thousand."""

    state: Callable[[Snapshot], Any]
    dynamics: Dynamics
    """(key, state, action as the environment takes it) -> Step of one frame."""
    observe: Callable[[Any], Any]


class Situation(NamedTuple):
    """The world as it is and the agent's memory of it."""

    world: Any
    latent: Latent


def safe_futures(
    player: Player,
    key: Key[Array, ""],
    situation: Situation,
    proposed: Float[Array, "actions"],
    *,
    config: Config,
    interface: Interface,
    true: TrueWorld,
    dtype: Any = jnp.float32,
) -> Int[Array, ""]:
    """How many of `FUTURES` true futures of the proposed action keep Ψ for the whole horizon.

    `dtype` is what the networks compute in; as when acting, memory and actions are kept as they come in.
    """
    fast = in_precision(player, dtype)
    # Another kind of shield asks the same of an action as its model, all steps of it: who goes on after it is what differs.
    goes_on = "recovery" if config.shield.kind == "recovery" else "ambs"
    settings = dataclasses.replace(config.shield, kind=goes_on, rolled=None, critics=None, labels="mode")

    def step(key: Key[Array, ""], here: Situation, action: Any) -> Step:
        world, labels, going = here.world, [], jnp.array(True)
        for frame in range(interface.spec.frames):
            arrival = true.dynamics(jax.random.fold_in(key, frame), world, interface.to_env(action))
            labels.append(arrival.labels[0])
            world, going = arrival.state, going & (arrival.continues != 0)
        seen = {"vector": true.observe(world)}
        latent = fast.model.encode(here.latent, action, seen, jnp.array(False), jax.random.fold_in(key, 1000))
        latent = jax.tree.map(lambda new, old: new.astype(old.dtype), latent, here.latent)
        return Step(Situation(world, latent), jnp.stack(labels), going)

    def task(key: Key[Array, ""], here: Situation) -> Any:
        return fast.actors.task.act(key, cast(here.latent, dtype)).astype(proposed.dtype)

    def backup(key: Key[Array, ""], here: Situation) -> Any:
        return fast.actors.backup.act(key, cast(here.latent, dtype)).astype(proposed.dtype)

    psi, atoms = interface.spec.psi, interface.spec.atoms
    evidence = sample(
        trace_keys(key, 0, jnp.arange(FUTURES))[None],
        jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], situation),
        proposed[None],
        ShieldProblem(rollout(step, settings.steps), task, backup, psi, atoms, settings),
    )
    return (evidence.first_violation == 0).sum()


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

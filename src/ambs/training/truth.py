"""How safe an action really was, in worlds whose physics is known: the shield's question put to the true world.

The policy has memory, so no table of states answers it; the true world is rolled out instead, with the very policy and
filter that act, often enough for a narrow exact interval.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from ambs.config import Config
from ambs.envs.model import Step
from ambs.envs.truth import TrueWorld
from ambs.nn.precision import cast
from ambs.shield.estimate import rollout, sample, trace_keys
from ambs.training.act import Player, in_precision
from ambs.training.interface import Interface
from ambs.world_model.rssm import Latent

FUTURES = 500


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
    settings = dataclasses.replace(config.shield, rolled=None, critics=None, labels="mode")

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

    evidence = sample(
        trace_keys(key, 0, jnp.arange(FUTURES))[None],
        jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], situation),
        proposed[None],
        rollout_fn=rollout(step, settings.steps),
        policy=lambda key, here: fast.actors.task.act(key, cast(here.latent, dtype)).astype(proposed.dtype),
        psi=interface.spec.psi,
        atoms=interface.spec.atoms,
        config=settings,
    )
    return (evidence.first_violation == 0).sum()

"""Both policies imagined side by side in one scan over the world model (Alg. 1)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from ambs.agent.networks import Actor
from ambs.world_model.model import WorldModel
from ambs.world_model.rssm import Latent


class Actors(NamedTuple):
    """The task policy and the backup policy."""

    task: Actor
    backup: Actor


class Dream(NamedTuple):
    """Imagined traces of both policies: axis 1 is task (0) and backup (1), axis 2 the traces.

    latent and its predictions: s_0 … s_H, `[H + 1, 2, traces, …]`; action: a_0 … a_{H−1}, `[H, 2, traces, actions]`.
    """

    latent: Latent
    action: Float[Array, "time 2 traces actions"]
    reward: Float[Array, "time_and_one 2 traces"]
    cost: Float[Array, "time_and_one 2 traces"]
    violated: Float[Array, "time_and_one 2 traces"]
    """Probability that the state violates Ψ: cost / C."""
    proceed: Float[Array, "time_and_one 2 traces"]


def imagine(model: WorldModel, actors: Actors, start: Latent, steps: int, key: Key[Array, ""]) -> Dream:
    """Roll both policies from the same starts `[traces]`; gradients pass from the traces to the actions."""
    count = start.deter.shape[0]
    policies = (actors.task, actors.backup)

    def act(latent: Latent, key: Key[Array, ""]) -> Float[Array, "2 traces actions"]:
        actions = []
        for index, actor in enumerate(policies):
            keys = _keys(jax.random.fold_in(key, index), count)
            part = jax.tree.map(lambda leaf, index=index: leaf[index], latent)
            actions.append(jax.vmap(actor.act)(keys, part))
        return jnp.stack(actions)

    def advance(latent: Latent, step: Int[Array, ""]) -> tuple[Latent, tuple[Latent, Array]]:
        step_key = jax.random.fold_in(key, step)
        action = act(latent, jax.random.fold_in(step_key, 0))
        move_key = jax.random.fold_in(step_key, 1)
        move_keys = jax.vmap(lambda index: _keys(jax.random.fold_in(move_key, index), count))(jnp.arange(2))
        following = jax.vmap(jax.vmap(model.rssm.imagine))(latent, action, move_keys)
        return following, (following, action)

    both = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), start)
    _, (later, action) = jax.lax.scan(advance, both, jnp.arange(steps))
    latent = jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), both, later)

    def over_all(head):  # type: ignore[no-untyped-def]
        return jax.vmap(jax.vmap(jax.vmap(head)))(latent)

    cost = over_all(model.cost)
    violated = jnp.clip(cost / model.spec.cost, 0, 1)
    return Dream(latent, action, over_all(model.reward), cost, violated, over_all(model.proceed))


def _keys(key: Key[Array, ""], count: int) -> Key[Array, "traces"]:
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(count))

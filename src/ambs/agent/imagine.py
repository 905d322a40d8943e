"""Both policies imagined side by side in one scan over the world model (Alg. 1)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

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
    keys = jax.vmap(lambda step: _keys(jax.random.fold_in(key, step), count))(jnp.arange(steps))
    drawn = jax.vmap(jax.vmap(jax.vmap(model.rssm.draw)))(keys[:, 1])

    def advance(latent: Latent, item: tuple[Array, Array]) -> tuple[Latent, tuple[Latent, Array]]:
        act_keys, drawn = item
        parts = (jax.tree.map(lambda leaf, index=index: leaf[index], latent) for index in range(2))
        actions = [jax.vmap(actor.act)(*each) for actor, *each in zip(actors, act_keys, parts, strict=True)]
        action = jnp.stack(actions)
        following = jax.vmap(jax.vmap(model.rssm.imagine))(latent, action, drawn)
        return following, (following, action)

    both = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), start)
    _, (later, action) = jax.lax.scan(advance, both, (keys[:, 0], drawn))
    latent = jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), both, later)

    def over_all(head):  # type: ignore[no-untyped-def]
        return jax.vmap(jax.vmap(jax.vmap(head)))(latent)

    cost = over_all(model.cost)
    violated = jnp.clip(cost / model.spec.cost, 0, 1)
    return Dream(latent, action, over_all(model.reward), cost, violated, over_all(model.proceed))


def _keys(key: Key[Array, ""], count: int) -> Key[Array, "2 2 traces"]:
    """For the actions and for the moves of both policies, one key per trace."""
    return jax.random.split(key, (2, 2, count))

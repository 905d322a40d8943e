"""Both policies imagined side by side in one scan over the world model (Alg. 1)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from ambs.agent.networks import Actor
from ambs.nn.layers import through
from ambs.nn.recurrent import unrolled
from ambs.world_model.model import WorldModel
from ambs.world_model.rssm import Latent


class Actors(NamedTuple):
    """The task policy and the backup policy."""

    task: Actor
    backup: Actor


class Dream(NamedTuple):
    """Imagined traces of one policy.

    features and what is predicted from them: s_0 … s_H, `[H + 1, traces, …]`; action: a_0 … a_{H−1}, `[H, traces, actions]`.
    """

    features: Float[Array, "time_and_one traces features"]
    action: Float[Array, "time traces actions"]
    reward: Float[Array, "time_and_one traces"]
    cost: Float[Array, "time_and_one traces"]
    violated: Float[Array, "time_and_one traces"]
    """Probability that the state violates Ψ: cost / C."""
    proceed: Float[Array, "time_and_one traces"]


class Dreams(NamedTuple):
    """What both policies imagine."""

    task: Dream
    backup: Dream


def imagine(model: WorldModel, actors: Actors, start: Latent, steps: int, key: Key[Array, ""]) -> Dreams:
    """Roll both policies from the same starts `[traces]`; gradients pass from the traces to the actions, and from there to the
    policies' parameters, but not through what the policies see."""
    count = start.deter.shape[0]
    keys = jax.vmap(lambda step: _keys(jax.random.fold_in(key, step), count))(jnp.arange(steps))
    moves = jax.vmap(jax.vmap(jax.vmap(model.rssm.draw)))(keys[:, 1])
    chances = [jax.vmap(jax.vmap(actor.draw))(keys[:, 0, index]) for index, actor in enumerate(actors)]
    bodies = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(actor.mlp.hidden for actor in actors))

    def advance(both: Latent, item: tuple[list[Array], Array]) -> tuple[Latent, list[tuple[Array, Array]]]:
        chances, moves = item
        features = both.features
        hidden = jax.vmap(jax.vmap(through, in_axes=(None, 0)))(bodies, jax.lax.stop_gradient(features))
        actions = [
            jax.vmap(lambda inner, drawn, actor=actor: actor.decide(inner).sample(drawn))(inner, drawn)
            for actor, inner, drawn in zip(actors, hidden, chances, strict=True)
        ]
        following = jax.vmap(jax.vmap(model.rssm.imagine))(both, jnp.stack(actions), moves)
        return following, list(zip(features, actions, strict=True))

    both = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), start)
    last, traces = jax.lax.scan(advance, both, (chances, moves), unroll=unrolled())

    def predict(
        last: Float[Array, "traces features"],
        before: Float[Array, "time traces features"],
        action: Float[Array, "time traces actions"],
    ) -> Dream:
        features = jnp.concatenate([before, last[None]])
        reward, cost, proceed = (
            jax.vmap(jax.vmap(head))(features) for head in (model.reward, model.cost, model.proceed)
        )
        return Dream(features, action, reward, cost, jnp.clip(cost / model.spec.cost, 0, 1), proceed)

    return Dreams(*(predict(end, *trace) for end, trace in zip(last.features, traces, strict=True)))


def _keys(key: Key[Array, ""], count: int) -> Key[Array, "2 2 traces"]:
    """For the actions and for the moves of both policies, one key per trace."""
    return jax.random.split(key, (2, 2, count))

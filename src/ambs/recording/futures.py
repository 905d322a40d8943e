"""The futures behind one decision once more, all of them, and the worst of them decoded: counter-examples to look at."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from ambs.acting.act import Player, in_precision, shield_problem
from ambs.config import Config
from ambs.dynamics import SplitDynamics
from ambs.shield.rules import rule
from ambs.shield.traces import Evidence, play, rollout, trace_keys
from ambs.world_model.rssm import Latent

WORST = 4
"""Futures that are decoded."""
PICTURES = 8
"""Most pictures of one of them."""


class Imagined(NamedTuple):
    """What the model imagined for one decision; `worst` traces and their steps 1 … H."""

    evidence: Evidence
    """Of every trace that the rule could have drawn, `[traces]`."""
    trace: Int[Array, "worst"]
    """Numbers of the worst: those that violate first, then the likeliest to."""
    labels: Float[Array, "worst time frames atoms"]
    """Label probabilities."""
    continues: Float[Array, "worst time"]
    shown: Int[Array, "worst pictures"]
    """Steps whose pictures are in `image`; the last is that of the violation."""
    image: Any
    """uint8 `[worst, pictures, size, size, channels]`; None where no picture is observed."""
    vector: Any
    """Decoded vectors `[worst, time, vector]`; None where none is observed."""


class _Film(NamedTuple):
    """A state that remembers the features of all states before it."""

    latent: Latent
    reel: Float[Array, "time features"]
    at: Int[Array, ""]


def imagine_again(
    player: Player,
    key: Key[Array, ""],
    env: Int[Array, ""],
    latent: Latent,
    proposed: Float[Array, "actions"],
    used: Int[Array, ""],
    *,
    config: Config,
    dtype: Any = jnp.float32,
) -> Imagined:
    """The futures of environment `env` at the decision that the shield made with `key`, from `used` of them."""
    fast = in_precision(player, dtype)
    # The memory is kept in single precision; the shield decided in the model's own.
    latent = jax.tree.map(lambda leaf: leaf.astype(dtype), latent)
    problem = shield_problem(fast, config)
    keys = trace_keys(key, env, jnp.arange(rule(config.shield).traces))
    traces, evidence = jax.vmap(lambda one: play(one, latent, proposed, problem))(keys)
    risk = 1 - problem.psi.probability(traces.labels.astype(jnp.float32), problem.atoms).min(axis=(1, 2))
    steps = config.shield.steps
    early = jnp.where(evidence.first_violation > 0, 2.0 + steps - evidence.first_violation, 0.0)
    badness = early + jnp.where(jnp.isfinite(risk), risk, 0.0)
    # Only those that the decision is made of are counter-examples to it.
    badness = jnp.where(jnp.arange(keys.shape[0]) < used, badness, -1.0)
    _, worst = jax.lax.top_k(badness, min(WORST, keys.shape[0]))
    critics = problem.critics
    filmed = dataclasses.replace(
        problem,
        rollout_fn=rollout(_filming(fast.model.moves()), steps),
        policy=lambda one, film: problem.policy(one, film.latent),
        backup=lambda one, film: problem.backup(one, film.latent),
        critics=None if critics is None else lambda film: critics(film.latent),
    )
    start = _Film(latent, jnp.zeros((steps, latent.features.shape[-1]), latent.features.dtype), jnp.array(0))
    seen, again = jax.vmap(lambda one: play(one, start, proposed, filmed))(keys[worst])
    shown = jax.vmap(lambda first: shown_steps(first, steps))(again.first_violation)
    image, vector = _decoded(fast, seen.final_state.reel, shown)
    return Imagined(evidence, worst, seen.labels, seen.continues, shown, image, vector)


def shown_steps(first: Int[Array, ""], steps: int) -> Int[Array, "pictures"]:
    """Steps to show of a future that violates at step `first` (0: never): all, or evenly spread up to the violation."""
    if steps <= PICTURES:
        return jnp.arange(1, steps + 1)
    last = jnp.where((first > 0) & (first <= steps), first, steps)
    return jnp.round(1 + jnp.arange(PICTURES) * (last - 1) / (PICTURES - 1)).astype(int)


def _filming(moves: SplitDynamics) -> SplitDynamics:
    def move(film: _Film, action: Any, chance: Any) -> _Film:
        arrival = moves.move(film.latent, action, chance)
        reel = jax.lax.dynamic_update_index_in_dim(film.reel, arrival.features, film.at, 0)
        return _Film(arrival, reel, film.at + 1)

    return SplitDynamics(moves.draw, move, lambda film: moves.show(film.latent), moves.read)


def _decoded(player: Player, reel: Float[Array, "worst time features"], shown: Any) -> tuple[Any, Any]:
    """Pictures of the steps shown and vectors of all steps, as far as either is observed."""
    model, spec = player.model, player.model.spec.observation
    image = vector = None
    if spec.image:
        some = jnp.take_along_axis(reel, shown[:, :, None] - 1, axis=1)
        image = jax.vmap(jax.vmap(lambda features: model.seen(features)["image"]))(some)
    if spec.vector:
        vector = jax.vmap(jax.vmap(lambda features: model.seen(features)["vector"]))(reel)
    return image, vector

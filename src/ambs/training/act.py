"""One decision for every environment (Alg. 1, inner loop): encode, propose, shield, execute."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from ambs.agent.imagine import Actors
from ambs.agent.networks import Critics
from ambs.config import Config
from ambs.nn.precision import cast
from ambs.shield.config import ShieldConfig
from ambs.shield.decide import Decision, Reason, rule
from ambs.shield.estimate import NO_ATOM, NOT_DRAWN, rollout
from ambs.shield.runtime import Parts, shield
from ambs.streams import at, stream
from ambs.world_model.model import WorldModel
from ambs.world_model.rssm import Latent
from ambs.world_model.vision import Observation


class Player(NamedTuple):
    """All that acting needs of what was learned."""

    model: WorldModel
    actors: Actors
    critics: Critics
    thresholds: Float[Array, "atoms"]
    """Probability from which the shield takes an atom for true."""


class Carry(NamedTuple):
    """Memory of the actor, one row per environment."""

    latent: Latent
    action: Float[Array, "envs actions"]
    """Executed last."""


def initial_carry(player: Player, envs: int) -> Carry:
    """Before the first observation."""
    start = player.model.rssm.initial()
    latent = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[None], (envs, *leaf.shape)), start)
    return Carry(latent, jnp.zeros((envs, player.model.spec.actions)))


def act(
    player: Player,
    carry: Carry,
    observation: Observation,
    is_first: Bool[Array, "envs"],
    labels_now: Bool[Array, "envs atoms"] | None,
    active: Bool[Array, ""],
    root: Key[Array, ""],
    step: Int[Array, ""],
    *,
    config: Config,
    shielded: bool,
    dtype: Any = jnp.float32,
    policy: str = "task",
) -> tuple[Carry, Decision]:
    """Filter the observation, propose an action and let the shield decide.

    `root` is the run's key, `step` the number of the decision; each purpose draws from its own stream. `labels_now` are
    the labels of the current states; None: what the model makes of the observation. `active` switches a shield on that is
    built in (`shielded`).
    """
    envs = carry.action.shape[0]
    fast = player._replace(**{name: cast(getattr(player, name), dtype) for name in ("model", "actors", "critics")})
    latent = jax.vmap(fast.model.encode)(
        carry.latent, carry.action, observation, is_first, _keys(root, "filter", step, envs)
    )
    actor = getattr(fast.actors, policy)
    proposed = jax.vmap(actor.act)(_keys(root, "policy", step, envs), latent)
    if labels_now is None:
        known = jax.vmap(fast.model.trace_labels)(latent)[:, -1] >= player.thresholds[None]
    else:
        known = fast.model.true_trace_labels(labels_now[:, None])[:, 0]
    plain = accepted(proposed, config.shield)
    if shielded:
        parts = shield_parts(fast, config)

        def decide() -> Decision:
            return shield(at(stream(root, "shield"), step), latent, proposed, parts, known)

        decision = jax.lax.cond(active, decide, lambda: plain)
    else:
        decision = plain
    memory = jax.tree.map(lambda new, old: new.astype(old.dtype), Carry(latent, decision.action), carry)
    return memory, decision


def shield_parts(player: Player, config: Config) -> Parts:
    """The world model, both policies and the safety critics as the shield takes them."""
    psi, atoms = player.model.trace_formula()
    twins = player.critics.only("safety_a", "safety_b")
    critics: Callable[[Any], Any] = lambda latent: twins.values(latent.features)  # noqa: E731
    return Parts(
        rollout_fn=rollout(player.model.dynamics(), config.shield.steps),
        policy=player.actors.task.act,
        backup=player.actors.backup.act,
        psi=psi,
        atoms=atoms,
        config=config.shield,
        critics=critics if config.shield.critics is not None else None,
        fallback=None if player.model.spec.fallback is None else jnp.array(player.model.spec.fallback),
        thresholds=player.thresholds,
    )


def accepted(proposed: Float[Array, "envs actions"], config: ShieldConfig) -> Decision:
    """The decision of no shield at all."""
    envs, traces = proposed.shape[0], rule(config).traces
    return Decision(
        action=proposed,
        overridden=jnp.zeros(envs, bool),
        p_safe=jnp.zeros(envs),
        interval=jnp.broadcast_to(jnp.array([[0.0, 1.0]]), (envs, 2)),
        traces_used=jnp.zeros(envs, int),
        violating=jnp.zeros(envs, int),
        reason=jnp.full(envs, int(Reason.ACCEPTED)),
        first_violation=jnp.full((envs, traces), NOT_DRAWN),
        atom=jnp.full((envs, traces), NO_ATOM),
        proposed=proposed,
    )


def _keys(root: Key[Array, ""], name: str, step: Int[Array, ""], envs: int) -> Key[Array, "envs"]:
    key = at(stream(root, name), step)
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(envs))

"""One decision for every environment (Alg. 1, inner loop): encode, propose, shield, execute."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from ambs.acting.imagined import Imagined, acting_on_decoded
from ambs.agent.imagine import Actors
from ambs.agent.networks import Critics
from ambs.config import Config
from ambs.data import Observation
from ambs.errors import UserError
from ambs.nn.precision import cast, compute_dtype
from ambs.shield.hold import Memory, begun_anew, no_memory
from ambs.shield.problem import ShieldProblem
from ambs.shield.rules import Decision
from ambs.shield.shield import shield
from ambs.shield.traces import all_finite, rollout, select
from ambs.streams import at, stream
from ambs.world_model.model import WorldModel
from ambs.world_model.rssm import Latent


class Player(NamedTuple):
    """All that acting needs of what was learned."""

    model: WorldModel
    actors: Actors
    critics: Critics
    thresholds: Float[Array, "atoms"]
    """Probability from which the shield takes an atom for true."""
    level: Int[Array, ""] | None = None
    """Number of the level in force (`ShieldConfig.levels`), while calibration may change it; None: the settings' Δ."""


class ActorState(NamedTuple):
    """Memory of the actor, one row per environment."""

    latent: Latent
    action: Float[Array, "envs actions"]
    """Executed last."""
    held: Int[Array, "envs"]
    """For how many more steps it is held, should the state violate Ψ as long."""
    refused: Int[Array, "envs"]
    """Decisions in a row that were refused, up to the last."""
    latched: Int[Array, "envs"]
    """For how many more steps the backup policy stays in control."""


def default_thresholds(config: Config, atoms: int) -> jax.Array:
    """Those of the settings, one for each atom."""
    wanted = np.asarray(config.shield.label_threshold, np.float32)
    if wanted.ndim and wanted.shape != (atoms,):
        raise UserError(f"label_threshold has {wanted.shape[0]} entries for {atoms} atoms")
    return jnp.broadcast_to(jnp.asarray(wanted), (atoms,))


def in_precision(player: Player, dtype: Any) -> Player:
    """The player with its networks in the type that they compute in; thresholds stay as they are."""
    return player._replace(**{name: cast(getattr(player, name), dtype) for name in ("model", "actors", "critics")})


def initial_actor_state(player: Player, envs: int) -> ActorState:
    """Before the first observation."""
    start = player.model.rssm.initial()
    latent = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[None], (envs, *leaf.shape)), start)
    return actor_state(latent, jnp.zeros((envs, player.model.spec.actions)))


def actor_state(latent: Latent, action: Float[Array, "envs actions"]) -> ActorState:
    """Of latents and the actions executed last: nothing is held, nothing was refused."""
    blank = no_memory(action)
    return ActorState(latent, *blank._replace(action=action))


def act(
    player: Player,
    carry: ActorState,
    observation: Observation,
    is_first: Bool[Array, "envs"],
    labels_now: Bool[Array, "envs atoms"] | None,
    active: Bool[Array, ""],
    root: Key[Array, ""],
    step: Int[Array, ""],
    usable: Bool[Array, "envs"] | None = None,
    proposed: Float[Array, "envs actions"] | None = None,
    *,
    config: Config,
    shielded: bool,
    dtype: Any = jnp.float32,
    policy: str = "task",
    imagined: Imagined | None = None,
) -> tuple[ActorState, Decision]:
    """Filter the observation, propose an action and let the shield decide.

    `root` is the run's key, `step` the number of the decision; each purpose draws from its own stream. `labels_now` are
    the labels of the current states; None: what the model makes of the observation. `active` switches a shield on that is
    built in (`shielded`). `proposed` is what a policy that is given proposes, in place of the actor; NaN: nothing, and as
    what is not finite it is overridden. `imagined` acts in imagined futures in place of the task policy, on decoded observations.

    An observation that is not `usable` or not finite, or that makes a latent that is not finite, does not reach the memory:
    it is not trusted, and shield or not the backup policy's best action for the last good state is executed, reason
    `NON_FINITE`; after `ShieldConfig.failsafe_after` such decisions in a row the world's fallback.
    """
    if shielded and config.shield.kind == "prescient":
        raise UserError(
            "a prescient shield plays futures in the simulator, which an agent alone has not got: evaluate it "
            "(ambs eval, ambs.evaluate), or act without (start(shield=False))"
        )
    envs = carry.action.shape[0]
    fast = in_precision(player, dtype)
    seen = jax.vmap(fast.model.encode)(
        carry.latent, carry.action, observation, is_first, _keys(root, "filter", step, envs)
    )
    good = jax.vmap(all_finite)((observation, seen)) & (is_first | jax.vmap(all_finite)(carry))
    good = good if usable is None else good & usable
    latent = select(good, seen, _last_good(fast, carry, is_first, seen))
    if proposed is None:
        proposed = jax.vmap(getattr(fast.actors, policy).act)(_keys(root, "policy", step, envs), latent)
    if labels_now is None:
        known = jax.vmap(fast.model.trace_labels)(latent.features)[:, -1] >= player.thresholds[None]
    else:
        known = fast.model.true_trace_labels(labels_now[:, None])[:, 0]
    decision = shield(
        at(stream(root, "shield"), step),
        latent,
        proposed,
        shield_problem(fast, config, imagined),
        known,
        active=active if shielded else False,
        trusted=good,
        memory=begun_anew(Memory(*carry[1:]), is_first),
    )
    memory = ActorState(latent, *decision.memory._replace(action=decision.action))
    return jax.tree.map(lambda new, old: new.astype(old.dtype), memory, carry), decision


# Kept per settings, so that a second run of the same settings in a process compiles nothing.
@functools.lru_cache(maxsize=8)
def compiled_act(config: Config, shielded: bool, policy: str = "task", imagined: Imagined | None = None) -> Any:
    """`act`, compiled; donates the carry."""
    settings: dict[str, Any] = {"config": config, "shielded": shielded, "policy": policy, "imagined": imagined}
    return jax.jit(functools.partial(act, dtype=compute_dtype(), **settings), donate_argnums=1)


def _last_good(player: Player, carry: ActorState, is_first: Bool[Array, "envs"], like: Latent) -> Latent:
    """The remembered state; the first of an episode where there is none or it is spoilt."""
    start = initial_actor_state(player, is_first.shape[0]).latent
    kept = select(is_first | ~jax.vmap(all_finite)(carry), start, carry.latent)
    return jax.tree.map(lambda leaf, same: leaf.astype(same.dtype), kept, like)


def shield_problem(player: Player, config: Config, imagined: Imagined | None = None) -> ShieldProblem:
    """The world model, both policies and the safety critics as the shield takes them; `imagined` in place of the task policy."""
    psi, atoms = player.model.trace_formula()
    twins = player.critics.only("safety_a", "safety_b")
    critics: Callable[[Any], Any] = lambda latent: twins.values(latent.features)  # noqa: E731
    return ShieldProblem(
        rollout_fn=rollout(player.model.moves(), config.shield.steps),
        policy=player.actors.task.act if imagined is None else acting_on_decoded(player.model, imagined),
        backup=player.actors.backup.act,
        psi=psi,
        atoms=atoms,
        config=config.shield,
        safety=config.safety,
        critics=critics if config.shield.critics_used is not None else None,
        fallback=None if player.model.spec.fallback is None else jnp.array(player.model.spec.fallback),
        thresholds=player.thresholds,
        level=player.level,
        leave=player.actors.backup.best if config.shield.leave == "mode" else None,
        blind=player.actors.backup.best,
    )


def _keys(root: Key[Array, ""], name: str, step: Int[Array, ""], envs: int) -> Key[Array, "envs"]:
    key = at(stream(root, name), step)
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(envs))

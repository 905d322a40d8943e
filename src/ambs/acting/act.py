"""One decision for every environment (Alg. 1, inner loop): encode, propose, shield, execute."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from ambs.agent.imagine import Actors
from ambs.agent.networks import Critics
from ambs.config import Config
from ambs.data import Observation
from ambs.errors import UserError
from ambs.nn.precision import cast, compute_dtype
from ambs.shield.config import ShieldConfig
from ambs.shield.problem import ShieldProblem
from ambs.shield.rules import Decision, Reason, rule
from ambs.shield.shield import select, shield
from ambs.shield.traces import NO_ATOM, NOT_DRAWN, all_finite, rollout
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
    return ActorState(latent, jnp.zeros((envs, player.model.spec.actions)), jnp.zeros(envs, jnp.int32))


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
    *,
    config: Config,
    shielded: bool,
    dtype: Any = jnp.float32,
    policy: str = "task",
) -> tuple[ActorState, Decision]:
    """Filter the observation, propose an action and let the shield decide.

    `root` is the run's key, `step` the number of the decision; each purpose draws from its own stream. `labels_now` are
    the labels of the current states; None: what the model makes of the observation. `active` switches a shield on that is
    built in (`shielded`).

    An observation that is not `usable` or not finite, or that makes a latent that is not finite, does not reach the memory:
    shield or not, the backup policy acts on the last good state there, reason `NON_FINITE`.
    """
    envs = carry.action.shape[0]
    fast = in_precision(player, dtype)
    seen = jax.vmap(fast.model.encode)(
        carry.latent, carry.action, observation, is_first, _keys(root, "filter", step, envs)
    )
    good = jax.vmap(all_finite)((observation, seen)) & (is_first | jax.vmap(all_finite)(carry))
    good = good if usable is None else good & usable
    latent = select(good, seen, _last_good(fast, carry, is_first, seen))
    actor = getattr(fast.actors, policy)
    proposed = jax.vmap(actor.act)(_keys(root, "policy", step, envs), latent)
    if labels_now is None:
        known = jax.vmap(fast.model.trace_labels)(latent.features)[:, -1] >= player.thresholds[None]
    else:
        known = fast.model.true_trace_labels(labels_now[:, None])[:, 0]
    problem = shield_problem(fast, config)
    plain = accepted(proposed, config.shield)
    if shielded:

        def decide() -> Decision:
            return shield(at(stream(root, "shield"), step), latent, proposed, problem, known)

        decision = jax.lax.cond(active, decide, lambda: plain)
    else:
        decision = plain
    decision, held = _held(decision, carry, is_first, config.shield.hold)
    sound = good & jax.vmap(all_finite)(decision.action)
    decision = jax.lax.cond(sound.all(), lambda: decision, lambda: _blind(decision, sound, latent, problem, root, step))
    memory = jax.tree.map(lambda new, old: new.astype(old.dtype), ActorState(latent, decision.action, held), carry)
    return memory, decision


# Kept per settings, so that a second run of the same settings in a process compiles nothing.
@functools.lru_cache(maxsize=8)
def compiled_act(config: Config, shielded: bool, policy: str = "task") -> Any:
    """`act`, compiled; donates the carry."""
    bound = functools.partial(act, config=config, shielded=shielded, dtype=compute_dtype(), policy=policy)
    return jax.jit(bound, donate_argnums=1)


def _held(
    decision: Decision, carry: ActorState, is_first: Bool[Array, "envs"], steps: int
) -> tuple[Decision, Int[Array, "envs"]]:
    """The decision with the last backup action in place of a new one where the state violates Ψ still; and for how long on."""
    unsafe = decision.reason == Reason.ALREADY_UNSAFE
    again = unsafe & (carry.held > 0) & ~is_first
    action = select(again, carry.action.astype(decision.action.dtype), decision.action)
    left = jnp.where(unsafe, jnp.where(again, carry.held - 1, steps - 1), 0)
    return decision._replace(action=action), left


def _last_good(player: Player, carry: ActorState, is_first: Bool[Array, "envs"], like: Latent) -> Latent:
    """The remembered state; the first of an episode where there is none or it is spoilt."""
    start = initial_actor_state(player, is_first.shape[0]).latent
    kept = select(is_first | ~jax.vmap(all_finite)(carry), start, carry.latent)
    return jax.tree.map(lambda leaf, same: leaf.astype(same.dtype), kept, like)


def _blind(
    decision: Decision,
    sound: Bool[Array, "envs"],
    latent: Latent,
    problem: ShieldProblem,
    root: Key[Array, ""],
    step: Int[Array, ""],
) -> Decision:
    """The decision with the backup policy, or the action of last resort, in place of what is not sound."""
    envs = sound.shape[0]
    backup = jax.vmap(problem.backup)(_keys(root, "blind", step, envs), latent)
    trusted = jax.vmap(all_finite)((latent, backup))
    resort = jnp.zeros_like(backup)
    if problem.fallback is not None:
        resort = jnp.broadcast_to(jnp.where(all_finite(problem.fallback), problem.fallback, 0.0)[None], backup.shape)
    action = select(trusted, backup, resort.astype(backup.dtype)).astype(decision.action.dtype)
    unknown = jnp.broadcast_to(jnp.array([[0.0, 1.0]], decision.interval.dtype), decision.interval.shape)
    return decision._replace(
        action=select(sound, decision.action, action),
        overridden=decision.overridden | ~sound,
        p_safe=jnp.where(sound, decision.p_safe, 0.0),
        interval=select(sound, decision.interval, unknown),
        reason=jnp.where(sound, decision.reason, int(Reason.NON_FINITE)),
    )


def shield_problem(player: Player, config: Config) -> ShieldProblem:
    """The world model, both policies and the safety critics as the shield takes them."""
    psi, atoms = player.model.trace_formula()
    twins = player.critics.only("safety_a", "safety_b")
    critics: Callable[[Any], Any] = lambda latent: twins.values(latent.features)  # noqa: E731
    return ShieldProblem(
        rollout_fn=rollout(player.model.moves(), config.shield.steps),
        policy=player.actors.task.act,
        backup=player.actors.backup.act,
        psi=psi,
        atoms=atoms,
        config=config.shield,
        safety=config.safety,
        critics=critics if config.shield.critics is not None else None,
        fallback=None if player.model.spec.fallback is None else jnp.array(player.model.spec.fallback),
        thresholds=player.thresholds,
        level=player.level,
        leave=player.actors.backup.best if config.shield.leave == "mode" else None,
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
        cost=jnp.zeros((envs, traces)),
        critic=jnp.zeros((envs, traces)),
        proposed=proposed,
    )


def _keys(root: Key[Array, ""], name: str, step: Int[Array, ""], envs: int) -> Key[Array, "envs"]:
    key = at(stream(root, name), step)
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(envs))

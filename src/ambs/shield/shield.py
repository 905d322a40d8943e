"""The shield (Alg. 2): propose, imagine, accept or override.

`shield` is one pure function, batched over environments and meant to be part of a larger jit. `shield_with_deadline` runs
the same steps chunk by chunk from the host and gives up, safely, when time is up.

Fails safe: a non-finite state, action, label, continue flag or critic overrides; a non-finite backup action is replaced by
the fallback. Values are selected, never blended, so nothing non-finite reaches the executed action.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key, PyTree

from ambs.errors import UserError
from ambs.shield.problem import ShieldProblem, are_thresholds
from ambs.shield.rules import Decision, Reason, Rule, counts_at, judge_counts, rule
from ambs.shield.traces import NOT_DRAWN, Evidence, all_finite, sample, trace_keys
from ambs.streams import stream


class _Progress(NamedTuple):
    looks: Int[Array, "envs"]
    """Looks taken at each environment's traces, or up to which they are drawn."""
    reason: Int[Array, "envs"]
    evidence: Evidence
    """Of the traces of these looks, `[envs, looks, chunk]`."""


def shield(
    key: Key[Array, ""],
    state: PyTree,
    proposed: PyTree,
    problem: ShieldProblem,
    labels_now: Bool[Array, "envs atoms"] | None = None,
    usable: Bool[Array, "envs"] | None = None,
) -> Decision:
    """Decide for every environment whether its proposed action is executed.

    `key` comes from the shield's own stream (`ambs.streams`), one per step. `state` and `proposed` have a leading axis of
    environments; `labels_now` are the labels of the current states, s_0 of G≤T, and needed unless `check_initial` is off.
    Where `usable` is false, somebody has found state or proposal unfit, and they count as not finite.
    """
    table = rule(problem.config)

    def undecided(progress: _Progress) -> Bool[Array, ""]:
        return (progress.reason == Reason.UNDECIDED).any()

    def look(progress: _Progress) -> _Progress:
        return _look(progress, key, state, proposed, problem, table)

    progress = _start(state, proposed, problem, table, labels_now, usable)
    progress = jax.lax.while_loop(undecided, look, progress)
    return _finish(progress, key, state, proposed, problem, table)


def shield_with_deadline(
    problem: ShieldProblem, seconds: float, clock: Callable[[], float] = time.monotonic
) -> Callable[..., Decision]:
    """A host-side shield with the arguments `(key, state, proposed, labels_now=None)` that stops looking after `seconds`.

    A chunk is not begun if the one before took longer than the time that is left, and one that comes late is dropped; what
    is undecided then is overridden, reason `DEADLINE`. So is everything that was accepted, if the backup policy or anything
    else makes the answer come late: after the deadline nothing is accepted. Compilation, at the first call, does not count.
    Meant for the sequential rule, whose decisions stay valid wherever they are cut.
    """
    if not seconds > 0:
        raise UserError(f"a deadline must be above 0 seconds, got {seconds}")
    table = rule(problem.config)
    start = jax.jit(lambda state, proposed, labels: _start(state, proposed, problem, table, labels))
    look = jax.jit(lambda progress, key, state, proposed: _look(progress, key, state, proposed, problem, table))
    finish = jax.jit(
        lambda progress, key, state, proposed: _late_and_timely(progress, key, state, proposed, problem, table)
    )

    compiled: list[Any] = []

    def decide(key: Key[Array, ""], state: PyTree, proposed: PyTree, labels_now: Any = None) -> Decision:
        if not compiled:
            progress = start(state, proposed, labels_now)
            compiled.append(jax.block_until_ready(finish(look(progress, key, state, proposed), key, state, proposed)))
        now = clock()
        end, longest = now + seconds, 0.0
        progress = start(state, proposed, labels_now)
        while bool((progress.reason == Reason.UNDECIDED).any()):
            following = (
                jax.block_until_ready(look(progress, key, state, proposed)) if now + longest <= end else progress
            )
            before, now = now, clock()
            longest = max(longest, now - before)
            if following is progress or now > end:
                late = jnp.where(progress.reason == Reason.UNDECIDED, int(Reason.DEADLINE), progress.reason)
                progress = progress._replace(reason=late)
            else:
                progress = following
        late, timely = jax.block_until_ready(finish(progress, key, state, proposed))
        return timely if clock() <= end else late

    return decide


def _late_and_timely(
    progress: _Progress, key: Key[Array, ""], state: PyTree, proposed: PyTree, problem: ShieldProblem, table: Rule
) -> tuple[Decision, Decision]:
    """The decision if time is up by now, in which nothing is accepted; and if it is not."""
    accepted = progress.reason == Reason.ACCEPTED
    reason = jnp.where(accepted, int(Reason.DEADLINE), progress.reason)
    late = _finish(progress._replace(reason=reason), key, state, proposed, problem, table)
    timely = late._replace(action=select(accepted, proposed, late.action), overridden=~accepted, reason=progress.reason)
    return late, timely


def _start(
    state: PyTree, proposed: PyTree, problem: ShieldProblem, table: Rule, labels_now: Any, usable: Any = None
) -> _Progress:
    envs = jax.tree.leaves(proposed)[0].shape[0]
    reason = jnp.full(envs, int(Reason.UNDECIDED))
    if problem.config.check_initial:
        if labels_now is None:
            raise UserError("labels_now, the labels of the current states, are needed unless check_initial is off")
        if jnp.result_type(labels_now) != jnp.bool_:
            raise UserError(f"labels_now must be truth values, got {jnp.result_type(labels_now)}")
        unsafe = ~problem.psi.holds(labels_now, problem.atoms)
        reason = jnp.where(unsafe, int(Reason.ALREADY_UNSAFE), reason)
    trusted = jax.vmap(all_finite)((state, proposed)) & (True if usable is None else usable)
    if problem.thresholds is not None:
        trusted &= are_thresholds(problem.thresholds)
    if problem.level is not None:
        trusted &= problem.is_level(problem.level)
    reason = jnp.where(trusted, reason, int(Reason.NON_FINITE))
    return _Progress(jnp.zeros(envs, int), reason, _blank((envs, len(table.looks), table.chunk)))


def _blank(shape: tuple[int, ...]) -> Evidence:
    not_drawn, zeros = jnp.full(shape, NOT_DRAWN), jnp.zeros(shape)
    return Evidence(not_drawn, not_drawn, jnp.ones(shape, bool), zeros, zeros)


def _look(
    progress: _Progress, key: Key[Array, ""], state: PyTree, proposed: PyTree, problem: ShieldProblem, table: Rule
) -> _Progress:
    """Draw as many chunks as there are environments, share them among those that are undecided, and judge these.

    Where few are undecided each gets several chunks at once. The rule still looks at one after the other and what lies
    beyond its stop is thrown away, so that the decision is the one that it would have come to chunk by chunk.
    """
    envs, total = progress.reason.shape[0], len(table.looks)
    going = progress.reason == Reason.UNDECIDED
    order, sharing = jnp.argsort(~going, stable=True), jnp.maximum(going.sum(), 1)
    turn, place = jnp.divmod(jnp.arange(envs), sharing)
    env = order[place]
    look = jnp.where(going[env], progress.looks[env] + turn, total)
    keys = jax.vmap(lambda env, look: trace_keys(key, env, look * table.chunk + jnp.arange(table.chunk)))(env, look)
    here, wanted = jax.tree.map(lambda leaf: leaf[env], (state, proposed))
    fresh = sample(keys, here, wanted, problem)

    def store(old: Array, new: Array) -> Array:
        return old.at[env, look].set(new.astype(old.dtype), mode="drop")

    evidence = jax.tree.map(store, progress.evidence, fresh)
    drawn = (evidence.first_violation != NOT_DRAWN).all(axis=2)
    violating = (evidence.first_violation > 0).sum(axis=2).cumsum(axis=1)
    sound = evidence.finite.all(axis=2).cumprod(axis=1).astype(bool)
    reasons = judge_counts(counts_at(problem.config, problem.level), jnp.arange(total)[None], violating)
    reasons = jnp.where(sound, reasons, int(Reason.NON_FINITE))
    stops = drawn & (reasons != Reason.UNDECIDED)
    last = jnp.where(stops.any(axis=1), jnp.argmax(stops, axis=1), drawn.sum(axis=1) - 1)
    looks = jnp.where(going, last + 1, progress.looks)
    used = jnp.arange(total)[None] < looks[:, None]
    return _Progress(
        looks=looks,
        reason=jnp.where(going, jnp.take_along_axis(reasons, last[:, None], axis=1)[:, 0], progress.reason),
        evidence=jax.tree.map(
            lambda old, none: jnp.where(used[..., None], old, none), evidence, _blank(evidence.cost.shape)
        ),
    )


def _finish(
    progress: _Progress, key: Key[Array, ""], state: PyTree, proposed: PyTree, problem: ShieldProblem, table: Rule
) -> Decision:
    envs = progress.reason.shape[0]
    overridden = progress.reason != Reason.ACCEPTED
    backup_keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(stream(key, "backup"), jnp.arange(envs))
    backup = jax.vmap(problem.backup)(backup_keys, state)
    if problem.leave is not None:
        leaving = jax.vmap(problem.leave)(backup_keys, state)
        backup = select(progress.reason == Reason.ALREADY_UNSAFE, leaving, backup)
    trusted = jax.vmap(all_finite)(backup)
    last_resort = jax.tree.map(jnp.zeros_like, backup)
    if problem.fallback is not None:
        fallback = _broadcast(problem.fallback, backup)
        last_resort = select(jax.vmap(all_finite)(fallback), fallback, last_resort)
    action = select(overridden, select(trusted, backup, last_resort), proposed)
    evidence = jax.tree.map(lambda leaf: leaf.reshape(envs, table.traces), progress.evidence)
    violating = (evidence.first_violation > 0).sum(axis=1)
    drew = (progress.looks > 0) & (progress.reason != Reason.NON_FINITE)
    row = jnp.maximum(progress.looks - 1, 0)
    used = progress.looks * table.chunk
    bounds = jnp.stack([jnp.asarray(table.low)[row, violating], jnp.asarray(table.high)[row, violating]], axis=-1)
    known_unsafe = progress.reason == Reason.ALREADY_UNSAFE
    unknown = jnp.broadcast_to(jnp.array([[0.0, 1.0]]), bounds.shape)
    interval = jnp.where(drew[:, None], bounds, jnp.where(known_unsafe[:, None], 0.0, unknown))
    return Decision(
        action=action,
        overridden=overridden,
        p_safe=jnp.where(drew, 1 - violating / jnp.maximum(used, 1), 0.0),
        interval=interval,
        traces_used=used,
        violating=violating,
        reason=progress.reason,
        first_violation=evidence.first_violation,
        atom=evidence.atom,
        cost=evidence.cost,
        critic=evidence.critic,
        proposed=proposed,
    )


def select(which: Bool[Array, "envs"], chosen: PyTree, otherwise: PyTree) -> PyTree:
    """Leaf by leaf `chosen` where `which`, without arithmetic on what is not chosen."""

    def pick(a: Array, b: Array) -> Array:
        return jnp.where(which.reshape(which.shape + (1,) * (a.ndim - 1)), a, b)

    return jax.tree.map(pick, chosen, otherwise)


def _broadcast(one: PyTree, like: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.broadcast_to(jnp.asarray(a, b.dtype)[None], b.shape), one, like)

"""What imagination says of a state: how likely Ψ fails within n steps, and at what discounted cost.

Written for whatever the shield can roll out (`Dynamics` or `SplitDynamics`), so that the very same code scores a world model
and the true dynamics of a small world, whose answers are known.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from ambs.acting.act import Player, in_precision, shield_problem
from ambs.config import Config
from ambs.data import Experience
from ambs.dynamics import Dynamics, SplitDynamics
from ambs.shield.problem import Policy, ShieldProblem, Trace
from ambs.shield.traces import all_finite, judge, rollout, sample, trace_keys
from ambs.streams import stream
from ambs.world_model.model import WorldModel
from ambs.world_model.rssm import Latent

AT_ONCE = 64
"""Windows whose pictures are encoded at once on a GPU."""


class Foreseen(NamedTuple):
    """What imagination says; one entry per state."""

    risk: Float[Array, "envs"]
    """1 − p̃: probability that Ψ fails in any of the n steps, with labels drawn."""
    shield: Float[Array, "envs"]
    """Share of the futures that the shield's own scoring takes for violating; NaN without a shield."""
    cost: Float[Array, "envs"]
    """Mean of Σ_t γ^(t−1)·C·P(step t violates Ψ) over the n steps."""
    sound: Float[Array, "envs"]
    """Share of the futures in which all is finite; where one is not, its risk is 1."""


@dataclasses.dataclass(frozen=True)
class Imagination:
    """What is rolled out and how it is read; all of it functions of one environment's state."""

    dynamics: Dynamics | SplitDynamics
    policy: Policy
    """Acts from the second step on: (key, state) -> action."""
    steps: int
    """n."""
    risks: Callable[[Any], Float[Array, "time"]]
    """P(step violates Ψ) for every step, from the labels of a trace."""
    labels: Callable[[Any], Any] = lambda labels: labels
    """The labels that the shield judges, from those of a trace."""
    shield: ShieldProblem | None = None
    """The shield whose own scoring is reported beside."""
    discount: float = 0.997
    cost: float = 1.0
    """C."""


def of_model(player: Player, config: Config, policy: str = "task", dtype: Any = jnp.float32) -> Imagination:
    """The imagination of a trained agent over its shield's horizon, as the shield rolls it out."""
    fast = in_precision(player, dtype)
    model, moves = fast.model, fast.model.moves()

    def read(features: Float[Array, "features"]) -> tuple[Any, Array]:
        labels, proceed = moves.read(features)
        return (labels, jnp.clip(model.cost(features) / model.spec.cost, 0, 1)), proceed

    return Imagination(
        dynamics=moves._replace(read=read),
        policy=getattr(fast.actors, policy).act,
        steps=config.shield.horizon,
        risks=lambda both: both[1],
        labels=lambda both: both[0],
        shield=shield_problem(fast, config) if policy == "task" else None,
        discount=config.safety.discount,
        cost=model.spec.cost,
    )


def of_shield(player: Player, config: Config, dtype: Any = jnp.float32) -> Imagination:
    """The futures that the shield itself judges: as far, and with whom it imagines after the proposed action."""
    own = of_model(player, config, "backup" if config.shield.kind == "recovery" else "task", dtype)
    return dataclasses.replace(own, steps=config.shield.steps, shield=None)


def filtered(model: WorldModel, windows: Experience, keys: Key[Array, "windows"]) -> Latent:
    """Latents `[windows, time]` of all steps of the windows, each with every observation up to it."""
    initial = jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf[None], (keys.shape[0], *leaf.shape)), model.rssm.initial()
    )
    embeddings = _embed(model, windows)
    return model.rssm.filter(initial, windows.action, embeddings, windows.is_first, keys).latent


def _embed(model: WorldModel, windows: Experience) -> Float[Array, "windows time embedding"]:
    """Some windows at a time, for their pictures would fill gigabytes; on CPUs, whose convolutions are slow in loops and
    which have the memory, all at once."""
    one = jax.vmap(model.encoder)
    if jax.default_backend() == "cpu":
        return jax.vmap(one)(windows.observation)
    return jax.lax.map(one, windows.observation, batch_size=AT_ONCE)


def foresee(imagination: Imagination, key: Key[Array, ""], state: PyTree, proposed: PyTree, traces: int) -> Foreseen:
    """Score states from `traces` futures each; state and proposed action have a leading axis of environments.

    Per future the survival ∏_t (1 − P(step t violates Ψ)) stands for labels drawn: the same expectation, less variance. Where
    anything is not finite, the risk is 1.
    """
    envs = jax.tree.leaves(proposed)[0].shape[0]
    keys = jax.vmap(lambda env: trace_keys(key, env, jnp.arange(traces)))(jnp.arange(envs))
    each = jax.vmap(jax.vmap(lambda *given: _one(imagination, *given), in_axes=(0, None, None)))
    found: Foreseen = each(keys, state, proposed)
    if imagination.shield is not None and not _shares(imagination):
        found = found._replace(shield=_own_futures(imagination.shield, keys, state, proposed))
    return jax.tree.map(lambda leaf: leaf.mean(axis=1), found)


def replayed(
    imagination: Imagination, key: Key[Array, ""], state: PyTree, actions: PyTree, traces: int
) -> Float[Array, "envs time"]:
    """P(step k violates Ψ), k = 1 … n, imagined with given actions `[envs, n, …]`: mean over `traces` futures."""
    envs = jax.tree.leaves(actions)[0].shape[0]
    keys = jax.vmap(lambda env: trace_keys(key, env, jnp.arange(traces)))(jnp.arange(envs))

    def one(key: Key[Array, ""], state: Any, actions: Any) -> Float[Array, "time"]:
        def next_action(_key: Any, here: _Counted) -> Any:
            return jax.tree.map(lambda leaf: leaf[jnp.minimum(here.steps, leaf.shape[0] - 1)], actions)

        first = jax.tree.map(lambda leaf: leaf[0], actions)
        play = rollout(_counting(imagination.dynamics), imagination.steps)
        trace = play(stream(key, "roll"), _Counted(state, jnp.array(0)), first, next_action)
        return imagination.risks(trace.labels) * _alive(trace)

    return jax.vmap(jax.vmap(one, in_axes=(0, None, None)))(keys, state, actions).mean(axis=1)


def _one(imagination: Imagination, key: Key[Array, ""], state: Any, action: Any) -> Foreseen:
    play = rollout(imagination.dynamics, imagination.steps)
    trace = play(stream(key, "roll"), state, action, imagination.policy)
    risks = imagination.risks(trace.labels) * _alive(trace)
    # 1 − ∏(1 − p) that keeps apart what lies below the precision of 1.
    risk = -jnp.expm1(jnp.log1p(-risks).sum())
    sound = jnp.isfinite(risk) & trace.finite.all() & all_finite(action)
    cost = imagination.cost * (imagination.discount ** jnp.arange(imagination.steps) * risks).sum()
    shield, found = imagination.shield, jnp.array(jnp.nan)
    if shield is not None and _shares(imagination):
        seen = trace._replace(labels=imagination.labels(trace.labels))
        evidence = judge(stream(key, "labels"), seen, shield)
        found = ((evidence.first_violation > 0) | ~evidence.finite).astype(jnp.float32)
    return Foreseen(jnp.where(sound, risk, 1.0), found, cost, sound.astype(jnp.float32))


def _shares(imagination: Imagination) -> bool:
    """Whether the shield would judge these very futures."""
    shield = imagination.shield
    if shield is None or shield.config.resample_first or shield.config.kind == "recovery":
        return False
    return shield.config.steps == imagination.steps


def _own_futures(problem: ShieldProblem, keys: Any, state: PyTree, proposed: PyTree) -> Float[Array, "envs traces"]:
    """1 for each future that the shield takes for violating, of futures of its own length."""
    evidence = sample(keys, state, proposed, problem)
    return ((evidence.first_violation > 0) | ~evidence.finite).astype(jnp.float32)


def _alive(trace: Trace) -> Float[Array, "time"]:
    """1 up to the step in which the episode ends, as the shield takes it: what comes after cannot fail."""
    goes_on = (trace.continues.astype(jnp.float32) >= 0.5).astype(jnp.float32)
    return jnp.concatenate([jnp.ones(1), jnp.cumprod(goes_on)[:-1]])


class _Counted(NamedTuple):
    """A state that knows how many steps led to it."""

    state: Any
    steps: Int[Array, ""]


def _counting(dynamics: Dynamics | SplitDynamics) -> Dynamics | SplitDynamics:
    if isinstance(dynamics, SplitDynamics):
        moves = dynamics

        def move(here: _Counted, action: Any, chance: Any) -> _Counted:
            return _Counted(moves.move(here.state, action, chance), here.steps + 1)

        return SplitDynamics(moves.draw, move, lambda here: moves.show(here.state), moves.read)

    def step(key: Key[Array, ""], here: _Counted, action: Any) -> Any:
        arrival = dynamics(key, here.state, action)
        return arrival._replace(state=_Counted(arrival.state, here.steps + 1))

    return step

"""Draw imagined futures and judge them (Alg. 2, "Sample Traces").

The world enters as a function: `rollout_fn(key, state, first_action, policy) -> Trace` plays one future, for whatever a
state is: a latent of a world model, a cell of a grid, a snapshot of a simulator. Everything here is written for one trace;
`sample` maps it over traces and environments.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Shaped

from ambs.envs.labels import violates
from ambs.envs.model import Dynamics
from ambs.errors import UserError
from ambs.shield.config import ShieldConfig
from ambs.spec.formula import Atoms, Formula

Policy = Callable[[Key[Array, ""], Any], Any]
Critics = Callable[[Any], Float[Array, "critics"]]

NOT_DRAWN = -1
SAFE = 0


class Trace(NamedTuple):
    """A future s_1 … s_H: labels, continue flags, whether all was finite at each step, and s_H for a critic."""

    labels: Shaped[Array, "time frames atoms"]
    continues: Shaped[Array, "time"]
    finite: Bool[Array, "time"]
    final_state: PyTree


RolloutFn = Callable[[Key[Array, ""], Any, Any, Policy], Trace]


class Evidence(NamedTuple):
    """What traces showed; one entry per trace, leading axes free."""

    first_violation: Int[Array, "*traces"]
    """Step of the first violation; 0: none; H + 1: only a critic expects one; −1: trace not drawn."""
    atom: Int[Array, "*traces"]
    """Index of the atom that broke Ψ there, −1 if none did."""
    finite: Bool[Array, "*traces"]
    """False if any non-finite value took part."""


def rollout(dynamics: Dynamics, steps: int) -> RolloutFn:
    """A `rollout_fn` of this many steps from the transition function of a model."""

    def play(key: Key[Array, ""], state: Any, first_action: Any, policy: Policy) -> Trace:
        def advance(carry: tuple[Any, Any], step: Int[Array, ""]) -> tuple[tuple[Any, Any], Any]:
            state, action = carry
            move_key, policy_key = (jax.random.fold_in(key, 2 * step + purpose) for purpose in (0, 1))
            arrival = dynamics(move_key, state, action)
            finite = all_finite((arrival.state, action))
            next_action = policy(policy_key, arrival.state)
            return (arrival.state, next_action), (arrival.labels, arrival.continues, finite)

        carry, (labels, continues, finite) = jax.lax.scan(advance, (state, first_action), jnp.arange(steps))
        return Trace(labels, continues, finite, carry[0])

    return play


def sample(
    keys: Key[Array, "envs traces"],
    state: PyTree,
    proposed: PyTree,
    *,
    rollout_fn: RolloutFn,
    policy: Policy,
    psi: Formula,
    atoms: Atoms,
    config: ShieldConfig,
    critics: Critics | None = None,
) -> Evidence:
    """Play and judge one future per key; state and proposed action have a leading axis of environments."""

    def one(key: Key[Array, ""], state: Any, proposed: Any) -> Evidence:
        roll_key, label_key, first_key = jax.random.split(key, 3)
        first_action = policy(first_key, state) if config.resample_first else proposed
        trace = rollout_fn(roll_key, state, first_action, policy)
        return judge(label_key, trace, psi=psi, atoms=atoms, config=config, critics=critics)

    return jax.vmap(jax.vmap(one, in_axes=(0, None, None)))(keys, state, proposed)


def judge(
    key: Key[Array, ""],
    trace: Trace,
    *,
    psi: Formula,
    atoms: Atoms,
    config: ShieldConfig,
    critics: Critics | None = None,
) -> Evidence:
    """Whether a trace satisfies bounded safety over s_1 … s_T, and if not, when and by which atom it breaks."""
    steps = trace.labels.shape[0]
    if steps != config.steps:
        raise UserError(f"the rollout has {steps} steps, the shield is set to {config.steps}")
    if (critics is None) != (config.critics is None):
        raise UserError("critics must be given exactly when the shield's setting `critics` is max or min")
    hard = _hard_labels(key, trace.labels, config)
    broken = violates(psi, atoms, hard)
    goes_on = jnp.round(trace.continues.astype(jnp.float32))
    # alive[t] = ∏_{j<t} mode(continue_j): the episode has not ended before s_t; one entry more than steps.
    alive = jnp.concatenate([jnp.ones(1), jnp.cumprod(goes_on)])
    finite = trace.finite.all() & all_finite((trace.labels, trace.continues))
    if config.judged_by_cost:
        running, value = _running_cost(trace, broken, alive, psi, atoms, config, critics)
        flagged, finite = running > config.cost_threshold, finite & jnp.isfinite(value) & all_finite(running)
    else:
        flagged = jnp.concatenate([broken & (alive[:-1] > 0), jnp.zeros(1, bool)])
    first = jnp.argmax(flagged)
    violating = flagged.any()
    blamed = _blame(hard[jnp.minimum(first, steps - 1)], psi, atoms)
    return Evidence(
        first_violation=jnp.where(violating, first + 1, SAFE).astype(jnp.int32),
        atom=jnp.where(violating & (first < steps), blamed, -1),
        finite=finite,
    )


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether every number in a pytree is finite; integers, flags and keys always are."""
    floats = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)]
    return jnp.all(jnp.array([jnp.isfinite(leaf).all() for leaf in floats])) if floats else jnp.array(True)


def _hard_labels(key: Key[Array, ""], labels: Shaped[Array, "time frames atoms"], config: ShieldConfig) -> Any:
    if labels.dtype == bool:
        return labels
    if config.labels == "sample":
        return jax.random.bernoulli(key, labels)
    threshold = jnp.broadcast_to(jnp.asarray(config.label_threshold, labels.dtype), labels.shape[-1:])
    return labels >= threshold[None, None]


def _running_cost(
    trace: Trace,
    broken: Bool[Array, "time"],
    alive: Float[Array, "time_and_one"],
    psi: Formula,
    atoms: Atoms,
    config: ShieldConfig,
    critics: Critics | None,
) -> tuple[Float[Array, "time_and_one"], Float[Array, ""]]:
    """Σ_{t≤k} γ^{t−1}·alive_t·c_t for k = 1 … H, then with the critics' γ^H·alive·clip(V, 0, C); and the raw V."""
    if config.labels == "mean":
        holds = psi.probability(trace.labels.astype(jnp.float32), atoms)
        costs = config.cost * (1 - holds.prod(axis=-1))
    else:
        costs = config.cost * broken.astype(jnp.float32)
    steps = costs.shape[0]
    discounts = config.discount ** jnp.arange(steps + 1)
    value = jnp.zeros(())
    if critics is not None:
        estimates = critics(trace.final_state)
        value = estimates.max() if config.critics == "max" else estimates.min()
        value = jnp.where(jnp.isfinite(estimates).all(), value, jnp.nan)
    beyond = jnp.clip(value, 0, config.cost)
    return jnp.cumsum(discounts * alive * jnp.append(costs, beyond)), value


def _blame(labels: Bool[Array, "frames atoms"], psi: Formula, atoms: Atoms) -> Int[Array, ""]:
    """The atom to name for a violation: in the first frame and first conjunct of Ψ that fail, the first atom whose change
    alone would repair that conjunct, or else its first atom; −1 if there is none."""
    frame = labels[jnp.argmax(~psi.holds(labels, atoms))]
    blamed = jnp.array(-1)
    for part in reversed(psi.conjuncts()):
        indices = [atoms.index(name) for name in part.atoms()]
        culprit = jnp.array(indices[0] if indices else -1)
        for index in reversed(indices):
            repaired = part.holds(frame.at[index].set(~frame[index]), atoms)
            culprit = jnp.where(repaired, index, culprit)
        blamed = jnp.where(part.holds(frame, atoms), blamed, culprit)
    return blamed.astype(jnp.int32)

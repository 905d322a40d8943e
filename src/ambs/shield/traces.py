"""Draw imagined futures and judge them (Alg. 2, "Sample Traces").

Everything here is written for one trace; `sample` maps it over traces and environments.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Shaped

from ambs.config.checks import short, whole
from ambs.dynamics import Dynamics, SplitDynamics, Step
from ambs.errors import UserError
from ambs.nn.recurrent import unrolled
from ambs.shield.config import MOST_STEPS
from ambs.shield.problem import Policy, RolloutFn, ShieldProblem, Trace
from ambs.spec.formula import Atoms, Formula
from ambs.spec.pctl import Path, Verdict
from ambs.spec.risk import frame_risk, violates
from ambs.streams import stream

NOT_DRAWN = -1
SAFE = 0
NO_ATOM, CRITIC = -1, -2


class Evidence(NamedTuple):
    """What traces showed; one entry per trace, leading axes free."""

    first_violation: Int[Array, "*traces"]
    """Step of the first violation; 0: none; H + 1: only a critic expects one; −1: trace not drawn."""
    atom: Int[Array, "*traces"]
    """Index of the atom that broke Ψ there; −1: no single one; −2: a critic's estimate."""
    finite: Bool[Array, "*traces"]
    """False if any non-finite value took part."""
    cost: Float[Array, "*traces"]
    """Discounted cost of the whole trace, where traces are judged by it; else 0."""
    critic: Float[Array, "*traces"]
    """What a critic added to it."""


def rollout(dynamics: Dynamics | SplitDynamics, steps: int) -> RolloutFn:
    """A `rollout_fn` of this many steps from the transition function of a model, whole or taken apart."""
    if not isinstance(dynamics, SplitDynamics) and not callable(dynamics):
        raise UserError(f"a rollout needs a function (key, state, action) -> Step, got {short(dynamics)}")
    steps = whole("the number of steps of a rollout", steps, 1, MOST_STEPS)

    def play(key: Key[Array, ""], state: Any, first_action: Any, policy: Policy) -> Trace:
        if isinstance(dynamics, SplitDynamics):
            return _play_apart(dynamics, steps, key, state, first_action, policy)

        def advance(carry: tuple[Any, Any], step: Int[Array, ""]) -> tuple[tuple[Any, Any], Any]:
            state, action = carry
            arrival = dynamics(_key(key, step, "move"), state, action)
            _check_arrival(arrival, state)
            finite = all_finite((arrival.state, action))
            next_action = policy(_key(key, step, "policy"), arrival.state)
            check_actions("the policy", next_action, action)
            return (arrival.state, next_action), (arrival.labels, arrival.continues, finite)

        carry, (labels, continues, finite) = jax.lax.scan(advance, (state, first_action), jnp.arange(steps))
        return Trace(labels, continues, finite, carry[0])

    return play


def _check_arrival(arrival: Any, state: Any) -> None:
    """Refuse what is no transition, or one to a state of another kind."""
    if not isinstance(arrival, Step):
        raise UserError(f"a model must give an ambs.dynamics.Step, got {short(arrival)}")
    before, after = (_kinds(one) for one in (state, arrival.state))
    if after != before:
        raise UserError(f"a model must give states like those that it is given, {before}, got {after}")


def _kinds(state: Any) -> str:
    """What a state is made of, as a sentence can say it."""
    shapes = ", ".join(str(jnp.shape(leaf)) for leaf in jax.tree.leaves(state))
    return f"arrays of shape {shapes} in {jax.tree.structure(state)}"


def _play_apart(
    moves: SplitDynamics, steps: int, key: Key[Array, ""], state: Any, first_action: Any, policy: Policy
) -> Trace:
    drawn = jax.vmap(lambda step: moves.draw(_key(key, step, "move")))(jnp.arange(steps))

    def advance(carry: tuple[Any, Any], item: tuple[Array, Any]) -> tuple[tuple[Any, Any], Any]:
        (state, action), (step, chance) = carry, item
        arrival = moves.move(state, action, chance)
        next_action = policy(_key(key, step, "policy"), arrival)
        check_actions("the policy", next_action, action)
        return (arrival, next_action), (moves.show(arrival), action)

    items = (jnp.arange(steps), drawn)
    (final, _), (shown, actions) = jax.lax.scan(advance, (state, first_action), items, unroll=unrolled())
    labels, continues = jax.vmap(moves.read)(shown)
    return Trace(labels, continues, jax.vmap(all_finite)((shown, actions)), final)


def _key(key: Key[Array, ""], step: Int[Array, ""], purpose: Literal["move", "policy"]) -> Key[Array, ""]:
    return jax.random.fold_in(key, 2 * step + (purpose == "policy"))


def trace_keys(key: Key[Array, ""], env: Int[Array, ""] | int, traces: Int[Array, "traces"]) -> Key[Array, "traces"]:
    """One key per number of an environment and of a trace: the same trace whatever the rule, the chunk or the looks."""
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(jax.random.fold_in(stream(key, "traces"), env), traces)


def sample(keys: Key[Array, "envs traces"], state: PyTree, proposed: PyTree, problem: ShieldProblem) -> Evidence:
    """Play and judge one future per key; state and proposed action have a leading axis of environments."""

    def one(key: Key[Array, ""], state: Any, proposed: Any) -> Evidence:
        return play(key, state, proposed, problem)[1]

    return jax.vmap(jax.vmap(one, in_axes=(0, None, None)))(keys, state, proposed)


def play(key: Key[Array, ""], state: Any, proposed: Any, problem: ShieldProblem) -> tuple[Trace, Evidence]:
    """One future and what it shows."""
    roll_key, label_key, first_key = (stream(key, purpose) for purpose in ("roll", "labels", "first"))
    first_action = problem.policy(first_key, state) if problem.config.resample_first else proposed
    trace = problem.rollout_fn(roll_key, state, first_action, problem.goes_on)
    if not isinstance(trace, Trace):
        raise UserError(f"rollout_fn must give an ambs.shield.Trace, got {short(trace)}")
    found = judge(label_key, trace, problem)
    return trace, found._replace(finite=found.finite & all_finite(first_action))


def judge(key: Key[Array, ""], trace: Trace, problem: ShieldProblem) -> Evidence:
    """Whether a trace satisfies bounded safety over s_1 … s_T, and if not, when and by which atom it breaks."""
    psi, atoms, config = problem.psi, problem.atoms, problem.config
    steps = trace.labels.shape[0]
    if trace.labels.ndim != 3 or trace.labels.shape[-1] != len(atoms):
        raise UserError(f"a trace's labels must be [time, frames, {len(atoms)} atoms], got shape {trace.labels.shape}")
    if steps != config.steps:
        raise UserError(f"the rollout has {steps} steps, the shield is set to {config.steps}")
    if (problem.critics is None) != (config.critics_used is None):
        raise UserError(
            "critics must be given exactly when the shield's setting `critics` is max or min, or its kind critic"
        )
    goes_on = (trace.continues.astype(jnp.float32) >= 0.5).astype(jnp.float32)
    # alive[t] = ∏_{j<t} mode(continue_j): the episode has not ended before s_t; one entry more than steps.
    alive = jnp.concatenate([jnp.ones(1), jnp.cumprod(goes_on)])
    finite = trace.finite.all() & all_finite(trace.final_state) & _probabilities((trace.labels, trace.continues))
    finite = finite & all_finite(problem.thresholds)
    if problem.path is not None:
        return _judge_path(key, trace, alive, finite, problem, problem.path)
    hard = _hard_labels(key, trace.labels, problem)
    broken = violates(psi, atoms, hard)
    seen = jnp.concatenate([broken & (alive[:-1] > 0), jnp.zeros(1, bool)])
    flagged, total, added = seen, jnp.zeros(()), jnp.zeros(())
    if config.judged_by_cost:
        running, value = _running_cost(trace, broken, alive, problem)
        over = running > config.cost_threshold(problem.safety)
        # A hard label that was seen to break Ψ needs no arithmetic to count.
        flagged = over if config.labels == "mean" else seen | over
        finite = finite & jnp.isfinite(value) & all_finite(running)
        total, added = running[-1], running[-1] - running[-2]
    first = jnp.argmax(flagged)
    violating = flagged.any()
    blamed = _blame(hard[jnp.minimum(first, steps - 1)], psi, atoms)
    return Evidence(
        first_violation=jnp.where(violating, first + 1, SAFE).astype(jnp.int32),
        atom=jnp.where(violating, jnp.where(first < steps, blamed, CRITIC), NO_ATOM),
        finite=finite,
        cost=total,
        critic=added,
    )


def _judge_path(
    key: Key[Array, ""],
    trace: Trace,
    alive: Float[Array, "time_and_one"],
    finite: Bool[Array, ""],
    problem: ShieldProblem,
    path: Path,
) -> Evidence:
    """Whether s_1 … s_T satisfy what s_0 has left open of a bounded path formula, and if not, from which step on it is lost.

    A step counts by the last of its frames, the state in which the next action is chosen. An episode that ends stays where it
    ended.
    """
    hard = _hard_labels(key, trace.labels[:, -1:], problem)[:, 0]
    ended = alive[1:].sum().astype(int)
    states = hard[jnp.minimum(jnp.arange(hard.shape[0]), ended)]
    rest = path.afterwards()
    lost = rest.on_traces(states, problem.atoms) != Verdict.TRUE
    step = rest.falls(states, problem.atoms) + 1
    zero = jnp.zeros(())
    first = jnp.where(lost, step, SAFE).astype(jnp.int32)
    return Evidence(first, jnp.full((), NO_ATOM, jnp.int32), finite, zero, zero)


def check_actions(whose: str, found: PyTree, wanted: PyTree) -> None:
    """Refuse actions that are not made, or not shaped, as those that are proposed."""
    given, like = ([jnp.shape(leaf) for leaf in jax.tree.leaves(tree)] for tree in (found, wanted))
    kinds: list[Any] = [jax.tree.structure(tree) for tree in (found, wanted)]
    if kinds[0] != kinds[1] or given != like:
        raise UserError(f"{whose} must give actions of shape {like}, as those that are proposed, got {given}")


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether every number in a pytree is finite; integers, flags and keys always are."""
    floats = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)]
    return jnp.all(jnp.array([jnp.isfinite(leaf).all() for leaf in floats])) if floats else jnp.array(True)


def select(which: Bool[Array, "envs"], chosen: PyTree, otherwise: PyTree) -> PyTree:
    """Leaf by leaf `chosen` where `which`, without arithmetic on what is not chosen."""

    def pick(a: Array, b: Array) -> Array:
        return jnp.where(which.reshape(which.shape + (1,) * (a.ndim - 1)), a, b)

    return jax.tree.map(pick, chosen, otherwise)


def _probabilities(tree: PyTree) -> Bool[Array, ""]:
    """Whether every number lies in [0, 1]; what does not is as little to be trusted as NaN."""
    return jnp.all(jnp.array([((leaf >= 0) & (leaf <= 1)).all() for leaf in jax.tree.leaves(tree)]))


def _hard_labels(key: Key[Array, ""], labels: Shaped[Array, "time frames atoms"], problem: ShieldProblem) -> Any:
    if not jnp.issubdtype(labels.dtype, jnp.inexact):
        return labels != 0
    config, thresholds = problem.config, problem.thresholds
    if config.labels == "sample":
        # One draw per step, in its most dangerous frame, so that it violates with the probability `step_risk`.
        worst = jnp.argmax(frame_risk(problem.psi, problem.atoms, labels.astype(jnp.float32)), axis=-1)
        probs = jnp.take_along_axis(labels, worst[:, None, None], axis=1)
        return jnp.broadcast_to(jax.random.bernoulli(key, probs), labels.shape)
    threshold = jnp.asarray(config.label_threshold, jnp.float32) if thresholds is None else thresholds
    if threshold.ndim and threshold.shape != labels.shape[-1:]:
        raise UserError(f"label_threshold has {threshold.shape[0]} entries for {labels.shape[-1]} atoms")
    return labels.astype(jnp.float32) >= jnp.broadcast_to(threshold, labels.shape[-1:])[None, None]


def _running_cost(
    trace: Trace, broken: Bool[Array, "time"], alive: Float[Array, "time_and_one"], problem: ShieldProblem
) -> tuple[Float[Array, "time_and_one"], Float[Array, ""]]:
    """Σ_{t≤k} γ^{t−1}·alive_t·c_t for k = 1 … H, then with the critics' γ^H·alive·clip(V, 0, C); and the raw V."""
    config, safety, critics = problem.config, problem.safety, problem.critics
    if config.labels == "mean":
        fails = frame_risk(problem.psi, problem.atoms, trace.labels.astype(jnp.float32))
        step_fails = fails.max(axis=-1) if config.frame_costs == "any" else fails.sum(axis=-1).clip(max=1)
        costs = safety.cost * step_fails
    else:
        costs = safety.cost * broken.astype(jnp.float32)
    steps = costs.shape[0]
    discounts = safety.discount ** jnp.arange(steps + 1)
    value = jnp.zeros(())
    if critics is not None:
        estimates = critics(trace.final_state)
        value = estimates.max() if config.critics_used == "max" else estimates.min()
        value = jnp.where(jnp.isfinite(estimates).all(), value, jnp.nan)
    beyond = jnp.clip(value, 0, safety.cost)
    return jnp.cumsum(discounts * alive * jnp.append(costs, beyond)), value


def _blame(labels: Bool[Array, "frames atoms"], psi: Formula, atoms: Atoms) -> Int[Array, ""]:
    """The atom to name for a violation: in the first frame and first conjunct of Ψ that fail, the first atom whose change
    alone would repair that conjunct, or else its first atom; −1 if there is none."""
    frame = labels[jnp.argmax(~psi.holds(labels, atoms))]
    flipped = frame[None] ^ jnp.eye(len(atoms), dtype=bool)
    blamed = jnp.array(NO_ATOM)
    for part in reversed(psi.conjuncts()):
        names = part.atoms()
        if not names:
            continue
        own = jnp.array([atoms.index(name) for name in names])
        repairs = part.holds(flipped, atoms)[own]
        culprit = own[jnp.argmax(repairs)]
        blamed = jnp.where(part.holds(frame, atoms), blamed, culprit)
    return blamed.astype(jnp.int32)

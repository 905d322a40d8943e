"""Non-finite numbers, injected anywhere on the shield's path: always an override, always a finite action."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ambs.dynamics import Step
from ambs.errors import UserError
from ambs.shield import Reason, ShieldConfig, ShieldProblem, Trace, rollout, shield, shield_with_deadline
from ambs.streams import at, stream
from tests.shield.worlds import ATOMS, PSI, coin_problem, constant

PLACES = (
    "state", "proposed", "label", "label of few traces", "continue", "flag", "later state", "final state", "policy action",
    "critic", "backup", "everything",
)  # fmt: skip
BAD = (np.nan, np.inf, -np.inf)
CONFIG = ShieldConfig(rolled=20, critics="max", traces=128)
CONFIGS = {
    "ambs": CONFIG,
    "recovery": ShieldConfig(kind="recovery", horizon=20, traces=128),
    "latent": ShieldConfig(kind="latent", traces=128),
    "critic": ShieldConfig(kind="critic", traces=128),
}
"""One for each kind of shield that imagines."""


def problem_with(spot: jax.Array, value: jax.Array, step: jax.Array, config: ShieldConfig = CONFIG) -> ShieldProblem:
    """A harmless world in which the number at place `spot` of imagined step `step` is replaced by `value`."""

    def at_place(name: str, healthy: jax.Array, here: jax.Array | bool = True) -> jax.Array:
        wanted = (spot == PLACES.index(name)) | (spot == PLACES.index("everything"))
        return jnp.where(wanted & here, value, healthy)

    def dynamics(key: jax.Array, state: jax.Array, _action: jax.Array) -> Step:
        clock = state[1] + 1
        now = clock == step
        position = at_place("later state", state[0], now)
        # A broken backup shows only where it is needed: there the world is risky.
        risk = jnp.where(spot == PLACES.index("backup"), 0.9, 1e-6)
        few = jax.random.bernoulli(key, 0.1 / config.steps)
        labels = jnp.stack([at_place("label of few traces", risk, few), at_place("label", risk, now)])[None]
        return Step(jnp.stack([position, clock]), labels, at_place("continue", jnp.ones(()), now))

    base = rollout(dynamics, config.steps)

    def play(key: jax.Array, state: jax.Array, action: jax.Array, policy: object) -> Trace:
        trace = base(key, state, action, policy)
        broken = (spot == PLACES.index("flag")) | (spot == PLACES.index("everything"))
        finite = trace.finite & ~(broken & (jnp.arange(config.steps) + 1 == step))
        return trace._replace(finite=finite, final_state=at_place("final state", trace.final_state))

    def policy(_key: jax.Array, state: jax.Array) -> jax.Array:
        return jnp.stack([at_place("policy action", jnp.array(0.1), state[1] == step), jnp.array(0.2)])

    def backup(_key: jax.Array, state: jax.Array) -> jax.Array:
        return jnp.stack([at_place("backup", jnp.array(0.5)), jnp.array(-0.5)]) + 0.0 * state[0]

    def critics(_state: jax.Array) -> jax.Array:
        return jnp.stack([at_place("critic", jnp.zeros(())), jnp.zeros(())])

    asked = critics if config.critics_used is not None else None
    return ShieldProblem(play, policy, backup, PSI, ATOMS, config, asked, fallback=np.array([0.25, 0.75]))


@functools.partial(jax.jit, static_argnames="kind")
def decide(key, spot, value, step, env, kind="ambs"):
    envs = 4
    poisoned = (jnp.arange(envs) == env)[:, None]
    everything = spot == PLACES.index("everything")
    state = jnp.zeros((envs, 2))
    state = jnp.where(poisoned & ((spot == PLACES.index("state")) | everything), value, state)
    proposed = jnp.full((envs, 2), 0.3)
    proposed = jnp.where(poisoned & ((spot == PLACES.index("proposed")) | everything), value, proposed)
    problem = problem_with(spot, value, step, CONFIGS[kind])
    return shield(key, state, proposed, problem, jnp.zeros((envs, 2), bool))


def test_healthy_world_is_accepted():
    decision = decide(stream(0, "shield"), -1, 0.0, 5, 0)
    assert not decision.overridden.any()


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_thousand_injections(kind):
    """250 into each kind of shield, wherever it takes a number from; and the same key decides the same, another may not."""
    rng, steps = np.random.default_rng(0), CONFIGS[kind].steps
    not_asked = {
        "ambs": (),
        "recovery": ("policy action", "critic"),
        "latent": ("critic",),
        "critic": ("policy action",),
    }
    places = [place for place in PLACES if place not in not_asked[kind]]
    overridden = 0
    for trial in range(250):
        place = places[int(rng.integers(len(places)))]
        value, step, env = BAD[int(rng.integers(3))], int(rng.integers(1, steps + 1)), int(rng.integers(4))
        if place == "policy action":
            step = min(step, steps - 1)  # the action after the last step is never played
        found = decide(at(stream(0, "shield"), trial), PLACES.index(place), value, step, env, kind)
        decision = jax.device_get(found)
        told = Reason.TOO_RISKY if place == "backup" and kind != "recovery" else Reason.NON_FINITE
        assert np.isfinite(decision.action).all(), (place, value)
        assert np.isfinite(decision.p_safe).all()
        assert decision.reason[env] == told, (place, value, step)
        expected = [0.25, 0.75] if place in ("state", "backup", "everything") else [0.5, -0.5]
        np.testing.assert_allclose(decision.action[env], expected)
        overridden += int(decision.overridden[env])
    assert overridden == 250
    doubtful = [decide(at(stream(0, "shield"), key), PLACES.index("label"), 0.12, 1, 0, kind) for key in (1, 1, 2)]
    first, again, other = (np.asarray(decision.evidence.first_violation) for decision in doubtful)
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_healthy_neighbours_go_on():
    decision = decide(stream(0, "shield"), PLACES.index("state"), np.nan, 5, 2)
    assert decision.overridden.tolist() == [False, False, True, False]


@pytest.mark.parametrize("value", [2.0, 0.0, -1.0, np.nan, np.inf])
def test_thresholds_that_are_none_override(value):
    """At 2 no label would ever hold. Known beforehand they are refused, computed they override."""
    healthy = problem_with(jnp.array(-1), jnp.array(0.0), jnp.array(1))
    given = (stream(0, "shield"), jnp.zeros((1, 2)), jnp.zeros((1, 2)))
    with pytest.raises(UserError, match=r"thresholds must be 2 numbers in \(0, 1\]"):
        dataclasses.replace(healthy, thresholds=jnp.array([0.5, value]))
    decision = with_thresholds(*given, jnp.array([0.5, value]))
    assert decision.reason.tolist() == [Reason.NON_FINITE]
    assert with_thresholds(*given, jnp.array([0.5, 1.0])).reason.tolist() == [Reason.ACCEPTED]


@jax.jit
def with_thresholds(key, state, proposed, thresholds):
    problem = dataclasses.replace(problem_with(jnp.array(-1), jnp.array(0.0), jnp.array(1)), thresholds=thresholds)
    return shield(key, state, proposed, problem, jnp.zeros((1, 2), bool))


def test_non_finite_backup_falls_back():
    """Overridden for risk while the backup is broken: the fallback is played, zeros if none is declared."""

    def dynamics(_key, state, _action):
        return Step(state, jnp.ones((1, 2), bool), jnp.ones(()))

    config = ShieldConfig()
    broken = lambda _key, _state: jnp.array([jnp.nan, 1.0])  # noqa: E731
    problem = ShieldProblem(rollout(dynamics, config.steps), lambda _k, _s: jnp.zeros(2), broken, PSI, ATOMS, config)
    decision = shield(stream(0, "shield"), jnp.zeros((3, 1)), jnp.ones((3, 2)), problem, jnp.zeros((3, 2), bool))
    assert decision.overridden.all()
    assert decision.action.tolist() == [[0, 0]] * 3
    # Finite as declared, infinite as an action.
    with pytest.raises(UserError, match="single precision"):
        dataclasses.replace(problem, fallback=np.array([1e39, 0.0]))
    # A fallback that is computed is only known inside: zeros again.
    late = jax.jit(
        lambda bad: (
            shield(
                stream(0, "shield"),
                jnp.zeros((3, 1)),
                jnp.ones((3, 2)),
                dataclasses.replace(problem, fallback=bad),
                jnp.zeros((3, 2), bool),
            ).action
        )
    )
    assert late(jnp.array([jnp.inf, 1.0])).tolist() == [[0, 0]] * 3
    assert late(jnp.array([0.5, 1.0])).tolist() == [[0.5, 1]] * 3


@pytest.mark.parametrize("value", [-5.0, 7.0, 1.5])
@pytest.mark.parametrize("place", ["label", "continue"])
def test_numbers_that_are_no_probabilities_are_not_trusted(place, value):
    decision = decide(stream(0, "shield"), PLACES.index(place), value, 5, 0)
    assert (decision.reason == Reason.NON_FINITE).all()
    assert decision.p_safe.tolist() == [0, 0, 0, 0]
    assert decision.interval.tolist() == [[0, 1]] * 4


@pytest.mark.parametrize("place", ["state", "label", "critic"])
def test_deadline_path_fails_safe_too(place):
    problem = problem_with(jnp.array(PLACES.index(place)), jnp.array(jnp.nan), jnp.array(3))
    bad = jnp.nan if place == "state" else 0.0
    decide = shield_with_deadline(problem, 1e9)
    decision = decide(stream(0, "shield"), jnp.full((2, 2), bad), jnp.zeros((2, 2)), jnp.zeros((2, 2), bool))
    assert decision.overridden.all()
    assert np.isfinite(np.asarray(decision.action)).all()


@pytest.mark.parametrize("switched", ["statically", "at run time"])
def test_a_shield_that_is_off_fails_safe_too(switched):
    """By hand: one is sound, one has a NaN state, one proposes NaN, one is not trusted; all labels say unsafe.

    Switched off statically it needs neither labels nor a model.
    """
    nan = jnp.nan
    state = jnp.array([[0.0], [nan], [0.0], [0.0]])
    proposed = jnp.array([[0.0, 0.1], [0.0, 0.1], [0.0, nan], [0.0, 0.1]])
    trusted = jnp.array([True, True, True, False])
    if switched == "statically":
        problem = coin_problem(0.0, ShieldConfig(), rollout_fn=never, fallback=np.array([0.0, 0.7]))
        decision = shield(stream(0, "shield"), state, proposed, problem, active=False, trusted=trusted)
    else:
        problem = coin_problem(0.0, ShieldConfig(), fallback=np.array([0.0, 0.7]))
        decide = jax.jit(lambda *masks: shield(*masks[:3], problem, jnp.ones((4, 2), bool), **masks[3]))
        given = (stream(0, "shield"), state, proposed)
        assert decide(*given, {"active": jnp.array(True)}).reason[0] == Reason.ALREADY_UNSAFE
        decision = decide(*given, {"active": jnp.array(False), "trusted": trusted})
    assert decision.reason.tolist() == [Reason.ACCEPTED] + [Reason.NON_FINITE] * 3
    assert decision.overridden.tolist() == [False, True, True, True]
    # The backup wants (0, .5); what it makes of a state that is not finite is not asked for.
    np.testing.assert_allclose(decision.action, [[0, 0.1], [0, 0.7], [0, 0.5], [0, 0.5]])
    assert decision.traces_used.tolist() == decision.violating.tolist() == [0] * 4
    assert decision.interval.tolist() == [[0, 1]] * 4
    assert (decision.evidence.first_violation == -1).all()


def never(*_given):
    raise AssertionError("nobody is to imagine anything")


def test_each_environment_may_have_its_shield_off():
    """The action is as risky as can be: where the shield is on it is overridden."""
    problem = coin_problem(0.0, ShieldConfig(horizon=2, traces=64))
    given = (stream(0, "shield"), jnp.zeros((3, 1)), jnp.array([[1.0, 0.0]] * 3), problem, jnp.zeros((3, 2), bool))
    decision = shield(*given, active=jnp.array([True, False, True]))
    assert decision.overridden.tolist() == [True, False, True]
    assert decision.traces_used.tolist() == [64, 0, 64]


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (None, ["best", "best", "best", "best", "wanted", "best", "best", "wanted"]),
        (2, ["best", "best", "last", "last", "wanted", "best", "best", "wanted"]),
        (0, ["last", "last", "last", "last", "wanted", "last", "last", "wanted"]),
    ],
)
def test_refusals_in_a_row(after, expected):
    """By hand: refused at 0 … 3, 5 and 6. No chance takes part, and the fallback acts after so many; a neighbour who is
    refused at every other decision never comes that far."""
    sound = [False, False, False, False, True, False, False, True]
    actions = {"best": [0.0, 0.2], "last": [0.0, 0.7], "wanted": [0.0, 0.1]}
    drawn = lambda key, _state: jax.random.uniform(key, (2,))  # noqa: E731
    config = ShieldConfig(failsafe_after=after)
    parts = {"backup": drawn, "blind": constant(actions["best"]), "fallback": np.array(actions["last"])}
    problem, memory, found = coin_problem(0.0, config, **parts), None, []
    for t, good in enumerate(sound):
        decision = shield(
            at(stream(0, "shield"), t), jnp.zeros((2, 1)), jnp.array([actions["wanted"]] * 2), problem,
            active=False, trusted=jnp.array([good, t % 2 == 0]), memory=memory,
        )  # fmt: skip
        memory = decision.memory
        found.append(np.asarray(decision.action))
    np.testing.assert_allclose(np.array(found)[:, 0], np.array([actions[name] for name in expected]), rtol=1e-6)
    other = "last" if after == 0 else "best"
    np.testing.assert_allclose(np.array(found)[:, 1], np.array([actions["wanted"], actions[other]] * 4), rtol=1e-6)
    with pytest.raises(UserError, match="failsafe_after must be at least 0"):
        ShieldConfig(failsafe_after=-1)

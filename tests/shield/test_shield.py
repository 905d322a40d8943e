"""The shield's behaviour: what it plays, what it says, and that it compiles once."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ambs.errors import UserError
from ambs.shield import Reason, SafetyConfig, ShieldConfig, ShieldProblem, paper_semantics, shield, shield_with_deadline
from ambs.shield.rules import accepted_risks
from ambs.shield.traces import rollout
from ambs.spec import parse_formula
from ambs.streams import at, stream
from tests.shield.worlds import ATOMS, PSI, coin, coin_problem, constant, script

KEY = stream(0, "shield")


def run(problem: ShieldProblem, proposed=None, state=None, labels_now=None, key=KEY):
    proposed = jnp.array([[0.0, 0.1], [1.0, 0.1], [0.0, 0.3]]) if proposed is None else proposed
    state = jnp.zeros((proposed.shape[0], 1)) if state is None else state
    labels_now = jnp.zeros((proposed.shape[0], 2), bool) if labels_now is None else labels_now
    return jax.jit(lambda key, state, proposed: shield(key, state, proposed, problem, labels_now))(key, state, proposed)


@functools.cache
def compiled(config: ShieldConfig):
    """The shield in the coin world, the policy's risk being one of its arguments; compiled once for each number of states."""
    return jax.jit(
        lambda key, risk, state, proposed, labels: shield(key, state, proposed, coin_problem(risk, config), labels)
    )


def coin_run(risk: float, proposed, config: ShieldConfig | None = None, labels_now=None, key=KEY):
    """What `run` does, for the coin world as it is."""
    labels = jnp.zeros((len(proposed), 2), bool) if labels_now is None else labels_now
    return compiled(config or ShieldConfig())(key, risk, jnp.zeros((len(proposed), 1)), proposed, labels)


def test_accepts_safe_and_overrides_risky_actions():
    decision = coin_run(0.0, jnp.array([[0.0, 0.1], [1.0, 0.1], [0.0, 0.3]]))
    assert decision.overridden.tolist() == [False, True, False]
    np.testing.assert_allclose(decision.action, [[0.0, 0.1], [0.0, 0.5], [0.0, 0.3]])
    assert decision.p_safe.tolist() == [1, 0, 1]
    assert decision.traces_used.tolist() == [64, 64, 64]
    assert [Reason(int(code)) for code in decision.reason] == [Reason.ACCEPTED, Reason.TOO_RISKY, Reason.ACCEPTED]
    drawn = np.asarray(decision.evidence.first_violation)
    assert (drawn[1, :64] == 1).all()
    assert (drawn[0, :64] == 0).all()
    assert (drawn[:, 64:] == -1).all()
    assert (np.asarray(decision.evidence.atom)[1, :64] == 0).all()
    assert "first after 1 steps" in decision.explain(1, ATOMS)
    assert "by hazard" in decision.explain(1, ATOMS)
    assert decision.explain(0, ATOMS).startswith("accept: 0 of 64")


def test_exactly_the_proposed_action_is_played_first():
    """Only the first action is risky, the policy's own are not: the proposal alone decides. Re-sampling, as the paper's
    code does it, checks what the policy would do instead and lets the risky proposal through."""
    proposed = jnp.array([[1.0, 0.0]])
    exact = coin_run(0.0, proposed)
    assert exact.overridden.tolist() == [True]
    assert set(np.asarray(exact.evidence.first_violation)[0, :64]) == {1}
    resampled = run(coin_problem(0.0, ShieldConfig(resample_first=True)), proposed)
    assert resampled.overridden.tolist() == [False]
    later = coin_run(1.0, jnp.array([[0.0, 0.0]]))
    assert set(np.asarray(later.evidence.first_violation)[0, :64]) == {2}


def test_already_unsafe():
    labels = jnp.array([[False, False], [False, True]])
    proposed = jnp.zeros((2, 2))
    decision = coin_run(0.0, proposed, labels_now=labels)
    assert decision.overridden.tolist() == [False, True]
    assert decision.reason[1] == Reason.ALREADY_UNSAFE
    assert decision.traces_used.tolist() == [64, 0]
    assert decision.p_safe.tolist() == [1, 0]
    assert decision.interval[1].tolist() == [0, 0]
    assert "already" in decision.explain(1, ATOMS)
    np.testing.assert_allclose(decision.action[1], [0.0, 0.5])
    leaving = run(coin_problem(0.0, ShieldConfig(), leave=constant([0.0, 0.9])), proposed, labels_now=labels)
    np.testing.assert_allclose(leaving.action, [[0.0, 0.0], [0.0, 0.9]])
    ignored = run(coin_problem(0.0, ShieldConfig(check_initial=False)), proposed, labels_now=labels)
    assert ignored.overridden.tolist() == [False, False]


def test_levels_that_calibration_may_put_in_force():
    """The same traces, a more lenient Δ: 1 − Δ' ≥ .5 accepts what Δ = .1 does not; number 0 is Δ itself."""
    config = ShieldConfig(labels="sample")
    levels, accepted = config.levels(), accepted_risks(config)
    assert levels[0] == 0.1
    assert all(a < b for a, b in itertools.pairwise(levels))
    assert all(a < b for a, b in itertools.pairwise(accepted))
    # The notes: at μ̂ = .95 the sequential rule accepts with .216, at .99 with .9995.
    assert 0.01 < accepted[0] < 0.05
    number = next(index for index, risk in enumerate(accepted) if risk > 0.3)
    proposed = jnp.array([[0.25, 0.0]])

    nowhere, unharmed = jnp.zeros((1, 1)), jnp.zeros((1, 2), bool)
    decide = jax.jit(
        lambda proposed, level: shield(KEY, nowhere, proposed, coin_problem(0.0, config, level=level), unharmed)
    )
    asked = coin_run(0.0, proposed, config)
    assert asked.overridden.tolist() == decide(proposed, 0).overridden.tolist() == [True]
    assert decide(proposed, number).overridden.tolist() == [False]
    there = config.at_level(levels[number])
    assert coin_run(0.0, proposed, there).overridden.tolist() == [False]
    assert there.asked == 0.1
    assert "instead of the 0.1 that was asked for: its model is too blurred for less" in there.caveat
    assert "never judged" in config.at_level(levels[-1]).caveat
    assert "asked for" in (both := paper_semantics().at_level(0.5).caveat)
    assert "no theorem applies" in both
    fixed = ShieldConfig(labels="sample", rule="fixed")
    assert accepted_risks(fixed)[-1] > 0.8  # Up to Δ − ε of the traces, .98 − .09.
    assert fixed.at_level(0.5).as_asked() == fixed
    assert ShieldConfig(safety_level=0.99, approximation_error=0.5).levels() == (0.99,)
    for wrong in (-1, 24):
        with pytest.raises(UserError, match="level in force"):
            coin_problem(0.0, config, level=jnp.array(wrong))
        assert decide(jnp.zeros((1, 2)), wrong).reason.tolist() == [Reason.NON_FINITE]
    assert there.at_level(levels[-1]).asked == 0.1
    assert config.at_level(0.1) is config
    for wrong in (float("nan"), float("inf"), -1.0, 0.0, 0.2):
        with pytest.raises(UserError, match="asked must lie in"):
            ShieldConfig(asked=wrong)
    assert there.as_asked() == config.as_asked() == config


def test_paper_semantics():
    config = paper_semantics()
    assert (config.rule, config.traces, config.steps, config.horizon) == ("fixed", 512, 15, 30)
    assert config.cost_threshold(SafetyConfig()) == pytest.approx(0.997**30 * 10)
    problem = coin_problem(0.0, config, critics=lambda _state: jnp.zeros(2))
    decision = run(problem, jnp.array([[1.0, 0.0]]), labels_now=jnp.array([[True, True]]))
    # Neither the current state nor the proposed action is looked at.
    assert decision.overridden.tolist() == [False]
    assert decision.traces_used.tolist() == [512]
    assert run(coin_problem(1.0, config, critics=lambda _s: jnp.zeros(2))).overridden.all()


def test_own_stream():
    """The same key gives the same decision, whatever the rule; other environments do not matter."""
    proposed = jnp.array([[0.003, 0.0]] * 3)
    first, again = coin_run(0.003, proposed), coin_run(0.003, proposed)
    assert (first.evidence.first_violation == again.evidence.first_violation).all()
    other = coin_run(0.003, proposed, key=at(KEY, 1))
    assert (first.evidence.first_violation != other.evidence.first_violation).any()
    fixed = run(coin_problem(0.003, ShieldConfig(rule="fixed")), proposed)
    drawn = np.asarray(first.evidence.first_violation) >= 0
    assert (
        np.asarray(first.evidence.first_violation)[drawn] == np.asarray(fixed.evidence.first_violation)[drawn]
    ).all()
    alone = coin_run(0.003, proposed[:1])
    assert (alone.evidence.first_violation[0] == first.evidence.first_violation[0]).all()


def test_what_each_kind_imagines():
    """Coins: the proposed action stumbles with chance .2, the task policy with .1 a step, the backup policy never."""
    chance = {"ambs": 0.8 * 0.9**5, "recovery": 0.8, "latent": 0.8 * 0.9**2, "critic": 0.8}
    for kind, expected in chance.items():
        config = ShieldConfig(
            kind=kind, horizon=6, short=3, rule="fixed", traces=4000, approximation_error=0.05, failure_probability=0.1
        )
        critics = (lambda _state: jnp.zeros(2)) if kind == "critic" else None
        problem = coin_problem(0.1, config, critics=critics)
        decision = run(problem, jnp.array([[0.2, 0.0]]))
        assert abs(float(decision.p_safe[0]) - expected) < 4 * np.sqrt(expected * (1 - expected) / 4000), kind
        assert decision.overridden.all()
    # A way back that is none: the backup policy stumbles more often than the task policy, and more is overridden.
    lost = coin_problem(
        0.1, ShieldConfig(kind="recovery", horizon=6), backup=lambda _key, _state: jnp.array([0.3, 0.5])
    )
    found = coin_problem(0.1, ShieldConfig(kind="recovery", horizon=6))
    steady = jnp.zeros((1, 2))
    assert run(lost, steady).overridden.all()
    assert not run(found, steady).overridden.any()
    # A critic that expects the worst after a step that may be safe: nothing is accepted.
    feared = coin_problem(0.0, config, critics=lambda _state: jnp.array([0.0, 10.0]))
    assert float(run(feared, jnp.array([[0.0, 0.0]])).p_safe[0]) == 0


def test_nothing_recompiles():
    traced = []
    problem = coin_problem(0.0, ShieldConfig())

    @jax.jit
    def decide(key, state, proposed, labels):
        traced.append(1)
        return shield(key, state, proposed, problem, labels)

    for step in range(3):
        proposed = jnp.full((4, 2), 0.01 * step)
        decide(at(KEY, step), jnp.full((4, 1), float(step)), proposed, jnp.zeros((4, 2), bool))
    assert len(traced) == 1
    assert decide._cache_size() == 1


def test_deadline():
    """Cut after one chunk, what is undecided is overridden; the chunk that came late is dropped."""
    proposed, state, labels = jnp.array([[0.0, 0.0], [0.04, 0.0]]), jnp.zeros((2, 1)), jnp.zeros((2, 2), bool)
    problem = coin_problem(0.0, ShieldConfig())
    unhurried = shield_with_deadline(problem, 1e9)(KEY, state, proposed, labels)
    plain = coin_run(0.0, proposed)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), unhurried, plain))
    assert plain.traces_used.tolist()[0] == 64 < plain.traces_used.tolist()[1]
    # Started at 0 with 1 s to go: the first chunk is there at .3, the second comes late at 1.2.
    ticks = iter([0.0, 0.3, 1.2, 1.2])
    hurried = shield_with_deadline(problem, 1.0, clock=lambda: next(ticks))(KEY, state, proposed, labels)
    # What was accepted in time is told late, and late nothing is accepted.
    assert hurried.reason.tolist() == [Reason.DEADLINE, Reason.DEADLINE]
    assert hurried.traces_used.tolist() == [64, 64]
    assert hurried.overridden.tolist() == [True, True]
    assert "time was up" in hurried.explain(1, ATOMS)
    # Both are shown safe by .3, but the backup policy, asked in any case, takes until 1.2.
    ticks, same = iter([0.0, 0.3, 1.2]), jnp.zeros((2, 2))
    slow = shield_with_deadline(problem, 1.0, clock=lambda: next(ticks))(KEY, state, same, labels)
    assert slow.reason.tolist() == [Reason.DEADLINE] * 2
    assert slow.action.tolist() == hurried.action.tolist()
    # A chunk took .6 s, so another one is not begun when .4 are left.
    ticks = iter([0.0, 0.6, 0.6, 0.9])
    foresight = shield_with_deadline(problem, 1.0, clock=lambda: next(ticks))(KEY, state, proposed, labels)
    assert foresight.reason.tolist() == [Reason.ACCEPTED, Reason.DEADLINE]
    assert foresight.overridden.tolist() == [False, True]
    with pytest.raises(UserError, match="deadline"):
        shield_with_deadline(problem, float("nan"))


def test_pytree_actions_and_integer_actions():
    def dynamics(key, state, action):
        return coin(key, state, jnp.stack([action["risk"], action["push"]]))

    def policy(_key, _state):
        return {"risk": jnp.array(0.0), "push": jnp.array(0.0)}

    config = ShieldConfig()
    problem = ShieldProblem(rollout(dynamics, config.steps), policy, policy, PSI, ATOMS, config)
    proposed = {"risk": jnp.array([0.0, 1.0]), "push": jnp.array([3.0, 4.0])}
    decision = shield(KEY, jnp.zeros((2, 1)), proposed, problem, jnp.zeros((2, 2), bool))
    assert decision.action["push"].tolist() == [3, 0]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"horizon": 0}, "horizon"),
        ({"rolled": 15}, "critics"),
        ({"rolled": 31}, "between 1 and the horizon"),
        ({"approximation_error": 0.2}, "must not exceed"),
        ({"traces": 100}, "multiple"),
        ({"label_threshold": np.nan}, "label_threshold"),
        ({"label_threshold": (0.5, 2.0)}, "label_threshold"),
        ({"threshold_exponent": -1000.0}, "threshold_exponent"),
        ({"threshold_exponent": np.nan}, "threshold_exponent"),
        ({"failure_probability": 5.0, "rule": "fixed"}, "failure probability"),
        ({"failure_probability": np.nan}, "failure probability"),
        ({"model_error": 7.0, "rule": "fixed"}, "model_error"),
        ({"model_error": np.nan}, "model_error"),
        ({"safety_level": 0.005, "approximation_error": 0.0045}, "never accept"),
        ({"traces": 64, "model_error": 0.045}, "never accept"),
        ({"traces": 10**7, "rule": "fixed"}, "at most 100000 traces"),
        ({"traces": 64 * 10**5}, "at most 100000 traces"),
        ({"traces": 10_000, "chunk": 1}, "got 10000 traces in chunks of 1"),
        ({"horizon": 10**6}, "at most 100000 steps"),
    ],
)
def test_impossible_settings_are_refused(change, says):
    with pytest.raises(UserError, match=says):
        ShieldConfig(**change)


@pytest.mark.parametrize("change", [{"discount": 0.0}, {"discount": 1.0}, {"cost": 0.0}, {"cost": np.inf}])
def test_costs_that_mean_nothing_are_refused(change):
    with pytest.raises(UserError, match=next(iter(change))):
        SafetyConfig(**change)


@pytest.mark.parametrize(
    ("name", "value"), [("critics", "mean"), ("labels", "sampel"), ("rule", "fixd"), ("horizon", np.nan)]
)
def test_wrong_words_are_refused_without_a_type_checker_too(name, value):
    config = ShieldConfig()
    object.__setattr__(config, name, value)
    with pytest.raises(UserError, match=name):
        config.__post_init__()


def test_misuse_is_told():
    with pytest.raises(UserError, match="the rollout has 3 steps"):
        run(coin_problem(0.0, ShieldConfig(), rollout_fn=rollout(coin, 3)))
    with pytest.raises(UserError, match="critics"):
        run(coin_problem(0.0, ShieldConfig(), critics=lambda _state: jnp.zeros(2)))
    with pytest.raises(UserError, match="fallback"):
        coin_problem(0.0, ShieldConfig(), fallback=jnp.array([np.nan, 0.0]))
    hurried = shield_with_deadline(coin_problem(0.0, ShieldConfig()), 1.0)
    with pytest.raises(UserError, match="labels_now must be truth values, got int"):
        hurried(KEY, jnp.zeros((1, 1)), jnp.zeros((1, 2)), jnp.zeros((1, 2), int))
    with pytest.raises(UserError, match="labels_now"):
        shield(KEY, jnp.zeros((1, 1)), jnp.zeros((1, 2)), coin_problem(0.0, ShieldConfig()))
    with pytest.raises(UserError, match="2 atoms"):
        run(coin_problem(0.0, ShieldConfig(horizon=2), rollout_fn=script([[1], [1]])))
    config = ShieldConfig(horizon=2, labels="mode", label_threshold=(0.5, 0.5, 0.5))
    with pytest.raises(UserError, match="3 entries for 2 atoms"):
        run(coin_problem(0.0, config, rollout_fn=script([[0.0, 0.0]] * 2, probabilities=True)))
    assert constant([1.0])(None, None).tolist() == [1]


def test_explanations_name_the_right_culprit():
    critics = run(coin_problem(0.0, ShieldConfig(rolled=15, critics="max"), critics=lambda _s: jnp.full(2, 10.0)))
    told = critics.explain(0, ATOMS, ShieldConfig(rolled=15, critics="max"))
    assert "by a safety critic's estimate" in told
    assert "no theorem applies" in told
    mean = ShieldConfig(labels="mean")
    expected = run(coin_problem(0.0, mean, rollout_fn=script([[0.04, 0.0]] * 30, probabilities=True)))
    assert "critic" not in expected.explain(0, ATOMS)
    never = run(coin_problem(0.0, ShieldConfig(), psi=parse_formula("false")), labels_now=jnp.zeros((3, 2), bool))
    assert never.reason.tolist() == [Reason.ALREADY_UNSAFE] * 3
    assert ShieldConfig().caveat == ""
    assert "another property" in ShieldConfig(resample_first=True).caveat


def test_backup_draws_from_a_stream_of_its_own():
    problem = coin_problem(0.0, ShieldConfig(), backup=lambda key, _state: jax.random.uniform(key, (2,)))
    decision = run(problem, jnp.array([[1.0, 0.0]] * 3))
    expected = [jax.random.uniform(jax.random.fold_in(stream(KEY, "backup"), env), (2,)) for env in range(3)]
    np.testing.assert_allclose(decision.action, np.stack(expected))

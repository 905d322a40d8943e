"""The estimator's distribution against the exact binomial, and decisions against exact arithmetic."""

import functools
import sys
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from ambs.shield import Reason, ShieldConfig, rule, shield
from ambs.shield.rules import judge_counts, replay
from ambs.shield.traces import NOT_DRAWN, sample, trace_keys
from ambs.spec.sequential import characteristics
from ambs.streams import at, stream
from tests.shield.worlds import coin_problem
from tests.tiny import SWIFT

RISK, STEPS, TRACES = 0.02, 3, 328
MU = (1 - RISK) ** STEPS


def estimates(calls: int, envs: int = 500) -> np.ndarray:
    """p_safe of `calls` shield calls at known μ, fixed rule."""
    config = ShieldConfig(rule="fixed", horizon=STEPS, traces=TRACES)
    problem = coin_problem(RISK, config)
    state, proposed = jnp.zeros((envs, 1)), jnp.tile(jnp.array([[RISK, 0.0]]), (envs, 1))
    labels = jnp.zeros((envs, 2), bool)
    decide = jax.jit(lambda key: shield(key, state, proposed, problem, labels).p_safe, compiler_options=SWIFT)
    keys = stream(0, "shield")
    return np.concatenate([decide(at(keys, step)) for step in range(calls // envs)])


def variance_is_binomial(values: np.ndarray) -> bool:
    """A χ² test of the sample variance against μ(1 − μ)/m; the mean is tested by the caller."""
    scaled = (values.size - 1) * values.var(ddof=1) / (MU * (1 - MU) / TRACES)
    return bool(1e-4 < stats.chi2.cdf(scaled, values.size - 1) < 1 - 1e-4)


def test_estimates_are_binomial_and_within_theorem_1():
    values = estimates(20_000)
    assert values.size == 20_000
    assert np.mean(np.abs(values - MU) < 0.09) >= 0.99
    assert abs(values.mean() - MU) < 4 * np.sqrt(MU * (1 - MU) / TRACES / values.size)
    assert variance_is_binomial(values)
    counts = np.round(values * TRACES).astype(int)
    edges = np.unique(stats.binom.ppf(np.linspace(0.05, 0.95, 10), TRACES, MU))
    expected = np.diff(np.concatenate([[0], stats.binom.cdf(edges, TRACES, MU), [1]]))
    observed = np.bincount(np.searchsorted(edges, counts), minlength=edges.size + 1)
    assert stats.chisquare(observed, expected * values.size).pvalue > 1e-4


def test_reused_keys_would_be_noticed(monkeypatch):
    """The mutant: every key serves two traces. Theorem 1's coverage still holds, so only the variance gives it away."""
    module = sys.modules["ambs.shield.shield"]  # The package has a function of the same name.
    honest = module.trace_keys
    monkeypatch.setattr(module, "trace_keys", lambda key, env, traces: honest(key, env, traces // 2))
    values = estimates(5_000)
    assert np.mean(np.abs(values - MU) < 0.09) >= 0.99
    assert not variance_is_binomial(values)


def test_decisions_equal_exact_fractions():
    """1000 random decimal settings, every count from 0 to m."""
    rng = np.random.default_rng(3)
    for _ in range(1000):
        m = int(rng.integers(1, 400))
        thousandths = int(rng.integers(2, 1000))
        margin = int(rng.integers(1, thousandths + 1))
        config = ShieldConfig(
            rule="fixed", traces=m, safety_level=thousandths / 1000, approximation_error=margin / 1000
        )
        bar = 1 - Fraction(thousandths, 1000) + Fraction(margin, 1000)
        expected = [Fraction(m - violating, m) >= bar for violating in range(m + 1)]
        table = rule(config)
        # Always as many counts, so that nothing is compiled again.
        codes = np.asarray(judge_counts(table, 0, np.arange(400)))[: m + 1]
        assert (codes == int(Reason.ACCEPTED)).tolist() == expected
        assert [violating <= table.accept[0] for violating in range(m + 1)] == expected
        assert [violating >= table.override[0] for violating in range(m + 1)] == [not accepted for accepted in expected]


def test_counts_are_judged_as_replayed():
    """The jitted comparison and the replay of stored traces agree on every count and look."""
    table = rule(ShieldConfig())
    for index, look in enumerate(table.looks):
        codes = np.asarray(judge_counts(table, jnp.array(index), jnp.arange(look + 1)))
        for violating in range(look + 1):
            reason = Reason(int(codes[violating]))
            assert (reason == Reason.ACCEPTED) == (violating <= table.accept[index])
            assert (reason == Reason.UNDECIDED) == (
                table.accept[index] < violating < table.override[index] and look < table.traces
            )
    assert replay(table, np.zeros(64, bool)) == (Reason.ACCEPTED, 64)
    assert replay(table, np.ones(64, bool)) == (Reason.TOO_RISKY, 64)
    assert replay(table, np.zeros(10, bool)) == (Reason.UNDECIDED, 10)
    spread = np.arange(512) % 25 == 0  # 4 % violating: never decided, hence overridden at the cap
    assert replay(table, spread) == (Reason.NOT_SHOWN_SAFE, 512)


@functools.partial(jax.jit, compiler_options=SWIFT, static_argnums=2)
def decisions(key, risk, envs):
    """Of the sequential shield, in so many environments of the same risk; compiled once for all risks."""
    proposed = jnp.tile(jnp.array([[risk, 0.0]]), (envs, 1))
    labels = jnp.zeros((envs, 2), bool)
    return shield(key, jnp.zeros((envs, 1)), proposed, coin_problem(risk, ShieldConfig()), labels)


@pytest.mark.parametrize("risk", [0.0005, 0.0013, 0.0035])
def test_sequential_shield_behaves_as_computed(risk):
    """Acceptance and traces used, through the whole shield, against dynamic programming."""
    config, envs = ShieldConfig(), 2000
    decision = decisions(stream(1, "shield"), risk, envs)
    test = config.betting_test()
    exact = characteristics(test.looks, test.thresholds(), (1 - risk) ** config.horizon)
    accepted = int((~decision.overridden).sum())
    assert stats.binomtest(accepted, envs, exact.accept).pvalue > 1e-4
    for look, accept, override in exact.stops:
        stopped = int((decision.traces_used == look).sum())
        assert stats.binomtest(stopped, envs, accept + override).pvalue > 1e-5


@pytest.mark.parametrize("envs", [1, 3, 16])
def test_company_changes_no_decision(envs):
    """Chunks are shared among the undecided, several at once; every decision is still that of `replay` on its own traces."""
    config = ShieldConfig(traces=320)
    risks = jnp.resize(jnp.array([0.0013, 0.0, 0.0008, 0.05, 0.0018]), (envs,))
    problem = coin_problem(0.0, config, policy=lambda _key, state: jnp.append(state, 0.0))
    state, proposed = risks[:, None], jnp.stack([risks, jnp.zeros(envs)], axis=1)
    labels = jnp.zeros((envs, 2), bool).at[1:2, 0].set(True)

    @jax.jit
    def both(key):
        keys = jax.vmap(lambda env: trace_keys(key, env, jnp.arange(config.traces)))(jnp.arange(envs))
        futures = sample(keys, state, proposed, problem)
        return shield(key, state, proposed, problem, labels), futures.first_violation

    seen = set()
    for step in range(6):
        decision, futures = jax.device_get(both(at(stream(2, "shield"), step)))
        for env in range(envs):
            reason, used = replay(rule(config), futures[env] > 0)
            if env == 1:
                reason, used = Reason.ALREADY_UNSAFE, 0
            assert (Reason(int(decision.reason[env])), int(decision.traces_used[env])) == (reason, used)
            np.testing.assert_array_equal(decision.evidence.first_violation[env, :used], futures[env, :used])
            assert (decision.evidence.first_violation[env, used:] == NOT_DRAWN).all()
            assert int(decision.violating[env]) == int((futures[env, :used] > 0).sum())
            seen.add((reason, used))
    assert len(seen) >= min(envs + 1, 6)


@pytest.mark.parametrize("mu", [0.5, 0.9, 0.95, 0.961, 0.98, 0.99, 0.999])
def test_intervals_cover_at_whatever_look_the_rule_stops(mu):
    """P(μ̂ inside the reported interval), exactly, by following the counts from look to look."""
    table = rule(ShieldConfig())
    going, before, covered = np.ones(1), 0, 0.0
    for index, look in enumerate(table.looks):
        counts = np.convolve(going, stats.binom.pmf(np.arange(look - before + 1), look - before, 1 - mu))
        number = np.arange(counts.size)
        stops = (number <= table.accept[index]) | (number >= table.override[index]) | (look == table.traces)
        inside = (table.low[index, : look + 1] <= mu) & (mu <= table.high[index, : look + 1])
        covered += counts[stops & inside].sum()
        going, before = np.where(stops, 0.0, counts), look
    assert covered >= 0.99
    # What the shared δ buys: each look's own interval leaves out no more than an eighth of it.
    single = stats.binomtest(50, 64).proportion_ci(1 - 0.01 / 8, "exact")
    assert (table.low[0, 14], table.high[0, 14]) == pytest.approx((single.low, single.high), abs=1e-6)

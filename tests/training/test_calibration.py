"""What a calibration goes by, and what it puts in force, in made-up runs."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ambs.acting.act import Player
from ambs.config.presets import quickstart
from ambs.config.resolve import changed
from ambs.data import Experience
from ambs.shield.rules import Decision, Reason
from ambs.spec.formula import Atoms
from ambs.spec.parser import parse_formula
from ambs.training.calibration import AGAIN, BASIS, BY_DECISIONS, PATIENCE, Calibration, said
from ambs.training.replay import Replay, Use

ENVS, EVERY = 8, 80
CONFIG = changed(quickstart(), {"calibration": {"every": EVERY, "windows": 400}})


def played(risk=None, *, rows=200, episode=50, violates=None):
    """A replay buffer in which `risk(t)` was said in row t, by environment; nobody was overridden."""

    def row(t):
        first, number = np.full(ENVS, t % episode == 0), np.zeros(ENVS, np.float32)
        labels = np.zeros((ENVS, 1, 1), bool)
        if violates is not None:
            labels[:, 0, 0] = violates(t)
        wide = np.zeros((ENVS, 2), np.float32)
        return Experience({"vector": wide}, wide, number, labels, number + 1, first)

    replay = Replay(row(0), ENVS * rows)
    for t in range(rows):
        replay.add(row(t))
        if risk is not None:
            replay.decided(risk(t))
    return replay


def a_run(replay, *, foreign=None, updates=EVERY, level=5, config=CONFIG, scored=None):
    """A run at its first calibration, whose model says of every window what `scored` says, and is judged by nobody."""
    calibration = Calibration(config)
    calls = []

    def score(_player, windows, _root, _number):
        calls.append(len(windows.reward))
        return scored(len(windows.reward)), np.ones(len(windows.reward), bool)

    calibration._score, calibration._judge = score, lambda *_given: {}
    spec = SimpleNamespace(psi=parse_formula("!hazard", Atoms(("hazard",))), atoms=Atoms(("hazard",)))
    run = SimpleNamespace(replay=replay, foreign=foreign, updates=updates, per_call=1, calibrated=0, label_quality={})
    run.interface, run.player, run.thresholds = SimpleNamespace(spec=spec), Player(*[None] * 4), None
    run.level, run.root = jnp.asarray(level, jnp.int32), jax.random.key(0)
    run.lot = lambda _name, number: np.random.default_rng(number)
    return calibration, run, calls


@pytest.fixture(autouse=True)
def _without_judging(monkeypatch):
    monkeypatch.setattr("ambs.training.calibration.memorised", lambda *_given: {})
    monkeypatch.setattr("ambs.training.calibration.compiled_fidelity", lambda _config: lambda *_given: {})


def now_and_then(share, worlds=slice(None)):
    """Said of every decision: nothing, but .9 in this share of the rows, in these environments."""

    def risk(t):
        said = np.zeros(ENVS)
        said[worlds] = 0.9 if t % 100 < 100 * share else 0.0
        return said

    return risk


@pytest.mark.parametrize(("share", "lenient"), [(0.03, False), (0.12, True)])
def test_the_level_is_set_on_decisions(share, lenient):
    """Where they say .9 of less than one safe decision in twenty, the Δ that was asked for; of more, a level beyond .9."""
    calibration, run, calls = a_run(played(now_and_then(share)))
    calibration.when_due(run)
    level = CONFIG.shield.levels()[int(run.level)]
    assert level > 0.9 if lenient else level == CONFIG.shield.safety_level
    assert (run.label_quality[BY_DECISIONS], run.calibrated, calls) == (1, EVERY, [])
    # Eight worlds are in the newest hundred rows: two episodes, save the last three steps of each, in all but the judged world.
    assert run.label_quality[BASIS] == 7 * 2 * 47


def test_worlds_that_are_judged_do_not_count_nor_does_chance():
    """.9 in the judged world alone: nothing to be lenient for. Where a policy is guarded, and chance acts now and then in worlds
    that are learned from, the decisions of the one that is held out count alone."""
    judged, learned = ENVS - 2, slice(0, ENVS - 2)
    calibration, run, _ = a_run(played(now_and_then(1, judged)))
    calibration.when_due(run)
    assert int(run.level) == 0
    risky = played(now_and_then(1, learned), rows=600)
    for foreign, explore, strict in ((None, 0.2, False), (object(), 0.0, False), (object(), 0.2, True)):
        config = changed(CONFIG, {"training": {"explore": explore}})
        calibration, run, _ = a_run(risky, foreign=foreign, config=config)
        calibration.when_due(run)
        assert (int(run.level) == 0) == strict
    assert (risky.use[:, learned] == Use.LEARNING).all()


def test_windows_are_scored_where_nobody_has_decided():
    """One of them by a future that is not finite, from which nothing follows."""
    risk = lambda count: np.where(np.arange(count) == 7, np.nan, 0.6 * (np.arange(count) % 5 == 0))  # noqa: E731
    calibration, run, calls = a_run(played(rows=600), scored=risk)
    calibration.when_due(run)
    assert calls == [400]
    assert run.label_quality == {BASIS: 399, BY_DECISIONS: 0}
    assert CONFIG.shield.levels()[int(run.level)] > 0.6


def test_without_anything_to_go_by_the_shield_is_held_to_what_was_asked():
    """Episodes are shorter than the shield looks ahead. It is tried again now and then; nothing is lenient for long."""
    calibration, run, calls = a_run(played(now_and_then(1), episode=3), scored=np.zeros)
    tried = []
    run.lot = lambda _name, number: tried.append(number) or np.random.default_rng(number)
    for run.updates in range(PATIENCE * EVERY + 1):
        calibration.when_due(run)
        assert (int(run.level) == 0) == (run.updates == PATIENCE * EVERY)
    assert tried == list(range(EVERY, PATIENCE * EVERY + 1, EVERY // AGAIN))
    assert (run.calibrated, calls, run.label_quality) == (0, [], {})


def test_too_few_that_turn_out_safe():
    """All windows can be scored, and hardly any is safe: the level stays, then becomes what was asked for."""
    violates = lambda t: t % 2 == 0  # noqa: E731
    calibration, run, _ = a_run(played(now_and_then(1), violates=violates))
    none = lambda _player, windows, *_rest: (np.zeros(len(windows.reward)), np.zeros(len(windows.reward), bool))  # noqa: E731
    calibration._score = none
    for run.updates in (EVERY, PATIENCE * EVERY):
        calibration.when_due(run)
        assert (run.calibrated, run.label_quality[BASIS]) == (run.updates, 0)
        assert (int(run.level) == 0) == (run.updates == PATIENCE * EVERY)


def test_what_the_shield_said():
    """Nothing where it drew no futures, or where they were no numbers."""
    reasons = [Reason.ACCEPTED, Reason.TOO_RISKY, Reason.ALREADY_UNSAFE, Reason.NON_FINITE, Reason.LATCHED]
    decision = Decision(*[None] * len(Decision._fields))._replace(
        p_safe=jnp.array([0.9, 0.25, 0.0, 0.5, 1.0]),
        traces_used=jnp.array([64, 128, 0, 64, 0]),
        reason=jnp.array(reasons),
    )
    np.testing.assert_allclose(said(decision), [0.1, 0.75, np.nan, np.nan, np.nan], rtol=1e-6)

"""Label thresholds and label quality on made-up probabilities."""

import math
from dataclasses import replace
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from ambs.acting.act import Player
from ambs.acting.scoring import Imagination
from ambs.config.presets import quickstart
from ambs.dynamics import Step
from ambs.training.calibrate import (
    HIGHEST,
    LOWEST,
    LabelProbs,
    calibrate,
    calibrate_level,
    of_decisions,
    proposed_risk,
    quality,
    stays_safe,
    unaided,
)
from ambs.training.replay import Told
from ambs.world_model.rssm import Latent
from tests.tiny import fresh, quick_jit


def probs(filtered, imagined=None, truth=None, risk=None, holds_now=None):
    filtered = jnp.asarray(filtered, jnp.float32)[:, :, None, None]
    imagined = jnp.zeros_like(filtered) if imagined is None else jnp.asarray(imagined, jnp.float32)[:, :, None, None]
    truth = jnp.zeros(filtered.shape, bool) if truth is None else jnp.asarray(truth, bool)[:, :, None, None]
    windows = filtered.shape[0]
    risk = jnp.zeros(windows) if risk is None else jnp.asarray(risk, jnp.float32)
    holds_now = jnp.ones(windows, bool) if holds_now is None else jnp.asarray(holds_now)
    start = Latent(jnp.zeros((windows, 1)), jnp.zeros((windows, 1, 1)))
    return LabelProbs(filtered, imagined, truth, risk, holds_now, start)


def test_the_threshold_flags_just_the_share_that_is_allowed():
    peaks = np.linspace(0.1, 0.9, 1000)
    windows = np.zeros((1000, 3))
    windows[np.arange(1000), np.arange(1000) % 3] = peaks
    threshold = float(calibrate(probs(windows), jnp.ones(1000, bool), 0.01, jnp.array([0.5]))[0])
    assert (peaks.astype(np.float32) >= np.float32(threshold)).sum() == 10
    in_dreams = float(calibrate(probs(0 * windows, windows), jnp.ones(1000, bool), 0.01, jnp.array([0.5]))[0])
    assert in_dreams == threshold


def test_windows_in_which_the_atom_holds_or_an_episode_begins_do_not_count():
    windows = np.full((600, 3), 0.6)
    windows[:300] = 0.99
    truth = np.zeros((600, 3), bool)
    truth[:150, 1] = True
    whole = jnp.arange(600) >= 150
    whole = whole & ~((jnp.arange(600) >= 150) & (jnp.arange(600) < 300)) | (jnp.arange(600) < 150)
    threshold = calibrate(probs(windows, truth=truth), whole, 0.0, jnp.array([0.5]))
    assert float(threshold[0]) == pytest.approx(0.6, abs=1e-6)
    assert float(threshold[0]) > 0.6 - 1e-7


@pytest.mark.parametrize(("level", "expected"), [(0.001, LOWEST), (0.999, HIGHEST)])
def test_thresholds_stay_within_bounds(level, expected):
    found = calibrate(probs(np.full((300, 2), level)), jnp.ones(300, bool), 0.0, jnp.array([0.5]))
    assert float(found[0]) == pytest.approx(expected)


def test_few_windows_change_nothing():
    found = calibrate(probs(np.full((50, 2), 0.9)), jnp.ones(50, bool), 0.0, jnp.array([0.4]))
    assert float(found[0]) == pytest.approx(0.4)


class _Model:
    """Just Ψ = !a."""

    @staticmethod
    def trace_formula():
        from ambs.spec import Atoms, parse_formula

        atoms = Atoms(("a",))
        return parse_formula("!a", atoms), atoms


def test_quality_by_hand():
    truth = [[0, 0, 0], [0, 1, 1], [0, 0, 1], [1, 0, 0], [0, 0, 0]]
    filtered = [[0, 0, 0.9], [0, 0.9, 0.1], [0, 0, 0.8], [0.7, 0, 0], [0, 0, 0]]
    imagined = [[0, 0, 0], [0, 0, 0.9], [0, 0, 0.1], [0, 0, 0], [0.6, 0, 0]]
    function = quality.__wrapped__ if hasattr(quality, "__wrapped__") else quality
    risk = [0.2, 0.3, 0.2, 0.9, 0.1]
    given = probs(filtered, imagined, truth, risk, [True, True, True, False, True])
    found = quick_jit(lambda *given: function(_Model(), *given))(given, jnp.ones(5, bool), jnp.array([0.5]))
    # −ln of what was said of each step, .9 .9 .1 .8 .7 and 1 elsewhere; a certainty that is wrong counts as 1e-6.
    loss = -(math.log(1 - 0.9) + math.log(0.9) + math.log(0.1) + math.log(0.8) + math.log(0.7)) / 15
    dreamt = -(2 * math.log(1e-6) + math.log(0.9) + math.log(0.1) + math.log(1 - 0.6)) / 15
    assert float(found.pop("labels/loss")) == pytest.approx(loss, rel=1e-5)
    assert float(found.pop("labels/imagined_loss")) == pytest.approx(dreamt, rel=1e-5)
    got = {name.removeprefix("labels/"): round(float(value), 6) for name, value in found.items()}
    assert got == {
        "precision": 0.75,  # 3 of the 4 flagged steps are violations
        "recall": 0.75,  # 3 of 4 violating steps are flagged
        "false_flags": 0.5,  # 1 of the 2 safe windows
        "imagined_false_flags": 0.5,
        "missed_onsets": 0.5,  # of the two windows that begin safe and turn unsafe, one is missed
        "unsafe_windows": 0.6,
        "auroc": 0.875,  # risks .3, .2 of windows that fail against .2, .1 of safe ones: 3 of 4 pairs, and one tie
        "detected": 0.5,  # above .2, the highest risk of a safe window, lies .3 alone
        "imagined_per_real": 0.4,  # .9 + .1 + .6 imagined, 4 real
    }


@pytest.mark.parametrize(("share", "expected"), [(0.0, 3), (0.05, 2), (0.5, 1), (1.0, 0)])
def test_the_level_in_force_keeps_the_budget_of_false_alarms(share, expected):
    """Risks 0 … 1 evenly; levels that accept up to .1, .6, .96 and 1."""
    risk = np.linspace(0, 1, 1001)
    accepted = (0.1, 0.6, 0.96, 1.0)

    def level(safe, so_far):
        return calibrate_level(risk, safe.astype(float), share, accepted, so_far)

    assert level(np.ones(1001, bool), 3) == expected
    assert (risk > accepted[expected]).mean() <= share + 1e-9
    # What is not safe may be as risky as it likes: below .5 alone the budget holds at lower levels.
    assert level(risk <= 0.5, 3) == min(expected, 1 if share < 0.8 else 0)
    # Too few safe windows: the level stays.
    assert level(risk < 0.1, 2) == 2
    # A risk that is no number tells nothing: the level stays, too.
    broken = np.where(np.arange(1001) == 500, np.nan, risk)
    assert calibrate_level(broken, np.ones(1001), share, accepted, 1) == 1


def test_what_the_shield_has_prevented_is_not_held_against_it():
    """1000 windows without risk, 200 of risk .9 that stayed safe because the backup policy acted: had it not, 20 would have."""
    risk = np.concatenate([np.zeros(1000), np.full(200, 0.9)])
    safe, saved = np.ones(1200, bool), np.arange(1200) >= 1000
    weight = unaided(safe, saved, risk)
    np.testing.assert_allclose(weight.sum(), 1020, rtol=1e-5)
    assert not unaided(~safe, saved, risk).any()

    def level(weight):
        return calibrate_level(risk, weight, 0.05, (0.1, 0.5, 0.95), 2)

    assert level(weight) == 0
    assert level(np.ones(1200)) == 2


def test_decisions_and_what_became_of_them_by_hand():
    """Two steps ahead. Columns: an environment whose decisions count, and one whose do not."""
    rows = 8
    first, violates = np.zeros((rows, 2), bool), np.zeros((rows, 2), bool)
    backup, counted = np.zeros((rows, 2), bool), np.tile([True, False], (rows, 1))
    risk = np.tile(np.arange(rows)[:, None] / 10, (1, 2))
    risk[1, 0] = np.nan  # The shield was not asked.
    violates[3, 0] = True
    backup[5, 0] = True
    first[7, 0] = True  # An episode begins: what was decided in rows 5 and 6 cannot be judged.
    told = Told(first, violates, np.zeros((rows, 2)), backup, risk)
    said, safe = of_decisions(told, counted, violates, 2)
    np.testing.assert_allclose(said, [0, 0.2, 0.3, 0.4])
    # Nobody acted for rows 0 to 2, a violation followed row 2; before row 5 the backup policy acted.
    np.testing.assert_allclose(safe, [1, 0, 1 - 0.3, 1 - 0.4])
    assert of_decisions(told, counted, violates, rows)[0].size == 0


def test_safe_windows_by_hand():
    truth = [[0, 0], [0, 1], [0, 0], [0, 0]]
    given = probs(np.zeros((4, 2)), truth=truth, holds_now=[True, True, False, True])
    function = stays_safe.__wrapped__ if hasattr(stays_safe, "__wrapped__") else stays_safe
    assert function(_Model(), given, jnp.array([True, True, True, False])).tolist() == [True, False, False, False]


def test_a_state_is_scored_by_what_the_policy_proposes(monkeypatch):
    """A policy that takes a risk of .1 at each of three steps fails with 1 − .9³, whatever was really done."""

    def risky(_key, state, action):
        return Step(state, action[None], jnp.ones(()))

    said = Imagination(risky, lambda _key, _state: jnp.array([0.1]), 3, lambda labels: labels[:, 0, 0])
    task = SimpleNamespace(actors=SimpleNamespace(task=SimpleNamespace(act=said.policy)))
    monkeypatch.setattr("ambs.training.calibrate.in_precision", lambda *_given: task)
    monkeypatch.setattr("ambs.training.calibrate.of_shield", lambda *_given: said)
    start = Latent(jnp.zeros((4, 1)), jnp.zeros((4, 1, 1)))
    found = proposed_risk(Player(*[None] * 4), start, fresh(), quickstart())
    np.testing.assert_allclose(found, np.full(4, 1 - 0.9**3), rtol=1e-5)
    # From what is not finite nothing is concluded, least of all that everything is risky and the shield must be lenient.
    broken = replace(said, policy=lambda _key, _state: jnp.array([jnp.nan]))
    monkeypatch.setattr("ambs.training.calibrate.of_shield", lambda *_given: broken)
    found = proposed_risk(Player(*[None] * 4), start, fresh(), quickstart())
    assert np.isnan(found).all()
    assert calibrate_level(np.tile(found, 100), np.ones(400), 0.05, (0.1, 0.5, 0.9), 1) == 1

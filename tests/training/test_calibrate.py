"""Label thresholds and label quality on made-up probabilities."""

import jax.numpy as jnp
import numpy as np
import pytest

from ambs.training.calibrate import HIGHEST, LOWEST, LabelProbs, calibrate, quality


def probs(filtered, imagined=None, truth=None):
    filtered = jnp.asarray(filtered, jnp.float32)[:, :, None, None]
    imagined = jnp.zeros_like(filtered) if imagined is None else jnp.asarray(imagined, jnp.float32)[:, :, None, None]
    truth = jnp.zeros(filtered.shape, bool) if truth is None else jnp.asarray(truth, bool)[:, :, None, None]
    return LabelProbs(filtered, imagined, truth)


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
    found = function(_Model(), probs(filtered, imagined, truth), jnp.ones(5, bool), jnp.array([0.5]))
    got = {name.removeprefix("labels/"): round(float(value), 6) for name, value in found.items()}
    assert got == {
        "precision": 0.75,  # 3 of the 4 flagged steps are violations
        "recall": 0.75,  # 3 of 4 violating steps are flagged
        "false_flags": 0.5,  # 1 of the 2 safe windows
        "imagined_false_flags": 0.5,
        "missed_onsets": 0.5,  # of the two windows that begin safe and turn unsafe, one is missed
        "unsafe_windows": 0.6,
    }

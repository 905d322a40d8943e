"""What is said of evaluation episodes, against values worked out by hand and SciPy's intervals."""

import jax
import numpy as np
import pytest
from scipy import stats

from ambs.acting.adapter import interface
from ambs.acting.agent import Agent
from ambs.acting.evaluate import _batch, summary
from ambs.config.resolve import resolve
from ambs.envs import make_vector


def row(violations: int, result: float, overrides: int = 0) -> dict:
    return {
        "return": result, "violations": violations, "length": 400, "switches": 0, "decisions": 100,
        "overrides": overrides, "traces": 5000,
    }  # fmt: skip


class Player(Agent):
    """Plays at random, and takes note of what it is told."""

    shielded, root = False, jax.random.key(0)

    def __init__(self, envs):
        self.interface, self.told = interface(envs, resolve("quickstart", changes={"env": "Grid"})), []

    def start(self, *_, **__):
        self.told.append([True, True])

    def restart(self, which):
        self.told.append(which.tolist())


def test_an_episode_begins_where_its_first_observation_is_seen():
    """One step after the last of the one before: whoever is told at the end would take that for the beginning."""
    envs = make_vector("Grid", 2)
    player, begun, step = Player(envs), [[True, True]], envs.step

    def watched(actions):
        found = step(actions)
        begun.append(found[-1]["fresh"].tolist())
        return found

    envs.step = watched
    _batch(player, envs, 0, 2, 0, False, "random", None, None)
    assert np.sum(begun) > 2, "the first to end must have gone on while the other played"
    assert player.told == begun


def test_means_and_intervals():
    returns = [1.0, 2.0, 3.0, 6.0]
    found = summary([row(0, value) for value in returns])
    low, high = stats.t.interval(0.95, 3, loc=3.0, scale=stats.sem(returns))
    assert found["return"] == pytest.approx((3.0, low, high))
    assert found["episodes_with_violation"].mean == 0
    assert found["traces_per_decision"] == (50.0, None, None)


def test_counts_and_shares_stay_within_their_bounds():
    """8 violating frames in one of four episodes of 400: 5 per 1000, and no interval reaches below none at all."""
    found = summary([row(0, 1.0), row(0, 1.0), row(0, 2.0), row(8, 1.0, overrides=100)])
    mean, low, high = found["violations_per_1000"]
    assert (mean, low) == (5.0, 0.0)
    assert high == pytest.approx(stats.t.interval(0.95, 3, loc=5.0, scale=stats.sem([0, 0, 0, 20]))[1])
    assert found["violations"].low == 0
    assert found["override_rate"].low == 0
    assert found["override_rate"].high == 1
    assert found["episodes_with_violation"].mean == 0.25
    assert np.isfinite(found["return"].low)

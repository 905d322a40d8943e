"""`grid`: the environment, its chain and its shield tell the same story."""

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from scipy import stats

import ambs.envs  # noqa: F401  (registers the environments)
from ambs.dynamics import Step
from ambs.envs.worlds.grid import Grid, GridEnv
from ambs.errors import UserError
from ambs.shield import ShieldConfig, ShieldProblem, rollout, shield
from ambs.spec import parse_property
from ambs.streams import stream
from tests.tiny import SWIFT

# Action odds of the policy in the tests: mostly right and down, so that slipping matters.
ODDS = np.array([0.05, 0.5, 0.35, 0.05, 0.05])
CORRIDOR = Grid(map="SH.G", slip=0.0)


def test_kernel_by_hand():
    grid = Grid(map="S.\n#H", slip=0.2)
    # From the start, right: ahead with .8, astray up (off the map, stays) and down (wall, stays) with .1 each.
    np.testing.assert_allclose(grid.kernel[0, 1], [0.2, 0.8, 0, 0])
    # From the floor, down: ahead into the hazard with .8, right off the map, left back to the start.
    np.testing.assert_allclose(grid.kernel[1, 2], [0.1, 0.1, 0, 0.8])
    np.testing.assert_allclose(grid.kernel[1, 4], [0, 1, 0, 0])
    np.testing.assert_allclose(grid.kernel.sum(axis=-1), 1)
    assert grid.labels.tolist() == [[False, False], [False, False], [False, False], [True, False]]


def test_environment_is_a_gymnasium_environment():
    env = gym.make("ambs/Grid-v0")
    check_env(env.unwrapped, skip_render_check=True)


def test_environment_follows_the_kernel():
    env = GridEnv()
    env.reset(seed=0)
    cell, action, draws = 7, 1, 4000
    arrivals = np.zeros(env.grid.cells.size)
    for _ in range(draws):
        env.cell = cell
        env.step(np.int64(action))
        arrivals[env.cell] += 1
    possible = env.grid.kernel[cell, action] > 0
    assert arrivals[~possible].sum() == 0
    assert stats.chisquare(arrivals[possible], draws * env.grid.kernel[cell, action][possible]).pvalue > 1e-4


def test_labels_cost_and_end():
    env = GridEnv(CORRIDOR)
    _, info = env.reset(seed=0)
    assert info["cost"] == 0
    _, reward, terminated, _, info = env.step(np.int64(1))
    assert (reward, terminated, info["cost"], info["labels"].tolist()) == (-0.01, False, 1, [True, False])
    env.step(np.int64(1))
    observation, reward, terminated, _, info = env.step(np.int64(1))
    assert (reward, terminated, info["cost"], info["labels"].tolist()) == (1, True, 0, [False, True])
    assert observation.tolist() == [0, 0, 0, 1]


def test_state_is_restored_bit_by_bit():
    env = GridEnv()
    env.reset(seed=3)
    saved = env.get_state()
    first = [env.step(np.int64(i % 5))[0].argmax() for i in range(50)]
    other = GridEnv()
    other.set_state(saved)
    assert [other.step(np.int64(i % 5))[0].argmax() for i in range(50)] == first
    assert all(isinstance(part, np.ndarray) for part in saved.values())


def test_shield_estimates_the_exact_pctl_value():
    """μ_{s,a} for all cells and actions: P(G<=10 !hazard) from the chain, one step of the kernel in front."""
    grid, policy = Grid(), np.tile(ODDS, (25, 1))
    config = ShieldConfig(rule="fixed", horizon=10, traces=2000)
    later = grid.chain(policy).check(parse_property("P=? [ G<=9 !hazard ]"))
    now = ~grid.labels[:, 0]
    exact = (grid.kernel @ later) * now[:, None]
    cells, actions = (part.ravel() for part in np.meshgrid(np.arange(25), np.arange(5), indexing="ij"))
    problem = ShieldProblem(
        rollout(grid.dynamics(), config.steps),
        lambda key, _cell: jax.random.categorical(key, jnp.log(jnp.asarray(ODDS))),
        lambda _key, _cell: jnp.array(4),
        GridEnv().psi,
        GridEnv().atoms,
        config,
    )
    decide = jax.jit(
        lambda key, state, action, labels: shield(key, state, action, problem, labels), compiler_options=SWIFT
    )
    decision = decide(stream(0, "shield"), jnp.asarray(cells), jnp.asarray(actions), jnp.asarray(grid.labels[cells]))
    truth = exact[cells, actions]
    error = np.abs(np.asarray(decision.p_safe) - truth) / np.sqrt(truth * (1 - truth) / config.traces + 1e-6)
    assert error.max() < 4.5
    assert error.mean() < 1.1
    # Cells in a hazard were not rolled out at all.
    assert (np.asarray(decision.traces_used)[grid.labels[cells, 0]] == 0).all()


def test_a_wrong_model_would_be_noticed():
    """The test above fails for a model with another slip: the tolerance is not a blanket."""
    grid, wrong = Grid(), Grid(slip=0.3)
    policy = np.tile(ODDS, (25, 1))
    path = parse_property("P=? [ G<=10 !hazard ]")
    gap = np.abs(grid.chain(policy).check(path) - wrong.chain(policy).check(path))
    assert gap.max() > 4.5 * np.sqrt(0.25 / 2000)


def test_goal_ends_the_episode_in_the_model():
    step: Step = CORRIDOR.dynamics()(stream(0, "x"), jnp.array(2), jnp.array(1))
    assert int(step.state) == 3
    assert not step.continues


@pytest.mark.parametrize(
    ("change", "says"), [({"map": "SX"}, "characters"), ({"map": "..."}, "start"), ({"slip": 2.0}, "slip")]
)
def test_bad_maps_are_refused(change, says):
    with pytest.raises(UserError, match=says):
        Grid(**change)


def test_bad_actions_are_refused():
    env = GridEnv()
    env.reset(seed=0)
    with pytest.raises(UserError, match="whole number"):
        env.step(7)

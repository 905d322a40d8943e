"""The policies that are guarded in examples: the replayed PPO is the trained one, and the drivers drive as they are said to."""

from pathlib import Path

import jax
import numpy as np
import pytest

import ambs
from ambs.acting.foreign import ForeignPolicy, load_policy
from tests.tiny import fresh

POLICIES = Path(__file__).parents[2] / "examples" / "policies.py"


@pytest.fixture(scope="module")
def ppo():
    return load_policy(f"{POLICIES}:ppo")


def play(policy, env, seeds):
    """Mean return and violating steps of an episode."""
    asked = ForeignPolicy(policy, env.observation_space, env.action_space)
    total = np.zeros(2)
    for seed in seeds:
        observation, _ = env.reset(seed=seed)
        ended, start = False, True
        while not ended:
            proposals = asked.propose(observation[None], np.array([start]))
            assert not proposals.failed.any(), proposals.why
            observation, reward, terminated, truncated, info = env.step(proposals.action[0])
            total += reward, info["cost"]
            ended, start = terminated or truncated, False
    return total / len(seeds)


def test_the_replay_says_what_stable_baselines_said(ppo):
    """The file has answers of the trained model itself, in a few situations."""
    with np.load(POLICIES.with_name("ppo_point_world.npz")) as arrays:
        observations, actions = arrays["observations"], arrays["actions"]
    assert len(actions) > 5
    np.testing.assert_allclose(ppo.predict(observations, deterministic=True)[0], actions, atol=1e-5)
    action, state = ppo.predict(observations[1], ("state",), np.array([False]), deterministic=True)
    np.testing.assert_allclose(action, actions[1], atol=1e-5)
    assert state == ("state",)


def test_without_determinism_it_scatters_about_the_same_answer(ppo):
    observation = np.zeros((4000, 9), np.float32)
    actions, _ = ppo.predict(observation)
    middle = ppo.predict(observation[0], deterministic=True)[0]
    in_jax = jax.vmap(ppo.in_jax, in_axes=(0, None))(jax.random.split(fresh(), 4000), observation[0])
    np.testing.assert_allclose(np.median(in_jax, axis=0), middle, atol=0.1)
    np.testing.assert_allclose(in_jax.std(axis=0), actions.std(axis=0), atol=0.05)
    assert np.abs(middle).max() < 0.5
    assert np.abs(actions).max() <= 1
    # By the median, which cutting does not move.
    np.testing.assert_allclose(np.median(actions, axis=0), middle, atol=0.05)


def test_the_reckless_and_the_careful_policy(ppo):
    """The PPO has the return of its metadata and violates; the careful driver has nearly that return and never does."""
    env, seeds = ambs.make("PointWorld"), range(10_000, 10_006)
    reckless, careful = (play(policy, env, seeds) for policy in (ppo, load_policy(f"{POLICIES}:careful")))
    assert ppo.told["return"] == pytest.approx(reckless[0], rel=0.15)
    assert reckless[1] > 5
    assert careful[0] > 0.8 * reckless[0]
    assert careful[1] == 0


def test_the_driver_of_point_goal_follows_the_lidar():
    """The goal straight ahead, to the left by a quarter, behind: full speed; turn left while hardly driving; turn."""
    drive = load_policy(f"{POLICIES}:goals")
    readings = np.zeros((3, 60), np.float32)
    readings[0, [12, 27]] = 0.8
    readings[1, [15, 16]] = 0.8
    readings[2, [19, 20]] = 0.8
    ahead, left, behind = (drive({"vector": reading}) for reading in readings)
    np.testing.assert_allclose(ahead, [1, 0], atol=1e-5)
    np.testing.assert_allclose(left, [0.1, 1], atol=1e-5)
    assert behind[0] == pytest.approx(0.1)
    assert abs(behind[1]) == 1


def test_the_driver_from_pixels_drives_towards_green():
    """A green patch in the middle, at the right edge, and none; the robot's own red and the vase's teal are not the goal."""
    drive = load_policy(f"{POLICIES}:goals_seen")
    picture = np.full((64, 64, 3), (220, 215, 200), np.uint8)
    picture[50:] = 210, 20, 50
    picture[20:24, 10:14] = 0, 128, 128
    np.testing.assert_allclose(drive(picture), [0.15, 1])
    middle, right = picture.copy(), picture.copy()
    middle[20:24, 30:34] = right[20:24, 60:] = 150, 220, 150
    np.testing.assert_allclose(drive(middle), [1, 0], atol=1e-6)
    np.testing.assert_allclose(drive(right), [0.1, -1], atol=0.05)


def test_who_sees_green_turns_as_the_lidar_says():
    """In pictures of the world itself: where there is green, nine times of ten both drivers turn to the same side."""
    env = ambs.make("PointGoal1", observation="both")
    by_lidar, by_sight = load_policy(f"{POLICIES}:goals"), load_policy(f"{POLICIES}:goals_seen")
    turns = []
    for seed in range(30):
        seen, _ = env.reset(seed=seed)
        turns.append((by_lidar(seen)[1], by_sight(seen["vision"])))
    seeing = np.array([(lidar, own[1]) for lidar, own in turns if own[0] != np.float32(0.15)])
    assert 5 <= len(seeing) <= 20
    assert (np.sign(seeing[:, 0]) == np.sign(seeing[:, 1])).mean() > 0.9

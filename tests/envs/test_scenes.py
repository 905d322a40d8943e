"""Maps of worlds, and of what observations tell; the true worlds in JAX; by hand-worked places and the environments' own word."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ambs.envs.registration import make_vector
from ambs.envs.safety_gym.objects import HAZARD
from ambs.envs.safety_gym.scenes import lidar_scene
from ambs.envs.safety_gym.threaded import ThreadedVectorEnv
from ambs.envs.scene import KINDS, scene, stacked
from ambs.envs.snapshot import one_env, together
from ambs.envs.worlds.grid import GridEnv
from ambs.envs.worlds.point_world import PointWorld, PointWorldEnv
from ambs.recording.ground_truth import observe, true_world


def test_a_grid_is_drawn_as_it_is_written():
    env = GridEnv()
    env.reset(seed=0)
    drawn = env.map_scene()
    assert drawn.square
    assert drawn.robot[:2].tolist() == [-2, 2]
    assert np.isnan(drawn.robot[2])
    things = {(KINDS[int(kind)], x, y) for kind, x, y, _ in drawn.items.tolist()}
    assert things == {
        ("hazard", -1, 1), ("hazard", 1, 1), ("hazard", 1, 0), ("hazard", -1, -1), ("hazard", 1, -2), ("goal", 2, -2),
    }  # fmt: skip
    seen = env.map_imagined(drawn, np.eye(25)[7])
    assert seen.robot[:2].tolist() == [0, 1]
    np.testing.assert_array_equal(seen.items, drawn.items)


@pytest.mark.parametrize("seed", range(5))
def test_point_world_is_found_again_in_its_observation(seed):
    """Place and sensed hazard, read back from the true observation, are the true ones; and JAX observes the same."""
    env = PointWorldEnv(PointWorld(hazards=3, sensor_range=4.0))
    observation, _ = env.reset(seed=seed)
    for _ in range(20):
        observation, *_ = env.step(env.action_space.sample())
    now = env.map_scene()
    seen = env.map_imagined(now, observation)
    np.testing.assert_allclose(seen.robot, now.robot, atol=1e-5)
    distances = np.linalg.norm(now.items[1:, 1:3] - now.robot[:2], axis=1)
    np.testing.assert_allclose(seen.items[1, 1:3], now.items[1 + distances.argmin(), 1:3], atol=1e-5)
    np.testing.assert_allclose(jax.jit(lambda state: observe(env.world, state))(env.state), observation, atol=1e-5)
    true = true_world(env)
    assert true is not None
    np.testing.assert_array_equal(true.state(env.get_state()).robot, env.state.robot)
    far = env.map_imagined(now, np.zeros(9))
    assert far.items.shape == (1, 4)


def test_true_grid():
    env = GridEnv()
    env.reset(seed=0)
    true = true_world(env)
    assert true is not None
    assert int(true.state(env.get_state())) == env.cell
    np.testing.assert_array_equal(true.observe(jnp.array(7)), np.eye(25)[7])
    assert true_world(object()) is None


def test_arenas_and_lidar():
    envs = ThreadedVectorEnv("PointGoal1", 2, observation="vector", threads=1)
    envs.reset(seed=1)
    first = envs.scenes([0, 1])[0]
    assert [KINDS[int(kind)] for kind in first.items[:, 0]] == ["goal", *["hazard"] * 8, "vase"]
    np.testing.assert_allclose(first.items[0, 1:3], envs.worlds.goal[0])
    assert envs.action_names == ("forward", "turn")
    # A hazard one metre ahead and a little to the left stands in bin 0; the robot looks up.
    vector = np.zeros(60)
    vector[12 + 16] = 2 / 3
    (drawn,) = envs.imagined(first, vector[None])
    angle = np.pi / 2 + np.pi / 16
    np.testing.assert_allclose(drawn.items, [[1, np.cos(angle), np.sin(angle), 0.2]], atol=1e-6)
    np.testing.assert_array_equal(lidar_scene(np.zeros(60)).items, np.zeros((0, 4)))
    assert envs.imagined(first, np.zeros((1, 64, 64, 3))) is None
    envs.close()


def test_scenes_of_different_length_are_stacked():
    both = stacked([scene((0, 0), [("goal", (1, 2), 0.5)], 2), scene((1, 1, 0.5), [], 2)])
    np.testing.assert_array_equal(both["items"][:, :, 0], [[0], [-1]])
    assert np.isnan(both["robot"][0, 2])


@pytest.mark.parametrize("name", ["Grid", "PointGoal0"])
def test_environments_change_places(name):
    """The state of one environment goes on in another place of another vector environment as it would have."""
    source, target = (make_vector(name, count, observation="vector") for count in (3, 2))
    for envs, seed in ((source, 5), (target, 6)):
        envs.reset(seed=seed)
    actions = np.stack([source.single_action_space.sample() for _ in range(3)])
    for _ in range(3):
        source.step(actions)
    state = source.get_state()
    target.set_state(together([one_env(state, 2), one_env(state, 0)]))
    wanted = [source.step(actions)[0] for _ in range(4)]
    found = [target.step(actions[[2, 0]])[0] for _ in range(4)]
    np.testing.assert_array_equal(np.array(found), np.array(wanted)[:, [2, 0]])
    for envs in (source, target):
        envs.close()


@pytest.mark.parametrize(("task", "ahead"), [("PointGoal1", (1.0, 0.0)), ("CarGoal1", (0.0, -1.0))])
def test_what_a_robot_has_before_its_eyes(task, ahead):
    """Rolling at .5 m/s the way it looks. The eye is 25 cm above the floor (the car's 30) and looks down by atan .4: a metre
    ahead the picture reaches (1 + .4·height)/√1.16 to either side, and the floor right below is not in it."""
    envs = ThreadedVectorEnv(task, 1, observation="vector")
    envs.reset(seed=0)
    robot, worlds = envs.task.robot, envs.worlds
    qpos, qvel = np.zeros(worlds.model.nq), np.zeros(worlds.model.nv)
    qpos[: robot.nq] = robot.place(np.zeros(2), 0.0)
    qvel[:2] = 0.5 * np.array(ahead)
    front, left = np.array(ahead), np.array([-ahead[1], ahead[0]])
    height = 0.1 + (0.15 if robot.name == "point" else 0.2)
    edge = (1 + 0.4 * height) / 1.16**0.5
    spots = [front, front + (edge - 0.01) * left, front - (edge + 0.01) * left, -front, 0.05 * front, 3 * front]
    hazards = np.tile(5.0, (worlds.task.count(HAZARD), 2))
    hazards[: len(spots)] = spots
    vases = qpos[robot.nq :].reshape(-1, 7)
    vases[:, :3], vases[:, 3] = -4.0, 1.0
    worlds.place(0, qpos, qvel, np.array([2.0, 2.0]), {"hazard": hazards})
    found = envs.outlook()
    envs.close()
    assert found is not None
    assert found.forwards[0] == pytest.approx(0.5, abs=1e-6)
    assert found.seen[0, : len(spots)].tolist() == [True, True, False, False, False, True]
    assert found.gaps[0, [0, 4]] == pytest.approx([0.8, -0.15])
    assert make_vector("Grid", 1).outlook() is None

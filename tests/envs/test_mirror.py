"""Worlds with left and right exchanged, against the simulator itself: a mirrored layout and mirrored actions."""

import numpy as np
import pytest

from ambs.envs import make_vector
from ambs.envs.mirror import Mirror
from ambs.envs.safety_gym.appearance import TILE
from ambs.envs.safety_gym.objects import VASE
from ambs.envs.safety_gym.observation import Looks, Observer
from ambs.envs.safety_gym.tasks import TASKS
from ambs.envs.safety_gym.worlds import Worlds
from ambs.envs.worlds.point_world import PointWorld, PointWorldEnv

FLIP = np.array([-1.0, 1.0, 1.0])
PLANE = TILE / 2
"""The worlds are mirrored in x = PLANE, along the magnetic field and through the middle of a floor tile (m)."""


# The Point's stiff yaw servo multiplies a rounding error ninefold in every simulator step, so its worlds are matched anew
# before each frame; two Cars stay together by themselves.
@pytest.mark.parametrize(("name", "together"), [("PointGoal1", 1), ("CarGoal1", 40)])
def test_a_mirrored_world_does_what_mirrored_actions_say(name, together):
    worlds, mirror = moving(name, 3), Observer(TASKS[name], "both", Looks()).mirror
    actions = np.repeat(np.random.default_rng(0).uniform(-1, 1, (10, 2)), 4, axis=0)
    vectors, hazard = [], []
    for step, action in enumerate(actions):
        if step % together == 0:
            exchange(worlds)
        frame = worlds.advance(np.stack([action, mirror.action(action)]))
        ours, other = worlds.vectors()
        np.testing.assert_allclose(mirror.vector(ours), other, atol=1e-8)
        np.testing.assert_allclose(*frame.reward, atol=1e-9)
        np.testing.assert_array_equal(*frame.labels)
        assert not worlds.touching.any()
        vectors.append(ours)
        hazard.append(frame.labels[0, 0])
    assert 0 < sum(hazard) < len(hazard), "the robot enters or leaves a hazard"
    varied = np.ptp(vectors, axis=0) > 0.01
    assert varied[[0, 1, 3, 4, 8, 9, 10]].all(), "every sensor that a drive in the plane changes is put to the test"
    assert varied[12:].reshape(3, 16).sum(-1).min() >= 4


# Seeds of which the robot sees a goal and hazards, or these and a vase.
@pytest.mark.parametrize(("name", "seed", "cameras"), [("PointGoal1", 9, "front"), ("CarGoal1", 1, "front+back")])
def test_a_mirrored_world_looks_mirrored(name, seed, cameras):
    worlds = moving(name, seed)
    exchange(worlds)
    observer = Observer(worlds.task, "vision", Looks(cameras=cameras))
    pictures = observer.pictures(worlds).astype(int)
    difference = np.abs(observer.mirror.picture(pictures[0]) - pictures[1])
    # Samples within a pixel are not symmetric, and the edge of the floor is off by a tile.
    assert difference.mean() < 1.5
    assert (difference <= 2).mean() > 0.95
    assert np.abs(pictures[0] - pictures[1]).mean() > 3 * difference.mean()


def test_point_world_has_no_handedness():
    world = PointWorld(noise=(0.0, 0.0), sensed=2)
    ours, other = PointWorldEnv(world), PointWorldEnv(world)
    rng = np.random.default_rng(0)
    for seed in range(20):
        ours.reset(seed=seed)
        other.reset(seed=seed)
        # Beside a hazard, so that it is sensed, or beyond the wall.
        place = ours.state.hazards[0] + 0.25 if seed % 2 else np.array([1.6, 1.4])
        state = ours.state._replace(robot=np.concatenate([place, rng.normal(size=2)]).astype(np.float32))
        exchanged = [part * np.resize(FLIP[:2], part.shape[-1:]).astype(np.float32) for part in state if part.ndim]
        ours.state, other.state = state, state._replace(robot=exchanged[0], goals=exchanged[1], hazards=exchanged[2])
        action = rng.uniform(-1, 1, 2)
        (seen, reward, _, _, info), (twin, its, _, _, told) = ours.step(action), other.step(ours.mirror.action(action))
        np.testing.assert_allclose(ours.mirror.vector(seen), twin, atol=1e-6)
        assert reward == pytest.approx(its, abs=1e-6)
        assert info["labels"].tolist() == told["labels"].tolist()


def test_vector_environments_tell_their_mirror():
    point = make_vector("PointGoal1", 1, threads=1)
    assert point.mirror == Mirror((0, 1), (1.0, -1.0)), "without a vector there is nothing to exchange in one"
    car = make_vector("CarGoal1", 1, threads=1, observation="both")
    assert car.mirror.action_order == (1, 0)
    small = make_vector("PointWorld", 1)
    assert len(small.mirror.vector_sign) == small.single_observation_space.shape[0]
    assert make_vector("Grid", 1).mirror is None
    for envs in (point, car, small):
        hash(envs.mirror)
        envs.close()


def moving(name, seed):
    """Two worlds, the first in full motion just before a hazard."""
    worlds = Worlds(TASKS[name], 2)
    worlds.reset(0, np.random.default_rng(seed))
    for _ in range(20):
        worlds.advance(np.tile([0.4, 1.0], (2, 1)))
    course = worlds.qvel[0, :2] / np.linalg.norm(worlds.qvel[0, :2])
    worlds.hazards[0, 0] = worlds.robot_pos[0, :2] + 0.21 * course
    return worlds


def exchange(worlds):
    """Make the second world the mirror image of the first, in x = PLANE."""
    qpos, qvel, goal, hazards = worlds._data[0].qpos, worlds._data[0].qvel, worlds.goal[0], worlds.hazards[0]
    # Both start from no forces, since those of the first are not mirrored here.
    worlds.place(0, qpos.copy(), qvel.copy(), goal.copy(), {"hazard": hazards.copy()})
    mirrored = exchanged_place(goal), {"hazard": exchanged_place(hazards)}
    worlds.place(1, *exchanged_state(worlds.task, qpos, qvel), *mirrored)


def exchanged_place(xy):
    return xy * FLIP[:2] + [2 * PLANE, 0]


def exchanged_state(task, qpos, qvel):
    """Coordinates and velocities of the mirrored world; an axis or a rate of rotation is a pseudo-vector."""
    qpos, qvel, robot = qpos.copy(), qvel.copy(), task.robot
    free = [(robot.nq + 7 * i, robot.nv + 6 * i) for i in range(task.count(VASE))]
    if robot.free:
        free.append((0, 0))
        qpos[[7, 8]], qvel[[6, 7]] = qpos[[8, 7]], qvel[[7, 6]]
        qpos[11:13], qvel[8:11] = -qpos[11:13], -FLIP * qvel[8:11]
    else:
        qpos[:3] = *exchanged_place(qpos[:2]), np.pi - qpos[2]
        qvel[:3] = qvel[:3] * [-1, 1, -1]
    for at, rate in free:
        qpos[at : at + 2], qpos[at + 5 : at + 7] = exchanged_place(qpos[at : at + 2]), -qpos[at + 5 : at + 7]
        qvel[rate : rate + 6] = qvel[rate : rate + 6] * [*FLIP, *-FLIP]
    return qpos, qvel

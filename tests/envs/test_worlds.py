"""Bodies, sensors, labels and saved states against stated facts and MuJoCo itself."""

import mujoco
import numpy as np
import pytest

from ambs.envs.safety_gym.objects import HAZARD, VASE
from ambs.envs.safety_gym.robots import CAR, POINT, build_model, mjcf
from ambs.envs.safety_gym.tasks import TASKS
from ambs.envs.safety_gym.worlds import Worlds
from ambs.errors import UserError


def started(name, num=1, seed=0, **options):
    worlds = Worlds(TASKS[name], num, **options)
    for index in range(num):
        worlds.reset(index, np.random.default_rng(seed + index))
    return worlds


def alone(name="PointGoal1", vase=(1.4, 1.4), hazards=(1.4, -1.4)):
    """One world with the robot in the middle, facing +x, at rest."""
    worlds = Worlds(TASKS[name])
    task = worlds.task
    qpos = np.zeros(worlds.model.nq)
    qpos[: task.robot.nq] = task.robot.place(np.zeros(2), 0.0)
    vases = qpos[task.robot.nq :].reshape(-1, 7)
    vases[:, :4] = [*vase, 0.1 - 4e-5, 1.0]
    spots = {"hazard": np.tile(np.array(hazards), (task.count(HAZARD), 1))}
    worlds.place(0, qpos, np.zeros(worlds.model.nv), np.array([3.0, 0.0]), spots)
    return worlds


def drive(worlds, action, frames):
    return [worlds.advance(np.array([action], dtype=float)) for _ in range(frames)]


def test_masses_are_those_of_the_originals():
    point, car = build_model(POINT, ((VASE, 1),)), build_model(CAR, ((VASE, 1),))
    np.testing.assert_allclose(point.body("robot").mass, 0.0051888, rtol=1e-4)
    np.testing.assert_allclose(point.body("robot").inertia.min(), 1.842e-5, rtol=1e-3)
    np.testing.assert_allclose(car.body_subtreemass[car.body("robot").id], 0.030445, rtol=1e-4)
    np.testing.assert_allclose(point.body("vase0").mass, 8e-6, rtol=1e-6)


@pytest.mark.parametrize("push", [0.05, 1.0])
def test_the_point_reaches_its_top_speed_in_the_stated_time(push):
    worlds = alone("PointGoal0")
    speeds = []
    for _ in range(26 * 6):
        drive(worlds, (push, 0), 1)
        speeds.append(worlds.sensors()[0, 3])
    expected_force = min(0.05, push) * 0.3
    np.testing.assert_allclose(speeds[-1], expected_force / 0.01, rtol=0.01)
    assert abs(speeds[25] / (expected_force / 0.01) - (1 - np.exp(-1))) < 0.01, "time constant .52 s, 26 frames"


@pytest.mark.parametrize(("action", "rate"), [(0.05, 0.0), (0.2, 0.49), (0.5, 1.35), (1.0, 3.0)])
def test_the_point_turns_as_fast_as_the_original(action, rate):
    worlds = alone("PointGoal0")
    drive(worlds, (0, action), 20)
    start = worlds._data[0].qpos[2]
    drive(worlds, (0, action), 100)
    assert abs((worlds._data[0].qpos[2] - start) / 2.0 - rate) < 0.02


def test_the_car_drives_towards_its_front():
    worlds = alone("CarGoal0")
    drive(worlds, (1, 1), 60)
    assert abs(worlds.sensors()[0, 4] + 0.8) < 0.1, "about .8 m/s, along −y"


@pytest.mark.parametrize("name", ["PointGoal1", "PointGoal2", "CarGoal1"])
def test_sensors_are_those_of_mujoco(name):
    task = TASKS[name]
    kinds = ("accelerometer", "velocimeter", "gyro", "magnetometer")
    sensors = "".join(f'<{kind} site="robot"/>' for kind in kinds)
    model = mujoco.MjModel.from_xml_string(
        mjcf(task.robot, task.things).replace("<actuator>", f"<sensor>{sensors}</sensor><actuator>")
    )
    worlds, rng = started(name), np.random.default_rng(0)
    data = mujoco.MjData(model)
    for _ in range(30):
        worlds.advance(rng.uniform(-1, 1, (1, 2)))
        ours = worlds._data[0]
        mujoco.mj_resetData(model, data)
        data.qpos[:], data.qvel[:], data.ctrl[:] = ours.qpos, ours.qvel, ours.ctrl
        data.qacc_warmstart[:] = ours.qacc_warmstart
        mujoco.mj_forward(model, data)
        np.testing.assert_allclose(worlds.sensors()[0], data.sensordata, atol=1e-4)


def test_actions_are_clipped():
    one, other = alone(), alone()
    drive(one, (7.0, -3.0), 20)
    drive(other, (1.0, -1.0), 20)
    np.testing.assert_array_equal(one.robot_pos, other.robot_pos)


def test_reward_is_the_approach_plus_one_and_the_new_goal_costs_nothing():
    worlds = alone("PointGoal0")
    worlds.goal[0], worlds.distance[0] = (0.6, 0.0), 0.6
    frames = drive(worlds, (1, 0), 60)
    rewards = np.array([frame.reward[0] for frame in frames])
    reached = next(step for step, frame in enumerate(frames) if frame.reached[0])
    x = 0.6 - np.cumsum(rewards)[reached] + 1
    assert x <= 0.3
    assert 0.6 - np.cumsum(rewards)[reached - 1] > 0.3
    assert np.abs(np.delete(rewards, reached)).max() < 1.5 * 0.02 + 1e-6, "no jump when the goal moves"
    np.testing.assert_allclose(worlds.distance[0], np.linalg.norm(worlds.robot_pos[0, :2] - worlds.goal[0]))


@pytest.mark.parametrize(("offset", "inside"), [(0.1999, True), (0.2001, False)])
def test_a_hazard_is_a_disc_around_its_centre(offset, inside):
    assert alone(hazards=(0.0, offset)).labels()[0].tolist() == [inside, False, False]


def test_touching_and_moving_a_vase_are_labelled():
    worlds = alone(vase=(0.5, 0.0))
    seen = np.array([frame.labels[0] for frame in drive(worlds, (1, 0), 60)])
    first = int(seen[:, 1].argmax())
    assert seen[first, 1], "the robot never met the vase"
    assert not seen[:first].any()
    # Nose at x + .15, vase face at .4.
    assert seen[first:, 2].any()
    stock = Worlds(worlds.task, collision="stock")
    stock.set_state(alone(vase=(0.5, 0.0)).get_state())
    joined = np.array([frame.labels[0] for frame in drive(stock, (1, 0), 60)])
    np.testing.assert_array_equal(joined[:, 1], seen[:, 1] | seen[:, 2])
    assert (joined[:, 1] & ~seen[:, 1]).any()


def test_sleeping_vases_change_nothing_before_they_are_touched():
    awake = mujoco.MjData(build_model(POINT, ((VASE, 10),), sleep=False))
    worlds, rng = started("PointGoal2"), np.random.default_rng(0)
    awake.qpos[:] = worlds._data[0].qpos
    for _ in range(100):
        action = rng.uniform(-1, 1, 2)
        worlds.advance(action[None])
        awake.ctrl[:] = action
        mujoco.mj_step(build_model(POINT, ((VASE, 10),), sleep=False), awake, 10)
        if worlds.touching[0]:
            break
        np.testing.assert_array_equal(worlds._data[0].qpos[:3], awake.qpos[:3])
    else:
        assert not worlds.touching[0]


@pytest.mark.parametrize("name", ["PointGoal1", "PointGoal2", "CarGoal1"])
def test_a_saved_state_goes_on_bit_by_bit(name):
    rng = np.random.default_rng(0)
    worlds = started(name, num=3, seed=5)
    for index in range(3):
        # A vase in front of the nose, so that there are contacts, and sleepers beside them.
        worlds._data[index].qpos[worlds.task.robot.nq : worlds.task.robot.nq + 2] = worlds.robot_pos[index, :2] + [
            0.3,
            0,
        ]
    actions = rng.uniform(-1, 1, (120, 3, 2))
    actions[..., 0] = np.abs(actions[..., 0])
    touched = 0
    for start in (0, 7, 40):
        for action in actions[start : start + 20]:
            worlds.advance(action)
        state = worlds.get_state()
        assert all(isinstance(array, np.ndarray) and array.dtype != object for array in state.values())
        copy = Worlds(worlds.task, 3)
        copy.set_state({field: array.copy() for field, array in state.items()})
        # A goal within reach, so that random numbers are drawn.
        for both in (worlds, copy):
            both.goal[:] = worlds.robot_pos[:, :2]
        for action in actions[:60]:
            one, two = worlds.advance(action), copy.advance(action)
            np.testing.assert_array_equal(one.reward, two.reward)
            np.testing.assert_array_equal(one.labels, two.labels)
            touched += int(one.labels[:, 1].sum())
        for field, array in worlds.get_state().items():
            np.testing.assert_array_equal(array, copy.get_state()[field], err_msg=field)
    assert touched


def test_observing_does_not_change_the_course():
    with_sensors, without = started("CarGoal1", seed=3), started("CarGoal1", seed=3, accelerations=False)
    rng = np.random.default_rng(0)
    for _ in range(60):
        action = rng.uniform(-1, 1, (1, 2))
        with_sensors.advance(action)
        without.advance(action)
    np.testing.assert_array_equal(with_sensors._data[0].qpos, without._data[0].qpos)


def test_a_state_of_another_task_is_refused():
    with pytest.raises(UserError, match="state field 'physics' must have shape"):
        started("PointGoal1").set_state(started("PointGoal2").get_state())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"collision": "bump"}, 'collision must be "contact" or "stock", got \'bump\''),
        ({"frame_skip": -1}, "frame_skip must be a whole number of at least 1, got -1"),
        ({"threads": 0}, "threads must be a whole number of at least 1, got 0"),
    ],
)
def test_bad_options_get_a_sentence(options, message):
    with pytest.raises(UserError, match=message):
        Worlds(TASKS["PointGoal1"], **options)

"""Many worlds in threads: the same as one by one, frame by frame, also when something breaks."""

import numpy as np
import pytest

from ambs.envs import TooManyFaults, make, make_vector
from ambs.errors import UserError

QUIET = {"observation": "vector"}


def stepped_alone(name, seed, actions, repeat):
    """Frames of single environments, the way a loop would do it: rewards, labels and the last observations."""
    env = make(name, **QUIET).unwrapped
    env.reset(seed=seed)
    for action in actions:
        frames = [env.step(action) for _ in range(repeat)]
        yield frames[-1][0], [frame[1] for frame in frames], [frame[4]["labels"] for frame in frames]


@pytest.mark.parametrize("name", ["PointGoal2", "CarGoal1"])
@pytest.mark.parametrize("threads", [1, 3])
def test_it_does_what_single_environments_do(name, threads):
    repeat, rng = 2, np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (25, 4, 2))
    actions[..., 0] = 1.0
    envs = make_vector(name, 4, action_repeat=repeat, threads=threads, **QUIET)
    envs.reset(seed=[11, 12, 13, 14])
    alone = [stepped_alone(name, 11 + index, actions[:, index], repeat) for index in range(4)]
    for action in actions:
        observations, rewards, _, _, infos = envs.step(action)
        for index, single in enumerate(alone):
            observation, frame_rewards, frame_labels = next(single)
            np.testing.assert_array_equal(observations[index], observation)
            np.testing.assert_array_equal(infos["frame_rewards"][index], frame_rewards)
            np.testing.assert_array_equal(infos["frame_labels"][index], frame_labels)
            np.testing.assert_allclose(rewards[index], sum(frame_rewards))
    envs.close()


def test_episodes_end_in_the_middle_of_a_repeat_and_start_at_the_next_step():
    envs = make_vector("PointGoal0", 2, action_repeat=3, max_frames=7, threads=1, **QUIET)
    first, infos = envs.reset(seed=0)
    assert infos["fresh"].all()
    valid, fresh, ends = [], [], []
    for _ in range(5):
        _, _, terminated, truncated, infos = envs.step(np.zeros((2, 2)))
        valid.append(infos["frame_valid"][0].tolist())
        fresh.append(infos["fresh"][0])
        ends.append(truncated[0])
        assert not terminated.any()
    yes, no = [True] * 3, [False] * 3
    assert valid == [yes, yes, [True, False, False], no, yes]
    assert fresh == [False, False, False, True, False]
    assert ends == [False, False, True, False, False]
    assert (envs.step(np.zeros((2, 2)))[0][:, 12:] != first[:, 12:]).any(), "a new episode has a new layout"


def test_violations_are_counted_frame_by_frame():
    envs = make_vector("PointGoal1", 1, action_repeat=4, threads=1, **QUIET)
    envs.reset(seed=0)
    # A hazard ahead at .205 from the robot, which enters it within the first frames from rest.
    heading = envs.worlds.robot_mat[0, :2, 0]
    envs.worlds.hazards[0] = 5.0
    envs.worlds.hazards[0, 0] = envs.worlds.robot_pos[0, :2] + 0.203 * heading
    *_, infos = envs.step(np.array([[1.0, 0.0]]))
    labels = infos["frame_labels"][0, :, 0]
    assert not labels[0]
    assert labels[-1]
    np.testing.assert_array_equal(infos["frame_violations"][0], labels)
    assert infos["cost"].tolist() == [1.0]


def test_a_broken_world_is_reported_and_replaced_while_the_others_go_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    envs, whole = (make_vector("PointGoal1", 3, threads=2, max_faults=2, **QUIET) for _ in range(2))
    rng = np.random.default_rng(0)
    envs.reset(seed=0)
    whole.reset(seed=0)
    for step in range(20):
        actions = rng.uniform(-1, 1, (3, 2))
        broken = actions.copy()
        if step == 4:
            envs.worlds._data[1].qpos[0] = np.nan
        if step == 9:
            broken[2, 1] = np.nan
        expected = whole.step(actions)
        observations, rewards, terminated, truncated, infos = envs.step(broken)
        assert np.isfinite(observations).all()
        assert np.isfinite(rewards).all()
        np.testing.assert_array_equal(observations[0], expected[0][0])
        if step in (4, 9):
            index = 1 if step == 4 else 2
            (fault,) = infos["faults"]
            assert (fault.env, fault.step) == (index, step + 1)
            assert ("BADQPOS" if step == 4 else "not finite") in fault.reason
            assert truncated.tolist() == [index == env for env in range(3)]
            assert rewards[index] == 0
        else:
            assert infos["faults"] == ()
            assert not truncated.any()
            assert infos["fresh"].tolist() == [False, step == 5, step == 10]
        assert not terminated.any()
    with pytest.raises(TooManyFaults, match=r"3 faults, and max_faults is 2; .*environment 0, step 21: the action"):
        envs.step(np.full((3, 2), [[np.nan, 0], [0, 0], [0, 0]]))


def test_a_saved_state_goes_on_bit_by_bit():
    options = {"action_repeat": 2, "max_frames": 30, "threads": 1, **QUIET}
    envs, copy = (make_vector("PointGoal2", 3, **options) for _ in range(2))
    rng = np.random.default_rng(0)
    envs.reset(seed=0)
    copy.reset(seed=9)
    for _ in range(15):
        seen = envs.step(rng.uniform(-1, 1, (3, 2)))[0]
    np.testing.assert_array_equal(copy.set_state(envs.get_state()), seen)
    for _ in range(40):
        actions = rng.uniform(-1, 1, (3, 2))
        one, two = envs.step(actions), copy.step(actions)
        for left, right in zip(one[:4], two[:4], strict=True):
            np.testing.assert_array_equal(left, right)
        np.testing.assert_array_equal(one[4]["frame_labels"], two[4]["frame_labels"])


def test_pictures_come_in_one_batch_and_are_those_of_single_environments():
    envs = make_vector("PointGoal1", 2, size=32, samples=1, threads=1)
    images, _ = envs.reset(seed=[0, 1])
    assert (images.shape, images.dtype) == ((2, 32, 32, 3), np.uint8)
    alone = make("PointGoal1", size=32, samples=1).reset(seed=1)[0]
    assert np.abs(images[1].astype(int) - alone).max() <= 1


def test_a_second_camera_looks_back():
    envs = make_vector("PointGoal1", 1, size=32, samples=1, threads=1, cameras="front+back")
    images, _ = envs.reset(seed=1)
    assert images.shape[1:] == envs.single_observation_space.shape == (32, 32, 6)
    worlds = envs.worlds
    pictures = []
    for way in (900.0, 1.0, -1.0):
        worlds.goal[0] = worlds.robot_pos[0, :2] + way * worlds.robot_mat[0, :2, 0]
        pictures.append(envs.observer.pictures(worlds)[0])
    nowhere, ahead, behind = pictures
    assert (ahead != nowhere).any((0, 1)).tolist() == [True] * 3 + [False] * 3
    assert (behind != nowhere).any((0, 1)).tolist() == [False] * 3 + [True] * 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make_vector("PointGoal1", 0), "num_envs must be a whole number from 1 to 1000000, got 0"),
        (
            lambda: make_vector("PointGoal1", 2, action_repeat=0),
            "action_repeat must be a whole number of at least 1, got 0",
        ),
        (lambda: make_vector("PointGoal1", 2, max_faults=-1), "max_faults must be a whole number of at least 0"),
        (lambda: make_vector("Pong", 2), "unknown environment 'Pong'"),
        (lambda: make_vector("PointGoal1", 2, **QUIET).reset(seed=[1]), "there must be 2 seeds"),
        (lambda: make_vector("PointGoal1", 2, **QUIET).step(np.zeros((2, 2))), "call reset"),
    ],
)
def test_bad_input_gets_a_sentence(call, message):
    with pytest.raises(UserError, match=message):
        call()


def test_actions_of_the_wrong_shape_are_refused():
    envs = make_vector("PointGoal1", 2, threads=1, **QUIET)
    envs.reset(seed=0)
    with pytest.raises(UserError, match=r"actions must have shape \(2, 2\), got \(2, 3\)"):
        envs.step(np.zeros((2, 3)))


@pytest.mark.slow
def test_a_million_steps_leak_nothing_and_hide_nothing():
    resource = pytest.importorskip("resource")
    envs = make_vector("PointGoal2", 8, max_faults=0, **QUIET)
    envs.reset(seed=0)
    rng = np.random.default_rng(0)
    used = []
    for step in range(125_000):
        observations, rewards, _, _, infos = envs.step(rng.uniform(-1, 1, (8, 2)))
        assert np.isfinite(rewards).all()
        assert infos["faults"] == ()
        if step % 12_500 == 12_499:
            assert np.isfinite(observations).all()
            used.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    assert used[-1] <= 1.05 * used[0], used

"""Small worlds one after the other: what single ones do, by the same names and options as the large ones."""

import numpy as np
import pytest

from ambs.envs import make, make_vector
from ambs.envs.worlds.grid import Grid
from ambs.envs.worlds.point_world import PointWorld
from ambs.errors import UserError

SHORT = {"PointWorld": {"world": PointWorld(episode_steps=9)}, "Grid": {"grid": Grid(episode_steps=9)}}


def actions_for(envs, steps):
    envs.action_space.seed(0)
    return [envs.action_space.sample() for _ in range(steps)]


@pytest.mark.parametrize("name", SHORT)
def test_it_does_what_single_environments_do(name):
    envs = make_vector(name, 3, action_repeat=2)
    envs.reset(seed=[4, 5, 6])
    singles = [make(name) for _ in range(3)]
    for seed, single in zip((4, 5, 6), singles, strict=True):
        single.reset(seed=seed)
    # The grid's goal is eight moves away.
    for actions in actions_for(envs, 20 if name == "PointWorld" else 3):
        observations, rewards, terminated, truncated, infos = envs.step(actions)
        assert not (terminated | truncated).any()
        for index, single in enumerate(singles):
            frames = [single.step(actions[index]) for _ in range(2)]
            np.testing.assert_array_equal(observations[index], frames[-1][0])
            assert infos["frame_rewards"][index].tolist() == [frame[1] for frame in frames]
            np.testing.assert_array_equal(infos["frame_labels"][index], [frame[4]["labels"] for frame in frames])
            assert infos["frame_violations"][index].tolist() == [frame[4]["cost"] > 0 for frame in frames]
            assert rewards[index] == pytest.approx(sum(frame[1] for frame in frames))


@pytest.mark.parametrize("name", SHORT)
def test_a_saved_state_goes_on_bit_by_bit(name):
    envs, copy = (make_vector(name, 2, action_repeat=2, **SHORT[name]) for _ in range(2))
    envs.reset(seed=0)
    plan = actions_for(envs, 20)
    for actions in plan[:7]:
        seen = envs.step(actions)[0]
    np.testing.assert_array_equal(copy.set_state(envs.get_state()), seen)
    for actions in plan[7:]:
        one, two = envs.step(actions), copy.step(actions)
        for left, right in zip(one[:4], two[:4], strict=True):
            np.testing.assert_array_equal(left, right)
        for key in ("frame_labels", "frame_rewards", "labels", "episode"):
            np.testing.assert_array_equal(one[4][key], two[4][key])
    assert (one[4]["episode"] == 3).all()


def test_a_number_that_is_no_action_is_a_fault():
    envs = make_vector("Grid", 2)
    first, _ = envs.reset(seed=0)
    seen, _, _, truncated, infos = envs.step(np.array([9, 4]))
    assert "the action is none of the environment's" in str(infos["faults"][0])
    assert truncated.tolist() == [True, False]
    np.testing.assert_array_equal(seen, first)


def test_a_reset_without_a_seed_goes_on():
    envs, other = make_vector("PointWorld", 2), make_vector("PointWorld", 2)
    envs.reset(seed=3)
    second, infos = envs.reset()
    assert infos["episode"].tolist() == [1, 1]
    other.reset(seed=3)
    mixed, infos = other.reset(seed=[None, 3])
    assert infos["episode"].tolist() == [1, 0]
    np.testing.assert_array_equal(mixed[0], second[0])
    np.testing.assert_array_equal(mixed[1], make("PointWorld").reset(seed=3)[0])
    assert (envs.reset(seed=3)[0] != make_vector("PointWorld", 2).reset()[0]).any()


def test_layouts_are_the_same_whatever_was_done_before():
    """In threads, where an action that is not finite cuts an episode short."""
    starts = []
    for cut in (False, True):
        envs = make_vector("PointGoal1", 2, observation="vector", max_frames=4, threads=1, max_faults=100)
        envs.reset(seed=7)
        found = {(env, 0): envs.worlds.hazards[env].copy() for env in range(2)}
        for number in range(11):
            actions = np.zeros((2, 2))
            actions[0, 0] = np.nan if cut and number % 2 else 0
            infos = envs.step(actions)[-1]
            for env in np.flatnonzero(infos["fresh"]).tolist():
                found[env, int(infos["episode"][env])] = envs.worlds.hazards[env].copy()
        envs.close()
        starts.append(found)
    assert len(starts[0]) < len(starts[1])
    for place, hazards in starts[0].items():
        np.testing.assert_array_equal(hazards, starts[1][place])
    layouts = np.unique(list(starts[1].values()), axis=0)
    assert len(layouts) == len(starts[1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make_vector("Grid", 2, observation="vision"), r"Grid-v0 has no pictures.*\"vector\", got 'vision'"),
        (lambda: make_vector("PointWorld", 2, observation="both"), "has no pictures"),
        (lambda: make_vector("PointWorld", 2, spec="!hazzard"), "unknown atom 'hazzard'.*did you mean 'hazard'"),
        (lambda: make_vector("PointWorld", 2, wrold=1), "has no option 'wrold'; it has .*did you mean 'world'"),
        (lambda: make_vector("PointGoal1", 2, siz=64), "PointGoal1 has no option 'siz'.*did you mean 'size'"),
        (lambda: make_vector("CartPole-v1", 2), "CartPole-v1 is none of our environments; pass a factory"),
        (lambda: make_vector("Grid", 2).reset(seed=-1), "a seed must be a whole number from 0 to"),
        (lambda: make_vector("Grid", 2).reset(seed=[1, 2, 3]), "there must be 2 seeds"),
        (lambda: make_vector("Grid", 2).step(np.zeros(2)), "call reset"),
    ],
)
def test_bad_input_gets_a_sentence(call, message):
    with pytest.raises(UserError, match=message):
        call()

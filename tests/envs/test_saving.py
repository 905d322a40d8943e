"""Which environments can be saved, and that MuJoCo's go on from a saved state exactly as they went on before."""

import sys
import types

import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers

from ambs.envs import with_labels
from ambs.envs.saving import BOTH, can_save, missing
from tests.envs.counting import counting


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch, tmp_path):
    """Gymnasium's MuJoCo environments want imageio for films alone, and MuJoCo leaves its log where it is called from."""
    monkeypatch.chdir(tmp_path)
    if "imageio" not in sys.modules:
        monkeypatch.setitem(sys.modules, "imageio", types.ModuleType("imageio"))


def labelled(name, wrap=lambda env: env, **options):
    env = wrap(gymnasium.make(name, disable_env_checker=True, **options))
    return with_labels(env, labels=lambda _, info: {"fast": info.get("x_velocity", 0.0) > 1.0}, spec="!fast")


def played(env, actions):
    return [(*step[:4], step[4]["labels"].tolist(), step[4]["cost"]) for step in map(env.step, actions)]


@pytest.mark.parametrize("name", ["HalfCheetah-v5", "Ant-v5"])
def test_mujoco_goes_on_exactly(name):
    """From step 5 of 12, in another copy; the ant's reward is read off a position that is one move old."""
    first, second = labelled(name, max_episode_steps=12), labelled(name, max_episode_steps=12)
    actions = np.random.default_rng(0).uniform(-1, 1, (12, *first.action_space.shape)).astype(np.float32)
    first.reset(seed=3)
    played(first, actions[:5])
    state = first.get_wrapper_attr("get_state")()
    expected = played(first, actions[5:])
    second.reset(seed=4)
    second.get_wrapper_attr("set_state")(state)
    found = played(second, actions[5:])
    for one, two in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one[0], two[0])
        assert one[1:] == two[1:]
    assert [step[3] for step in found] == [False] * 6 + [True]
    # The layouts of later episodes come from the saved generator.
    np.testing.assert_array_equal(first.reset()[0], second.reset()[0])


def test_what_is_taken_for_ours():
    cheetah = gymnasium.make("HalfCheetah-v5")
    assert cheetah.has_wrapper_attr("set_state")  # Of positions and velocities.
    assert missing(cheetah) == missing(gymnasium.make("CartPole-v1")) == BOTH
    assert not can_save(counting()())
    assert can_save(counting(saves=True)())
    assert can_save(labelled("HalfCheetah-v5", lambda env: wrappers.RescaleAction(env, -2, 2)))
    # Its memory would be lost.
    assert not can_save(labelled("HalfCheetah-v5", lambda env: wrappers.FrameStackObservation(env, 2)))
    assert not can_save(labelled("CartPole-v1"))

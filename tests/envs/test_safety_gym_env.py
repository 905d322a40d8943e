"""The Gymnasium environments over single worlds."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from ambs.envs import make, registered
from ambs.errors import UserError
from ambs.spec import parse_formula

IDS = ["ambs/PointGoal0-v0", "ambs/PointGoal1-v0", "ambs/PointGoal2-v0", "ambs/CarGoal0-v0", "ambs/CarGoal1-v0"]


def test_all_ids_are_registered():
    assert set(IDS) <= set(registered())


@pytest.mark.parametrize("env_id", IDS)
def test_gymnasiums_checker_finds_nothing(env_id):
    check_env(gymnasium.make(env_id, observation="vector").unwrapped, skip_render_check=True)


def test_gymnasiums_checker_finds_nothing_in_pictures():
    env = gymnasium.make("ambs/PointGoal0-v0", observation="both", size=32, view_size=32, view="top_down", samples=1)
    check_env(env.unwrapped)


def test_pictures_have_the_size_asked_for():
    env = make("CarGoal0", size=32, render_mode="rgb_array", view="chase", view_size=48, samples=1)
    image, _ = env.reset(seed=0)
    assert (image.shape, image.dtype) == ((32, 32, 3), np.uint8)
    assert image.std() > 5
    assert env.render().shape == (48, 48, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"observation": "pixels"}, "observation must be 'vision' or 'vector' or 'both', got 'pixels'"),
        ({"frame_skip": -2}, "frame_skip must be a whole number of at least 1, got -2"),
        ({"size": 0}, "size, in pixels, must be a whole number from 1 to 4096, got 0"),
        ({"palette": "pastel"}, "palette must be 'safety_gymnasium' or 'openai', got 'pastel'"),
        ({"renderer": "vulkan"}, "renderer must be 'rays' or 'mujoco', got 'vulkan'"),
        ({"samples": 3}, "samples must be 1 or 4, got 3"),
        ({"cameras": "rear"}, "cameras must be 'front' or 'front\\+back', got 'rear'"),
        ({"view": "side"}, "view must be 'chase' or 'top_down', got 'side'"),
        ({"spec": "!hazzard"}, "unknown atom 'hazzard'.*did you mean 'hazard'"),
    ],
)
def test_bad_options_get_a_sentence(options, message):
    with pytest.raises(UserError, match=message):
        make("PointGoal1", **options)


def test_an_unknown_id_gets_a_sentence():
    with pytest.raises(
        UserError, match=r"unknown environment 'PointGoal7'; ours are ambs/PointGoal0-v0, .*did you mean"
    ):
        make("PointGoal7")


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ([np.nan, 0], "an action must be finite"),
        ([0, np.inf], "an action must be finite"),
        ([0, 0, 0], r"an action must have shape \(2,\), got \(3,\)"),
        (None, "an action must"),
        ("left", "an action must be two numbers"),
    ],
)
def test_a_bad_action_gets_a_sentence(action, message):
    env = make("PointGoal1", observation="vector").unwrapped
    env.reset(seed=0)
    with pytest.raises(UserError, match=message):
        env.step(action)


def test_an_episode_is_cut_after_a_thousand_frames_and_not_before():
    env = make("PointGoal0", observation="vector").unwrapped
    env.reset(seed=0)
    ends = [env.step(np.zeros(2))[2:4] for _ in range(1000)]
    assert ends == [(False, False)] * 999 + [(False, True)]
    with pytest.raises(UserError, match="call reset"):
        env.step(np.zeros(2))


def test_cost_is_what_the_formula_says_of_the_labels():
    env = make("PointGoal2", observation="vector", collision="stock").unwrapped
    assert env.psi == parse_formula("!hazard & !collision")
    _, info = env.reset(seed=7)
    costs = []
    for _ in range(150):
        hazard, collision, moving = info["labels"]
        assert info["cost"] == float(hazard or collision)
        assert collision or not moving
        costs.append(info["cost"])
        info = env.step(np.array([1.0, 0.0]))[-1]
    assert {0.0, 1.0} == set(costs), "the robot must meet something on its way"
    other = make("PointGoal2", observation="vector", spec="hazard | !hazard").unwrapped
    assert other.reset(seed=0)[1]["cost"] == 0.0


def test_the_same_seed_gives_the_same_episode_and_another_one_does_not():
    env = make("CarGoal1", observation="vector")
    first, again, other = (env.reset(seed=seed)[0] for seed in (4, 4, 5))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_a_fault_in_the_simulation_is_told_and_ends_the_episode(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = make("PointGoal1", observation="vector").unwrapped
    env.reset(seed=0)
    before = env.step(np.ones(2))[0]
    env.worlds._data[0].qvel[0] = np.nan
    with pytest.warns(RuntimeWarning, match="PointGoal1, frame 2: MuJoCo warned of BADQVEL"):
        observation, reward, terminated, truncated, info = env.step(np.ones(2))
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert "BADQVEL" in info["fault"]
    np.testing.assert_array_equal(observation, before)
    assert np.isfinite(env.reset()[0]).all()


def test_human_rendering_needs_a_display(monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    from ambs.envs.safety_gym.env import SafetyGym

    with pytest.raises(UserError, match="needs a display"):
        SafetyGym("PointGoal1", render_mode="human")


def test_a_window_needs_a_display(monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    with pytest.raises(UserError, match="needs a display"):
        make("PointGoal1", render_mode="human")

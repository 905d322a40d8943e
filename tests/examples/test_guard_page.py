"""Every line of "Shield my Stable-Baselines3 policy" runs, and of its scripts: with a PPO replayed by NumPy, or a real one."""

import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from ambs.config.resolve import changed, resolve
from ambs.envs.worlds.point_world import PointWorld
from ambs.storage.episodes import read_episode
from tests.tiny import tiny_sizes

ROOT = Path(__file__).parents[2]
SHORT = {
    "model": {"standardise": False},
    "agent": {"imagination": 2, "imagine_from": 4},
    "shield": {"traces": 64, "chunk": 64, "horizon": 2},
    "training": {"frames": 48, "envs": 2, "prefill": 24, "batch": 2, "length": 4, "train_ratio": 8.0, "updates_per_call": 1},
    "calibration": {"every": 0},
}  # fmt: skip


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.DOTALL | re.MULTILINE)


def as_ppo():
    """What stands in for Stable-Baselines3 where it is not installed: its loading, and its evaluation as it asks a policy."""
    import policies

    class PPO:
        def __init__(self):
            self.replayed = policies.ppo()

        load = staticmethod(lambda path, **_: PPO())

        def predict(self, observation, *given, **named):
            return self.replayed.predict(observation[..., :9], *given, **named)

    def evaluate_policy(model, env, n_eval_episodes=10, deterministic=True):
        returns = []
        for episode in range(n_eval_episodes):
            (seen, _), state, start, ended = env.reset(seed=episode), None, np.ones(1, bool), False
            returns.append(0.0)
            while not ended:
                action, state = model.predict(seen[None], state=state, episode_start=start, deterministic=deterministic)
                seen, reward, terminated, truncated, _ = env.step(action[0])
                returns[-1], start, ended = returns[-1] + reward, np.zeros(1, bool), terminated or truncated
        return np.mean(returns), np.std(returns)

    found = {name: types.ModuleType(name) for name in ("", ".common", ".common.evaluation", ".common.env_util")}
    found[""].PPO, found[".common.evaluation"].evaluate_policy = PPO, evaluate_policy
    found[".common.env_util"].make_vec_env = lambda make, **_: make()
    return {f"stable_baselines3{name}": module for name, module in found.items()}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder, the examples on the path, episodes of twelve steps and a training of a few."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "examples")
    import world

    def shortly(*given, changes, **named):
        return changed(resolve(*given, changes={name: changes[name] for name in ("env", "seed")}, **named), SHORT)

    monkeypatch.setattr(world, "PointWorld", lambda sensed: PointWorld(sensed=sensed, episode_steps=12))
    monkeypatch.setattr("ambs.training.guard.resolve", shortly)
    monkeypatch.setattr("ambs.training.guard.changed", lambda config, _frames: config)
    with tiny_sizes():
        yield monkeypatch


def run_page():
    names = {}
    for code in blocks("guard.md"):
        exec(compile(code, "docs/guard.md", "exec"), names)
    return names


@pytest.mark.learns
@pytest.mark.process
@pytest.mark.filterwarnings("ignore:the environment cannot be saved")
def test_the_page_and_the_scripts_run_line_by_line(place, capsys):
    for name, module in as_ppo().items():
        place.setitem(sys.modules, name, module)
    names = run_page()
    assert set(names["comparison"].sides) == {"off", "on"}
    assert "shield on" in capsys.readouterr().out
    assert np.isfinite(names["mean_return"])
    assert names["info"]["shield"].reason in names["guard"].counts
    import guard_function
    import guard_sb3

    Path("ppo.zip").touch()
    for script in (guard_function, guard_sb3):
        place.setattr(sys, "argv", [script.__name__, "--episodes", "2"])
        script.main()
        assert "shield on" in (told := capsys.readouterr().out), script.__name__
    assert "Stable-Baselines3 says: return" in told


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_page_runs_with_stable_baselines_itself(place):
    stable_baselines3 = pytest.importorskip("stable_baselines3")
    import world

    stable_baselines3.PPO("MlpPolicy", world.make_env(), n_steps=64, device="cpu").learn(64).save("ppo.zip")
    assert np.isfinite(run_page()["mean_return"])


def test_the_file_of_the_page_is_an_episode(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("episodes.md")
    exec(compile(code, "docs/episodes.md", "exec"), {})
    assert read_episode(tmp_path / "episode.npz").steps == 3

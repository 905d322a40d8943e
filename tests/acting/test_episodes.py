"""What is played is what is written: in a world whose every number is known beforehand."""

import gymnasium as gym
import numpy as np
import pytest

from ambs.acting.episodes import record_episodes
from ambs.cli import main as cli
from ambs.envs import make_vector, with_labels
from ambs.errors import UserError
from ambs.storage.episodes import read_episode


class Walk(gym.Env):
    """The observation is the sum of all actions so far and the number of steps; ends by itself when that sum exceeds 3."""

    observation_space = gym.spaces.Box(-100, 100, (2,), np.float64)
    action_space = gym.spaces.Box(-2.0, 2.0, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = np.zeros(2)
        return self.state.copy(), {}

    def step(self, action):
        self.state = self.state + np.array([float(action[0]), 1])
        return self.state.copy(), 10.0 * self.state[0], bool(self.state[0] > 3), bool(self.state[1] >= 20), {}


class Broken(Walk):
    """Cannot be started."""

    def reset(self, *, seed=None, options=None):
        raise RuntimeError("no battery")


def make():
    return with_labels(Walk(), labels=lambda o, i: {"far": bool(o[0] > 1.5)}, spec="!far")


@pytest.fixture
def envs():
    made = make_vector(make, 1, serial=True)
    yield made
    made.close()


def ask(observation):
    """One each time, save in the third step, where it fails; then far too much."""
    return [np.nan] if observation[1] == 2 else [1.0] if observation[1] < 3 else [9.0]


def test_an_episode_is_written_as_it_was_played(envs, tmp_path):
    (told,) = record_episodes(envs, ask, tmp_path / "logs", 1, env="walk:make", called="ask")
    episode = read_episode(told.path)
    assert told.path.name == "episode-000000.npz"
    assert episode.observation[""].tolist() == [[0, 0], [1, 1], [2, 2], [2, 3], [4, 4]]
    assert episode.action.ravel().tolist() == [1, 1, 0, 2]
    np.testing.assert_array_equal(episode.proposed.ravel(), [1, 1, np.nan, 2])
    assert episode.reward.tolist() == [10, 20, 20, 40]
    assert episode.labels.ravel().tolist() == [False, False, True, True, True]
    assert (episode.terminated, episode.truncated) == (True, False)
    assert [bound.tolist() for bound in episode.action_bounds] == [[-2], [2]]
    assert [bound.tolist() for bound in episode.observation_bounds] == [[-100, -100], [100, 100]]
    assert (episode.env, episode.policy, episode.spec) == ("walk:make", "ask", "!far")
    assert (told.steps, told.total_reward, told.violations, told.failed) == (4, 90, 3, 1)
    assert told.why == "the proposed action is not finite"


def test_what_is_there_is_not_written_again_and_worlds_stay_the_same(envs, tmp_path):
    """Of three episodes the second is deleted: it comes again as it was."""
    first = [one.path for one in record_episodes(envs, None, tmp_path, 3)]
    before = [read_episode(path) for path in first]
    first[1].unlink()
    assert [one.path for one in record_episodes(envs, None, tmp_path, 3)] == [first[1]]
    np.testing.assert_array_equal(read_episode(first[1]).action, before[1].action)
    assert not np.array_equal(before[0].action[:3], before[1].action[:3])
    assert all(np.abs(episode.action).max() <= 2 for episode in before)


def test_who_is_stopped_keeps_what_was_played(envs, tmp_path):
    calls = iter([False] * 6 + [True] * 9)
    (told,) = record_episodes(envs, lambda o: [0.0], tmp_path, 5, stop=lambda: next(calls))
    episode = read_episode(told.path)
    assert (episode.steps, episode.truncated) == (5, True)


def test_exploring_executes_other_actions_than_are_proposed(envs, tmp_path):
    """Spells of eight steps; what is proposed is written all the same."""
    told = list(record_episodes(envs, lambda o: [-0.5], tmp_path, 12, explore=0.5))
    episodes = [read_episode(one.path) for one in told]
    others = np.concatenate([np.diff((one.action != one.proposed).ravel()[:16], prepend=False) for one in episodes])
    assert all((one.proposed == -0.5).all() for one in episodes)
    changed = np.mean([(one.action != one.proposed).mean() for one in episodes])
    assert 0.2 < changed < 0.8
    assert others.sum() <= 2 * len(episodes)
    with pytest.raises(UserError, match="explore must lie in"):
        next(record_episodes(envs, None, tmp_path, 1, explore=2.0))


def test_a_policy_that_never_proposes_anything_is_refused(envs, tmp_path):
    with pytest.raises(UserError, match="proposed nothing in 20 steps: the policy raised ZeroDivisionError"):
        next(record_episodes(envs, lambda o: 1 / 0, tmp_path, 1))
    assert not list(tmp_path.iterdir())


def test_a_world_that_cannot_be_started_is_refused(tmp_path):
    envs = make_vector(lambda: with_labels(Broken(), labels=lambda o, i: {"far": False}, spec="!far"), 1, serial=True)
    with pytest.raises(UserError, match="the environment cannot start an episode: RuntimeError in a reset: no battery"):
        list(record_episodes(envs, ask, tmp_path / "logs", 1))
    for wrong, sentence in (({"episodes": 0}, "episodes must be"), ({"episodes": 1, "seed": -1}, "seed must be")):
        with pytest.raises(UserError, match=sentence):
            list(record_episodes(envs, ask, tmp_path / "logs", **wrong))
    envs.close()


def test_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def still():\n    return lambda o: [0.0, 0.0]\n")
    words = ["record-episodes", "PointWorld", "--policy", "mine.py:still", "--episodes", "2", "--out", "logs"]
    with pytest.raises(SystemExit) as stop:
        cli.main(words)
    assert stop.value.code == 0
    assert "2 episodes written, 2 of 2 in logs" in capsys.readouterr().out
    episode = read_episode(tmp_path / "logs" / "episode-000001.npz")
    assert (episode.steps, episode.atoms, episode.env) == (400, ("hazard", "outside"), "PointWorld")
    assert not episode.action.any()

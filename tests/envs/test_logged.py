"""Logged episodes play as they were logged."""

import numpy as np

from ambs.envs.vector.logged import LoggedVectorEnv
from ambs.storage.episodes import Episode


def episode(number, steps, *, terminated=False, reward=True):
    """The observation is (number of the episode, step); the action a tenth of the latter, and the proposal its negative."""
    at = np.arange(steps + 1)
    action = at[:-1, None] / 10
    return Episode(
        observation={"": np.stack([np.full(steps + 1, number), at], axis=1)},
        action=action,
        labels=np.stack([at == steps, at < 0], axis=1),
        atoms=("end", "never"),
        terminated=terminated,
        truncated=not terminated,
        proposed=-action,
        reward=100.0 * number + at[1:] if reward else None,
    )


def test_what_was_logged_happens_whatever_is_done():
    """Dealt by length: episode 3 (4 steps) to the first, 2 (3 steps) to the second, and 1 to the second, who has less."""
    envs = LoggedVectorEnv([episode(1, 2), episode(2, 3), episode(3, 4, terminated=True)], 2, spec="!end")
    assert envs.rows == 7
    seen, infos = envs.reset(seed=5)
    rows = [(seen, np.zeros(2), np.zeros(2, bool), np.zeros(2, bool), infos)]
    executed, proposed = [envs.executed], [envs.proposed]
    for _ in range(8):
        rows.append(envs.step(np.full((2, 1), 0.77, np.float32)))
        executed.append(envs.executed)
        proposed.append(envs.proposed)
    first, second = ([row[0][env].tolist() for row in rows] for env in (0, 1))
    assert first == [[3, 0], [3, 1], [3, 2], [3, 3], [3, 4], [3, 0], [3, 1], [3, 2], [3, 3]]
    assert second == [[2, 0], [2, 1], [2, 2], [2, 3], [1, 0], [1, 1], [1, 2], [2, 0], [2, 1]]
    assert [row[1][1] for row in rows] == [0, 201, 202, 203, 0, 101, 102, 0, 201]
    assert [row[2].tolist() for row in rows[3:5]] == [[False, False], [True, False]]
    assert [row[3].tolist() for row in rows[3:7]] == [[False, True], [False, False], [False, False], [False, True]]
    assert [row[4]["fresh"].tolist() for row in rows[3:6]] == [[False, False], [False, True], [True, False]]
    assert [row[4]["cost"].tolist() for row in rows[3:6]] == [[0, 1], [1, 0], [0, 0]]
    assert [row[4]["labels"][1].tolist() for row in rows[2:4]] == [[False, False], [True, False]]
    np.testing.assert_allclose([one[1, 0] for one in executed[:5]], [0, 0.1, 0.2, 0, 0], atol=1e-6)
    np.testing.assert_allclose([one[1, 0] for one in proposed[:5]], [0, -0.1, -0.2, np.nan, 0], atol=1e-6)
    for turns in range(9):
        assert envs.steps_within(turns) == sum(int(row[4]["frame_valid"].sum()) for row in rows[1 : turns + 1]), turns


def test_logs_without_rewards_and_of_choices():
    one = episode(1, 2, reward=False)
    one = one._replace(action=np.array([0, 2]), proposed=np.array([-1, 1]), actions=4)
    envs = LoggedVectorEnv([one], 1, spec="!end")
    assert envs.single_action_space.n == 4
    assert envs.reset()[0].tolist() == [[1, 0]]
    assert (envs.executed.tolist(), envs.proposed.tolist()) == ([0], [-1])
    assert envs.step(np.array([3]))[1].tolist() == [0]
    assert (envs.executed.tolist(), envs.proposed.tolist()) == ([2], [1])

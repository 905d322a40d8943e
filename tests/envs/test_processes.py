"""Foreign environments in processes, and what becomes of those that crash or hang."""

import time

import numpy as np
import pytest

from ambs.envs import make_vector
from ambs.errors import UserError


def counting(trouble=""):
    """A factory of an environment that counts its frames up from its seed, and breaks at 5 if that is wanted.

    Everything is inside, so that a worker needs nothing of this module.
    """

    def factory():
        import time

        import gymnasium
        import numpy as np

        from ambs.envs import with_labels

        class Counting(gymnasium.Env):
            observation_space = gymnasium.spaces.Box(-1e6, 1e6, (1,), np.float64)
            action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float64)

            def reset(self, *, seed=None, options=None):
                super().reset(seed=seed, options=options)
                self.count = 100 * seed if seed is not None else 1
                return np.array([self.count], float), {}

            def step(self, _):
                self.count += 1
                if self.count == 205:
                    if trouble == "crash":
                        raise ValueError("broken on purpose")
                    if trouble == "hang":
                        time.sleep(100)
                    if trouble == "nan":
                        return np.array([np.nan]), np.nan, False, False, {}
                return np.array([self.count], float), float(self.count), False, self.count % 100 == 8, {}

        return with_labels(Counting(), labels=lambda seen, _: {"even": bool(seen[0] % 2 == 0)}, spec="!even")

    return factory


def run(envs, steps):
    return [envs.step(np.zeros((envs.num_envs, 1))) for _ in range(steps)]


def test_frames_are_accounted_for_and_episodes_start_anew():
    envs = make_vector(counting(), 2, action_repeat=3)
    try:
        observations, infos = envs.reset(seed=1)
        assert observations.tolist() == [[100], [200]]
        assert infos["labels"].tolist() == [[True], [True]]
        steps = run(envs, 4)
        assert [step[0][0, 0] for step in steps] == [103, 106, 108, 1]
        assert steps[0][1].tolist() == [101 + 102 + 103, 201 + 202 + 203]
        assert steps[0][4]["frame_violations"].tolist() == [[False, True, False]] * 2
        assert steps[2][3].all()
        assert steps[2][4]["frame_valid"].tolist() == [[True, True, False]] * 2
        assert steps[3][4]["fresh"].all()
        assert not steps[3][4]["frame_valid"].any()
    finally:
        envs.close()


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize(
    ("trouble", "reason"),
    [("crash", "broken on purpose"), ("hang", "no answer to a step within"), ("nan", "not finite")],
)
def test_a_broken_worker_is_replaced_while_the_others_go_on(trouble, reason):
    envs = make_vector(counting(trouble), 2, timeout=20.0)
    try:
        envs.reset(seed=1)
        envs.timeout = 1.0
        steps = run(envs, 4)
        start = time.monotonic()
        observations, rewards, _, truncated, infos = envs.step(np.zeros((2, 1)))
        assert time.monotonic() - start < 10
        (fault,) = infos["faults"]
        assert (fault.env, fault.step) == (1, 5)
        assert reason in fault.reason
        assert truncated.tolist() == [False, True]
        assert rewards.tolist() == [105, 0]
        assert observations.tolist() == [[105], steps[-1][0][1].tolist()]
        envs.timeout = 20.0
        observations, _, _, _, infos = envs.step(np.zeros((2, 1)))
        assert observations.tolist() == [[106], [1]]
        assert infos["fresh"].tolist() == [False, True]
        assert envs.step(np.zeros((2, 1)))[0].tolist() == [[107], [2]]
    finally:
        envs.close()


def test_an_environment_without_labels_is_refused():
    import gymnasium

    with pytest.raises(UserError, match=r"has no labels: give it some by ambs\.envs\.with_labels"):
        make_vector(lambda: gymnasium.make("CartPole-v1"), 1)

"""An environment that counts, and breaks on purpose; importing it is quick, for workers do."""

import functools
import time

import gymnasium
import numpy as np

from ambs.envs import with_labels
from ambs.envs.scene import scene

BREAKS = 205


def counting(trouble="", saves=False):
    """A factory of an environment that counts its frames up from a hundred times its seed, or from a number drawn where
    the seed is large. It breaks at 205 if that is wanted, and ends where its action is above 0. It has no map at 100.
    """
    return functools.partial(_labelled, trouble, saves)


def _labelled(trouble, saves):
    return with_labels(
        (Saving if saves else Counting)(trouble),
        labels=lambda seen, _: {"even": seen["count"][0] % 2 == 0, "big": seen["count"][0] > BREAKS},
        spec="!even",
        atoms=("even", "big"),
    )


class Counting(gymnasium.Env):
    render_mode = "rgb_array"
    observation_space = gymnasium.spaces.Dict(
        {"count": gymnasium.spaces.Box(-1e6, 1e6, (2,), np.float64)}
        | {"picture": gymnasium.spaces.Box(0, 255, (2, 2, 3), np.uint8)}
    )
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float64)

    def __init__(self, trouble):
        self.trouble = trouble

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.count = 100 * seed if seed < 1000 else int(self.np_random.integers(1000))
        return self.seen(), {}

    def step(self, action):
        self.count += 1
        seen, reward = self.seen(), float(self.count)
        if self.count == BREAKS:
            seen, reward = self.broken(seen, reward)
        return seen, reward, bool(action[0] > 0), self.count % 100 == 8, {}

    def broken(self, seen, reward):
        if self.trouble == "crash":
            raise ValueError("broken on purpose")
        if self.trouble == "hang":
            time.sleep(100)
        if self.trouble == "nan":
            seen["count"][1] = np.nan
        if self.trouble in ("reward", "large"):
            reward = np.inf if self.trouble == "reward" else 1e39
        if self.trouble == "masked":
            seen["count"] = np.ma.masked_equal(seen["count"], 0)
        if self.trouble in ("interrupt", "exit"):
            raise KeyboardInterrupt("on purpose") if self.trouble == "interrupt" else SystemExit("on purpose")
        if self.trouble == "shape":
            seen["count"] = seen["count"][:1]
        return seen, reward

    def render(self):
        return self.seen()["picture"]

    def map_scene(self):
        if self.count == 100:
            raise ValueError("no map of this place")
        return scene((self.count, 0), [], 1)

    def seen(self):
        return {"count": np.array([self.count, 0.0]), "picture": np.full((2, 2, 3), self.count % 200, np.uint8)}


class Saving(Counting):
    """It can be saved; where it is mute, it divides by zero where others tell their state."""

    def get_state(self):
        mute = 203 if self.trouble == "mute" else -1
        return {"count": np.array(self.count + 0 // (self.count - mute))}

    def set_state(self, state):
        self.count = int(state["count"])

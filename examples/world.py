"""An environment as anybody might have it: twelve numbers, an info dictionary, no labels, and no way to save its state.

Inside it is PointWorld, in which the robot senses the two nearest hazards.
"""

from typing import Any

import gymnasium as gym
import numpy as np

from ambs.envs.worlds.point_world import PointWorld, PointWorldEnv


def make_env() -> gym.Env:
    """One of them."""
    return Arena()


class Arena(gym.Env[np.ndarray, np.ndarray]):
    """Drive to one goal after the other; `info["hazard"]` says whether the robot is in a hazard, which costs no reward."""

    def __init__(self) -> None:
        self._inside = PointWorldEnv(PointWorld(sensed=2))
        self.observation_space, self.action_space = self._inside.observation_space, self._inside.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """A new layout."""
        super().reset(seed=seed)
        observation, info = self._inside.reset(seed=seed, options=options)
        return observation, {"hazard": bool(info["labels"][0])}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Push along x and y, each in [−1, 1]."""
        observation, reward, terminated, truncated, info = self._inside.step(action)
        return observation, float(reward), terminated, truncated, {"hazard": bool(info["labels"][0])}

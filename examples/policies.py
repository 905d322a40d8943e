"""Policies to be guarded, as `module:factory` takes them: a PPO of Stable-Baselines3 replayed by NumPy, and drivers by hand.

ambs record-episodes PointWorld --policy examples/policies.py:ppo --episodes 100 --out episodes
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

PPO_FILE = Path(__file__).parent / "ppo_point_world.npz"
SENSORS, BINS = 12, 16
"""Of PointGoal1's readings: those before the goal's lidar, and that lidar's."""
GREENER, SEEN = 6, 20
"""By how many grey levels of 255 a pixel of the goal is greener than red and blue, and how many levels in all make a goal."""


def ppo() -> "ReplayedPPO":
    """The PPO that `tools/train_ppo.py` has trained in PointWorld, for its reward alone: it does not care for hazards."""
    return ReplayedPPO(PPO_FILE)


def ppo_in_jax() -> Any:
    """The same PPO as a function of a key and an observation `[9]` that JAX can trace, to act in imagination itself."""
    return ReplayedPPO(PPO_FILE).in_jax


def careful() -> Any:
    """A driver for PointWorld who goes round hazards."""
    return drive_carefully


def goals() -> Any:
    """A driver for PointGoal1 who heads for the goal and for nothing else; the environment must show him the lidar."""
    return drive_to_goal


def goals_seen() -> Any:
    """The same from pixels: who heads for the green of the goal, and turns as long as there is none."""
    return drive_to_green


class ReplayedPPO:
    """The policy network of a PPO: tanh layers, a Gaussian about their output, cut to the bounds of the action.

    `predict` is Stable-Baselines3's: the same arguments, the same answers (the tool that made the file has compared them).
    """

    def __init__(self, file: Path | str) -> None:
        with np.load(file) as arrays:
            self.told: dict[str, Any] = json.loads(str(arrays["metadata"]))
            self.layers = [(arrays[f"weight{n}"], arrays[f"bias{n}"]) for n in range(self.told["layers"])]
            self.spread = np.exp(arrays["log_std"])
        self.rng = np.random.default_rng(0)

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[np.ndarray, Any]:
        """Actions `[2]` or `[batch, 2]` for observations `[9]` or `[batch, 9]`; it has no memory."""
        del episode_start
        value = np.asarray(observation, np.float32)
        for weight, bias in self.layers[:-1]:
            value = np.tanh(value @ weight.T + bias)
        weight, bias = self.layers[-1]
        action = value @ weight.T + bias
        if not deterministic:
            action = action + self.spread * self.rng.standard_normal(action.shape).astype(np.float32)
        return np.clip(action, -1.0, 1.0), state

    def in_jax(self, key: Any, observation: Any) -> Any:
        """An action `[2]` drawn for one observation `[9]`."""
        import jax
        import jax.numpy as jnp

        value = observation
        for weight, bias in self.layers[:-1]:
            value = jnp.tanh(weight @ value + bias)
        weight, bias = self.layers[-1]
        drawn = self.spread * jax.random.normal(key, bias.shape)
        return jnp.clip(weight @ value + bias + drawn, -1.0, 1.0)


def drive_carefully(observation: np.ndarray) -> np.ndarray:
    """Push `[2]` towards the goal of PointWorld, along the edge of a hazard that is sensed in between.

    Observation `[9]`: velocity (m/s), goal − position (m), two walls, and of the nearest hazard its proximity along x and y
    and in all: 0 from 0.5 m on, 1 at its edge.
    """
    velocity, goal, hazard, near = observation[:2], observation[2:4], observation[6:8], float(observation[8])
    course = goal / max(float(np.abs(goal).max()), 1e-6)
    if near > 0:
        towards = hazard / near
        ahead = float(course @ towards)
        if ahead > 0:  # In the way: of the course, what leads into it is taken away, the more the nearer it is.
            side = course - ahead * towards
            length = float(np.hypot(*side))
            side = side / length if length > 1e-3 else np.array([-towards[1], towards[0]])
            weight = min(1.0, near / 0.6)
            course = (1 - weight) * course + weight * side
        course = course - 4.0 * max(0.0, near - 0.5) * towards
    return np.clip(4.0 * (1.5 * course - velocity), -1.0, 1.0).astype(np.float32)


def drive_to_goal(observation: Any) -> np.ndarray:
    """Drive and turn `[2]` for PointGoal1: where the goal's lidar points, whatever lies between.

    The observation is the vector of readings `[60]`, or has it as its part "vector".
    """
    vector = observation["vector"] if isinstance(observation, dict) else observation
    reading = np.asarray(vector)[SENSORS : SENSORS + BINS] ** 4
    angles = (np.arange(BINS) + 0.5) * 2 * np.pi / BINS
    towards = np.arctan2((reading * np.sin(angles)).sum(), (reading * np.cos(angles)).sum())
    return np.array([np.clip(np.cos(towards), 0.1, 1.0), np.clip(2 * towards, -1.0, 1.0)], np.float32)


def drive_to_green(picture: Any) -> np.ndarray:
    """Drive and turn `[2]` for PointGoal1, where the picture `[64, 64, 3]` is greenest, whatever lies between."""
    red, green, blue = np.moveaxis(np.asarray(picture, np.float32), -1, 0)
    greener = green - np.maximum(red, blue)
    by_column = np.where(greener > GREENER, greener, 0.0).sum(axis=0)
    if by_column.sum() < SEEN:
        return np.array([0.15, 1.0], np.float32)
    right = float(by_column @ np.linspace(-1, 1, len(by_column)) / by_column.sum())
    return np.array([max(1 - abs(right), 0.1), np.clip(-3 * right, -1.0, 1.0)], np.float32)

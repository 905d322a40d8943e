"""Worlds with labels, in the manner of Gymnasium 1.x; importing this package registers them with `gymnasium.make`."""

import gymnasium as gym

gym.register("ambs/Grid-v0", "ambs.envs.grid:GridEnv")
gym.register("ambs/PointWorld-v0", "ambs.envs.point_world:PointWorldEnv")

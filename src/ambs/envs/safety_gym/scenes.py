"""Arenas and lidar readings as maps, and what a robot has before its eyes."""

import math

import numpy as np

from ambs.envs.safety_gym import lidar
from ambs.envs.safety_gym.appearance import VISION
from ambs.envs.safety_gym.camera import axes_of
from ambs.envs.safety_gym.tasks import GOAL_RADIUS, HAZARD_RADIUS
from ambs.envs.safety_gym.worlds import SENSORS, Worlds
from ambs.envs.scene import Outlook, Scene, scene

VASE_HALF = 0.1
"""Half a vase's side (m)."""
NEARBY = 1.5
"""How much of its surroundings a robot's own map shows (m)."""
FAINT = 0.05
"""Readings up to this are not drawn: a decoder never says exactly 0."""


def world_scene(worlds: Worlds, index: int) -> Scene:
    """One world from above (m)."""
    x, y, _ = worlds.robot_pos[index].tolist()
    heading = math.atan2(worlds.robot_mat[index, 1, 0], worlds.robot_mat[index, 0, 0])
    things = [("goal", worlds.goal[index].tolist(), GOAL_RADIUS)]
    things += [("hazard", spot, HAZARD_RADIUS) for spot in worlds.hazards[index].tolist()]
    things += [("vase", spot, VASE_HALF) for spot in worlds.vase_pos[index, :, :2].tolist()]
    return scene((x, y, heading), things, worlds.task.extent + 0.5)


def lidar_scene(vector: np.ndarray) -> Scene:
    """What a vector observation says is around the robot, which stands in the middle and looks up: a thing in the middle
    of each direction that reads more than both its neighbours."""
    readings = np.asarray(vector, float)[SENSORS:].reshape(3, lidar.BINS)
    things = []
    for kind, radius, row in zip(
        ("goal", "hazard", "vase"), (GOAL_RADIUS, HAZARD_RADIUS, VASE_HALF), readings, strict=True
    ):
        for k, reading in enumerate(row.tolist()):
            if reading > FAINT and reading > row[k - 1] and reading >= row[(k + 1) % lidar.BINS]:
                angle = (k + 0.5) * 2 * math.pi / lidar.BINS + math.pi / 2
                distance = lidar.RANGE * (1 - min(reading, 1.0))
                things.append((kind, (distance * math.cos(angle), distance * math.sin(angle)), radius))
    return scene((0.0, 0.0, math.pi / 2), things, NEARBY)


def outlook(worlds: Worlds) -> Outlook | None:
    """How the robots move and which hazards and vases the front camera has in its picture; None where there are none."""
    floor = np.concatenate([worlds.hazards, np.zeros((*worlds.hazards.shape[:2], 1))], axis=-1)
    things = np.concatenate([floor, worlds.vase_pos], axis=1)
    if not things.shape[1]:
        return None
    view = VISION[worlds.task.robot.name]
    axes = axes_of(view).astype(float)
    ahead = axes[:2, 2] / np.linalg.norm(axes[:2, 2])
    forwards = worlds.sensors()[:, 3:5] @ ahead
    eye = worlds.robot_pos + worlds.robot_mat @ np.array(view.pos)
    right, up, depth = np.moveaxis((things - eye[:, None]) @ (worlds.robot_mat @ axes), -1, 0)
    reach = math.tan(math.radians(view.fovy) / 2) * depth
    radii = np.repeat([HAZARD_RADIUS, VASE_HALF], [worlds.hazards.shape[1], worlds.vase_pos.shape[1]])
    gaps = np.linalg.norm(things[..., :2] - worlds.robot_pos[:, None, :2], axis=-1) - radii
    return Outlook(forwards, gaps, (depth > 0) & (np.abs(right) <= reach) & (np.abs(up) <= reach))

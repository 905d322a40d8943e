"""Arenas and lidar readings as maps, and what a robot has before its eyes."""

import math
from collections.abc import Sequence

import numpy as np

from ambs.envs.safety_gym import lidar
from ambs.envs.safety_gym.appearance import VISION
from ambs.envs.safety_gym.lens import axes_of
from ambs.envs.safety_gym.objects import GOAL, HAZARD, VASE, Kind
from ambs.envs.safety_gym.worlds import SENSORS, Worlds
from ambs.envs.scene import Outlook, Scene, scene

NEARBY = 1.5
"""How much of its surroundings a robot's own map shows (m)."""
FAINT = 0.05
"""Readings up to this are not drawn: a decoder never says exactly 0."""


def world_scene(worlds: Worlds, index: int) -> Scene:
    """One world from above (m)."""
    x, y, _ = worlds.robot_pos[index].tolist()
    heading = math.atan2(worlds.robot_mat[index, 1, 0], worlds.robot_mat[index, 0, 0])
    things = [(worlds.task.goal.name, worlds.goal[index].tolist(), worlds.task.goal.radius)]
    for kind in worlds.task.kinds:
        things += [(kind.name, spot, kind.radius) for spot in worlds.spots(kind)[index].tolist()]
    return scene((x, y, heading), things, worlds.task.extent + 0.5)


def lidar_scene(vector: np.ndarray, kinds: Sequence[Kind] = (GOAL, HAZARD, VASE)) -> Scene:
    """What a vector observation with readings of these kinds says is around the robot, which stands in the middle and looks
    up: a thing in the middle of each direction that reads more than both its neighbours."""
    readings = np.asarray(vector, float)[SENSORS:].reshape(len(kinds), lidar.BINS)
    things = []
    for kind, row in zip(kinds, readings, strict=True):
        for k, reading in enumerate(row.tolist()):
            if reading > FAINT and reading > row[k - 1] and reading >= row[(k + 1) % lidar.BINS]:
                angle = (k + 0.5) * 2 * math.pi / lidar.BINS + math.pi / 2
                distance = lidar.RANGE * (1 - min(reading, 1.0))
                things.append((kind.name, (distance * math.cos(angle), distance * math.sin(angle)), kind.radius))
    return scene((0.0, 0.0, math.pi / 2), things, NEARBY)


def outlook(worlds: Worlds) -> Outlook | None:
    """How the robots move and which things to be avoided the front camera has in its picture; None where there are none."""
    avoided = [(kind, count) for kind, count in worlds.task.things if kind.avoided and count]
    if not avoided:
        return None
    things = np.concatenate([_centres(worlds, kind) for kind, _ in avoided], axis=1)
    view = VISION[worlds.task.robot.name]
    axes = axes_of(view).astype(float)
    ahead = axes[:2, 2] / np.linalg.norm(axes[:2, 2])
    forwards = worlds.sensors()[:, 3:5] @ ahead
    eye = worlds.robot_pos + worlds.robot_mat @ np.array(view.pos)
    right, up, depth = np.moveaxis((things - eye[:, None]) @ (worlds.robot_mat @ axes), -1, 0)
    reach = math.tan(math.radians(view.fovy) / 2) * depth
    radii = np.repeat([kind.radius for kind, _ in avoided], [count for _, count in avoided])
    gaps = np.linalg.norm(things[..., :2] - worlds.robot_pos[:, None, :2], axis=-1) - radii
    return Outlook(forwards, gaps, (depth > 0) & (np.abs(right) <= reach) & (np.abs(up) <= reach))


def _centres(worlds: Worlds, kind: Kind) -> np.ndarray:
    """Of the things of a kind, `[n, things, 3]`; plates lie on the floor."""
    centres = worlds.pose(kind)[0]
    return centres * np.array([1.0, 1.0, 0.0]) if kind.disc else centres

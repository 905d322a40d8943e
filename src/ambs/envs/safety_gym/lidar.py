"""Pseudo-lidar: how close the nearest thing of a kind is, in each of 16 directions around the robot.

Values are closeness, not distance: 1 at the robot, 0 from `RANGE` on. Bin k looks from the robot's +x axis
counter-clockwise over the angles [k, k+1)·2π/16, in the robot's own frame. What stands in a bin also shows in the two
neighbours, weighted by how near to them it lies, so that readings change continuously.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

BINS = 16
RANGE = 3.0
"""m."""


def closeness(
    robot_pos: Float[np.ndarray, "n 3"],
    robot_mat: Float[np.ndarray, "n 3 3"],
    kinds: Sequence[Float[np.ndarray, "n _ 2"]],
) -> Float[np.ndarray, "n bins"]:
    """Readings of n robots, 16 for each kind of target one after the other.

    Targets stand on the floor (world xy, m), each robot having its own; `robot_mat` turns body into world coordinates.
    """
    n = len(robot_pos)
    reading = np.zeros((n, len(kinds) * BINS))
    kind = np.repeat(np.arange(len(kinds)), [targets.shape[1] for targets in kinds])
    if kind.size == 0:
        return reading
    # The line of sight runs from the robot's origin to the floor (z = 0) under the target, and is then projected.
    dx, dy = np.moveaxis(np.concatenate(kinds, axis=1) - robot_pos[:, None, :2], -1, 0)
    ahead, left = (
        dx * robot_mat[:, :1, axis] + dy * robot_mat[:, 1:2, axis] - (robot_pos[:, 2] * robot_mat[:, 2, axis])[:, None]
        for axis in (0, 1)
    )
    turns = np.arctan2(left, ahead) % (2 * np.pi) / (2 * np.pi / BINS)
    value = np.maximum(0.0, RANGE - np.hypot(ahead, left)) / RANGE
    share = turns % 1.0
    here = turns.astype(int) % BINS
    bins = np.stack([here, (here + 1) % BINS, (here - 1) % BINS]) + kind * BINS
    values = np.stack([value, share * value, (1 - share) * value])
    np.maximum.at(reading, (np.arange(n)[:, None], bins), values)
    return reading

"""Which bodies MuJoCo has put to sleep, as arrays: the part of a simulation's state that `mj_getState` leaves out.

Where MuJoCo has no sleeping, there is nothing to keep and the dictionaries are empty.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ambs.errors import extras

with extras():
    import mujoco

_ARRAYS = ("tree_asleep", "tree_awake", "body_awake", "body_awake_ind", "parent_awake_ind", "dof_awake_ind")
_COUNTS = ("ntree_awake", "nbody_awake", "nparent_awake", "nv_awake")


def get_state(datas: Sequence[mujoco.MjData]) -> dict[str, np.ndarray]:
    """Sleep state of n simulations of one model, each array with a leading axis n."""
    if not _can_sleep():
        return {}
    arrays = {f"sleep_{name}": np.stack([getattr(data, name) for data in datas]) for name in _ARRAYS}
    counts = {f"sleep_{name}": np.array([getattr(data, name) for data in datas]) for name in _COUNTS}
    return arrays | counts


def set_state(data: mujoco.MjData, state: dict[str, np.ndarray], index: int) -> None:
    """Let the same bodies sleep in `data` as in row `index` of `state`."""
    if not _can_sleep():
        return
    for name in _ARRAYS:
        getattr(data, name)[:] = state[f"sleep_{name}"][index]
    for name in _COUNTS:
        setattr(data, name, int(state[f"sleep_{name}"][index]))


def _can_sleep() -> bool:
    return hasattr(mujoco.MjData, "tree_asleep")

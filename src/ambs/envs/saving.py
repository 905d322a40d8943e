"""How one environment is saved: by its own `get_state()` and `set_state(state)`, or else, where MuJoCo moves it, by MuJoCo."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import wrappers

from ambs.envs.pictures import PictureEnv
from ambs.envs.snapshot import Snapshot, check_fields, generator_from_array, generator_to_array

BOTH = ("get_state", "set_state")
NOT_SAVED = "it has no get_state and set_state, so a resumed run begins new episodes"
STATELESS = (
    PictureEnv,
    wrappers.OrderEnforcing,
    wrappers.PassiveEnvChecker,
    wrappers.TransformAction,
    wrappers.TransformObservation,
    wrappers.TransformReward,
)
"""Wrappers that remember nothing on which a step depends."""
DERIVED = (
    "xpos", "xquat", "xmat", "xipos", "ximat", "geom_xpos", "geom_xmat", "site_xpos", "site_xmat", "subtree_com", "cinert",
    "cvel", "cacc", "cfrc_ext", "cfrc_int", "qacc", "qfrc_actuator", "actuator_force", "sensordata",
)  # fmt: skip
"""What a step of MuJoCo leaves behind from before its last move, and an environment may read before its next."""


def can_save(env: gymnasium.Env) -> bool:
    """Whether it has `get_state()` and `set_state(state)`."""
    return not missing(env)


def missing(env: gymnasium.Env) -> tuple[str, ...]:
    """Which of the two it lacks; what cannot be called as ours are, such as Gymnasium's `set_state(qpos, qvel)`, is not it."""
    return tuple(name for name, given in zip(BOTH, ((), (None,)), strict=True) if not _takes(env, name, given))


def savable(env: gymnasium.Env) -> gymnasium.Env:
    """The environment itself, or where it lacks both and MuJoCo's state is all there is to it, one that can be saved."""
    known = all(isinstance(layer, (*STATELESS, wrappers.TimeLimit)) for layer in _layers(env))
    return MujocoSaved(env) if missing(env) == BOTH and known and _moved_by_mujoco(env.unwrapped) else env


class MujocoSaved(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment with MuJoCo's `model` and `data`, saved to the last bit: physics, random numbers, time limits.

    What the environment itself counts or remembers beside them is not: such a one needs `get_state` and `set_state` of its own.
    """

    def get_state(self) -> Snapshot:
        """All that the next steps depend on."""
        import mujoco

        base: Any = self.env.unwrapped
        kind = mujoco.mjtState.mjSTATE_INTEGRATION
        physics = np.empty(mujoco.mj_stateSize(base.model, kind))
        mujoco.mj_getState(base.model, base.data, physics, kind)
        derived = {name: np.array(getattr(base.data, name)) for name in DERIVED}
        elapsed = np.array([layer._elapsed_steps or 0 for layer in self._limits()], np.int64)
        return {"physics": physics, **derived, "elapsed": elapsed, "rng": generator_to_array(base.np_random)}

    def set_state(self, state: Snapshot) -> None:
        """Go on from there; the environment must have been reset once."""
        import mujoco

        check_fields(state, self.get_state(), str(self.env))
        base: Any = self.env.unwrapped
        saved = np.asarray(state["physics"]), mujoco.mjtState.mjSTATE_INTEGRATION
        mujoco.mj_setState(base.model, base.data, *saved)
        mujoco.mj_forward(base.model, base.data)
        mujoco.mj_setState(base.model, base.data, *saved)  # The solver's warm start once more.
        for name in DERIVED:
            getattr(base.data, name)[:] = state[name]
        for layer, steps in zip(self._limits(), state["elapsed"].tolist(), strict=True):
            layer._elapsed_steps = steps
        base.np_random = generator_from_array(state["rng"])

    def _limits(self) -> list[Any]:
        return [layer for layer in _layers(self.env) if isinstance(layer, wrappers.TimeLimit)]


def _takes(env: gymnasium.Env, name: str, arguments: tuple[Any, ...]) -> bool:
    """Whether there is a method of this name that can be called with so many arguments."""
    if not env.has_wrapper_attr(name):
        return False
    try:
        inspect.signature(env.get_wrapper_attr(name)).bind(*arguments)
    except (TypeError, ValueError):
        return False
    return True


def _layers(env: gymnasium.Env) -> Iterator[gymnasium.Wrapper]:
    """The wrappers around an environment, outermost first."""
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env


def _moved_by_mujoco(base: Any) -> bool:
    # Whoever has such an attribute has imported it.
    mujoco = sys.modules.get("mujoco")
    return mujoco is not None and isinstance(getattr(base, "data", None), mujoco.MjData) and hasattr(base, "model")

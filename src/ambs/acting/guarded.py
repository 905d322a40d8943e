"""Environments in which a guard decides on what is proposed: one (`ambs.Shielded(env, guard)`), or many at once."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from ambs.acting.guard import Guard, GuardDecision
from ambs.config.checks import short
from ambs.errors import UserError
from ambs.spec.formula import Atoms


class GuardedEnv(gym.Wrapper):
    """`step(action)` proposes; the guard decides; `info["shield"]` holds its `GuardDecision`, `info["action"]` what was done."""

    def __init__(self, env: gym.Env, guard: Guard) -> None:
        if not isinstance(env, gym.Env):
            raise UserError(f"Shielded needs a gymnasium.Env, got {short(env)}")
        _check(guard, env.action_space, env.get_wrapper_attr("atoms") if env.has_wrapper_attr("atoms") else None)
        super().__init__(env)
        self.guard = guard
        self._observation: Any = None
        self._labels: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment, and the guard's memory."""
        self._observation, info = self.env.reset(seed=seed, options=options)
        self._labels = info.get("labels")
        self.guard.reset()
        return self._observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Propose an action."""
        if self._observation is None:
            raise gym.error.ResetNeeded("call reset before step")
        labels = None if self._labels is None else np.asarray(self._labels)[None]
        decision = self.guard.check(self._observation, action, labels=labels)
        self._observation, reward, terminated, truncated, info = self.env.step(decision.action)
        self._labels = info.get("labels")
        told = {"shield": decision, "action": decision.action, "refused": decision.why}
        return self._observation, reward, bool(terminated), bool(truncated), {**info, **told}


class ShieldedVector(VectorWrapper):
    """Many environments at once: `step(actions)` proposes `[n, …]`, and the guard decides on each in one call.

    Actions may be arrays of NumPy or tensors that share their memory (DLPack). `infos["shield"]` holds the `GuardDecision`,
    with a row for each environment, and `infos["action"]` what was done.
    """

    def __init__(self, env: VectorEnv, guard: Guard) -> None:
        if not isinstance(env, VectorEnv):
            raise UserError(f"ShieldedVector needs a gymnasium.vector.VectorEnv, got {short(env)}")
        _check(guard, env.single_action_space, getattr(env, "atoms", None))
        super().__init__(env)
        self.guard = guard
        self._same_step = env.metadata.get("autoreset_mode") == AutoresetMode.SAME_STEP
        self._observation: Any = None
        self._labels: Any = None
        self._first, self._over = np.ones(env.num_envs, bool), np.zeros(env.num_envs, bool)
        self.decision: GuardDecision | None = None
        """The last one."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, and the guard's memory."""
        self._observation, infos = self.env.reset(seed=seed, options=options)
        self._labels = infos.get("labels")
        self._first[:], self._over[:] = True, False
        self.guard.reset()
        return self._observation, infos

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Propose an action for every environment."""
        if self._observation is None:
            raise gym.error.ResetNeeded("call reset before step")
        decision = self.guard.check(self._observation, actions, labels=self._known(), episode_start=self._first)
        self._observation, reward, terminated, truncated, infos = self.env.step(decision.action)
        self._labels, self.decision = infos.get("labels"), decision
        ended = np.asarray(terminated) | np.asarray(truncated)
        # Where an environment is reset in the step after its end, that step's observation is the first of the next episode.
        self._first, self._over = (ended, self._over) if self._same_step else (self._over, ended)
        told = {"shield": decision, "action": decision.action, "refused": decision.why}
        return self._observation, reward, terminated, truncated, {**infos, **told}

    def _known(self) -> np.ndarray | None:
        """The labels of the present states, if the environments tell all of them."""
        labels = self._labels
        known = isinstance(labels, np.ndarray) and labels.dtype == np.bool_ and labels.ndim == 2
        return labels if known else None


def _check(guard: Any, space: gym.Space, atoms: Any) -> None:
    """Refuse what is no guard, and one whose actions or labels are not the environment's."""
    if not isinstance(guard, Guard):
        raise UserError(f"a guard is needed, such as ambs.load(run).guard(policy) gives, got {short(guard)}")
    ours, known = guard.action_space, guard.agent.interface.spec.atoms
    alike = type(ours) is type(space) and ours.shape == space.shape
    if isinstance(ours, spaces.Box) and isinstance(space, spaces.Box) and alike:
        alike = bool((ours.low >= space.low - 1e-5).all() and (ours.high <= space.high + 1e-5).all())
    elif isinstance(ours, spaces.Discrete) and isinstance(space, spaces.Discrete):
        alike = (ours.n, ours.start) == (space.n, space.start)
    if not alike:
        raise UserError(f"the guard was made for actions in {ours}, and the environment's are in {space}")
    if isinstance(atoms, Atoms) and atoms != known:
        told, theirs = (", ".join(one.names) for one in (known, atoms))
        raise UserError(f"the guard knows the labels {told}, and the environment's are {theirs}")

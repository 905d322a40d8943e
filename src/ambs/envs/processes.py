"""Many copies of a foreign environment, each in a process of its own, so that a crash or a hang is its own affair.

Every copy is a Gymnasium `AsyncVectorEnv` of one: only then can a hung worker be killed and replaced by public means
while the others go on.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from ambs.envs.vector import MAX_FAULTS, Frames, LabelledVectorEnv
from ambs.errors import UserError
from ambs.spec.formula import Atoms, Formula

Factory = Callable[[], gymnasium.Env]


class ProcessVectorEnv(LabelledVectorEnv):
    """Labelled environments in processes; see `ambs.envs.vector` for what a step returns."""

    def __init__(
        self,
        factory: Factory,
        num_envs: int,
        *,
        action_repeat: int = 1,
        max_faults: int = MAX_FAULTS,
        timeout: float = 60.0,
        context: Literal["spawn", "forkserver", "fork"] = "spawn",
    ) -> None:
        """Start the workers.

        `factory` makes a labelled environment, as `with_labels` does. A worker that takes longer than `timeout`
        seconds over a step or a reset is killed and replaced. `context` is how processes are started; "fork" is
        quick, and unsafe once JAX runs.
        """
        if timeout <= 0:
            raise UserError(f"timeout must be a positive number of seconds, got {timeout}")
        probe = factory()
        atoms, psi = vocabulary(probe)
        observation_space, action_space = probe.observation_space, probe.action_space
        probe.close()
        super().__init__(
            num_envs,
            observation_space,
            action_space,
            atoms=atoms,
            psi=psi,
            action_repeat=action_repeat,
            max_faults=max_faults,
        )
        self.timeout, self._context = timeout, context
        self._factory = _Repeated(factory, action_repeat, len(atoms))
        self._workers: list[AsyncVectorEnv | None] = [None] * num_envs
        self._seen = [create_empty_array(observation_space, n=1) for _ in range(num_envs)]
        self._labels = np.zeros((num_envs, len(atoms)), bool)
        self._pending = np.ones(num_envs, bool)
        """Environments that must be reset before they can be stepped."""
        self._ready = False

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode in every environment."""
        del options
        faults = self._reset(dict(enumerate(self.seeds(seed))))
        self._ready = True
        frames = Frames.empty(self.num_envs, self.action_repeat, len(self.atoms))
        infos = self.infos(self._labels.copy(), frames, np.ones(self.num_envs, bool), self.note(faults))
        return self._observations(), infos

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Advance every environment by `action_repeat` frames, or start it anew if its episode is over."""
        if not self._ready:
            raise UserError("call reset before the first step")
        array, finite = self.check_actions(actions)
        fresh = self._pending.copy()
        stepped = np.flatnonzero(finite & ~fresh).tolist()
        faults = dict.fromkeys(np.flatnonzero(~finite & ~fresh).tolist(), "the action is not finite")
        frames = Frames.empty(self.num_envs, self.action_repeat, len(self.atoms))
        terminated, truncated = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        for index in stepped:
            self._worker(index).step_async(array[index : index + 1])
        deadline = time.monotonic() + self.timeout
        for index in stepped:
            result = self._wait(index, "step", deadline, faults)
            if result is None:
                continue
            seen, _, terminated[index : index + 1], truncated[index : index + 1], info = result
            self._keep(index, seen, info)
            frames.rewards[index], frames.labels[index] = info["frame_rewards"][0], info["frame_labels"][0]
            frames.valid[index] = info["frame_valid"][0]
            if not (np.isfinite(frames.rewards[index]).all() and _finite(seen)):
                faults[index] = "the reward or the observation is not finite"
                frames.rewards[index] = 0.0
        faults |= self._reset(dict.fromkeys(np.flatnonzero(fresh).tolist()))
        truncated[list(faults)] = True
        self._pending = terminated | truncated
        self.steps += 1
        infos = self.infos(self._labels.copy(), frames, fresh, self.note(faults))
        return self._observations(), frames.rewards.sum(-1), terminated, truncated, infos

    def close_extras(self, **kwargs: Any) -> None:
        """Stop all workers."""
        del kwargs
        # Gymnasium closes what is garbage, even if it was never quite made.
        for index in range(len(getattr(self, "_workers", ()))):
            self._discard(index)

    def _reset(self, seeds: dict[int, int | None]) -> dict[int, str]:
        """Reset these environments together; returns faults."""
        faults: dict[int, str] = {}
        for index, seed in seeds.items():
            self._worker(index).reset_async(seed=seed)
        deadline = time.monotonic() + self.timeout
        for index in seeds:
            result = self._wait(index, "reset", deadline, faults)
            if result is not None:
                self._keep(index, *result)
            self._pending[index] = result is None
        return faults

    def _wait(self, index: int, what: Literal["step", "reset"], deadline: float, faults: dict[int, str]) -> Any:
        """What a worker answers; if it does not, it is discarded and the reason noted."""
        worker = self._worker(index)
        left = max(deadline - time.monotonic(), 0.01)
        try:
            return worker.step_wait(timeout=left) if what == "step" else worker.reset_wait(timeout=left)
        except multiprocessing.TimeoutError:
            faults[index] = f"no answer to a {what} within {self.timeout:g} s; the worker was replaced"
        except Exception as error:
            faults[index] = f"{type(error).__name__} in a {what}: {error}; the worker was replaced"
        self._discard(index)
        return None

    def _keep(self, index: int, seen: Any, info: dict[str, Any]) -> None:
        if _finite(seen):
            self._seen[index] = seen
        self._labels[index] = info["labels"][0]

    def _observations(self) -> Any:
        rows = [row for seen in self._seen for row in iterate(self.observation_space, seen)]
        empty: Any = create_empty_array(self.single_observation_space, n=self.num_envs)
        return concatenate(self.single_observation_space, rows, empty)

    def _worker(self, index: int) -> AsyncVectorEnv:
        worker = self._workers[index]
        if worker is None:
            mode = AutoresetMode.DISABLED
            worker = AsyncVectorEnv([self._factory], context=self._context, autoreset_mode=mode)
            self._workers[index] = worker
        return worker

    def _discard(self, index: int) -> None:
        worker, self._workers[index] = self._workers[index], None
        if worker is None:
            return
        # A worker that has already gone cannot be told to go.
        with contextlib.suppress(Exception):
            worker.close(terminate=True)
        for process in worker.processes:
            if process.is_alive():
                process.kill()
            process.join()


def vocabulary(env: gymnasium.Env) -> tuple[Atoms, Formula]:
    """The atoms of a labelled environment, and its Ψ."""
    if not (env.has_wrapper_attr("atoms") and env.has_wrapper_attr("psi")):
        raise UserError(f"{env} has no labels: give it some by ambs.envs.with_labels")
    return env.get_wrapper_attr("atoms"), env.get_wrapper_attr("psi")


class _Repeated:
    """A factory of environments that repeat actions; a class, so that it can be sent to another process."""

    def __init__(self, factory: Factory, repeat: int, atoms: int) -> None:
        self.factory, self.repeat, self.atoms = factory, repeat, atoms

    def __call__(self) -> gymnasium.Env:
        return _FrameAccounts(self.factory(), self.repeat, self.atoms)


class _FrameAccounts(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Repeats each action, and keeps accounts of the frames in `info`."""

    def __init__(self, env: gymnasium.Env, repeat: int, atoms: int) -> None:
        super().__init__(env)
        self.repeat, self.atoms = repeat, atoms

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, {"labels": np.asarray(info["labels"], bool)}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        frames = Frames.empty(1, self.repeat, self.atoms)
        for repeat in range(self.repeat):
            observation, reward, terminated, truncated, info = self.env.step(action)
            frames.rewards[0, repeat], frames.labels[0, repeat] = float(reward), info["labels"]
            frames.valid[0, repeat] = True
            if terminated or truncated:
                break
        accounts = {
            "labels": np.asarray(info["labels"], bool),
            "frame_rewards": frames.rewards[0],
            "frame_labels": frames.labels[0],
            "frame_valid": frames.valid[0],
        }
        return observation, float(frames.rewards.sum()), terminated, truncated, accounts


def _finite(tree: Any) -> bool:
    if isinstance(tree, dict):
        return all(_finite(value) for value in tree.values())
    if isinstance(tree, tuple):
        return all(_finite(value) for value in tree)
    return not np.issubdtype(np.asarray(tree).dtype, np.floating) or bool(np.isfinite(tree).all())

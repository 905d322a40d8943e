"""Many copies of a foreign environment, each in a process of its own, so that a crash or a hang is its own affair.

Every copy is a Gymnasium `AsyncVectorEnv` of one: only then can a hung worker be killed and replaced by public means
while the others go on.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from ambs.envs.vector.replicas import (
    Factory,
    LastSound,
    ReplicaVectorEnv,
    advance,
    begin,
    describe,
    query_or_none,
)
from ambs.envs.vector.vector import Frames
from ambs.errors import UserError

Call = Literal["reset", "step", "call"]


class ProcessVectorEnv(ReplicaVectorEnv):
    """Labelled environments in processes; see `ambs.envs.vector.vector` for what a step returns."""

    options = ReplicaVectorEnv
    """Further options: what it takes."""

    def __init__(
        self,
        factory: Factory,
        num_envs: int,
        *,
        timeout: int | float = 60,
        context: Literal["spawn", "forkserver", "fork"] = "spawn",
        **common: Any,
    ) -> None:
        """`factory` makes a labelled environment, as `with_labels` does; `common` is what all replicas have.

        A worker that takes longer than `timeout` seconds over a step or a reset is killed and replaced. `context` is how
        processes are started; "fork" is quick, and unsafe once JAX runs.
        """
        if timeout <= 0:
            raise UserError(f"timeout must be a positive number of seconds, got {timeout}")
        super().__init__(factory, num_envs, **common)
        self.timeout, self._context = timeout, context
        self._accounted = _Accounted(factory, self.action_repeat, len(self.atoms))

    def _start(self, seeds: dict[int, int]) -> dict[int, str]:
        faults: dict[int, str] = {}
        results = self._ask("reset", {index: ([seed],) for index, seed in seeds.items()}, faults)
        for index, (seen, info) in results.items():
            self._keep(index, seen, info, faults)
        return faults

    def _advance(
        self, actions: np.ndarray, live: np.ndarray, frames: Frames, faults: dict[int, str]
    ) -> tuple[np.ndarray, np.ndarray]:
        terminated, truncated = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        live = self._still_broken(live, faults)
        asked = {index: (actions[index : index + 1],) for index in np.flatnonzero(live).tolist()}
        for index, (seen, _, ended, cut, info) in self._ask("step", asked, faults).items():
            terminated[index], truncated[index] = ended[0], cut[0]
            frames.rewards[index], frames.labels[index] = info["frame_rewards"][0], info["frame_labels"][0]
            frames.valid[index] = info["frame_valid"][0]
            self._keep(index, seen, info, faults)
        return terminated, truncated

    def _make(self) -> AsyncVectorEnv:
        return AsyncVectorEnv([self._accounted], context=self._context, autoreset_mode=AutoresetMode.DISABLED)

    def _end(self, copy: AsyncVectorEnv) -> None:
        # Not by its own `close`, which waits for workers that do not answer or take no notice of SIGTERM.
        for process in copy.processes:
            process.kill()
            process.join()
        for pipe in copy.parent_pipes:
            if pipe is not None:
                pipe.close()
        copy.closed = True

    def _call(self, index: int, method: str, *arguments: Any) -> Any:
        faults: dict[int, str] = {}
        results = self._ask("call", {index: (method, *arguments)}, faults)
        if faults:
            raise UserError(f"{method} of environment {index} failed: {faults[index]}")
        return results[index][0]

    def _call_each(self, indices: list[int], method: str, faults: dict[int, str]) -> dict[int, Any]:
        answers = self._ask("call", dict.fromkeys(indices, (method,)), faults)
        return {index: answer[0] for index, answer in answers.items()}

    def _query_or_none(self, index: int, method: str, *arguments: Any) -> Any:
        # Caught in the worker: one that lets an exception out is gone, and its episode with it.
        try:
            return self._call(index, "query_or_none", method, *arguments)
        except UserError:
            return None

    def _ask(self, what: Call, questions: dict[int, tuple[Any, ...]], faults: dict[int, str]) -> dict[int, Any]:
        """Put questions to workers, all at once; returns their answers, and notes who gave none."""
        answers: dict[int, Any] = {}
        for index, arguments in questions.items():
            try:
                getattr(self._copy(index), f"{what}_async")(*arguments)
            except Exception as error:
                self._blame(index, describe(error, f"a {what}"), faults)
        deadline = time.monotonic() + self.timeout
        for index in questions.keys() - faults.keys():
            left = max(deadline - time.monotonic(), 0.01)
            try:
                answers[index] = getattr(self._copy(index), f"{what}_wait")(timeout=left)
            except multiprocessing.TimeoutError:
                self._blame(index, f"no answer to a {what} within {self.timeout:g} s", faults)
            except Exception as error:
                self._blame(index, describe(error, f"a {what}"), faults)
        return answers

    def _keep(self, index: int, seen: Any, info: dict[str, Any], faults: dict[int, str]) -> None:
        row = {name: part[0] for name, part in seen.items()} if isinstance(seen, dict) else seen[0]
        self._shown.keep(index, row, info["labels"][0])
        if info["fault"][0]:
            self._blame(index, info["fault"][0], faults)

    def _blame(self, index: int, reason: str, faults: dict[int, str]) -> None:
        faults[index] = f"{reason}; the worker was replaced"
        self._discard(index)


class _Accounted:
    """A factory of environments that keep accounts; a class, so that it can be sent to another process."""

    def __init__(self, factory: Factory, repeat: int, atoms: int) -> None:
        self.factory, self.repeat, self.atoms = factory, repeat, atoms
        self.home = os.getpid()

    def __call__(self) -> gymnasium.Env:
        if os.getpid() != self.home:
            _leave_signals_to_the_parent()
            _end_with_parent()
        return _FrameAccounts(_ordinary(self.factory)(), self.repeat, self.atoms)


def _ordinary(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with what would end the worker, or even the run, made an ordinary error of it.

    A worker hears no signals: an environment's KeyboardInterrupt or SystemExit is its own affair.
    """

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except Exception:
            raise
        except BaseException as error:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    return call


class _Ordinary(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose `reset` and `step` raise ordinary errors only."""

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        return _ordinary(self.env.reset)(**options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return _ordinary(self.env.step)(action)


def _leave_signals_to_the_parent() -> None:
    """A terminal's Ctrl-C and a scheduler's SIGTERM reach all processes of a run: a worker that died of one could not tell
    its state for the checkpoint that the run then writes."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)


def _end_with_parent() -> None:
    """Let a worker end when the process that started it does, even one that was killed while the worker was busy."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


class _FrameAccounts(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Repeats each action, and keeps accounts of frames and faults in `info`."""

    def __init__(self, env: gymnasium.Env, repeat: int, atoms: int) -> None:
        super().__init__(_Ordinary(env))
        self.repeat, self.atom_count = repeat, atoms
        self.shown = LastSound(env.observation_space, atoms, 1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        del options
        fault = begin(self.env, seed, 0, self.shown)
        return self.shown.row(0), {"labels": self.shown.labels[0], "fault": fault}

    def get_wrapper_attr(self, name: str) -> Any:
        found = super().get_wrapper_attr(name)
        return _ordinary(found) if callable(found) else found

    def query_or_none(self, method: str, *arguments: Any) -> Any:
        return query_or_none(self.env, method, *arguments)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        frames = Frames.empty(1, self.repeat, self.atom_count)
        terminated, truncated, fault = advance(self.env, action, 0, frames, self.shown)
        accounts = {
            "labels": self.shown.labels[0],
            "frame_rewards": frames.rewards[0],
            "frame_labels": frames.labels[0],
            "frame_valid": frames.valid[0],
            "fault": fault,
        }
        return self.shown.row(0), float(frames.rewards.sum()), terminated, truncated, accounts

"""Many copies of an environment stepped one after the other in this process: right where a step costs microseconds."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from ambs.envs.vector.replicas import ReplicaVectorEnv, advance, begin, describe, query_or_none
from ambs.envs.vector.vector import Frames


class SerialVectorEnv(ReplicaVectorEnv):
    """Labelled environments in this process; see `ambs.envs.vector.vector` for what a step returns."""

    def _start(self, seeds: dict[int, int]) -> dict[int, str]:
        faults = {}
        for index, seed in seeds.items():
            try:
                env = self._copy(index)
            except Exception as error:
                faults[index] = describe(error, "the making of an environment")
                continue
            if fault := begin(env, seed, index, self._shown):
                faults[index] = fault
                self._discard(index)
        return faults

    def _advance(
        self, actions: np.ndarray, live: np.ndarray, frames: Frames, faults: dict[int, str]
    ) -> tuple[np.ndarray, np.ndarray]:
        terminated, truncated = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        live = self._still_broken(live, faults)
        for index in np.flatnonzero(live).tolist():
            env = self._copy(index)
            terminated[index], truncated[index], fault = advance(env, actions[index], index, frames, self._shown)
            if fault:
                faults[index] = fault
                self._discard(index)
        return terminated, truncated

    def _make(self) -> gymnasium.Env:
        return self._factory()

    def _end(self, copy: gymnasium.Env) -> None:
        copy.close()

    def _call(self, index: int, method: str, *arguments: Any) -> Any:
        return self._copy(index).get_wrapper_attr(method)(*arguments)

    def _query_or_none(self, index: int, method: str, *arguments: Any) -> Any:
        return query_or_none(self._copies[index], method, *arguments)

"""Episodes that took place elsewhere, as if they were played: whatever action is given, what was logged happens."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from ambs.envs.vector.vector import Frames, LabelledVectorEnv
from ambs.spec.formula import Atoms, Formula
from ambs.spec.parser import parse_formula
from ambs.storage.episodes import ALONE, Episode


class LoggedVectorEnv(LabelledVectorEnv):
    """Logged episodes, dealt out among so many environments of about the same number of rows each.

    Each plays its own one after the other, and begins again with the first when there are no more. `executed` and `proposed` are
    what was logged for the next step.
    """

    can_save = False

    def __init__(self, episodes: Sequence[Episode], num_envs: int, *, spec: str | Formula) -> None:
        first = episodes[0]
        atoms = Atoms(first.atoms)
        psi = parse_formula(spec, atoms) if isinstance(spec, str) else spec
        super().__init__(num_envs, _observations(first), _actions(episodes), atoms=atoms, psi=psi)
        self.dealt = _deal(episodes, num_envs)
        self._at = np.zeros(num_envs, np.int64)
        """Steps that were taken of each environment's present episode."""

    @property
    def rows(self) -> int:
        """First observations and steps after which every environment has shown all of its episodes."""
        return max(map(_rows, self.dealt))

    def steps_within(self, turns: int) -> int:
        """Steps of all environments together that take place in so many turns after the first observations."""
        return sum(_steps_within(shard, turns) for shard in self.dealt)

    @property
    def executed(self) -> np.ndarray:
        """What was executed next, `[n, …]`; after the last step of an episode zeros."""
        return self._next("action", 0)

    @property
    def proposed(self) -> np.ndarray:
        """What was proposed next, `[n, …]`; NaN, or −1 as a choice, where nothing was."""
        return self._next("wanted", np.nan if isinstance(self.single_action_space, spaces.Box) else -1)

    def _next(self, name: str, nothing: float | int) -> np.ndarray:
        space = self.single_action_space
        found = np.full((self.num_envs, *(space.shape or ())), nothing, space.dtype)
        for index, at in enumerate(self._at.tolist()):
            if at < self._episode(index).steps:
                found[index] = getattr(self._episode(index), name)[at]
        return found

    def _episode(self, index: int) -> Episode:
        mine = self.dealt[index]
        return mine[int(self._episodes[index]) % len(mine)]

    def _start(self, seeds: dict[int, int]) -> dict[int, str]:
        self._at[list(seeds)] = 0
        return {}

    def _advance(
        self, actions: np.ndarray, live: np.ndarray, frames: Frames, faults: dict[int, str]
    ) -> tuple[np.ndarray, np.ndarray]:
        del actions, faults
        terminated, truncated = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        self._at[live] += 1
        for index in np.flatnonzero(live).tolist():
            episode, at = self._episode(index), int(self._at[index])
            frames.rewards[index, 0] = 0.0 if episode.reward is None else episode.reward[at - 1]
            frames.labels[index, 0], frames.valid[index, 0] = episode.labels[at], True
            last = at == episode.steps
            terminated[index], truncated[index] = last and episode.terminated, last and not episode.terminated
        return terminated, truncated

    def _observe(self) -> Any:
        places = [(self._episode(index), at) for index, at in enumerate(self._at.tolist())]
        parts = {
            name: np.stack([episode.observation[name][at] for episode, at in places])
            for name in places[0][0].observation
        }
        return parts.get(ALONE, parts)

    def _labels(self) -> np.ndarray:
        return np.stack([self._episode(index).labels[at] for index, at in enumerate(self._at.tolist())])


def _deal(episodes: Sequence[Episode], count: int) -> list[list[Episode]]:
    """The longest first, each to whoever has least so far."""
    heap = [(0, index) for index in range(count)]
    dealt: list[list[Episode]] = [[] for _ in range(count)]
    for episode in sorted(episodes, key=lambda one: -one.steps):
        rows, index = heapq.heappop(heap)
        dealt[index].append(episode)
        heapq.heappush(heap, (rows + episode.steps + 1, index))
    return dealt


def _rows(shard: Sequence[Episode]) -> int:
    return sum(episode.steps + 1 for episode in shard)


def _steps_within(shard: Sequence[Episode], turns: int) -> int:
    """Of the rows 1 … turns of a shard that is played again and again, those that are no first observations."""
    whole, rest = divmod(turns, _rows(shard))
    steps = whole * sum(episode.steps for episode in shard)
    left = rest + 1  # Row 0, a first observation, is not counted.
    for episode in shard:
        steps += max(0, min(left, episode.steps + 1) - 1)
        left -= episode.steps + 1
    return steps


def _observations(first: Episode) -> spaces.Space:
    parts: dict[str, spaces.Space] = {name: _part(part, first) for name, part in first.observation.items()}
    return parts[ALONE] if ALONE in parts else spaces.Dict(parts)


def _part(part: np.ndarray, episode: Episode) -> spaces.Box:
    if part.ndim == 4:
        return spaces.Box(0, 255, part.shape[1:], np.uint8)
    low, high = episode.observation_bounds or (np.full(part.shape[1], -np.inf), np.full(part.shape[1], np.inf))
    # Not the kind of number that was logged: whole numbers have no infinity.
    return spaces.Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)


def _actions(episodes: Sequence[Episode]) -> spaces.Space:
    first = episodes[0]
    if first.discrete:
        return spaces.Discrete(first.actions or 1 + max(map(_largest, episodes)))
    ones = np.ones(first.action.shape[1], np.float32)
    low, high = first.action_bounds or (-ones, ones)
    return spaces.Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)


def _largest(episode: Episode) -> int:
    """Of the choices that were made or proposed."""
    return int(max(episode.action.max(), episode.wanted.max()))

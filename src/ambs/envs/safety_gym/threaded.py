"""Many worlds of one task, stepped by a pool of threads and drawn in one batch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.utils import seeding

from ambs.envs.safety_gym.env import action_space, choose_spec
from ambs.envs.safety_gym.observation import Looks, Observation, Observer
from ambs.envs.safety_gym.robots import FRAME_SKIP
from ambs.envs.safety_gym.tasks import ATOMS, MAX_FRAMES, find_task
from ambs.envs.safety_gym.worlds import Worlds
from ambs.envs.vector import MAX_FAULTS, Frames, LabelledVectorEnv
from ambs.errors import UserError
from ambs.spec.formula import Formula


class ThreadedVectorEnv(LabelledVectorEnv):
    """The Safety Gym tasks, many at once; see `ambs.envs.vector` for what a step returns."""

    def __init__(
        self,
        task: str,
        num_envs: int,
        *,
        observation: str = "vision",
        size: int = 64,
        samples: int = 4,
        mirror: bool = True,
        palette: str = "safety_gymnasium",
        renderer: str = "rays",
        spec: str | Formula | None = None,
        collision: str = "contact",
        frame_skip: int = FRAME_SKIP,
        max_frames: int = MAX_FRAMES,
        action_repeat: int = 1,
        max_faults: int = MAX_FAULTS,
        threads: int | None = None,
    ) -> None:
        """Make the environments; `threads` are as many as there are processors to use, by default."""
        self.task = find_task(task)
        self.observer = Observer(self.task, observation, Looks(size, samples, mirror, palette, renderer))
        psi = choose_spec(self.task.spec, spec)
        super().__init__(
            num_envs,
            self.observer.space,
            action_space(),
            atoms=ATOMS,
            psi=psi,
            action_repeat=action_repeat,
            max_faults=max_faults,
        )
        self.worlds = Worlds(
            self.task,
            num_envs,
            collision=collision,
            frame_skip=frame_skip,
            max_frames=max_frames,
            accelerations=observation != "vision",
            threads=_processors() if threads is None else threads,
        )
        self._over: np.ndarray | None = None

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode in every environment; where no seed is given, random numbers go on as they were."""
        del options
        for index, one in enumerate(self.seeds(seed)):
            keep = one is None and self._over is not None
            self.worlds.reset(index, self.worlds.rng(index) if keep else seeding.np_random(one)[0])
        self._over = np.zeros(self.num_envs, bool)
        frames = Frames.empty(self.num_envs, self.action_repeat, len(self.atoms))
        infos = self.infos(self.worlds.labels(), frames, np.ones(self.num_envs, bool), ())
        return self.observer.observe(self.worlds), infos

    def step(self, actions: Any) -> tuple[Observation, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Advance every environment by `action_repeat` frames, or start it anew if its episode is over."""
        if self._over is None:
            raise UserError("call reset before the first step")
        array, finite = self.check_actions(actions)
        fresh = self._over
        for index in np.flatnonzero(fresh).tolist():
            self.worlds.reset(index, self.worlds.rng(index))
        faults = dict.fromkeys(np.flatnonzero(~finite & ~fresh).tolist(), "the action is not finite")
        frames, terminated, truncated = self._advance(np.nan_to_num(array), finite & ~fresh, faults)
        truncated[list(faults)] = True
        self._over = terminated | truncated
        self.steps += 1
        infos = self.infos(self.worlds.labels(), frames, fresh, self.note(faults))
        return self.observer.observe(self.worlds), frames.rewards.sum(-1), terminated, truncated, infos

    def get_state(self) -> dict[str, np.ndarray]:
        """Everything the future depends on, as arrays."""
        over = np.ones(self.num_envs, bool) if self._over is None else self._over
        return {**self.worlds.get_state(), "over": over.copy(), "steps": np.array(self.steps)}

    def set_state(self, state: dict[str, np.ndarray]) -> Observation:
        """Continue from a saved state exactly as the saved environments would have; returns what they see."""
        self.worlds.set_state(state)
        self._over = np.array(state["over"], bool)
        self.steps = int(state["steps"])
        return self.observer.observe(self.worlds)

    def close_extras(self, **kwargs: Any) -> None:
        """Stop the threads."""
        del kwargs
        # Gymnasium closes what is garbage, even if it was never quite made.
        if hasattr(self, "worlds"):
            self.worlds.close()
            self.observer.close()

    def _advance(
        self, actions: np.ndarray, live: np.ndarray, faults: dict[int, str]
    ) -> tuple[Frames, np.ndarray, np.ndarray]:
        """Repeat the actions in the live worlds until their episodes end; adds to `faults`."""
        frames = Frames.empty(self.num_envs, self.action_repeat, len(self.atoms))
        terminated, truncated = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        for repeat in range(self.action_repeat):
            frame = self.worlds.advance(actions.astype(np.float64), live)
            faults |= frame.faults
            frames.rewards[:, repeat], frames.labels[:, repeat] = frame.reward, frame.labels
            frames.valid[:, repeat] = live
            frames.valid[list(frame.faults), repeat] = False
            terminated |= frame.terminated
            truncated |= frame.truncated
            live = live & ~(terminated | truncated)
            if not live.any():
                break
        return frames, terminated, truncated


def _processors() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1

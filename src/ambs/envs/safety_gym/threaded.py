"""Many worlds of one task, stepped by a pool of threads and drawn in one batch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.utils import seeding

from ambs.envs.safety_gym.env import action_space
from ambs.envs.safety_gym.observation import Observation, Options
from ambs.envs.safety_gym.robots import POINT
from ambs.envs.safety_gym.scenes import lidar_scene, outlook, world_scene
from ambs.envs.safety_gym.tasks import find_task
from ambs.envs.scene import Outlook, Scene
from ambs.envs.snapshot import Snapshot
from ambs.envs.vector.vector import MAX_FAULTS, Frames, LabelledVectorEnv


class ThreadedVectorEnv(LabelledVectorEnv):
    """The Safety Gym tasks, many at once; see `ambs.envs.vector.vector` for what a step returns."""

    can_draw = True
    options = Options
    """Further options: its fields."""

    def __init__(
        self,
        task: str,
        num_envs: int,
        *,
        action_repeat: int = 1,
        max_faults: int = MAX_FAULTS,
        threads: int | None = None,
        **options: Any,
    ) -> None:
        """Make the environments; `threads` are as many as there are processors to use, by default, and `options` the fields of
        `Options`."""
        self.task = find_task(task)
        chosen = self.options(**options)
        self.observer = chosen.observer(self.task)
        super().__init__(
            num_envs,
            self.observer.space,
            action_space(),
            atoms=self.task.atoms,
            psi=self.task.spec,
            spec=chosen.spec,
            action_repeat=action_repeat,
            max_faults=max_faults,
        )
        self.action_names = ("forward", "turn") if self.task.robot is POINT else ("left wheel", "right wheel")
        self.mirror = self.observer.mirror
        self.worlds = chosen.worlds(self.task, num_envs, _processors() if threads is None else threads)

    def pictures(self, which: Sequence[int]) -> dict[int, np.ndarray]:
        """Arenas from above, uint8 `[256, 256, 3]`."""
        drawn = self.observer.view(self.worlds, "top_down", 256)
        return {index: drawn[index] for index in which}

    def scenes(self, which: Sequence[int]) -> dict[int, Scene]:
        """The arenas."""
        return {index: world_scene(self.worlds, index) for index in which}

    def imagined(self, now: Scene, observations: np.ndarray) -> list[Scene] | None:
        """What vectors tell of the robot's surroundings, in its own frame; a picture is a picture already."""
        del now
        kinds = self.task.lidars
        return [lidar_scene(vector, kinds) for vector in observations] if observations.ndim == 2 else None

    def outlook(self) -> Outlook | None:
        """Of what is to be avoided; None where there is nothing."""
        return outlook(self.worlds)

    def close_extras(self, **kwargs: Any) -> None:
        """Stop the threads."""
        del kwargs
        # Gymnasium closes what is garbage, even if it was never quite made.
        if hasattr(self, "worlds"):
            self.worlds.close()
            self.observer.close()

    def _start(self, seeds: dict[int, int]) -> dict[int, str]:
        for index, seed in seeds.items():
            self.worlds.reset(index, seeding.np_random(seed)[0])
        return {}

    def _advance(
        self, actions: np.ndarray, live: np.ndarray, frames: Frames, faults: dict[int, str]
    ) -> tuple[np.ndarray, np.ndarray]:
        actions = np.nan_to_num(actions).astype(np.float64)
        terminated, truncated = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        for repeat in range(self.action_repeat):
            if not live.any():
                break
            frame = self.worlds.advance(actions, live)
            faults |= frame.faults
            frames.rewards[:, repeat], frames.labels[:, repeat] = frame.reward, frame.labels
            frames.valid[:, repeat] = live
            frames.valid[list(frame.faults), repeat] = False
            terminated |= frame.terminated
            truncated |= frame.truncated
            live = live & ~(terminated | truncated)
        return terminated, truncated

    def _observe(self) -> Observation:
        return self.observer.observe(self.worlds)

    def _labels(self) -> np.ndarray:
        return self.worlds.labels()

    def _save(self) -> Snapshot:
        return self.worlds.get_state()

    def _restore(self, state: Snapshot) -> None:
        self.worlds.set_state(state)


def _processors() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1

"""Many labelled environments at once, behind Gymnasium's `VectorEnv`.

A step repeats each action for `action_repeat` frames and accounts for every frame. `infos` holds arrays:

- `labels` bool `[n, atoms]`: the state that the observation shows;
- `frame_rewards` float `[n, repeat]`, `frame_labels` bool `[n, repeat, atoms]`, `frame_violations` bool `[n, repeat]`;
- `frame_valid` bool `[n, repeat]`: frames that took place; after the end of an episode the rest are empty;
- `cost` float `[n]`: 1 where Ψ failed in any frame;
- `fresh` bool `[n]`: the action was not used, and the observation is the first of a new episode (next-step autoreset);
- `faults`: a tuple of `Fault`.

A fault in one environment ends its episode there: truncated, with its last sound observation and no reward; the next
step starts a new one. The others go on. More than `max_faults` of them stop the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from ambs.errors import UserError
from ambs.spec.formula import Atoms, Formula

MAX_FAULTS = 10


@dataclass(frozen=True)
class Fault:
    """Something that went wrong in one environment."""

    env: int
    step: int
    """Steps of the vector environment since it was made."""
    reason: str

    def __str__(self) -> str:
        return f"environment {self.env}, step {self.step}: {self.reason}"


class TooManyFaults(RuntimeError):  # noqa: N818 (it is a number of faults that is the error)
    """More faults than the run was allowed."""


@dataclass
class Frames:
    """The accounts of one step, frame by frame; see the module's text for the shapes."""

    rewards: np.ndarray
    labels: np.ndarray
    valid: np.ndarray

    @classmethod
    def empty(cls, num: int, repeat: int, atoms: int) -> Frames:
        """Accounts of no frames at all."""
        shape = (num, repeat)
        return cls(np.zeros(shape), np.zeros((*shape, atoms), bool), np.zeros(shape, bool))


class LabelledVectorEnv(VectorEnv[Any, Any, np.ndarray]):
    """What every vector environment of ours offers, whether its copies live in threads or in processes."""

    def __init__(
        self,
        num_envs: int,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        atoms: Atoms,
        psi: Formula,
        action_repeat: int = 1,
        max_faults: int = MAX_FAULTS,
    ) -> None:
        """Common set-up; `observation_space` and `action_space` are those of one environment."""
        for name, value, least in (
            ("num_envs", num_envs, 1),
            ("action_repeat", action_repeat, 1),
            ("max_faults", max_faults, 0),
        ):
            if value < least:
                raise UserError(f"{name} must be at least {least}, got {value}")
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = observation_space, action_space
        self.observation_space = batch_space(observation_space, num_envs)
        self.action_space = batch_space(action_space, num_envs)
        self.atoms, self.psi = atoms, psi
        self.action_repeat, self.max_faults = action_repeat, max_faults
        self.faults: list[Fault] = []
        self.steps = 0

    def infos(self, labels: np.ndarray, frames: Frames, fresh: np.ndarray, faults: Sequence[Fault]) -> dict[str, Any]:
        """The `infos` of a step."""
        violations = ~self.psi.holds(frames.labels, self.atoms) & frames.valid
        return {
            "labels": labels,
            "frame_rewards": frames.rewards,
            "frame_labels": frames.labels,
            "frame_violations": violations,
            "frame_valid": frames.valid,
            "cost": violations.any(-1).astype(np.float64),
            "fresh": fresh,
            "faults": tuple(faults),
        }

    def note(self, faults: dict[int, str]) -> list[Fault]:
        """Remember the faults of this step; stop the run if they have become too many."""
        noted = [Fault(env, self.steps, reason) for env, reason in sorted(faults.items())]
        self.faults.extend(noted)
        if len(self.faults) > self.max_faults:
            last = "; ".join(str(fault) for fault in self.faults[-3:])
            raise TooManyFaults(f"{len(self.faults)} faults, and max_faults is {self.max_faults}; the last: {last}")
        return noted

    def check_actions(self, actions: Any) -> tuple[np.ndarray, np.ndarray]:
        """The actions as an array `[n, ...]`, and which of them are finite."""
        array = np.asarray(actions)
        wanted = (self.num_envs, *(self.single_action_space.shape or ()))
        if array.shape != wanted:
            raise UserError(f"actions must have shape {wanted}, got {array.shape}")
        return array, np.isfinite(array.reshape(self.num_envs, -1)).all(-1)

    def seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        """One seed for each environment: consecutive ones from a single number, as Gymnasium has it."""
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, (int, np.integer)):
            return [int(seed) + index for index in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise UserError(f"there must be {self.num_envs} seeds, one for each environment, got {len(seed)}")
        return list(seed)


def make_vector(env: str | Callable[[], gymnasium.Env], num_envs: int, **options: Any) -> LabelledVectorEnv:
    """Many copies of one of our tasks by name (in threads), or of a labelled environment by its factory (in processes).

    Options are those of `ThreadedVectorEnv` and `ProcessVectorEnv`.
    """
    if not isinstance(env, str):
        from ambs.envs.processes import ProcessVectorEnv

        return ProcessVectorEnv(env, num_envs, **options)
    from ambs.envs.registration import full_id
    from ambs.envs.safety_gym.threaded import ThreadedVectorEnv

    spec = gymnasium.spec(full_id(env))
    if "SafetyGym" not in str(spec.entry_point):
        raise UserError(f"{spec.id} is none of the Safety Gym tasks; pass a factory that makes it instead of its name")
    return ThreadedVectorEnv(spec.kwargs["task"], num_envs, **options)

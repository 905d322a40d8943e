"""Many labelled environments at once, behind Gymnasium's `VectorEnv`.

A step repeats each action for `action_repeat` frames and accounts for every frame. `infos` holds arrays:

- `labels` bool `[n, atoms]`: the state that the observation shows;
- `frame_rewards` float `[n, repeat]`, `frame_labels` bool `[n, repeat, atoms]`, `frame_violations` bool `[n, repeat]`;
- `frame_valid` bool `[n, repeat]`: frames that took place; after the end of an episode the rest are empty;
- `cost` float `[n]`: 1 where Ψ failed in any frame;
- `fresh` bool `[n]`: the action was not used, and the observation is the first of a new episode (next-step autoreset);
- `episode` int `[n]`: number of the episode that the observation belongs to, from 0;
- `faults`: a tuple of `Fault`.

After `reset(seed=s)` episode k of environment i starts with the seed `episode_seed(s, i, k)`, whenever that may be: runs
that differ in their actions only meet the same worlds, one after the other. With a list of seeds the first episode of
environment i has the i-th of them as it stands, and later ones `episode_seed(seeds[i], i, k)`. A `reset` without a seed
goes on to the next episode; if there never was one, it is drawn.

A fault in one environment ends its episode there: truncated, with its last sound observation and no reward for what was
not sound; the next step starts a new one. The others go on. More than `max_faults` of them stop the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from ambs.config.checks import MOST_ENVS, short, whole
from ambs.envs.mirror import Mirror
from ambs.envs.options import choose_spec
from ambs.envs.scene import Outlook, Scene
from ambs.envs.snapshot import Snapshot, check_fields
from ambs.envs.spaces import as_array, check_layout, parts_of
from ambs.errors import RunError, UserError
from ambs.spec.formula import Atoms, Formula

MAX_FAULTS = 10
MAX_SEED = 2**63 - 1


@dataclass(frozen=True)
class Fault:
    """Something that went wrong in one environment."""

    env: int
    step: int
    """Steps of the vector environment since it was made."""
    reason: str

    def __str__(self) -> str:
        return f"environment {self.env}, step {self.step}: {self.reason}"


class TooManyFaults(RunError):  # noqa: N818 (it is a number of faults that is the error)
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


def episode_seed(seed: int, env: int, episode: int) -> int:
    """The seed of one episode of one environment; below 2³¹, since some environments take no more."""
    return int(np.random.SeedSequence([seed, env, episode]).generate_state(1)[0]) >> 1


class LabelledVectorEnv(VectorEnv[Any, Any, np.ndarray]):
    """What every vector environment of ours does, wherever its copies live; subclasses fill in the methods at the end.

    An observation is a vector, a picture uint8 `[height, width, 3]` (of two cameras: 6) or a dictionary of such.
    """

    can_save = True
    """Whether `get_state` and `set_state` work."""
    can_draw = False
    """Whether `pictures` works."""
    fallback_action: Any = None
    """Action of last resort; None: zeros."""
    action_names: tuple[str, ...] = ()
    """What the entries of an action, or the discrete actions, are called; empty: they have no names."""
    mirror: Mirror | None = None
    """How a step looks with left and right exchanged; None: these worlds are not known to be symmetric."""

    def __init__(
        self,
        num_envs: int,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        atoms: Atoms,
        psi: Formula,
        spec: str | Formula | None = None,
        action_repeat: int = 1,
        max_faults: int = MAX_FAULTS,
    ) -> None:
        """Common set-up; the spaces and `psi` are those of one environment, and `spec` replaces its Ψ."""
        num_envs = whole("num_envs", num_envs, 1, MOST_ENVS)
        action_repeat, max_faults = whole("action_repeat", action_repeat, 1), whole("max_faults", max_faults, 0)
        for part in parts_of(observation_space):
            check_layout(part)
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = observation_space, action_space
        self.observation_space = batch_space(observation_space, num_envs)
        self.action_space = batch_space(action_space, num_envs)
        self.atoms, self.psi = atoms, choose_spec(spec, psi, atoms)
        self.action_repeat, self.max_faults = action_repeat, max_faults
        self.faults: list[Fault] = []
        self.earlier_faults = 0
        """Faults before these environments were made, in a run that was resumed; they count too."""
        self.unsaved: dict[int, str] = {}
        """Environments that could not tell their state when asked, and why: thrown away, and at fault in the next step."""
        self.steps = 0
        self._roots = np.full(num_envs, int(np.random.SeedSequence().generate_state(1)[0]), np.int64)
        """Where the seeds of each environment's episodes come from."""
        self._episodes = np.full(num_envs, -1, np.int64)
        self._over: np.ndarray | None = None
        """Environments whose next step starts an episode; None before the first reset."""

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode in every environment; there are no options."""
        if options is not None and not isinstance(options, Mapping):
            raise UserError(f"options of a reset must be a mapping or None, got {short(options)}")
        faults = self._start(self._reseed(seed))
        self._over = np.zeros(self.num_envs, bool)
        self._over[list(faults)] = True
        frames = Frames.empty(self.num_envs, self.action_repeat, len(self.atoms))
        infos = self._infos(frames, np.ones(self.num_envs, bool), self._note(faults))
        return self._observe(), infos

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Advance every environment by `action_repeat` frames, or start it anew if its episode is over."""
        if self._over is None:
            raise UserError("call reset before the first step")
        array, finite, known = self._check_actions(actions)
        fresh = self._over
        faults = dict.fromkeys(np.flatnonzero(~known & ~fresh).tolist(), "the action is none of the environment's")
        faults |= dict.fromkeys(np.flatnonzero(~finite & ~fresh).tolist(), "the action is not finite")
        frames = Frames.empty(self.num_envs, self.action_repeat, len(self.atoms))
        terminated, truncated = self._advance(array, finite & known & ~fresh, frames, faults)
        faults |= self._start(self._next_seeds(np.flatnonzero(fresh).tolist()))
        truncated[list(faults)] = True
        self._over = terminated | truncated
        self.steps += 1
        infos = self._infos(frames, fresh, self._note(faults))
        return self._observe(), frames.rewards.sum(-1), terminated, truncated, infos

    def get_state(self) -> Snapshot:
        """Everything the future depends on, as arrays."""
        return {**self._save(), **self._counters()}

    def set_state(self, state: Snapshot) -> Any:
        """Continue from a saved state exactly as the saved environments would have; returns what they see."""
        check_fields(state, self._counters(), type(self).__name__)
        self._restore(state)
        self._count_from(state)
        return self._observe()

    def get_progress(self) -> Snapshot:
        """What can be told of environments that cannot be saved: how far each is in its sequence of seeds."""
        return self._counters()

    def set_progress(self, state: Snapshot) -> None:
        """Go on from `get_progress` or `get_state` with new episodes, which the next step starts."""
        check_fields(state, self._counters(), type(self).__name__)
        self._count_from(state)
        self._over = np.ones(self.num_envs, bool)

    def pictures(self, which: Sequence[int]) -> dict[int, np.ndarray]:
        """The current states of these environments for people to look at, uint8 `[height, width, 3]`; of those that can tell."""
        del which
        raise UserError("this environment cannot be drawn")

    def scenes(self, which: Sequence[int]) -> dict[int, Scene]:
        """The current states of these environments as maps; of those that can tell."""
        del which
        return {}

    def imagined(self, now: Scene, observations: np.ndarray) -> list[Scene] | None:
        """What observations `[n, …]` foreseen in the state `now` tell of places; None: nothing."""
        del now, observations
        return None

    def outlook(self) -> Outlook | None:
        """How the robots move and what they have before their eyes; None: these environments cannot tell."""
        return None

    def _count_from(self, state: Snapshot) -> None:
        self._over, self._episodes = np.array(state["over"], bool), np.array(state["episodes"], np.int64)
        self._roots, self.steps = np.array(state["roots"], np.int64), int(state["steps"])

    def _counters(self) -> Snapshot:
        over = np.ones(self.num_envs, bool) if self._over is None else self._over.copy()
        counters = {"episodes": self._episodes.copy(), "roots": self._roots.copy(), "steps": np.array(self.steps)}
        return {"over": over, **counters}

    def _infos(self, frames: Frames, fresh: np.ndarray, faults: Sequence[Fault]) -> dict[str, Any]:
        violations = ~self.psi.holds(frames.labels, self.atoms) & frames.valid
        return {
            "labels": self._labels(),
            "frame_rewards": frames.rewards,
            "frame_labels": frames.labels,
            "frame_violations": violations,
            "frame_valid": frames.valid,
            "cost": violations.any(-1).astype(np.float64),
            "fresh": fresh,
            "episode": self._episodes.copy(),
            "faults": tuple(faults),
        }

    def _note(self, faults: dict[int, str]) -> list[Fault]:
        """Remember the faults of this step; stop the run if they have become too many."""
        noted = [Fault(env, self.steps, reason) for env, reason in sorted(faults.items())]
        self.faults.extend(noted)
        count = self.earlier_faults + len(self.faults)
        if count > self.max_faults and noted:
            last = "; ".join(str(fault) for fault in self.faults[-3:])
            raise TooManyFaults(f"{count} faults, and max_faults is {self.max_faults}; the last: {last}")
        return noted

    def _check_actions(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The actions as an array `[n, ...]`, which of them are finite, and which, if they are discrete, there are.

        What lies beyond the bounds of a Box is the environment's own affair, as with Gymnasium.
        """
        if np.ma.is_masked(actions):
            raise UserError("actions must be whole, and entries of these are masked")
        array = as_array("actions", actions)
        wanted = (self.num_envs, *(self.single_action_space.shape or ()))
        if array.shape != wanted:
            raise UserError(f"actions must have shape {wanted}, got {array.shape}")
        if array.dtype.kind not in "fiub":
            raise UserError(f"actions must be real numbers, got {array.dtype}")
        finite, space = np.isfinite(array.reshape(self.num_envs, -1)).all(-1), self.single_action_space
        if isinstance(space, spaces.Discrete):
            return array, finite, (array >= space.start) & (array < space.start + space.n)
        return array, finite, np.ones(self.num_envs, bool)

    def _reseed(self, seed: int | Sequence[int | None] | None) -> dict[int, int]:
        """Seeds of the first episodes after a reset; see the module's text."""
        single = seed is None or isinstance(seed, (int, np.integer))
        if not single and (isinstance(seed, str) or not isinstance(seed, Sequence | np.ndarray)):
            raise UserError(f"a seed must be a whole number, None, or one of those for each environment, got {seed!r}")
        given: list[Any] = [seed] * self.num_envs if single else list(seed)  # type: ignore[arg-type]
        if len(given) != self.num_envs:
            raise UserError(f"there must be {self.num_envs} seeds, one for each environment, got {len(given)}")
        for index, value in enumerate(given):
            if value is not None:
                value = whole("a seed", value, 0, MAX_SEED)
                self._roots[index], self._episodes[index] = value, -1
        seeds = self._next_seeds(range(self.num_envs))
        if not single:
            seeds |= {index: int(value) for index, value in enumerate(given) if value is not None}
        return seeds

    def _next_seeds(self, indices: Sequence[int]) -> dict[int, int]:
        """Count one more episode in each of these environments; returns the seeds to start them with."""
        self._episodes[list(indices)] += 1
        return {i: episode_seed(int(self._roots[i]), i, int(self._episodes[i])) for i in indices}

    def _start(self, seeds: dict[int, int]) -> dict[int, str]:
        """Start episodes with these seeds in the environments of these numbers; returns faults."""
        raise NotImplementedError

    def _advance(
        self, actions: np.ndarray, live: np.ndarray, frames: Frames, faults: dict[int, str]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Repeat the actions in the live environments, filling `frames` and `faults`: terminated and truncated `[n]`."""
        raise NotImplementedError

    def _observe(self) -> Any:
        """Observations, each array with a leading axis n."""
        raise NotImplementedError

    def _labels(self) -> np.ndarray:
        """Labels of the states observed, bool `[n, atoms]`."""
        raise NotImplementedError

    def _save(self) -> Snapshot:
        """The environments' own part of the state."""
        raise NotImplementedError

    def _restore(self, state: Snapshot) -> None:
        """Put the environments back into what `_save` returned."""
        raise NotImplementedError

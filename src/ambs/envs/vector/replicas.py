"""Vector environments made of copies of one labelled Gymnasium environment, in this process or in others.

Every frame is checked before it counts: a reward, an observation or labels that are not finite or not of the right shape
are a fault like an exception. A copy at fault is thrown away, and another made when its next episode starts.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import create_empty_array

from ambs.envs.mirror import Mirror
from ambs.envs.saving import can_save
from ambs.envs.scene import Scene
from ambs.envs.snapshot import Snapshot, check_fields
from ambs.envs.vector.vector import MAX_FAULTS, Frames, LabelledVectorEnv
from ambs.errors import UserError
from ambs.spec.formula import Atoms, Formula

Factory = Callable[[], gymnasium.Env]
WHOLE = "observation"
"""Name in a saved state of an observation that is no dictionary; parts of one have `observation.part`."""


UNSAVED = "unsaved"
"""Name in a saved state of the flags of environments whose own state is missing from it."""


LARGEST_REWARD = float(np.finfo(np.float32).max)
"""Of a step, all its frames together: the replay buffer holds single precision."""


class Unsound(RuntimeError):  # noqa: N818 (said of what an environment returned)
    """Something an environment returned that cannot be used."""


class LastSound:
    """The last sound observations and labels of n environments."""

    def __init__(self, space: gymnasium.Space[Any], atoms: int, num: int) -> None:
        """Zeros to begin with."""
        empty: Any = create_empty_array(space, n=num)
        self.parts: dict[str, np.ndarray] = empty if isinstance(space, spaces.Dict) else {WHOLE: empty}
        self.labels = np.zeros((num, atoms), bool)
        self._whole = not isinstance(space, spaces.Dict)

    def keep(self, index: int, observation: Any, labels: Any) -> None:
        """Take over what one environment shows, if it is sound."""
        arrays = [self._sound(name, part, observation) for name, part in self.parts.items()]
        if (
            not isinstance(labels, np.ndarray)
            or np.ma.is_masked(labels)
            or labels.dtype != np.bool_
            or labels.shape != self.labels.shape[1:]
        ):
            raise Unsound(f'info["labels"] must be a bool array of shape {self.labels.shape[1:]}, got {labels!r}')
        for part, array in zip(self.parts.values(), arrays, strict=True):
            part[index] = array
        self.labels[index] = labels

    def observations(self) -> Any:
        """Copies of the observations, each array with a leading axis n."""
        return self.parts[WHOLE].copy() if self._whole else {name: part.copy() for name, part in self.parts.items()}

    def row(self, index: int) -> Any:
        """The observation of one environment."""
        return self.parts[WHOLE][index] if self._whole else {name: part[index] for name, part in self.parts.items()}

    def save(self) -> Snapshot:
        """As arrays with a leading axis n."""
        return {"labels": self.labels.copy(), **{self._field(name): part.copy() for name, part in self.parts.items()}}

    def restore(self, state: Snapshot) -> None:
        """Show what was shown when `save` was called."""
        check_fields(state, self.save(), "these environments")
        self.labels[:] = state["labels"]
        for name, part in self.parts.items():
            part[:] = state[self._field(name)]

    def _field(self, name: str) -> str:
        return WHOLE if self._whole else f"{WHOLE}.{name}"

    def _sound(self, name: str, part: np.ndarray, observation: Any) -> np.ndarray:
        given = observation if self._whole else observation[name]
        if np.ma.is_masked(given):
            raise Unsound(f"entries of the {name} are masked")
        array = np.asarray(given)
        if array.shape != part.shape[1:]:
            raise Unsound(f"the {name} must have shape {part.shape[1:]}, got {array.shape}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise Unsound(f"the {name} is not finite")
        if part.dtype.kind in "iu" and array.dtype != part.dtype:
            limits = np.iinfo(part.dtype)
            if array.size and not (limits.min <= array.min() and array.max() <= limits.max):
                raise Unsound(f"the {name} does not fit into {part.dtype}")
        return array.astype(part.dtype)


def begin(env: gymnasium.Env, seed: int | None, index: int, shown: LastSound) -> str:
    """Start an episode in one environment; returns what went wrong, or nothing."""
    try:
        observation, info = env.reset(seed=seed)
        shown.keep(index, observation, info["labels"])
    except Exception as error:
        return describe(error, "a reset")
    return ""


def advance(env: gymnasium.Env, action: Any, index: int, frames: Frames, shown: LastSound) -> tuple[bool, bool, str]:
    """Repeat an action in one environment until its episode ends, row `index` of `frames` telling what came of it.

    Returns terminated, truncated, and what went wrong, or nothing; sound frames before a fault count.
    """
    total = 0.0
    try:
        for repeat in range(frames.valid.shape[1]):
            observation, reward, terminated, truncated, info = env.step(action)
            total += abs(float(reward))
            if not total <= LARGEST_REWARD:
                raise Unsound("the reward is not finite, in single precision")
            shown.keep(index, observation, info["labels"])
            frames.rewards[index, repeat], frames.labels[index, repeat] = reward, info["labels"]
            frames.valid[index, repeat] = True
            if terminated or truncated:
                break
    except Exception as error:
        return False, True, describe(error, "a step")
    return bool(terminated), bool(truncated), ""


def query_or_none(env: gymnasium.Env, method: str, *arguments: Any) -> Any:
    """What a method that only looks tells; None where it fails: nobody's episode should end for that."""
    try:
        return env.get_wrapper_attr(method)(*arguments)
    except Exception:
        return None


def describe(error: BaseException, what: str) -> str:
    """An exception in one line, with the place that raised it."""
    if isinstance(error, Unsound):
        return f"{error} in {what}"
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {what}: {error} ({Path(place.filename).name}, line {place.lineno})"


def made_by(factory: Factory) -> Any:
    """What a factory makes; a UserError, with the place, if it raises or calls `sys.exit` instead."""
    try:
        return factory()
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"the environment could not be made: {describe(error, 'its factory')}") from error


def vocabulary(env: Any) -> tuple[Atoms, Formula]:
    """The atoms of a labelled environment, and its Ψ."""
    if not isinstance(env, gymnasium.Env):
        raise UserError(f"an environment factory must return a gymnasium.Env, and returned {type(env).__name__}")
    if not (env.has_wrapper_attr("atoms") and env.has_wrapper_attr("psi")):
        raise UserError(f"{env} has no labels: give it some by ambs.envs.with_labels")
    return env.get_wrapper_attr("atoms"), env.get_wrapper_attr("psi")


class ReplicaVectorEnv(LabelledVectorEnv):
    """What vector environments made of copies have in common; see `ambs.envs.vector.vector` for what a step returns."""

    def __init__(
        self,
        factory: Factory,
        num_envs: int,
        *,
        spec: str | Formula | None = None,
        action_repeat: int = 1,
        max_faults: int = MAX_FAULTS,
    ) -> None:
        """`factory` makes a labelled environment, as `with_labels` does; it is called once here, to see what it makes."""
        probe = made_by(factory)
        atoms, psi = vocabulary(probe)
        super().__init__(
            num_envs,
            probe.observation_space,
            probe.action_space,
            atoms=atoms,
            psi=psi,
            spec=spec,
            action_repeat=action_repeat,
            max_faults=max_faults,
        )
        self._name, self._factory = str(probe), factory
        self.can_save = can_save(probe)
        self.can_draw = getattr(probe, "render_mode", None) == "rgb_array"
        self._has_scenes = probe.has_wrapper_attr("map_scene")
        self._imagines = self._has_scenes and probe.has_wrapper_attr("map_imagined")
        if probe.has_wrapper_attr("action_names"):
            self.action_names = tuple(map(str, probe.get_wrapper_attr("action_names")))
        mirror = probe.get_wrapper_attr("mirror") if probe.has_wrapper_attr("mirror") else None
        self.mirror = mirror if isinstance(mirror, Mirror) else None
        known = probe.has_wrapper_attr("fallback_action")
        self.fallback_action = probe.get_wrapper_attr("fallback_action") if known else None
        probe.close()
        self._shown = LastSound(self.single_observation_space, len(atoms), num_envs)
        self._copies: list[Any] = [None] * num_envs
        """None: to be made when it is needed."""

    def pictures(self, which: Sequence[int]) -> dict[int, np.ndarray]:
        """What the copies' own `render` draws."""
        if not self.can_draw:
            raise UserError('this environment cannot be drawn: make it with render_mode "rgb_array"')
        return self._query_each(which, "render")

    def scenes(self, which: Sequence[int]) -> dict[int, Scene]:
        """What the copies' own `map_scene` tells."""
        return self._query_each(which, "map_scene") if self._has_scenes else {}

    def imagined(self, now: Scene, observations: np.ndarray) -> list[Scene] | None:
        """What a copy's own `map_imagined` makes of observations."""
        there = [index for index, copy in enumerate(self._copies) if copy is not None]
        if not self._imagines or not there:
            return None
        found = [self._query_or_none(there[0], "map_imagined", now, seen) for seen in observations]
        return None if any(scene is None for scene in found) else found

    def close_extras(self, **kwargs: Any) -> None:
        """Close all copies."""
        del kwargs
        # Gymnasium closes what is garbage, even if it was never quite made.
        for index in range(len(getattr(self, "_copies", ()))):
            self._discard(index)

    def _observe(self) -> Any:
        return self._shown.observations()

    def _labels(self) -> np.ndarray:
        return self._shown.labels.copy()

    def _save(self) -> Snapshot:
        """What is shown, and field f of environment i as `i.f`; nothing of those that must be made anew.

        A copy that fails to tell its state is at fault: its episode ends with the next step, here and in whatever goes on
        from this state.
        """
        if not self.can_save:
            raise UserError(f"{self._name} cannot be saved: it has no get_state and set_state")
        asked = [index for index in range(self.num_envs) if self._copies[index] is not None]
        answers = self._call_each(asked, "get_state", self.unsaved)
        state = {**self._shown.save(), UNSAVED: np.zeros(self.num_envs, bool)}
        for index, own in answers.items():
            if isinstance(own, dict) and not any(np.asarray(array).dtype.hasobject for array in own.values()):
                state |= {f"{index}.{name}": np.asarray(array) for name, array in own.items()}
            else:
                self.unsaved[index] = f"get_state of {self._name} must return a dictionary of arrays"
                self._discard(index)
        state[UNSAVED][list(self.unsaved)] = True
        return state

    def _restore(self, state: Snapshot) -> None:
        if not self.can_save:
            raise UserError(f"{self._name} cannot be restored: it has no get_state and set_state")
        # Many wrappers refuse to step what was never reset.
        if faults := self._start(dict.fromkeys(range(self.num_envs), 0)):
            raise UserError(f"{self._name} cannot be restored: {'; '.join(faults.values())}")
        unsaved = state.get(UNSAVED, np.zeros(self.num_envs, bool))
        self.unsaved = dict.fromkeys(np.flatnonzero(unsaved).tolist(), "its state could not be saved")
        for index in range(self.num_envs):
            mark = f"{index}."
            own = {name.removeprefix(mark): array for name, array in state.items() if name.startswith(mark)}
            if index in self.unsaved:
                self._discard(index)
            elif own:
                self._call(index, "set_state", own)
            elif not state["over"][index]:
                raise UserError(f"the state says nothing of environment {index}")
        self._shown.restore(state)

    def _still_broken(self, live: np.ndarray, faults: dict[int, str]) -> np.ndarray:
        """Blame the copies that could not tell their state, those whose episode goes on; returns who is left to step."""
        faults |= {index: reason for index, reason in self.unsaved.items() if live[index]}
        self.unsaved = {}
        return live & ~np.isin(np.arange(self.num_envs), list(faults))

    def _call_each(self, indices: list[int], method: str, faults: dict[int, str]) -> dict[int, Any]:
        """Call a method of several copies; those that fail are thrown away, and noted in `faults`."""
        answers = {}
        for index in indices:
            try:
                answers[index] = self._call(index, method)
            except Exception as error:
                faults[index] = describe(error, method)
                self._discard(index)
        return answers

    def _copy(self, index: int) -> Any:
        """One copy, made anew if need be."""
        if self._copies[index] is None:
            self._copies[index] = self._make()
            self.unsaved.pop(index, None)
        return self._copies[index]

    def _discard(self, index: int) -> None:
        copy, self._copies[index] = self._copies[index], None
        # What is broken may not even close.
        if copy is not None:
            with contextlib.suppress(Exception):
                self._end(copy)

    def _make(self) -> Any:
        """A copy, or what stands for it here."""
        raise NotImplementedError

    def _end(self, copy: Any) -> None:
        """Close a copy."""
        raise NotImplementedError

    def _call(self, index: int, method: str, *arguments: Any) -> Any:
        """Call a method of one copy."""
        raise NotImplementedError

    def _query_each(self, which: Sequence[int], method: str) -> dict[int, Any]:
        """What a method tells of these copies. One thrown away after a fault is not made anew only to be looked at."""
        found = {index: self._query_or_none(index, method) for index in which if self._copies[index] is not None}
        return {index: told for index, told in found.items() if told is not None}

    def _query_or_none(self, index: int, method: str, *arguments: Any) -> Any:
        """As `query_or_none`, of one copy."""
        raise NotImplementedError

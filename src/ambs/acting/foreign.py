"""Policies that somebody else has made: asked for proposals, whatever kind of object they are and whatever goes wrong in them."""

import copy
import importlib.util
import inspect
import math
import sys
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from ambs.config.checks import checked
from ambs.envs.contract import load_function
from ambs.envs.spaces import as_numpy
from ambs.errors import UserError, one_line
from ambs.shield.actions import last_resort, proposal

KINDS = (
    "a policy is an object with predict(observation, state, episode_start, deterministic), a function of the observation, or "
    "an object with reset() and act(observation)"
)
_WHOLE = -1
"""Where the memory of a policy lies that is asked for the whole batch at once."""


class Proposals(NamedTuple):
    """What a policy proposes for every observation of a batch."""

    action: np.ndarray
    """`[batch, *action]`, in the action space; where the policy failed zeros, or what is nearest to them there."""
    failed: np.ndarray
    """Bool `[batch]`."""
    why: list[str]
    """`[batch]`: what went wrong; empty where nothing did."""
    milliseconds: float
    """How long the policy took for all of them."""


class _Answer(NamedTuple):
    """To one observation: an action of the space, or what went wrong; and whether it had at least the shape of an action."""

    action: np.ndarray | None
    why: str
    shaped: bool


class _Memory(NamedTuple):
    """Whether whole batches are asked for (None: not yet found out), and what the policy remembers: of them, or by row."""

    whole: bool | None
    states: dict[int, Any]


class ForeignPolicy:
    """Asks a policy for proposals and never raises what it raises.

    `policy`: an object with `predict(observation, state, episode_start, deterministic)`, as those of Stable-Baselines3 are,
    which gets whole batches and whose memory is kept here; or a function of one observation or of a batch of them, which of
    the two being found out at the first call; or an object with `reset()` and `act(observation)`, asked about one
    observation at a time, each place in the batch having a copy of its own.

    It fails where it raises (`SystemExit` included, `KeyboardInterrupt` not), where what it returns is no action, and where it
    takes longer than `limit_ms` for a batch: it is then left alone in its thread, and fails until it is back. An action
    beyond the bounds is cut to them. Arrays of JAX and tensors of PyTorch will do.
    """

    def __init__(
        self,
        policy: Any,
        observation_space: gym.Space,
        action_space: gym.Space,
        *,
        deterministic: bool = True,
        limit_ms: float | int | None = None,
    ) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.limit_ms = check_limit(limit_ms)
        self.policy = check_policy(policy)
        self._resort = last_resort(None, action_space)
        self._ask, self._alone = _asking(policy, deterministic)
        self._running: threading.Thread | None = None
        self._size = 0
        self._whole: bool | None = None
        self.count = self.failures = 0
        """Observations that it was asked about, and those of them to which it proposed nothing."""
        self.why = ""
        """What went wrong last."""
        self.reset()

    def reset(self) -> None:
        """Forget the episodes; the next observations are the first of theirs."""
        self._states: dict[int, Any] = {}
        self._fresh = True

    def propose(self, observation: Any, episode_start: np.ndarray) -> Proposals:
        """Proposals for observations `[batch, …]` as the environment gives them, or a dictionary of such.

        `episode_start` bool `[batch]`: which of them are the first of an episode.
        """
        start = np.array(episode_start, bool).reshape(-1)
        if self._fresh or start.size != self._size:
            self.reset()
            start[:] = True
        begun = time.perf_counter()
        try:
            given = _parts(observation, self.observation_space, start.size)
            memory = _Memory(False if self._alone else self._whole, dict(self._states))
            answers, (self._whole, self._states) = self._within_limit(lambda: self._answers(given, start, memory))
            self._fresh, self._size = False, start.size
        except _Failed as failure:
            answers = [_Answer(None, str(failure), shaped=False)] * start.size
        milliseconds = 1000 * (time.perf_counter() - begun)
        self.why = next((answer.why for answer in answers if answer.why), self.why)
        actions = [self._resort if answer.action is None else answer.action for answer in answers]
        failed = np.array([answer.action is None for answer in answers], bool)
        self.count, self.failures = self.count + failed.size, self.failures + int(failed.sum())
        return Proposals(np.stack(actions), failed, [answer.why for answer in answers], milliseconds)

    def _within_limit(self, work: Callable[[], Any]) -> Any:
        """What `work` returns, if it does so in time; it has a thread of its own, which nobody waits for."""
        if self.limit_ms is None:
            return work()
        if self._running is not None and self._running.is_alive():
            raise _Failed("the policy is still busy with an earlier observation")
        done: list[Any] = []

        def run() -> None:
            try:
                done.append(work())
            except KeyboardInterrupt as interrupt:
                done.append(interrupt)

        self._running = threading.Thread(target=run, daemon=True)
        self._running.start()
        self._running.join(self.limit_ms / 1000)
        if not done:
            raise _Failed(f"the policy took longer than {self.limit_ms:g} ms")
        if isinstance(done[0], KeyboardInterrupt):
            raise done[0]
        return done[0]

    def _answers(self, given: Any, start: np.ndarray, memory: _Memory) -> tuple[list[_Answer], _Memory]:
        """An answer to every observation; tries both ways of asking until one of them gives actions."""
        if memory.whole is not None:
            return self._asked(given, start, memory)
        tried = []
        # A function of one observation may well make something of a batch that only looks like an action.
        for whole in (True, False) if start.size > 1 or _predicts(self.policy) else (False, True):
            tried.append(self._asked(given, start, _Memory(whole, memory.states)))
            if any(answer.shaped for answer in tried[-1][0]):
                return tried[-1]
        return tried[0][0], memory

    def _asked(self, given: Any, start: np.ndarray, memory: _Memory) -> tuple[list[_Answer], _Memory]:
        if not memory.whole:
            states = dict(memory.states)
            answers = [self._row(given, start, row, states) for row in range(start.size)]
            return answers, _Memory(memory.whole, states)
        wanted = (start.size, *(self.action_space.shape or ()))
        try:
            array, state = self._array(given, memory.states.get(_WHOLE), start)
        except _Failed as failure:
            return [_Answer(None, str(failure), shaped=False)] * start.size, memory
        if array.shape != wanted:
            why = f"the policy must return actions of shape {wanted} for a batch, got {array.shape}"
            return [_Answer(None, why, shaped=False)] * start.size, memory
        states = {_WHOLE: state if _finite(state) else memory.states.get(_WHOLE)}
        return [self._checked(array[row, ...]) for row in range(start.size)], memory._replace(states=states)

    def _row(self, given: Any, start: np.ndarray, row: int, states: dict[int, Any]) -> _Answer:
        """The answer to one observation by itself; its memory is brought up to date."""
        alone = _map(lambda part: part[row], given)
        try:
            if self._alone and row not in states:
                states[row] = self.policy if row == 0 else _copied(self.policy)
            array, state = self._array(alone, states.get(row), start[row : row + 1])
        except _Failed as failure:
            return _Answer(None, str(failure), shaped=False)
        states[row] = state if _finite(state) else states.get(row)
        wanted = self.action_space.shape or ()
        return self._checked(array.reshape(wanted) if array.shape == (1, *wanted) else array)

    def _array(self, observation: Any, state: Any, start: np.ndarray) -> tuple[np.ndarray, Any]:
        """What the policy returns as an array, and its memory."""
        try:
            # A copy, for a policy may write into what it is shown.
            result, state = self._ask(_map(np.copy, observation), state, start)
            return as_numpy(result).copy(), state
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise _Failed(f"the policy raised {type(error).__name__}: {one_line(error)}") from error

    def _checked(self, array: np.ndarray) -> _Answer:
        """An action of the space, cut to its bounds; or what is wrong with it."""
        shaped = array.shape == (self.action_space.shape or ())
        action, wrong = proposal(array, self.action_space)
        if action is not None and not np.isfinite(action).all():
            action, wrong = None, "the proposed action is not finite"
        return _Answer(action, wrong, shaped)


class _Failed(Exception):  # noqa: N818 (said of a policy)
    """A policy gave no proposal: why not, in a sentence."""


def load_policy(text: str) -> Any:
    """The policy meant by `module:factory` or `path/file.py:factory`: what the function returns, called without arguments.

    What stands there may also be the policy itself, if it is an object with `predict`.
    """
    place, colon, name = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    if not (place and colon and name):
        weights = isinstance(text, str) and text.endswith((".zip", ".pt", ".npz"))
        hint = "; a file of weights is loaded by a factory of yours" if weights else ""
        raise UserError(f"a policy is written module:factory or path/file.py:factory, got {text!r}{hint}")
    factory: Any
    if place.endswith(".py"):
        factory = getattr(_import_file(place), name, None)
        if not _makes(factory):
            raise UserError(f"{place} has no function {name!r}")
    else:
        factory = load_function(text, "a policy", "no policies", _makes)
    if _predicts(factory):
        return factory
    try:
        made = factory()
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        told = f"{type(error).__name__}: {one_line(error)}"
        raise UserError(
            f"{name} of {place} takes no arguments and returns a policy; called, it raised {told}"
        ) from error
    return check_policy(made)


def check_policy(policy: Any) -> Any:
    """The policy, if it is one; else a UserError."""
    if isinstance(policy, type):
        raise UserError(f"{KINDS}; got the class {policy.__name__}: make an object of it")
    if not (_predicts(policy) or _acts(policy) or callable(policy)):
        raise UserError(f"{KINDS}; got {type(policy).__name__}")
    return policy


def check_limit(limit_ms: Any) -> float | None:
    """Milliseconds that a policy may take, or None."""
    if limit_ms is None:
        return None
    limit: float = checked("limit_ms", limit_ms, float)
    if not 0 < limit < math.inf:
        raise UserError(f"limit_ms must be above 0, or None for no limit, got {limit_ms}")
    return limit


def _import_file(place: str) -> ModuleType:
    path = Path(place).resolve()
    if not path.is_file():
        raise UserError(f"there is no file {place}")
    # Under a name that no other module has.
    spec = importlib.util.spec_from_file_location(f"ambs_policy_{zlib.crc32(bytes(path)):08x}_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UserError(f"{place} is no Python file")
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:  # As for a script: what lies beside it can be imported.
        sys.path.insert(0, str(path.parent))
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[spec.name]
        raise UserError(f"{place} cannot be imported: {type(error).__name__}: {one_line(error)}") from error
    return module


def _makes(found: Any) -> bool:
    return callable(found) or _predicts(found)


def _predicts(policy: Any) -> bool:
    return not isinstance(policy, type) and callable(getattr(policy, "predict", None))


def _acts(policy: Any) -> bool:
    return all(callable(getattr(policy, name, None)) for name in ("reset", "act"))


def _asking(policy: Any, deterministic: bool) -> tuple[Callable[[Any, Any, np.ndarray], tuple[Any, Any]], bool]:
    """(observation, memory, starts) -> (answer, memory); and whether it must be asked about one observation at a time."""
    if _predicts(policy):
        taken = _taken(policy.predict)

        def predict(observation: Any, state: Any, start: np.ndarray) -> tuple[Any, Any]:
            told = {"state": state, "episode_start": start, "deterministic": deterministic}
            result = policy.predict(
                observation, **{name: told[name] for name in told if taken is None or name in taken}
            )
            return result if isinstance(result, tuple) and len(result) == 2 else (result, None)

        return predict, False
    if _acts(policy):

        def act(observation: Any, own: Any, start: np.ndarray) -> tuple[Any, Any]:
            if start.any():
                own.reset()
            return own.act(observation), own

        return act, True
    return lambda observation, _state, _start: (policy(observation), None), False


def _taken(function: Callable[..., Any]) -> set[str] | None:
    """Names of the arguments that a function takes; None: whatever one likes, or nobody knows."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None
    anything = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    return None if anything else set(parameters)


def _parts(observation: Any, space: gym.Space, size: int) -> Any:
    """The observations with numbers of the kind that the environment has."""
    if isinstance(space, spaces.Dict):
        if not isinstance(observation, dict) or set(observation) != set(space.spaces):
            raise _Failed(f"an observation has the parts {', '.join(space.spaces)}")
        return {name: _parts(observation[name], part, size) for name, part in space.spaces.items()}
    with np.errstate(invalid="ignore", over="ignore"):
        array = np.asarray(observation, dtype=space.dtype)
    if array.shape != (size, *(space.shape or ())):
        raise _Failed(f"{size} observations must have shape {(size, *(space.shape or ()))}, got {array.shape}")
    return array


def _map(function: Callable[[Any], Any], observation: Any) -> Any:
    if isinstance(observation, dict):
        return {name: _map(function, part) for name, part in observation.items()}
    return function(observation)


def _finite(state: Any) -> bool:
    """Whether a memory is one that a policy can go on from."""
    if isinstance(state, tuple | list):
        return all(map(_finite, state))
    array = state if isinstance(state, np.ndarray) else None
    return array is None or array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _copied(policy: Any) -> Any:
    try:
        return copy.deepcopy(policy)
    except Exception as error:
        raise _Failed(f"the policy cannot be copied for several worlds ({type(error).__name__})") from error

"""A learned shield around a policy that somebody else has made: `ambs.load(run).guard(policy)`, then `guard.act(observation)`."""

import time
from collections import Counter
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from ambs.acting.agent import Agent
from ambs.acting.foreign import ForeignPolicy, Proposals, check_limit, check_policy
from ambs.acting.imagined import Imagined
from ambs.config.checks import LARGEST, checked, short, whole
from ambs.envs.spaces import as_array, as_numpy
from ambs.errors import UserError
from ambs.shield.actions import last_resort, proposal
from ambs.shield.rules import Decision, Reason

LIMIT_MS = 1000.0
"""How long a policy may take for a proposal, unless said otherwise."""
FAILED = "policy_failed"
"""Reason of a decision for which the policy gave no proposal."""
UNREADABLE = Reason.NON_FINITE.name.lower()
"""Reason of one whose observation was refused, or whose imagined futures were not numbers."""
REASONS = (*(reason.name.lower() for reason in Reason if reason != Reason.UNDECIDED), FAILED)


class GuardDecision(NamedTuple):
    """What is to be executed, and why. Of one observation plain values; of a batch arrays and lists, a row for each."""

    action: Any
    """As the environment takes it: the very proposal, the backup policy's, or the fail-safe."""
    proposed: Any
    """By the policy; where it failed zeros, or what is nearest to them."""
    overridden: Any
    """Whether something else than the proposal is executed."""
    p_safe: Any
    """Share of the imagined futures that keep Ψ; 0 where none was drawn."""
    reason: Any
    """One of `REASONS`."""
    why: Any
    """What went wrong in the policy, or is wrong with the observation, in a sentence; empty where nothing is."""
    milliseconds: float
    """All of it, for the whole batch."""
    policy_milliseconds: float
    """What the policy took of it."""


class Guard:
    """The policy proposes, the shield decides, and what is to be executed is returned; stateful: it remembers the episodes.

    Executed is exactly what was checked, or what the backup policy does instead; where the policy fails (it raises, returns no
    action, or takes longer than `limit_ms`), the `failsafe` action, which else is the environment's fallback or zeros. Nothing
    that a policy raises gets out. `counts` says how often each of `REASONS` was given.

    `reset` begins new episodes; so does a batch of another size. `observe` tells what was really executed, where something
    downstream has changed it.
    """

    def __init__(
        self,
        agent: Agent,
        policy: Any,
        *,
        failsafe: Any = None,
        limit_ms: float | int | None = LIMIT_MS,
        deterministic: bool | None = None,
        imagined: Imagined | None = None,
        seed: int = 0,
    ) -> None:
        """`deterministic`: whether a policy that knows the difference is asked for its best action; None: as in training.
        `imagined`: the same policy as a JAX function of (key, observation), which acts in imagination in place of its clone."""
        if not isinstance(agent, Agent):
            raise UserError(f"a guard is made of an agent, such as ambs.load(run) gives, got {short(agent)}")
        agent = agent if imagined is None else agent.imagining(imagined)
        self.agent, self.policy, self.limit_ms = agent, check_policy(policy), check_limit(limit_ms)
        self.seed, asked = whole("seed", seed, 0, LARGEST), checked("deterministic", deterministic, bool | None)
        self.deterministic: bool = agent.config.training.deterministic if asked is None else asked
        self.action_space = _action_space(agent)
        self.failsafe = agent.interface.last_resort() if failsafe is None else _action("failsafe", failsafe, self)
        self.counts: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self._asked: dict[bool, ForeignPolicy] = {}
        self._batch, self._started = 0, False

    def reset(self) -> None:
        """The next observation is the first of a new episode, everywhere."""
        self._started = False

    def act(self, observation: Any, *, labels: Any = None, episode_start: Any = None) -> GuardDecision:
        """Decide on an observation as the environment gives it, or on a batch of them `[batch, …]`.

        `episode_start` bool `[batch]`: which of them are the first of an episode; after `reset` all are. `labels` bool
        `[batch, atoms]`: those of the present states, if they are known.
        """
        return self._decide(observation, labels, episode_start, self.deterministic)

    def check(self, observation: Any, proposed: Any, *, labels: Any = None, episode_start: Any = None) -> GuardDecision:
        """The same for proposals that somebody has asked for already; the policy is not asked."""
        begun = time.perf_counter()
        seen, single = self._seen(observation)
        self._begin(seen, episode_start)
        return self._decided(seen, labels, _checked(proposed, self._batch, single, self.action_space), single, begun)

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, Any]:
        """The guarded policy as Stable-Baselines3 asks for actions; memory is kept here, and `state` passed through.

        `deterministic` is handed on to the policy; the clone in imagination is that of the one that was trained with.
        """
        found = self._decide(observation, None, episode_start, bool(deterministic))
        return np.asarray(found.action), state

    def observe(self, executed: Any) -> None:
        """Say what was really executed since the last decision, where something downstream has changed it."""
        if not self._batch:
            raise UserError("observe comes after a decision, and there was none")
        self.agent.observe(executed)

    def shielded(self, env: gym.Env) -> gym.Wrapper:
        """The environment in which this guard decides on what is proposed (`ambs.Shielded`)."""
        from ambs.acting.guarded import GuardedEnv

        return GuardedEnv(env, self)

    def _decide(self, observation: Any, labels: Any, episode_start: Any, deterministic: bool) -> GuardDecision:
        begun = time.perf_counter()
        seen, single = self._seen(observation)
        start = self._begin(seen, episode_start)
        if deterministic not in self._asked:
            space = _space(seen)
            self._asked[deterministic] = ForeignPolicy(
                self.policy, space, self.action_space, deterministic=deterministic, limit_ms=self.limit_ms
            )
        found = self._asked[deterministic].propose(seen, start)
        return self._decided(seen, labels, found, single, begun)

    def _seen(self, observation: Any) -> tuple[Any, bool]:
        """The observations with an axis of environments, and whether that had to be added."""
        if isinstance(observation, dict):
            parts = {name: _rows(part) for name, part in observation.items()}
            single = all(part.ndim in (1, 3) for part in parts.values())
            sizes = {1 if single else 0 if part.ndim in (1, 3) else len(part) for part in parts.values()}
            if len(sizes) != 1:
                raise UserError(
                    "an observation must have parts, all of one environment, or of as many environments each"
                )
            return {name: part[None] if single else part for name, part in parts.items()}, single
        array = _rows(observation)
        return (array[None], True) if array.ndim in (1, 3) else (array, False)

    def _begin(self, seen: Any, episode_start: Any) -> np.ndarray:
        """Which rows begin an episode; the agent is told."""
        rows = len(next(iter(seen.values()))) if isinstance(seen, dict) else len(seen)
        told = np.zeros(rows, bool) if episode_start is None else as_array("episode_start", episode_start)
        first = np.array(told.reshape(-1))
        if first.shape != (rows,) or first.dtype.kind not in "biu" or not np.isin(first, (0, 1)).all():
            raise UserError(f"episode_start must be {rows} truth values, got {short(episode_start)}")
        first = first.astype(bool)
        if not self._started or rows != self._batch:
            self.agent.start(rows, self.seed, shield=True)
            self._batch, self._started = rows, True
            first[:] = True
        self.agent.restart(first)
        return first

    def _decided(self, seen: Any, labels: Any, found: Proposals, single: bool, begun: float) -> GuardDecision:
        failed, shape = found.failed, (-1, *(1,) * (found.action.ndim - 1))
        none = np.nan if found.action.dtype.kind == "f" else -1
        decision: Decision = self.agent.act(seen, labels, np.where(failed.reshape(shape), none, found.action))
        overridden = np.asarray(decision.overridden) | failed
        action = np.where(overridden.reshape(shape), decision.action, found.action)
        action = np.where(failed.reshape(shape), self.failsafe, action).astype(self.action_space.dtype)
        if failed.any():
            self.agent.observe(action, failed)
        names = [Reason(code).name.lower() for code in np.asarray(decision.reason).tolist()]
        reason = [FAILED if bad else name for bad, name in zip(failed.tolist(), names, strict=True)]
        why = [
            self.agent.refused if because == UNREADABLE else problem
            for because, problem in zip(reason, found.why, strict=True)
        ]
        self.counts.update(reason)
        milliseconds = 1000 * (time.perf_counter() - begun)
        rows: tuple[Any, ...] = (action, found.action, overridden, np.asarray(decision.p_safe), reason, why)
        if single:
            done, wanted, other, p_safe, because, problem = (part[0] for part in rows)
            rows = (done, wanted, bool(other), float(p_safe), because, problem)
        return GuardDecision._make((*rows, milliseconds, found.milliseconds))


def _rows(part: Any) -> np.ndarray:
    """An array that can be an observation, or a batch of them."""
    array = part if np.ma.is_masked(part) else as_array("an observation", part)
    if array.dtype.kind not in "fiub" or array.ndim == 0 or not len(array):
        raise UserError(f"an observation must be an array of numbers, or a dictionary of such, got {short(part)}")
    return array


def _checked(proposed: Any, batch: int, single: bool, space: gym.Space) -> Proposals:
    """What somebody proposes for a batch, or for a single environment; where it is no action it has failed."""
    try:
        given: Any = as_numpy(proposed)
    except Exception:  # Rows of different lengths; or whatever a foreign type raises.
        given = proposed
    shape = given.shape if isinstance(given, np.ndarray) else ()
    told = f"an array of shape {shape}" if shape else short(proposed)
    if single and shape != (1, *(space.shape or ())):
        found = [proposal(given, space)]
    elif shape[:1] == (batch,):
        found = [proposal(row, space) for row in given]
    else:
        found = [(None, f"there must be {batch} proposed actions, got {told}")] * batch
    sound = [action is not None and bool(np.isfinite(action).all()) for action, _ in found]
    resort = last_resort(None, space)
    actions = [action if good else resort for good, (action, _) in zip(sound, found, strict=True)]
    why = [
        "" if good else problem or "the proposed action is not finite"
        for good, (_, problem) in zip(sound, found, strict=True)
    ]
    return Proposals(np.stack([np.asarray(action) for action in actions]), ~np.array(sound), why, 0.0)


def _action_space(agent: Agent) -> gym.Space:
    interface = agent.interface
    if interface.discrete:
        return spaces.Discrete(interface.spec.actions)
    return spaces.Box(interface.low.astype(np.float32), interface.high.astype(np.float32), dtype=np.float32)


def _action(name: str, given: Any, guard: Guard) -> np.ndarray:
    """A given action, which must be in the action space."""
    space = guard.action_space
    wanted = np.asarray(given)
    wanted = wanted.astype(np.float32) if isinstance(space, spaces.Box) and wanted.dtype.kind in "fiu" else wanted
    if not space.contains(wanted):
        raise UserError(f"the {name} action must lie in {space}, got {given}")
    return wanted


def _space(seen: Any) -> gym.Space:
    """A space in which observations `[batch, …]` like these lie."""
    if isinstance(seen, dict):
        return spaces.Dict({name: _space(part) for name, part in seen.items()})
    shape, kind = seen.shape[1:], seen.dtype
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        return spaces.Box(limits.min, limits.max, shape, kind.type)
    return spaces.Box(-np.inf, np.inf, shape, kind.type)

"""What a recording adds to a decision that somebody will ask about: its futures, its twin, the truth where it is known.

All of it is worked out when a batch of episodes is over, so that the decisions themselves are those of a plain evaluation,
and only as long as it takes less time than the evaluation did.
"""

import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from ambs.acting.agent import Agent
from ambs.acting.worlds import is_small
from ambs.envs.registration import make
from ambs.envs.scene import NOTHING, Scene, stacked
from ambs.errors import RunError, UserError
from ambs.nn.compiling import quick_options
from ambs.nn.precision import compute_dtype
from ambs.recording.counterfactuals import Moment, Twin, roll_twins
from ambs.recording.futures import Imagined, imagine_again
from ambs.recording.ground_truth import FUTURES, Situation, TrueWorld, safe_futures, true_world
from ambs.recording.schema import Decided, Examination, Futures, Step, Truth, Twins, stack
from ambs.shield.rules import Reason
from ambs.streams import at, stream

MOST_OVERRIDES = 40
"""Per episode, of which all is recorded unless more is asked for; more are spread evenly."""
MOST_NEAR = 12
"""Accepted decisions per episode, the riskiest, that are looked into as well unless more is asked for."""
ALWAYS = 2
"""Decisions of an episode that are looked into however long it takes."""
SHARE = 0.7
"""Of the evaluation's time that a recording may take."""
NO_TRACES = (Reason.ALREADY_UNSAFE, Reason.NON_FINITE, Reason.LATCHED)


class Limits(NamedTuple):
    """How much of an episode is looked into; None: all of it."""

    overrides: int | None = MOST_OVERRIDES
    near: int | None = MOST_NEAR
    share: float = SHARE
    """Of the evaluation's time that a recording may take."""

    @classmethod
    def asked(cls, examine: int | Literal["all"] | None) -> "Limits":
        """None: the usual, in limited time. Else so many overrides and as many near misses, or all, however long it takes."""
        if examine is None:
            return cls()
        most = None if examine == "all" else examine
        return cls(most, most, math.inf)


USUAL = Limits()


class Budget:
    """How much time the recording took beside the evaluation it watches."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter, share: float = SHARE) -> None:
        self.clock, self.begun, self.own, self.share = clock, clock(), 0.0, share

    def left(self) -> bool:
        """Whether there is time for more."""
        return self.share == math.inf or self.own < self.share * (self.clock() - self.begun - self.own)

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its time counted as the recording's."""

        @functools.wraps(function)
        def run(*arguments: Any) -> Any:
            begun = self.clock()
            try:
                return function(*arguments)
            finally:
                self.own += self.clock() - begun

        return run


@dataclass
class Played:
    """An episode as it is being recorded; entries of the lists are its steps."""

    root: Any
    """Of the agent's random streams."""
    together: int = 1
    """Environments that are played at once."""
    steps: list[Step] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    """Empty where nothing is decided."""
    scenes: list[Scene | None] = field(default_factory=list)
    action_names: Sequence[str] = ()


class Chosen(NamedTuple):
    """Steps of an episode to look into."""

    overrides: list[int]
    """By imagined futures, evenly spread."""
    near: list[int]
    """The riskiest of the accepted."""
    passed_over: list[int]
    """The other overrides."""


@dataclass
class Found:
    """What was found out about an episode, by step; None where there was no time or no way."""

    futures: dict[int, Imagined | None] = field(default_factory=dict)
    twins: dict[int, Twin | None] = field(default_factory=dict)
    truth: dict[int, int | None] = field(default_factory=dict)


class Details:
    """Works out details of decisions of one agent; compiled once, spare environments made once."""

    def __init__(self, agent: Agent, budget: Budget, limits: Limits = USUAL) -> None:
        self.agent, self.budget, self.limits = agent, budget, limits
        self._again = _quick_jit(functools.partial(imagine_again, config=agent.config, dtype=compute_dtype()))
        self._spare: Any = None
        self.true: TrueWorld | None = _small_world(agent.config.env)
        if self.true is not None:
            how: dict[str, Any] = {"config": agent.config, "interface": agent.interface, "dtype": compute_dtype()}
            self._true = _quick_jit(functools.partial(safe_futures, true=self.true, **how))

    def close(self) -> None:
        """Close the spare environments."""
        if self._spare is not None:
            self._spare.close()
            self._spare = None

    def work_out(self, episodes: dict[str, Played], envs: Any) -> dict[str, Examination]:
        """Per episode what can be found out about its decisions, and of how many there was no time to."""
        wanted = {name: interesting(_decisions(part), self.limits) for name, part in episodes.items()}
        found = {name: Found() for name in episodes}
        turns = list(_turns(wanted))
        for first in range(0, len(turns), envs.num_envs):
            some = turns[first : first + envs.num_envs]
            if some[0][0] < ALWAYS or self.budget.left():
                self.budget.timed(self._some)(episodes, [turn[1:] for turn in some], wanted, found, envs)
            else:
                for _, name, step in some:
                    self._skip(found[name], step, step in wanted[name].overrides and envs.can_save)
        return {
            name: _examination(part, episodes[name], envs, len(wanted[name].passed_over))
            for name, part in found.items()
        }

    def _some(
        self,
        episodes: dict[str, Played],
        turns: list[tuple[str, int]],
        wanted: dict[str, Chosen],
        found: dict[str, Found],
        envs: Any,
    ) -> None:
        """Details of as many decisions as there are environments, from whatever episodes."""
        overrides = [turn for turn in turns if turn[1] in wanted[turn[0]].overrides] if envs.can_save else []
        moments = [episodes[name].moments[step] for name, step in overrides]
        for (name, step), outcome in zip(overrides, self._twins(moments, envs.num_envs), strict=True):
            found[name].twins[step] = outcome
        for name, step in turns:
            found[name].futures[step] = self._futures(episodes[name], step)
            if self.true is not None:
                found[name].truth[step] = self._truth(episodes[name], step)

    def _twins(self, moments: list[Moment], size: int) -> list[Twin | None]:
        """The twins of these moments; None of one that has no state, or of all if the spare environments fail."""
        usable = [moment for moment in moments if moment.snapshot is not None]
        if not usable:
            return [None] * len(moments)
        self._spare = self._spare or self.agent.worlds(size)
        try:
            rolled = iter(roll_twins(self.agent, self._spare, usable, self.agent.config.shield.horizon))
        except (UserError, RunError):
            return [None] * len(moments)
        return [None if moment.snapshot is None else next(rolled) for moment in moments]

    def _skip(self, found: Found, step: int, twin: bool) -> None:
        found.futures[step] = None
        if twin:
            found.twins[step] = None
        if self.true is not None:
            found.truth[step] = None

    def _futures(self, episode: Played, step: int) -> Imagined:
        moment, decided = episode.moments[step], episode.steps[step].decided
        assert decided is not None
        key = at(stream(episode.root, "shield"), moment.number)
        used = int(decided.traces_used)
        return jax.device_get(self._again(self.agent.player, key, moment.env, moment.latent, moment.proposed, used))

    def _truth(self, episode: Played, step: int) -> int | None:
        moment = episode.moments[step]
        if self.true is None or moment.snapshot is None:
            return None
        own = {name[2:]: array for name, array in moment.snapshot.items() if name.startswith("0.")}
        here = Situation(self.true.state(own), moment.latent)
        key = at(stream(episode.root, "truth"), moment.number)
        return int(self._true(self.agent.player, key, here, moment.proposed))


def _quick_jit(function: Callable[..., Any]) -> Any:
    """`jax.jit`; on a CPU with less optimisation, since what runs a few dozen times should not compile longest of all."""
    return jax.jit(function, compiler_options=quick_options())


def _small_world(name: str) -> TrueWorld | None:
    """The true model of one of our small worlds as it is; None of whatever is built upon one, which may change it."""
    if not is_small(name):
        return None
    env = make(name)
    try:
        return true_world(env.unwrapped)
    finally:
        env.close()


def _decisions(episode: Played) -> Decided | None:
    made = [step.decided for step in episode.steps if step.decided is not None]
    return stack(made) if made else None


def interesting(decided: Decided | None, limits: Limits = USUAL) -> Chosen:
    """Which decisions of an episode somebody will ask about."""
    if decided is None:
        return Chosen([], [], [])
    overridden = decided.overridden
    every = overrides = np.flatnonzero(overridden & ~np.isin(decided.reason, NO_TRACES))
    if limits.overrides is not None and overrides.size > limits.overrides:
        overrides = overrides[np.linspace(0, overrides.size - 1, limits.overrides).round().astype(int)]
    risky = np.where(overridden, 0.0, decided.violating / np.maximum(decided.traces_used, 1))
    near = [int(step) for step in np.argsort(-risky, kind="stable")[: limits.near] if risky[step] > 0]
    return Chosen(overrides.tolist(), near, np.setdiff1d(every, overrides).tolist())


def _turns(wanted: dict[str, Chosen]) -> Iterator[tuple[int, str, int]]:
    """(round, episode, step), so that all episodes have their turn: overrides in no order first, then near ones."""
    queues = {
        name: [*np.random.default_rng(0).permutation(steps.overrides).astype(int).tolist(), *steps.near]
        for name, steps in wanted.items()
    }
    for round_ in range(max(map(len, queues.values()), default=0)):
        for name, steps in queues.items():
            if round_ < len(steps):
                yield round_, name, steps[round_]


def _examination(found: Found, episode: Played, envs: Any, passed_over: int) -> Examination:
    futures, twins, truth = (_done(part) for part in (found.futures, found.twins, found.truth))

    def left_out(asked: dict[int, Any], done: dict[int, Any]) -> int:
        return len(asked) - len(done) + (passed_over if asked else 0)

    return Examination(
        futures=_futures_of(futures, episode, envs) if futures else None,
        twin=_twins_of(twins) if twins else None,
        truth=_truth_of(truth) if truth else None,
        left_out={
            "futures": left_out(found.futures, futures),
            "twins": left_out(found.twins, twins),
            "truth": left_out(found.truth, truth),
        },
    )


def _done(parts: dict[int, Any]) -> dict[int, Any]:
    return {step: one for step, one in sorted(parts.items()) if one is not None}


def _futures_of(imagined: dict[int, Imagined], episode: Played, envs: Any) -> Futures:
    def every(name: str) -> Any:
        parts = [getattr(one, name) for one in imagined.values()]
        return None if parts[0] is None else np.stack(parts)

    evidence = {
        name: np.stack([np.asarray(getattr(one.evidence, name)) for one in imagined.values()])
        for name in ("first_violation", "atom", "cost", "critic")
    }
    rest = {name: every(name) for name in ("trace", "labels", "continues", "shown", "image", "vector")}
    found = Futures(step=np.array(list(imagined)), **evidence, **rest)
    if found.vector is None or found.image is not None:
        return found
    return replace(found, **_imagined_scenes(found.vector, list(imagined), episode, envs))


def _imagined_scenes(vectors: np.ndarray, steps: list[int], episode: Played, envs: Any) -> dict[str, np.ndarray]:
    """Decoded vectors as maps, where the environment can read them so from the state in which they were imagined."""
    rows = []
    for seen, step in zip(vectors, steps, strict=True):
        now = episode.scenes[step]
        scenes = envs.imagined(now, seen.reshape(-1, seen.shape[-1])) if now is not None else None
        if scenes is None:
            return {}
        rows.append(scenes)
    most = max(scene.items.shape[0] for scenes in rows for scene in scenes)
    lead = (len(rows), vectors.shape[1] * vectors.shape[2])
    robot = np.zeros((*lead, 3), np.float32)
    items = np.zeros((*lead, most, 4), np.float32)
    items[..., 0] = NOTHING
    for index, scenes in enumerate(rows):
        found = stacked(scenes)
        robot[index], items[index, :, : found["items"].shape[1]] = found["robot"], found["items"]
    shape = vectors.shape[:3]
    places = {"robot": robot.reshape(*shape, 3), "items": items.reshape(*shape, most, 4)}
    return places | {"extent": rows[0][0].extent}


def _twins_of(twins: dict[int, Twin]) -> Twins:
    def every(name: str) -> Any:
        parts = [getattr(one, name) for one in twins.values()]
        return np.stack(parts) if all(part is not None for part in parts) else None

    return Twins(step=np.array(list(twins)), **{name: every(name) for name in Twin._fields})


def _truth_of(safe: dict[int, int]) -> Truth:
    return Truth(np.array(list(safe)), np.array(list(safe.values())), np.full(len(safe), FUTURES))

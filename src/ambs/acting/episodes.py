"""Playing with any policy and writing down what happened: one file per episode, as `ambs.storage.episodes` has them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from ambs.acting.foreign import ForeignPolicy
from ambs.config.checks import MOST_EPISODES, checked, folder, short, whole
from ambs.envs.spaces import check_action_space
from ambs.envs.vector.vector import LabelledVectorEnv, episode_seed
from ambs.errors import UserError
from ambs.storage.episodes import ALONE, Episode, write_episode

SPELL = 8
"""Steps for which an action that is drawn at random is held."""


@dataclass(frozen=True)
class Recorded:
    """One episode that is written."""

    path: Path
    steps: int
    total_reward: float
    violations: int
    """Steps that led to a state in which Ψ fails."""
    failed: int
    """Steps in which the policy proposed nothing that can be used; an action of last resort was executed."""
    why: str
    """What went wrong first, if anything did."""


def record_episodes(
    envs: LabelledVectorEnv,
    policy: Any,
    out: Path | str,
    episodes: int,
    *,
    seed: int = 0,
    explore: float = 0.0,
    deterministic: bool = True,
    stop: Callable[[], bool] = lambda: False,
    env: str = "",
    called: str = "",
) -> Iterator[Recorded]:
    """Play in one environment until `out` holds so many episodes, and write each when it is over.

    `policy`: as `ForeignPolicy` takes it; None: uniformly random actions. For a share `explore` of the time an action drawn at
    random is executed for eight steps, whatever the policy proposes. Episode k is always played with the same seed, so that
    what was interrupted goes on where it was: the files that are there are not written again. When `stop` says so, the
    episode that is being played is cut off there and written. A policy that fails in every step of an episode is refused.
    `env` and `called` are the names of environment and policy.
    """
    if not isinstance(envs, LabelledVectorEnv):
        raise UserError(f"episodes are recorded in what ambs.make_vector gives, got {short(envs)}")
    out = folder("out", out)
    if envs.num_envs != 1 or envs.action_repeat != 1:
        raise UserError("episodes are recorded in one environment at a time, and action by action")
    if not 0 <= checked("explore", explore, float) <= 1:
        raise UserError(f"explore must lie in [0, 1], got {explore}")
    episodes, seed = whole("episodes", episodes, 1, MOST_EPISODES), whole("seed", seed, 0)
    check_action_space(envs.single_action_space)
    out.mkdir(parents=True, exist_ok=True)
    source = _source(policy, envs, deterministic)
    for number in range(episodes):
        path = out / f"episode-{number:06d}.npz"
        if path.exists():
            continue
        if stop():
            return
        rng = np.random.default_rng([seed, number])
        play = _Play(envs, source(rng), rng, explore)
        episode = play.episode(episode_seed(seed, 0, number), stop)
        if len(play.failures) == len(play.actions) > 0:
            raise UserError(f"the policy proposed nothing in {len(play.actions)} steps: {play.failures[0]}")
        if episode is not None:
            write_episode(path, episode._replace(env=env, policy=called, spec=str(envs.psi)))
            yield play.recorded(path)


Propose = Callable[[Any, bool], tuple[np.ndarray, str]]
"""(observation `[1, …]`, whether it is an episode's first) -> action, and what went wrong."""


def _source(policy: Any, envs: LabelledVectorEnv, deterministic: bool) -> Callable[[np.random.Generator], Propose]:
    """For the random numbers of an episode: what proposes in it."""
    if policy is None:
        return lambda rng: lambda _observation, _start: (_drawn(rng, envs.single_action_space), "")
    asked = ForeignPolicy(policy, envs.single_observation_space, envs.single_action_space, deterministic=deterministic)

    def propose(observation: Any, start: bool) -> tuple[np.ndarray, str]:
        found = asked.propose(observation, np.array([start]))
        return found.action[0], found.why[0]

    return lambda _rng: propose


class _Play:
    """One episode while it is played."""

    def __init__(self, envs: LabelledVectorEnv, propose: Propose, rng: np.random.Generator, explore: float) -> None:
        self.envs, self.propose, self.rng, self.explore = envs, propose, rng, explore
        self.seen: list[dict[str, np.ndarray]] = []
        self.labels: list[np.ndarray] = []
        self.actions: list[np.ndarray] = []
        self.proposed: list[Any] = []
        self.rewards: list[float] = []
        self.failures: list[str] = []
        self.violations = 0

    def episode(self, seed: int, stop: Callable[[], bool]) -> Episode | None:
        """Play it; None if not even one step could be."""
        raw, infos = self.envs.reset(seed=[seed])
        if infos["faults"]:
            raise UserError(f"the environment cannot start an episode: {infos['faults'][0].reason}")
        self._see(raw, infos)
        held: np.ndarray | None = None
        ended = cut = False
        while not (ended or cut or stop()):
            wanted, why = self.propose(raw, not self.actions)
            if len(self.actions) % SPELL == 0:
                explores = self.rng.uniform() < self.explore
                held = _drawn(self.rng, self.envs.single_action_space) if explores else None
            action = wanted if held is None else held
            raw, reward, terminated, truncated, infos = self.envs.step(action[None])
            ended, cut = bool(terminated[0]), bool(truncated[0])
            if not infos["frame_valid"].all():  # A fault: the step did not take place.
                break
            self.failures += [why] if why else []
            self.actions.append(action)
            self.proposed.append(_nothing(wanted) if why else wanted)
            self.rewards.append(float(reward[0]))
            self.violations += int(infos["cost"][0])
            self._see(raw, infos)
        return self._as_episode(terminated=ended) if self.actions else None

    def _see(self, raw: Any, infos: dict[str, Any]) -> None:
        parts = raw if isinstance(raw, dict) else {ALONE: raw}
        self.seen.append({name: np.array(part[0]) for name, part in parts.items()})
        self.labels.append(infos["labels"][0].copy())

    def _as_episode(self, *, terminated: bool) -> Episode:
        space, vectors = self.envs.single_action_space, _vectors(self.envs.single_observation_space)
        return Episode(
            observation={name: np.stack([seen[name] for seen in self.seen]) for name in self.seen[0]},
            action=np.stack(self.actions),
            labels=np.stack(self.labels),
            atoms=self.envs.atoms.names,
            terminated=terminated,
            truncated=not terminated,
            proposed=np.stack(self.proposed),
            reward=np.array(self.rewards),
            actions=int(space.n) if isinstance(space, spaces.Discrete) else None,
            action_bounds=(space.low, space.high) if isinstance(space, spaces.Box) else None,
            observation_bounds=(vectors.low, vectors.high) if vectors is not None else None,
        )

    def recorded(self, path: Path) -> Recorded:
        """What there is to say of it."""
        why = self.failures[0] if self.failures else ""
        return Recorded(path, len(self.actions), sum(self.rewards), self.violations, len(self.failures), why)


def _drawn(rng: np.random.Generator, space: Any) -> np.ndarray:
    """A uniform action of a space."""
    if isinstance(space, spaces.Discrete):
        return np.array(rng.integers(0, int(space.n)))
    return rng.uniform(space.low, space.high).astype(space.dtype)


def _nothing(action: np.ndarray) -> np.ndarray:
    """How a file says that nothing was proposed."""
    return np.full_like(action, np.nan if action.dtype.kind == "f" else -1)


def _vectors(space: Any) -> spaces.Box | None:
    """The part of an observation that is a vector."""
    parts = space.spaces.values() if isinstance(space, spaces.Dict) else (space,)
    return next((part for part in parts if isinstance(part, spaces.Box) and len(part.shape) == 1), None)

"""`ambs record-episodes ENV --policy module:factory --out FOLDER`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from ambs.cli.words import refuse_file
from ambs.errors import STOPPED


@dataclass(frozen=True)
class RecordEpisodes:
    """Play with any policy and write what happens into files of plain arrays, one per episode, which `ambs fit` learns from.

    docs/episodes.md says what is in them. Ctrl-C writes the episode that is being played up to there; said again, the command
    goes on with those that are missing.
    """

    env: tyro.conf.Positional[str]
    """One of `ambs envs`, or module:factory of a labelled one of your own."""
    policy: str = "random"
    """module:factory or path/file.py:factory, a function without arguments that returns the policy: an object with
    predict(observation, state, episode_start, deterministic), a function of the observation, or an object with reset() and
    act(observation); or `random`."""
    episodes: int = 100
    """How many files the folder is to have."""
    out: Path = Path("episodes")
    """The folder."""
    seed: int = 0
    """Of the worlds, and of what is drawn at random."""
    explore: float = 0.0
    """Share of the time in which an action drawn at random is executed, for eight steps, instead of what the policy proposes:
    what a policy never does cannot be learned from its logs."""
    stochastic: bool = False
    """Ask a policy that knows the difference for drawn actions instead of its best ones."""
    spec: str | None = None
    """Safety formula Ψ such as "!hazard", by which violations are counted; None: the environment's own."""
    observation: Literal["vision", "vector", "both"] | None = None
    """What a Safety Gym robot sees; None: what it does by default."""

    def run(self) -> int:
        """Play, and say of every episode what happened."""
        from ambs.acting.episodes import record_episodes
        from ambs.acting.foreign import load_policy
        from ambs.envs.registration import make_vector
        from ambs.training.signals import stopping

        refuse_file("--out", self.out)
        policy = None if self.policy == "random" else load_policy(self.policy)
        options: dict[str, Any] = {"serial": True} if ":" in self.env else {}
        options |= {} if self.observation is None else {"observation": self.observation}
        count, failed = 0, ""
        with stopping() as stop:
            envs = make_vector(self.env, 1, spec=self.spec, **options)
            try:
                for one in record_episodes(
                    envs, policy, self.out, self.episodes,
                    seed=self.seed, explore=self.explore, deterministic=not self.stochastic, stop=stop.is_set,
                    env=self.env, called=self.policy,
                ):  # fmt: skip
                    count += 1
                    failed = failed or one.why
                    told = f"{one.steps} steps, return {one.total_reward:.2f}, {one.violations} violating"
                    print(f"{one.path}: {told}{f', {one.failed} failed' if one.failed else ''}", flush=True)
            finally:
                envs.close()
        if failed:
            print(f"ambs: the policy failed now and then, first thus: {failed}", file=sys.stderr)
        have = len(list(self.out.glob("episode-*.npz")))
        print(f"{count} episodes written, {have} of {self.episodes} in {self.out}")
        return 0 if have >= self.episodes else STOPPED if stop.is_set() else 1

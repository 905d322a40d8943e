"""`ambs.evaluate`: a policy in worlds that nobody learned from, with and without what guards it, and how like it its clone is."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ambs.acting.agent import Agent, load
from ambs.acting.evaluate import Watcher, paired, summary
from ambs.acting.evaluate import evaluate as play
from ambs.acting.fidelity import fidelity, verdict
from ambs.acting.worlds import Make, make_envs
from ambs.config import Config
from ambs.config.checks import function, one_of
from ambs.data import Experience
from ambs.errors import UserError
from ambs.statistics import Interval

LEAST = 16
"""Windows below which nothing is said of the clone."""
MOST = 512


@dataclass
class Comparison:
    """What an evaluation found; printed, it is a table. `sides` by "off" and "on", each with intervals by name."""

    sides: dict[str, dict[str, Any]]
    difference: dict[str, Interval] = field(default_factory=dict)
    """Of on − off, world by world."""
    clone: dict[str, float] = field(default_factory=dict)
    """`clone/error` and its kin (`ambs.acting.fidelity`); empty where nobody was cloned."""
    level: float = 0.0
    """Δ in force."""
    asked: float = 0.0
    """Δ that was asked for."""

    def __str__(self) -> str:
        titles = {
            "return": "return per episode", "violations": "violating steps per episode",
            "episodes_with_violation": "episodes with a violation", "override_rate": "override rate",
            "switches": "control switches per episode",
        }  # fmt: skip
        lines = [f"{'':30}" + "".join(f"{'shield ' + side:>26}" for side in self.sides)]
        for name, title in titles.items():
            cells = [str(side[name]) if name in side else "-" for side in self.sides.values()]
            lines.append(f"{title:30}" + "".join(f"{cell:>26}" for cell in cells))
        return "\n".join([*lines, *self.remarks()])

    def remarks(self) -> list[str]:
        """What is to be said beside the table."""
        found = clone_remarks(self.clone) if self.clone else []
        if self.level != self.asked and "on" in self.sides:
            found.append(f"The shield accepts up to Δ = {self.level:.3g}, where {self.asked:g} was asked for.")
        return found


def clone_remarks(found: dict[str, float]) -> list[str]:
    """How like the policy its clone is, in words."""
    told = (
        f"The clone misses the policy's proposals by {found['clone/error']:.3f} of the range (in imagined states by "
        f"{found['clone/imagined_error']:.3f}), which moves p̃ by {found['clone/risk_difference']:.3f}."
    )
    doubt = verdict(found)
    return [told, f"Beware: {doubt}."] if doubt else [told]


def evaluate(
    run: Path | str | Agent,
    make: Make | str | None = None,
    *,
    policy: Any = None,
    shield: str = "paired",
    episodes: int = 50,
    seed: int = 0,
    on_step: Callable[[int], None] | None = None,
) -> Comparison:
    """Play a run's policy, or the one that it guards (`policy`), with the shield `on`, `off`, or in the same worlds both ways.

    `make` makes the environment, or is its name; None: as the run's settings name it.
    """
    one_of("shield", shield, ("paired", "on", "off"))
    if make is not None and not isinstance(make, str):
        function("make", make, "that makes an environment, or the name of one")
    agent = run if isinstance(run, Agent) else load(run, env=make if isinstance(make, str) else None)
    if callable(make):
        agent.worlds = functools.partial(make_envs, agent.config, make=make)
    if agent.config.guards and policy is None:
        raise UserError("this run guards a policy that is given: say which one acts (policy=…)")
    watch = Notes(agent) if policy is not None else None
    options: dict[str, Any] = {"seed": seed, "given": policy, "watch": watch, "on_step": on_step}
    if shield == "paired":
        found = paired(agent, episodes, **options)
        sides, difference = {side: found[side] for side in ("off", "on")}, found["difference"]
    else:
        sides, difference = {shield: summary(play(agent, episodes, shield=shield == "on", **options))}, {}
    settings = agent.config.shield
    clone = watch.fidelity() if watch is not None else {}
    return Comparison(sides, difference, clone, settings.safety_level, settings.as_asked().safety_level)


def both(*watchers: Watcher | None) -> Watcher | None:
    """Several who look on as one; None: nobody does."""
    there = [one for one in watchers if one is not None]
    return _All(there) if len(there) > 1 else next(iter(there), None)


class _All:
    """All of them, one after the other."""

    def __init__(self, watchers: list[Watcher]) -> None:
        self.watchers = watchers

    def decided(self, first: int, seen: dict[str, Any]) -> None:
        """Tell everybody."""
        for watcher in self.watchers:
            watcher.decided(first, seen)

    def stepped(self, first: int, seen: dict[str, Any]) -> None:
        """Tell everybody."""
        for watcher in self.watchers:
            watcher.stepped(first, seen)

    def played(self, first: int, envs: Any) -> None:
        """Tell everybody."""
        for watcher in self.watchers:
            watcher.played(first, envs)


class Notes:
    """Looks on while a given policy plays, and takes down what its clone can be judged by (`ambs.acting.evaluate.Watcher`)."""

    def __init__(self, agent: Agent) -> None:
        self.agent, self.windows = agent, list[Experience]()
        self._rows: list[Experience] = []
        self._arrived: tuple[np.ndarray, dict[str, Any]] | None = None
        """The actions of the last step, in the model's terms, and its infos."""
        self._length = agent.config.calibration.context + agent.config.shield.horizon

    def decided(self, first: int, seen: dict[str, Any]) -> None:
        """Take down what was seen and proposed, and cut a window off where it is long enough."""
        del first
        agent, over = self.agent, np.zeros(seen["labels"].shape[0], bool)
        taken, infos = self._arrived or (np.zeros_like(agent.raw_action), _at_rest(seen["labels"], agent.config))
        row = agent.interface.rows(seen["observation"], taken, infos, (over, over), agent.config)
        proposed: Any = np.asarray(agent.raw_proposed)
        self._rows.append(row._replace(proposed=proposed))
        if len(self._rows) == self._length:
            self.windows.append(jax.tree.map(lambda *rows: np.stack(rows, axis=1), *self._rows))
            self._rows = []

    def stepped(self, first: int, seen: dict[str, Any]) -> None:
        """Remember what led to the next observation."""
        del first
        self._arrived = np.asarray(self.agent.raw_action), seen["infos"]

    def played(self, first: int, envs: Any) -> None:
        """What is left of a batch is no window."""
        del first, envs
        self._rows, self._arrived = [], None

    def fidelity(self) -> dict[str, float]:
        """`ambs.acting.fidelity.fidelity` of what was seen, or nothing, where that is too little."""
        if not self.windows:
            return {}
        every: Experience = jax.tree.map(lambda *parts: np.concatenate(parts), *self.windows)
        whole = np.flatnonzero(~np.asarray(every.is_first)[:, 1:].any(axis=1))
        if whole.size < LEAST:
            return {}
        chosen = np.random.default_rng(0).permutation(whole)[:MOST]
        windows: Experience = jax.tree.map(lambda part: part[chosen], every)
        np.asarray(windows.is_first)[:, 0] = True
        judge = jax.jit(functools.partial(fidelity, config=self.agent.config))
        found = judge(self.agent.player, windows, jax.random.key(0))
        return {name: float(value) for name, value in found.items()}


def _at_rest(labels: np.ndarray, config: Config) -> dict[str, Any]:
    """What a reset tells: frames that did not take place."""
    frames = (labels.shape[0], config.training.action_repeat)
    return {
        "labels": labels,
        "fresh": np.ones(labels.shape[0], bool),
        "frame_valid": np.zeros(frames, bool),
        "frame_labels": np.zeros((*frames, labels.shape[1]), bool),
        "frame_rewards": np.zeros(frames),
    }

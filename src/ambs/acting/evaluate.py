"""Playing a trained agent for the record: with the shield, without it, or both in the same worlds."""

import time
from collections.abc import Callable
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from ambs.acting.accounting import Accounts
from ambs.acting.adapter import interface
from ambs.acting.agent import Agent
from ambs.acting.foreign import ForeignPolicy
from ambs.acting.prescient import Prescient
from ambs.config.checks import MOST_EPISODES, function, whole
from ambs.errors import UserError
from ambs.shield.rules import Decision
from ambs.statistics import bootstrap_interval, mean_interval, share_interval
from ambs.streams import stream

Side = Literal["on", "off"]
Policy = Literal["task", "backup", "random"]
TOGETHER = 8
"""Episodes that are played at once."""


@runtime_checkable
class Watcher(Protocol):
    """Somebody who looks on; `first` is the number of a batch's first episode."""

    def decided(self, first: int, seen: dict[str, Any]) -> None:
        """Before a step: observation, labels, decision, action, milliseconds, envs, live (environments that count)."""

    def stepped(self, first: int, seen: dict[str, Any]) -> None:
        """After it: the same, infos and ended."""

    def played(self, first: int, envs: Any) -> None:
        """All episodes of a batch are over."""


def evaluate(
    agent: Agent,
    episodes: int,
    *,
    seed: int = 0,
    shield: bool = True,
    policy: Policy = "task",
    on_step: Callable[[int], None] | None = None,
    watch: Watcher | None = None,
    begin: int = 0,
    batch: int | None = None,
    given: Any = None,
) -> list[dict[str, Any]]:
    """Play `episodes` worlds of a `seed`, numbered from `begin`, and return a row for each: return, violations, overrides …

    `given`: a policy that somebody else has made, which acts in place of the task policy.

    Worlds and noise depend on the numbers (and noise on how many play at once, `batch`) alone, so that two evaluations meet
    the same ones.
    """
    episodes, seed = whole("episodes", episodes, 1, MOST_EPISODES), whole("seed", seed, 0)
    if on_step is not None:
        function("on_step", on_step, "that takes how many episodes are over")
    rows: list[dict[str, Any]] = []
    size, end = min(episodes, batch or TOGETHER), begin + episodes
    envs = agent.worlds(size)
    prescient: Prescient | None = None
    try:
        _refuse_another_world(agent, envs)
        asked = None if given is None else _asked(agent, envs, given)
        if shield and agent.config.shield.kind == "prescient" and policy != "random":
            envs.reset(seed=seed)
            prescient = Prescient(agent, envs, seed)
        for first in range(begin, end, size):
            count = min(size, end - first)
            rows += _batch(agent, envs, first, count, seed, shield, policy, on_step, watch, asked, prescient)
            if asked is not None and asked.failures == asked.count > 0:
                raise UserError(f"the policy proposed nothing in {asked.count} steps: {asked.why}")
    finally:
        if prescient is not None:
            prescient.close()
        envs.close()
    return rows


def _refuse_another_world(agent: Agent, envs: Any) -> None:
    """Refuse an environment whose Ψ, atoms or actions are not those the agent was made for: its shield would guard another."""
    ours, theirs = interface(envs, agent.config, learning=False).to_dict(), agent.interface.to_dict()
    for name in ("atoms", "psi", "actions", "discrete", "low", "high"):
        if ours[name] != theirs[name]:
            raise UserError(
                f"the environment is not what it was: its {name} is {ours[name]}, and the agent's is {theirs[name]}"
            )


def _asked(agent: Agent, envs: Any, policy: Any) -> ForeignPolicy:
    spaces = envs.single_observation_space, envs.single_action_space
    return ForeignPolicy(policy, *spaces, deterministic=agent.config.training.deterministic)


def proposals(asked: ForeignPolicy, raw: Any, fresh: np.ndarray) -> np.ndarray:
    """What a policy proposes, `[batch, …]` as the environment takes it; no action at all where it failed."""
    found = asked.propose(raw, fresh)
    none = np.nan if found.action.dtype.kind == "f" else -1
    return np.where(found.failed.reshape(-1, *(1,) * (found.action.ndim - 1)), none, found.action)


def _batch(
    agent: Agent,
    envs: Any,
    first: int,
    count: int,
    seed: int,
    shield: bool,
    policy: Policy,
    on_step: Callable[[int], None] | None,
    watch: Watcher | None,
    asked: ForeignPolicy | None = None,
    prescient: Prescient | None = None,
) -> list[dict[str, Any]]:
    """Episodes `first`, … of which `count` are wanted; the rest of the batch plays on, since noise depends on its size."""
    size = envs.num_envs
    worlds = [int(np.random.SeedSequence([seed, first + index]).generate_state(1)[0]) for index in range(size)]
    raw, infos = envs.reset(seed=worlds)
    agent.start(size, seed, shield=shield and prescient is None, policy="task" if policy == "random" else policy)
    decide = agent.act if prescient is None else prescient.act
    agent.root = stream(agent.root, f"evaluation {first}")
    rng = np.random.default_rng([seed, first])
    accounts = Accounts(size, envs.atoms.names)
    found: dict[int, dict[str, Any]] = {}
    while len(found) < count:
        decision: Decision | None = None
        begun = time.perf_counter()
        if policy == "random":
            actions = agent.interface.to_env(agent.interface.random(rng, size))
        else:
            decision = decide(raw, infos["labels"], None if asked is None else proposals(asked, raw, infos["fresh"]))
            actions = np.asarray(decision.action)
        live = [index for index in range(count) if index not in found]
        seen = {"observation": raw, "labels": infos["labels"], "decision": decision, "action": actions}
        seen |= {"milliseconds": 1000 * (time.perf_counter() - begun), "envs": envs, "live": live}
        if watch is not None:
            watch.decided(first, seen)
        raw, _, terminated, truncated, infos = envs.step(actions)
        if watch is not None:
            watch.stepped(first, seen | {"infos": infos, "ended": terminated | truncated})
        for row in accounts.step(infos, (terminated, truncated), decision, shield and policy != "random"):
            if row["env"] in live:
                found[row["env"]] = {**row, "episode": first + row["env"], "world": worlds[row["env"]]}
        agent.restart(infos["fresh"])
        if on_step is not None:
            on_step(first + len(found))
    if watch is not None:
        watch.played(first, envs)
    return [found[index] for index in range(count)]


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over episodes with 95 % intervals."""
    numbers = [name for name, value in rows[0].items() if isinstance(value, (int, float))]
    column = {name: np.array([row[name] for row in rows], float) for name in numbers}
    result = {
        "episodes": len(rows),
        "return": mean_interval(column["return"]),
        "violations": mean_interval(column["violations"], least=0.0),
        "violations_per_1000": mean_interval(1000 * column["violations"] / column["length"], least=0.0, most=1000.0),
        "episodes_with_violation": share_interval(int((column["violations"] > 0).sum()), len(rows)),
        "switches": mean_interval(column["switches"], least=0.0),
    }
    if column["decisions"].sum():
        result["override_rate"] = mean_interval(
            column["overrides"] / np.maximum(column["decisions"], 1), least=0.0, most=1.0
        )
        result["traces_per_decision"] = mean_interval(column["traces"] / np.maximum(column["decisions"], 1), least=0.0)
    return result


def paired(agent: Agent, episodes: int, **options: Any) -> dict[str, Any]:
    """The same worlds with and without shield: both summaries, and the mean of on − off with a bootstrap interval."""
    rows = {side: evaluate(agent, episodes, shield=side == "on", **options) for side in ("off", "on")}
    difference = {
        name: bootstrap_interval(
            np.array([a[name] - b[name] for a, b in zip(rows["on"], rows["off"], strict=True)], float)
        )
        for name in ("return", "violations")
    }
    return {"off": summary(rows["off"]), "on": summary(rows["on"]), "difference": difference, "rows": rows}

"""Kinds of shield around the same agents in the same worlds: a JSON line for each agent and kind.

    python benchmarks/shields.py RUN [RUN …] [--kinds off ambs recovery latent critic prescient]
        [--episodes 50] [--seed 500] [--spec PROPERTY] [--policy module:factory]

A kind may be held to a property of its own: "recovery: P>=0.95 [ G<=8 !hazard ]". The kind `broken` is `recovery` around a backup
policy that is broken on purpose: it pushes the other way.
Return, violating frames and control switches per episode, override rate, futures per decision, the median of milliseconds of a
decision (for eight environments together), seconds for all of it; of
kinds other than the first two also the ratio to `ambs` over all agents, with a bootstrap interval over paired episodes.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np

from ambs.acting.agent import Agent, load
from ambs.acting.evaluate import evaluate
from ambs.acting.foreign import load_policy
from ambs.config.checks import one_of
from ambs.errors import UserError
from ambs.shield.config import KINDS


def main() -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--kinds", nargs="+", default=["off", *KINDS])
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--seed", type=int, default=500)
    parser.add_argument("--spec", help="another property than the runs', such as P>=0.7 [ G<=6 !hazard ]")
    parser.add_argument("--policy", help="who proposes, of runs that guard one: module:factory or file.py:factory")
    options = parser.parse_args()
    for kind in options.kinds:
        one_of("--kinds", kind.partition(":")[0], ("off", "broken", *KINDS))
    given = None if options.policy is None else load_policy(options.policy)
    played: dict[str, list[dict[str, Any]]] = {}
    for run in options.runs:
        try:
            agent = load(run) if options.spec is None else load(run).held_to(options.spec)
            shields = {kind: behind(agent, *kind.partition(":")[::2]) for kind in options.kinds}
        except UserError as error:
            parser.error(str(error))
        for kind, held in shields.items():
            rows, milliseconds, seconds = play(held, options.episodes, options.seed, kind != "off", given)
            played[kind] = played.get(kind, []) + rows
            told = {"run": run.name, "asked": agent.asked, "kind": kind, **figures(rows)}
            print(json.dumps({**told, "milliseconds": milliseconds, "seconds": round(seconds)}), flush=True)
    for kind in options.kinds:
        if "ambs" in played and kind not in ("off", "ambs"):
            print(json.dumps({"kind": kind, "against": "ambs", **ratios(played[kind], played["ambs"])}), flush=True)


class Opposite(eqx.Module):
    """A policy that does the opposite of another."""

    policy: Any

    def act(self, key: Any, state: Any) -> Any:
        return -self.policy.act(key, state)

    def best(self, key: Any, state: Any) -> Any:
        return -self.policy.best(key, state)


def behind(agent: Agent, kind: str, spec: str) -> Agent:
    """The agent behind a kind of shield, `off` and `broken` among them, held to a property of its own if there is one."""
    agent = agent.held_to(spec.strip()) if spec else agent
    if kind in ("off", agent.config.shield.kind):
        return agent
    made = agent.behind(kind="recovery" if kind == "broken" else kind)
    if kind == "broken":
        if agent.interface.discrete:
            raise UserError("the opposite of an action that is one of a few is none: leave out the kind broken")
        actors = made.player.actors
        made.player = made.player._replace(actors=actors._replace(backup=Opposite(actors.backup)))
    return made


class Watch:
    """Takes down how long decisions take."""

    def __init__(self) -> None:
        self.milliseconds: list[float] = []

    def decided(self, first: int, seen: dict[str, Any]) -> None:
        del first
        self.milliseconds.append(seen["milliseconds"])

    def stepped(self, first: int, seen: dict[str, Any]) -> None:
        pass

    def played(self, first: int, envs: Any) -> None:
        pass


def play(agent: Agent, episodes: int, seed: int, shield: bool, given: Any) -> tuple[list[dict[str, Any]], float, float]:
    """Rows of the episodes, milliseconds of a decision, and how long all took."""
    begun, watch = time.perf_counter(), Watch()
    rows = evaluate(agent, episodes, seed=seed, shield=shield, watch=watch, given=given)
    return rows, round(float(np.median(watch.milliseconds)), 2), time.perf_counter() - begun


def figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Means per episode, and shares of decisions."""
    total = {name: float(sum(row[name] for row in rows)) for name in ("decisions", "overrides", "traces")}
    found = {name: float(np.mean([row[name] for row in rows])) for name in ("return", "violations", "switches")}
    decided = max(total["decisions"], 1)
    found |= {"override_rate": total["overrides"] / decided, "traces_per_decision": total["traces"] / decided}
    return {name: round(value, 4) for name, value in found.items()} | {"episodes": len(rows)}


def ratios(
    ours: list[dict[str, Any]], theirs: list[dict[str, Any]], draws: int = 10_000
) -> dict[str, list[float | None]]:
    """Overrides, violations and return over those of another shield in the same episodes, 95 % by bootstrap; None: over 0."""
    rng, found = np.random.default_rng(0), {}
    which = rng.integers(0, len(ours), (draws, len(ours)))
    for name in ("overrides", "violations", "return"):
        a, b = (np.array([row[name] for row in rows], float) for rows in (ours, theirs))
        many = a[which].sum(axis=1) / nonzero(b[which].sum(axis=1))
        low, high = np.quantile(many, [0.025, 0.975])
        three = (float(value) for value in (a.sum() / nonzero(b.sum()), low, high))
        found[name] = [round(value, 3) if abs(value) < 1e6 else None for value in three]
    return found


def nonzero(sums: Any) -> Any:
    """The same, and a very small number in place of 0."""
    return np.where(sums == 0, 1e-9, sums)


if __name__ == "__main__":
    main()

"""Kinds of shield around the same agents in the same worlds: a JSON line for each agent and kind.

    python benchmarks/shields.py RUN [RUN …] [--kinds off ambs recovery latent critic prescient]
        [--episodes 50] [--seed 500] [--spec PROPERTY]

A kind may be held to a property of its own: "recovery: P>=0.95 [ G<=8 !hazard ]".
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

import numpy as np

from ambs.acting.agent import Agent, load
from ambs.acting.evaluate import evaluate
from ambs.config.checks import one_of
from ambs.shield.config import KINDS


def main() -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--kinds", nargs="+", default=["off", *KINDS])
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--seed", type=int, default=500)
    parser.add_argument("--spec", help="another property than the runs', such as P>=0.7 [ G<=6 !hazard ]")
    options = parser.parse_args()
    for kind in options.kinds:
        one_of("--kinds", kind.partition(":")[0], ("off", *KINDS))
    played: dict[str, list[dict[str, Any]]] = {}
    for run in options.runs:
        agent = load(run) if options.spec is None else load(run).held_to(options.spec)
        for kind in options.kinds:
            rows, milliseconds, seconds = play(agent, kind, options.episodes, options.seed)
            played[kind] = played.get(kind, []) + rows
            told = {"run": run.name, "asked": agent.asked, "kind": kind, **figures(rows)}
            print(json.dumps({**told, "milliseconds": milliseconds, "seconds": round(seconds)}), flush=True)
    for kind in options.kinds:
        if "ambs" in played and kind not in ("off", "ambs"):
            print(json.dumps({"kind": kind, "against": "ambs", **ratios(played[kind], played["ambs"])}), flush=True)


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


def play(agent: Agent, kind: str, episodes: int, seed: int) -> tuple[list[dict[str, Any]], float, float]:
    """Rows of the episodes, milliseconds of a decision, and how long all took."""
    begun = time.perf_counter()
    name, _, spec = kind.partition(":")
    held = agent.held_to(spec.strip()) if spec else agent
    behind = held if name in ("off", "ambs") else held.behind(kind=name)
    watch = Watch()
    rows = evaluate(behind, episodes, seed=seed, shield=kind != "off", watch=watch)
    return rows, round(float(np.median(watch.milliseconds)), 2), time.perf_counter() - begun


def figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Means per episode, and shares of decisions."""
    total = {name: float(sum(row[name] for row in rows)) for name in ("decisions", "overrides", "traces")}
    found = {name: float(np.mean([row[name] for row in rows])) for name in ("return", "violations", "switches")}
    decided = max(total["decisions"], 1)
    found |= {"override_rate": total["overrides"] / decided, "traces_per_decision": total["traces"] / decided}
    return {name: round(value, 4) for name, value in found.items()} | {"episodes": len(rows)}


def ratios(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], draws: int = 10_000) -> dict[str, list[float]]:
    """Overrides and violations over those of another shield in the same episodes: ratio of sums, and 95 % by bootstrap."""
    rng, found = np.random.default_rng(0), {}
    which = rng.integers(0, len(ours), (draws, len(ours)))
    for name in ("overrides", "violations", "return"):
        a, b = (np.array([row[name] for row in rows], float) for rows in (ours, theirs))
        many = a[which].sum(axis=1) / np.maximum(b[which].sum(axis=1), 1e-9)
        low, high = np.quantile(many, [0.025, 0.975])
        found[name] = [round(float(value), 3) for value in (a.sum() / max(b.sum(), 1e-9), low, high)]
    return found


if __name__ == "__main__":
    main()

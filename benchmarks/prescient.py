"""Whether a shield that sees the world itself keeps its word, by an exact binomial test: one JSON line.

    python benchmarks/prescient.py RUN --states 5000
    python benchmarks/prescient.py RUN --states 500 --spec "P>=0.8 [ G<=15 !hazard ]" --traces 256

Each state comes from a world of its own, in which the task policy has driven without a shield for a number of steps that is
drawn. There a prescient shield judges what the policy proposes. Whatever it says, the action is then executed and the task
policy drives on for n steps, without a shield, with chance of its own. Of the actions that were accepted no larger share than Δ
may come to violate Ψ: `p` is the chance of so few violations if a share of Δ did, `at_most` the upper end of the one-sided 99 %
interval. States that violate already are left out. Of the overridden actions the same share stands beside it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ambs.acting.agent import Agent, load
from ambs.acting.prescient import Prescient
from ambs.shield import Reason
from ambs.storage.files import finite


def main() -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--spec", help="another property than the run's, such as P>=0.9 [ G<=20 !hazard ]")
    parser.add_argument("--traces", type=int, help="most futures of a decision (default: the run's)")
    parser.add_argument("--states", type=int, default=5000)
    parser.add_argument("--before", type=int, default=80, help="steps before a state, at most (default: %(default)s)")
    parser.add_argument("--together", type=int, default=16, help="worlds at once (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=900)
    options = parser.parse_args()
    agent = load(options.run)
    if options.spec:
        agent = agent.held_to(options.spec)
        if agent.config.shield.path is not None:
            parser.error("--spec must be of the form P>=p [ G<=n Ψ ]: what fails is counted by Ψ")
    agent = agent.behind(kind="prescient", **({"traces": options.traces} if options.traces else {}))
    begun = time.perf_counter()
    rows = judged(agent, options.states, options.before, options.together, options.seed, tell)
    told = {"run": options.run.name, "asked": agent.asked, "traces": agent.config.shield.traces, "seed": options.seed}
    print(json.dumps(finite({**told, **figures(rows, agent), "seconds": round(time.perf_counter() - begun)})))


def tell(done: int, wanted: int) -> None:
    """A line now and then, beside the one that counts."""
    import sys

    print(f"{done} of {wanted} states", file=sys.stderr, flush=True)


def judged(
    agent: Agent,
    states: int,
    before: int,
    together: int,
    seed: int,
    on_round: Callable[[int, int], None] | None = None,
) -> dict[str, np.ndarray]:
    """Of each state its `reason`, `p_safe` and `traces`, and whether Ψ failed (`failed`) in the n steps after it."""
    envs = agent.worlds(together)
    rows: dict[str, list[np.ndarray]] = {name: [] for name in ("reason", "p_safe", "traces", "failed")}
    rng = np.random.default_rng(seed)
    try:
        envs.reset(seed=seed)
        seen = Prescient(agent, envs, seed)
        for batch in range(-(-states // together)):
            worlds = [int(np.random.SeedSequence([seed, batch, env]).generate_state(1)[0]) for env in range(together)]
            raw, infos = envs.reset(seed=worlds)
            agent.start(together, int(rng.integers(2**31)), shield=False)
            for _ in range(int(rng.integers(before + 1))):
                raw, _, _, _, infos = envs.step(agent.act(raw, infos["labels"]).action)
                agent.restart(infos["fresh"])
            decision = seen.act(raw, infos["labels"])
            agent.observe(decision.proposed)
            found = {"reason": decision.reason, "p_safe": decision.p_safe, "traces": decision.traces_used}
            found["failed"] = failed(agent, envs, decision.proposed)
            for name, values in found.items():
                rows[name].append(np.array(values))
            if on_round is not None and (batch + 1) % 16 == 0:
                on_round((batch + 1) * together, states)
        seen.close()
    finally:
        envs.close()
    return {name: np.concatenate(values)[:states] for name, values in rows.items()}


def failed(agent: Agent, envs: Any, action: np.ndarray) -> np.ndarray:
    """Whether Ψ fails in the next n steps, the first of them this action, bool `[envs]`; an episode that ends has kept it."""
    found, over = np.zeros(envs.num_envs, bool), np.zeros(envs.num_envs, bool)
    for _ in range(agent.config.shield.horizon):
        raw, _, terminated, truncated, infos = envs.step(action)
        found |= infos["frame_violations"].any(axis=1) & ~over
        over |= terminated | truncated
        agent.restart(infos["fresh"])
        action = agent.act(raw, infos["labels"]).action
    return found


def figures(rows: dict[str, np.ndarray], agent: Agent) -> dict[str, Any]:
    """How many were accepted, overridden and left out; which share of them failed, and the test."""
    from scipy.stats import binomtest

    level = agent.config.shield.safety_level
    accepted, already = rows["reason"] == Reason.ACCEPTED, rows["reason"] == Reason.ALREADY_UNSAFE
    overridden = ~accepted & ~already
    count, bad = int(accepted.sum()), int(rows["failed"][accepted].sum())
    found = {"states": len(already), "already_unsafe": int(already.sum()), "level": level}
    found |= {"accepted": count, "failed": bad, "overridden": int(overridden.sum())}
    if count:
        test = binomtest(bad, count, level, alternative="less")
        found |= {"share": bad / count, "at_most": test.proportion_ci(0.99).high, "p": float(test.pvalue)}
    if overridden.any():
        found["share_of_overridden"] = float(rows["failed"][overridden].mean())
        found["p_unsafe_of_overridden"] = float(1 - rows["p_safe"][overridden].mean())
    doubtful = accepted & (rows["p_safe"] < 1)
    found |= {
        "doubtful": int(doubtful.sum()),
        "p_unsafe": float(1 - rows["p_safe"][accepted].mean()) if count else None,
    }
    found["share_of_doubtful"] = float(rows["failed"][doubtful].mean()) if doubtful.any() else None
    found["traces_per_decision"] = float(rows["traces"][~already].mean())
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in found.items()}


if __name__ == "__main__":
    main()

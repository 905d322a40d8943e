"""What a learned shield makes of a policy that is given: one JSON line per policy, setting and seed.

    python benchmarks/guard.py --policy examples/policies.py:ppo --frames 100000 --seeds 0 1 2
    python benchmarks/guard.py --policy examples/policies.py:ppo --set '{}' --set '{"agent": {"backup_imitation": 0.0}}'
    python benchmarks/guard.py --policy examples/policies.py:ppo --run RUN --behind '{"latch": 4}' --behind '{"latch": 8}'

With `--run` nothing is learned, and the policy is guarded by that run, behind its own shield and behind others (`--behind`).
Each line has the policy's return and violating steps per episode without and with the shield, in the same worlds; what share of
either is left; overrides and switches; what the clone is worth; and seconds. `random` is a policy that draws its actions.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from ambs.cli.train import prepare_device


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", action="append", required=True, help="module:factory, file.py:factory, or random")
    parser.add_argument("--env", default="PointWorld")
    parser.add_argument("--spec", default="P>=0.9 [ G<=20 !hazard ]")
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--set", action="append", default=[], help="changes of the settings as JSON; may be repeated")
    parser.add_argument("--run", type=Path, help="a run that is there, in place of learning one")
    parser.add_argument(
        "--behind", action="append", default=[], help='a shield as JSON, such as {"latch": 4}; may be repeated'
    )
    parser.add_argument(
        "--imagined", help="a JAX policy that acts in imagination in place of the clone, as file.py:factory"
    )
    parser.add_argument("--out", type=Path, default=Path("runs"))
    options = parser.parse_args()
    prepare_device("auto", "xxs")
    warnings.simplefilter("ignore")
    for policy in options.policy:
        if options.run is not None:
            for text in ["{}", *options.behind]:
                print(json.dumps(behind(policy, options.run, json.loads(text), options)), flush=True)
            continue
        for text in options.set or ["{}"]:
            for seed in options.seeds:
                print(json.dumps(measured(policy, json.loads(text), seed, options)), flush=True)


def measured(name: str, changes: dict[str, Any], seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train a shield around the policy, and compare the policy with and without it."""
    import ambs

    policy, begun = asked(name), time.perf_counter()
    run = ambs.train_shield(
        options.env, policy=policy, spec=options.spec, frames=options.frames, seed=seed, out=options.out, **changes
    )
    trained = time.perf_counter()
    found = ambs.evaluate(run, policy=policy, episodes=options.episodes, seed=1000 + seed)
    told = {"policy": name, "set": changes, "seed": seed, "frames": options.frames, "episodes": options.episodes}
    evaluated = time.perf_counter()
    return {
        **told, **figures(found), "train_seconds": round(trained - begun), "evaluate_seconds": round(evaluated - trained),
    }  # fmt: skip


def behind(name: str, run: Path, shield: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """The same of a run that is there, behind a shield that differs in these settings."""
    import ambs

    agent = ambs.load(run)
    agent = agent.behind(**shield) if shield else agent
    agent = agent.imagining(asked(options.imagined)) if options.imagined else agent
    begun = time.perf_counter()
    found = ambs.evaluate(agent, policy=asked(name), episodes=options.episodes, seed=1000 + agent.config.seed)
    told = {
        "policy": name,
        "run": run.name,
        "behind": shield,
        "imagined": options.imagined,
        "episodes": options.episodes,
    }
    return {**told, **figures(found), "evaluate_seconds": round(time.perf_counter() - begun)}


def asked(name: str) -> Any:
    """The policy of this name."""
    from ambs.acting.foreign import load_policy

    return Random() if name == "random" else load_policy(name)


def figures(found: Any) -> dict[str, Any]:
    """What a comparison says, as plain numbers."""
    off, on = (
        {name: value.mean for name, value in side.items() if name != "episodes"} for side in found.sides.values()
    )
    return {
        "return_kept": round(on["return"] / off["return"], 3) if off["return"] > 0 else None,
        "violations_left": round(on["violations"] / max(off["violations"], 1e-9), 3) if off["violations"] else None,
        "override_rate": round(on["override_rate"], 4), "switches": round(on["switches"], 1),
        "off": {name: round(off[name], 3) for name in ("return", "violations")},
        "on": {name: round(on[name], 3) for name in ("return", "violations")},
        "level": found.level, **{name: round(value, 4) for name, value in found.clone.items()},
    }  # fmt: skip


class Random:
    """Actions of PointWorld, drawn uniformly."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def predict(self, observation: Any) -> np.ndarray:
        """`[batch, 2]` for observations `[batch, …]`."""
        return self.rng.uniform(-1, 1, (len(observation), 2)).astype(np.float32)


if __name__ == "__main__":
    main()

"""A learned shield around a policy that is nothing but a function of the observation; minutes on two cores.

    python examples/guard_function.py

The policy heads for its goal and does not care for hazards. World model, label heads, critics, a clone of the policy and a backup
policy are learned while it drives; the policy stays what it is. It is then played in worlds that nobody learned from, with and
without the guard.
"""

import argparse
from pathlib import Path

import numpy as np
from policies import ppo
from world import make_env

import ambs

SPEC = "P>=0.9 [ G<=20 !hazard ]"
"""With probability .9 the next 20 steps stay out of hazards."""
reckless = ppo()


def policy(observation: np.ndarray) -> np.ndarray:
    """Push `[2]` for an observation `[12]`; it looks at nine of the numbers."""
    return reckless.predict(observation[:9], deterministic=True)[0]


def make() -> ambs.envs.LabelledEnv:
    """The environment with labels: what is to be kept out of is said by its info."""
    return ambs.with_labels(make_env(), labels=lambda _seen, info: {"hazard": info["hazard"]}, spec="!hazard")


def main() -> None:
    """Learn, compare, guard."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=100_000, help="steps to learn from (default: %(default)s)")
    parser.add_argument("--episodes", type=int, default=50, help="of the comparison (default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=Path("runs"), help="where the run folder goes (default: %(default)s)"
    )
    options = parser.parse_args()

    run = ambs.train_shield(
        make, policy=policy, spec=SPEC, frames=options.frames, out=options.out, on_metrics=show_progress
    )
    print(ambs.evaluate(run, make, policy=policy, shield="paired", episodes=options.episodes))

    guard = ambs.load(run).guard(policy, failsafe=[0.0, 0.0])
    env = make_env()
    observation, _ = env.reset(seed=0)
    for _ in range(3):
        decision = guard.act(observation)
        print(decision.action, decision.reason, f"p_safe {decision.p_safe:.2f}, {decision.milliseconds:.0f} ms")
        observation, *_ = env.step(decision.action)


def show_progress(row: dict) -> None:
    """A line now and then."""
    print(f"{row['frames']:>7} frames, {row['updates']} updates, {row['violations']} violating so far", flush=True)


if __name__ == "__main__":
    main()

"""A learned shield around a policy of Stable-Baselines3; minutes on two cores. Needs `pip install stable-baselines3`.

    python examples/guard_sb3.py --ppo ppo.zip

Where there is no such file yet, a PPO is trained first, for the environment's reward alone, and saved there.
"""

import argparse
from pathlib import Path

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from world import make_env

import ambs

SPEC = "P>=0.9 [ G<=20 !hazard ]"
"""With probability .9 the next 20 steps stay out of hazards."""


def make() -> ambs.envs.LabelledEnv:
    """The environment with labels: what is to be kept out of is said by its info."""
    return ambs.with_labels(make_env(), labels=lambda _seen, info: {"hazard": info["hazard"]}, spec="!hazard")


def main() -> None:
    """Load, learn, compare, guard."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ppo", type=Path, default=Path("ppo.zip"), help="the policy (default: %(default)s)")
    parser.add_argument("--ppo-steps", type=int, default=300_000, help="of its training (default: %(default)s)")
    parser.add_argument("--frames", type=int, default=100_000, help="steps to learn from (default: %(default)s)")
    parser.add_argument("--episodes", type=int, default=50, help="of the comparison (default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=Path("runs"), help="where the run folder goes (default: %(default)s)"
    )
    options = parser.parse_args()
    if not options.ppo.exists():
        train_ppo(options.ppo, options.ppo_steps)

    ppo = PPO.load(options.ppo, device="cpu")
    run = ambs.train_shield(make, policy=ppo, spec=SPEC, frames=options.frames, out=options.out)
    print(ambs.evaluate(run, make, policy=ppo, shield="paired", episodes=options.episodes))

    guard = ambs.load(run).guard(ppo, failsafe=[0.0, 0.0])
    mean, deviation = evaluate_policy(guard, make_vec_env(make_env, n_envs=4, seed=7), n_eval_episodes=4)
    print(f"Stable-Baselines3 says: return {mean:.1f} ± {deviation:.1f}; of the decisions {dict(guard.counts)}")


def train_ppo(file: Path, steps: int) -> None:
    """A PPO for the reward alone; it goes through hazards."""
    worlds = make_vec_env(make_env, n_envs=8, seed=0)
    settings = {"n_steps": 256, "batch_size": 256, "n_epochs": 6, "gamma": 0.98, "learning_rate": 5e-4}
    PPO("MlpPolicy", worlds, seed=0, device="cpu", verbose=1, **settings).learn(steps, log_interval=10).save(file)


if __name__ == "__main__":
    main()

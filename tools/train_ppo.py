"""Train the PPO that the examples guard, in PointWorld, and write its policy network as arrays: examples/ppo_point_world.npz.

Needs Stable-Baselines3, which nothing else here does. The replay in `examples/policies.py` is compared with what
Stable-Baselines3 itself predicts before the file is written, and 50 episodes are played with it, whose figures go into the
file's metadata.

    python tools/train_ppo.py --steps 600000 --zip ppo_point_world.zip
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from policies import PPO_FILE, ReplayedPPO, drive_carefully

import ambs

EPISODES = 50
FIRST_SEED = 10_000
SETTINGS: dict[str, Any] = {
    "n_steps": 256, "batch_size": 256, "n_epochs": 6, "gamma": 0.98, "learning_rate": 5e-4, "seed": 0, "device": "cpu",
}  # fmt: skip


def main() -> None:
    """Train, compare, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600_000, help="steps of training (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=PPO_FILE, help="file of the arrays (default: %(default)s)")
    parser.add_argument("--zip", type=Path, help="also save the model itself, for PPO.load")
    arguments = parser.parse_args()
    model = train(arguments.steps)
    if arguments.zip:
        model.save(arguments.zip)
    arrays = network(model)
    metadata = {"layers": 3, "steps": arguments.steps, **{key: SETTINGS[key] for key in ("seed", "gamma")}}
    with tempfile.TemporaryDirectory() as folder:
        trial = Path(folder) / "trial.npz"
        write(trial, arrays, metadata)
        arrays |= compare(model, ReplayedPPO(trial))
        metadata |= figures(lambda seen: ReplayedPPO(trial).predict(seen, deterministic=True)[0])
    write(arguments.out, arrays, metadata)
    print(metadata)
    print({f"careful {name}": value for name, value in figures(drive_carefully).items()})


def train(steps: int) -> Any:
    """A PPO for the reward alone, on one core."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    worlds = make_vec_env(lambda: ambs.make("PointWorld"), n_envs=8, seed=0)
    model = PPO("MlpPolicy", worlds, verbose=1, **SETTINGS)
    return model.learn(steps, log_interval=10)


def network(model: Any) -> dict[str, np.ndarray]:
    """Weights `[outputs, inputs]` and biases of the layers from observation to action, and the logarithm of the spread."""
    policy = model.policy
    layers = [policy.mlp_extractor.policy_net[0], policy.mlp_extractor.policy_net[2], policy.action_net]
    arrays = {"log_std": policy.log_std.detach().numpy()}
    for number, layer in enumerate(layers):
        arrays[f"weight{number}"] = layer.weight.detach().numpy()
        arrays[f"bias{number}"] = layer.bias.detach().numpy()
    return arrays


def write(file: Path, arrays: dict[str, np.ndarray], metadata: dict[str, Any]) -> None:
    """Without pickles: the metadata are JSON."""
    np.savez_compressed(file, metadata=np.array(json.dumps(metadata)), **arrays)


def compare(model: Any, replay: ReplayedPPO) -> dict[str, np.ndarray]:
    """The replay must say what the model says, of one observation and of many; a few of them, for the test of the replay."""
    env = ambs.make("PointWorld")
    seen = [env.reset(seed=0)[0]]
    for _ in range(1000):
        observation, _, _, truncated, _ = env.step(replay.predict(seen[-1])[0])
        seen.append(env.reset()[0] if truncated else observation)
    every = np.stack(seen)
    for some in (every, every[3]):
        ours, theirs = (policy.predict(some, deterministic=True)[0] for policy in (replay, model))
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    few = every[::100]
    return {"observations": few, "actions": model.predict(few, deterministic=True)[0]}


def figures(act: Any) -> dict[str, float]:
    """Mean return and mean violating steps of an episode, over 50 of them."""
    env = ambs.make("PointWorld")
    returns, violations = np.zeros(EPISODES), np.zeros(EPISODES)
    for episode in range(EPISODES):
        observation, _ = env.reset(seed=FIRST_SEED + episode)
        truncated = False
        while not truncated:
            observation, reward, _, truncated, info = env.step(act(observation))
            returns[episode] += float(reward)
            violations[episode] += info["cost"]
    means = {"return": returns.mean(), "violations": violations.mean()}
    return {"episodes": EPISODES, "first seed": FIRST_SEED} | {
        name: round(float(mean), 2) for name, mean in means.items()
    }


if __name__ == "__main__":
    main()

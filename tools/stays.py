"""Stays in violation, and what the model made of them: how each began, how long it was, what the label head said inside.

    python tools/stays.py RUN --out stays.json [--episodes 48] [--seed 7] [--horizon 1] [--hold 8]

Plays behind the run's shield; with `--horizon 1` it looks one step ahead, and so does little more than act where Ψ is violated
already. Ψ's first atom is judged. A stay is a row of steps in which a frame violates Ψ; needs an environment that tells the
robot's place and heading (`map_scene`).
"""

import argparse
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ambs.acting.agent import Agent, load
from ambs.acting.evaluate import evaluate

BEFORE, FORESIGHT = 4, 15
"""Steps before an entry over which its direction is taken, and in which the shield may have seen it."""


class Steps:
    """Looks on: per episode a row `x, y, heading, label probability, p_safe, overridden, violating frames` for every step."""

    def __init__(self, agent: Agent) -> None:
        self.agent, self.episodes = agent, dict[int, list[list[float]]]()
        self.labels = jax.jit(jax.vmap(agent.player.model.trace_labels))

    def decided(self, first: int, seen: dict[str, Any]) -> None:
        """Where each robot is, and what model and shield think."""
        said = np.asarray(self.labels(self.agent.memory.latent.features))[:, -1, 0]
        scenes, decision = seen["envs"].scenes(seen["live"]), seen["decision"]
        for env in seen["live"]:
            thought = (said[env], decision.p_safe[env], decision.overridden[env])
            row = [*map(float, scenes[env].robot[:3]), *map(float, thought)]
            self.episodes.setdefault(first + env, []).append(row)

    def stepped(self, first: int, seen: dict[str, Any]) -> None:
        """What came of it."""
        for env in seen["live"]:
            self.episodes[first + env][-1].append(float(np.sum(seen["infos"]["frame_violations"][env])))

    def played(self, first: int, envs: Any) -> None:
        """Nothing more to see."""


def along(steps: np.ndarray) -> np.ndarray:
    """Metres driven in each step but the last, forwards positive, by rows `[steps, 7]`."""
    heading = steps[:-1, 2]
    return (np.diff(steps[:, :2], axis=0) * np.stack([np.cos(heading), np.sin(heading)], axis=1)).sum(axis=1)


def stays(steps: np.ndarray) -> list[dict[str, Any]]:
    """The stays in one episode's rows `[steps, 7]`."""
    said, safe, overridden, frames = steps[:, 3:].T
    moved = np.append(along(steps), 0.0)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], frames > 0, [0]])))
    found = []
    for begin, end in edges.reshape(-1, 2):
        early = slice(max(0, begin - FORESIGHT), begin + 1)
        found.append(
            {
                "step": int(begin),
                "steps": int(end - begin),
                "frames": int(frames[begin:end].sum()),
                "backwards": bool(moved[max(0, begin - BEFORE) : begin + 1].mean() < 0),
                "label_probability": round(float(said[begin:end].mean()), 4),
                "least_p_safe_before": round(float(safe[early].min()), 4),
                "overrides_before": int(overridden[early].sum()),
            }
        )
    return found


def summary(episodes: dict[int, list[list[float]]]) -> dict[str, Any]:
    """All stays, and how far was driven forwards and backwards, in metres."""
    tables = {number: np.array(rows) for number, rows in sorted(episodes.items())}
    moved = np.concatenate([along(rows) for rows in tables.values()])
    return {
        "episodes": len(tables),
        "metres_forwards": round(float(moved[moved > 0].sum()), 1),
        "metres_backwards": round(float(-moved[moved < 0].sum()), 1),
        "stays": [{"episode": number, **stay} for number, rows in tables.items() for stay in stays(rows)],
    }


def main() -> None:
    """Play and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--episodes", type=int, default=48)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--horizon", type=int, help="steps that the shield looks ahead, if not as in training")
    parser.add_argument("--hold", type=int, help="steps for which an action is held inside, if not as in training")
    options = parser.parse_args()
    wanted = {name: value for name in ("horizon", "hold") if (value := getattr(options, name)) is not None}
    agent = load(options.run).behind(**wanted) if wanted else load(options.run)
    steps = Steps(agent)
    evaluate(agent, options.episodes, seed=options.seed, watch=steps)
    options.out.write_text(json.dumps({"shield": wanted, **summary(steps.episodes)}, indent=1) + "\n")


if __name__ == "__main__":
    main()

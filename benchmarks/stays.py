"""How short can a stay in a hazard be? The simulator itself, branched at every entry of a driver that heads for the goal.

    python benchmarks/stays.py [--env PointGoal1] [--entries 150] [--tries 60]

From each state in which a hazard has just been entered: the fixed actions (full throttle ahead or back, with and without turning;
coasting), and `--tries` random plans of two actions, the first held for 1 to 8 steps. The shortest stay of them all is what
nobody who enters at that speed can do much better than. Steps of two frames; prints a JSON line.
"""

from __future__ import annotations

import argparse
import itertools
import json
from typing import Any

import numpy as np

from ambs.envs import make
from held_out import Driver

LONGEST = 60
"""Steps after which a stay is given up."""
SPEED = slice(3, 5)
"""Where the velocity lies in the vector."""


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="PointGoal1")
    parser.add_argument("--entries", type=int, default=150)
    parser.add_argument("--tries", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1000)
    options = parser.parse_args()
    stays, speeds = collect(options)
    fixed = [name for name in stays[0] if name not in ("driver", "planned")]
    figures: dict[str, Any] = {"env": options.env, "entries": len(stays), "tries": options.tries, "seed": options.seed}
    figures["speed"] = round(float(np.mean(speeds)), 2)
    best = [{"best": min(one[name] for name in (*fixed, "planned"))} for one in stays]
    for name in (*stays[0], "best"):
        lengths = [one[name] for one in (best if name == "best" else stays)]
        figures[name] = {"median": float(np.median(lengths)), "mean": round(float(np.mean(lengths)), 1)}
    print(json.dumps(figures))


def collect(options: argparse.Namespace) -> tuple[list[dict[str, int]], list[float]]:
    """Lengths of stays by who acts, and speeds at the entry."""
    env, rng = make(options.env, observation="vector"), np.random.default_rng(options.seed)
    get, put = env.get_wrapper_attr("get_state"), env.get_wrapper_attr("set_state")
    hazard = env.get_wrapper_attr("atoms").names.index("hazard")
    stays: list[dict[str, int]] = []
    speeds: list[float] = []

    def step(action: np.ndarray) -> tuple[np.ndarray, bool, bool]:
        inside = False
        for _ in range(2):
            seen, _, terminated, truncated, info = env.step(np.asarray(action, np.float32))
            inside |= bool(info["labels"][hazard])
            if terminated or truncated:
                return seen, inside, True
        return seen, inside, False

    def stay(actions: Any) -> int:
        for length, action in enumerate(actions, start=1):
            _, inside, over = step(action)
            if not inside or over or length == LONGEST:
                return length
        raise AssertionError("actions never end")

    for episode in itertools.count():
        driver = Driver(rng, 1, goals=True)
        seen, info = env.reset(seed=options.seed + episode)
        was, over = bool(info["labels"][hazard]), False
        while not over:
            driver.mode[:] = 1 if episode % 3 else 2
            seen, inside, over = step(driver.act(seen[None])[0])
            if inside and not was and not over:
                entry, one = get(), {}
                speeds.append(float(np.linalg.norm(seen[SPEED])))
                for throttle, turn in itertools.product((1, -1), (0, 1, -1)):
                    put(entry)
                    one[f"{throttle:+d} {turn:+d}"] = stay(itertools.repeat((throttle, turn)))
                put(entry)
                one["coast"] = stay(itertools.repeat((0, 0)))
                one["planned"] = LONGEST
                for _ in range(options.tries):
                    first, then = rng.choice([-1.0, 0.0, 1.0], (2, 2))
                    put(entry)
                    plan = itertools.chain([first] * int(rng.integers(1, 9)), itertools.repeat(then))
                    one["planned"] = min(one["planned"], stay(plan))
                put(entry)
                one["driver"] = stay(driver.act(seen[None])[0] for _ in itertools.count())
                stays.append(one)
                if len(stays) == options.entries:
                    return stays, speeds
                put(entry)
            was = inside
    raise AssertionError("episodes never end")


if __name__ == "__main__":
    main()

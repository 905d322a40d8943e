"""Made-up recordings, written as the recorder writes them, of decisions that are the rule's own."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from ambs.shield.config import SafetyConfig, ShieldConfig
from ambs.shield.rules import Reason, replay, rule

SETTINGS = {
    "sequential": ShieldConfig(safety_level=0.3, approximation_error=0.1, horizon=5, chunk=20, traces=100),
    "fixed": ShieldConfig(safety_level=0.2, approximation_error=0.15, horizon=4, traces=60, rule="fixed"),
    "critics": ShieldConfig(
        safety_level=0.25, approximation_error=0.1, horizon=9, rolled=4, critics="max", chunk=20, traces=100
    ),
    "paper": ShieldConfig(
        safety_level=0.2, approximation_error=0.1, horizon=8, rolled=4, critics="min", labels="mean", rule="fixed",
        traces=60, threshold_exponent=0.0, check_initial=False,
    ),
}  # fmt: skip
SAFETY = SafetyConfig(discount=0.9)
"""Of all recordings."""


def traces(config: ShieldConfig, steps: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Futures whose chance of a violation differs from step to step; those that the rule leaves undrawn are marked."""
    shape = (steps, rule(config).traces)
    risk = rng.beta(0.4, 1.5, steps)[:, None]
    broken = rng.uniform(size=shape) < risk
    first = np.where(broken, rng.integers(1, config.steps + 1, shape), 0)
    cost, critic = np.zeros((2, *shape), np.float32)
    if config.judged_by_cost:
        critic = (SAFETY.cost * SAFETY.discount**config.steps * rng.uniform(size=shape) ** 2).astype(np.float32)
        own = (
            SAFETY.cost * SAFETY.discount ** (first - 1.0) if config.labels != "mean" else 4.0 * rng.uniform(size=shape)
        )
        cost = (np.where(first > 0, own, 0) + critic).astype(np.float32)
        over = cost > np.float32(config.cost_threshold(SAFETY))
        first = np.where(over & (first == 0), config.steps + 1, np.where(over | (config.labels != "mean"), first, 0))
    atom = np.where(first > config.steps, -2, np.where(first > 0, 0, -1))
    return {"first_violation": first, "atom": atom, "cost": cost, "critic": critic}


TRUST = {
    "horizon": 5, "steps": 20_480, "checkpoint": 480_000, "level": 0.3, "asked": 0.1, "labels": "sample",
    "auroc": {"mean": 0.84, "low": 0.81, "high": 0.87}, "flagged": {"mean": 0.52, "low": 0.48, "high": 0.56},
    "ece": {"mean": 0.031, "low": 0.02, "high": 0.04},
    "detection": {"1": {"mean": 0.71, "low": 0.6, "high": 0.8}, "5": {"mean": 0.4, "low": None, "high": None}, "10": None},
}  # fmt: skip
"""What a recording is told of its agent's foresight."""


def make_recording(
    folder: Path,
    config: ShieldConfig = SETTINGS["sequential"],
    name: str = "episode-0000-on",
    *,
    steps: int = 80,
    image: int = 0,
    channels: int = 3,
    seed: int = 0,
    atom: str = "hazard",
    **facts: Any,
) -> Path:
    """Write a recording: a robot on a circle round a hazard, violations at steps 10 and 11, twins of all overrides."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, Any] = traces(config, steps, rng)
    reason, used = np.zeros((2, steps), int)
    for step in range(steps):
        reason[step], used[step] = replay(rule(config), arrays["first_violation"][step] > 0)
    reason[3], used[3] = Reason.ALREADY_UNSAFE, 0
    full = {key: array.copy() for key, array in arrays.items()}
    undrawn = np.arange(rule(config).traces)[None] >= used[:, None]
    arrays["first_violation"][undrawn], arrays["atom"][undrawn] = -1, -1
    violating = (arrays["first_violation"] > 0).sum(axis=1)
    angle = np.linspace(0, 6, steps)
    broken = np.zeros((steps, 2), bool)
    broken[10:12, 1] = True
    p_safe = np.where(used > 0, 1 - violating / np.maximum(used, 1), 0).astype(np.float32)
    arrays |= {
        "reason": reason, "traces_used": used, "violating": violating, "overridden": reason != Reason.ACCEPTED, "p_safe": p_safe,
        "interval": np.clip(p_safe[:, None] + [-0.1, 0.1], 0, 1), "milliseconds": np.append(np.nan, np.full(steps - 1, 4.2)),
        "action": rng.uniform(-1, 1, (steps, 2)), "proposed": rng.uniform(-1, 1, (steps, 2)),
        "labels": np.zeros((steps, 2), bool), "frame_rewards": np.ones((steps, 2)), "frame_valid": np.ones((steps, 2), bool),
        "frame_labels": np.stack([broken, broken & False], axis=-1), "frame_violations": broken,
        "scene.robot": np.stack([np.cos(angle), np.sin(angle), angle + 1.6], axis=1),
        "scene.items": np.tile(np.array([[0, 1.0, 1.0, 0.3], [1, 0.0, 0.0, 0.4]]), (steps, 1, 1)),
        "scene.extent": np.array([-1.5, 1.5, -1.5, 1.5]),
    }  # fmt: skip
    if image:
        arrays["observation.image"] = rng.integers(0, 256, (steps, image, image, channels)).astype(np.uint8)
    arrays |= details(arrays, full, config, (image, image, channels) if image else (), rng)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.npz").open("wb") as file:
        np.savez_compressed(file, **arrays)
    told = {
        "format": 2, "env": "ambs/PointWorld-v0", "method": "copt", "policy": "task", "steps": steps, "shield": True, "frames": 2,
        "settings": dataclasses.asdict(config) | dataclasses.asdict(SAFETY), "caveat": config.caveat, "psi": f"!{atom}",
        "atoms": [atom, "outside"],
        "trace_atoms": [atom, "outside"], "thresholds": [0.5, 0.5], "kinds": ["goal", "hazard", "vase", "wall"],
        "reasons": {one.name.lower(): int(one) for one in Reason}, "action_names": ["push along x", "push along y"],
        "square": False, "together": 3, "discrete": False, "left_out": {"futures": 0, "twins": 2, "truth": 0},
    }  # fmt: skip
    (folder / f"{name}.json").write_text(json.dumps(told | facts))
    return folder / f"{name}.npz"


def details(
    arrays: dict[str, Any], full: dict[str, Any], config: ShieldConfig, image: tuple[int, ...], rng: Any
) -> dict[str, Any]:
    """Futures of the first ten overrides, every second twin of which violates; the truth at each."""
    found = np.flatnonzero(arrays["overridden"] & (arrays["traces_used"] > 0))[:10]
    count, worst, horizon = len(found), 3, config.steps
    shown = np.tile(np.arange(1, horizon + 1), (count, worst, 1))
    place = arrays["scene.robot"][found][:, None, None] + rng.normal(size=(count, worst, horizon, 3)) / 9
    parts = {
        "futures.step": found, **{f"futures.{key}": array[found] for key, array in full.items()},
        "futures.trace": np.argsort(-full["first_violation"][found], axis=1)[:, :worst],
        "futures.labels": rng.uniform(size=(count, worst, horizon, 2, 2)), "futures.continues": np.ones((count, worst, horizon)),
        "futures.shown": shown, "truth.step": found, "truth.safe": np.full(count, 45), "truth.futures": np.full(count, 50),
        "twin.step": found, "twin.violation": np.where(np.arange(count) % 2, 2, 0), "twin.taken": np.full(count, config.horizon),
        "twin.labels": np.zeros((count, config.horizon, 2, 2), bool), "twin.robot": np.zeros((count, config.horizon, 3)),
        "twin.shown": np.tile(np.arange(1, 4), (count, 1)),
    }  # fmt: skip
    if image:
        parts["futures.image"] = rng.integers(0, 256, (count, worst, horizon, *image)).astype(np.uint8)
        parts["twin.image"] = rng.integers(0, 256, (count, 3, *image)).astype(np.uint8)
    else:
        parts |= {"futures.robot": place, "futures.items": np.tile([1.0, 0.1, 0.1, 0.4], (*place.shape[:3], 1, 1))}
        parts["futures.extent"] = arrays["scene.extent"]
    return parts


def changed(source, folder, facts=(), arrays=(), without=()):
    """A copy of a recording with other facts and arrays."""
    with np.load(source) as stored:
        parts = {name: stored[name] for name in stored.files if name not in without} | dict(arrays)
    with (folder / "episode-0000-on.npz").open("wb") as file:
        np.savez(file, **parts)
    told = json.loads(source.with_suffix(".json").read_text()) | dict(facts)
    (folder / "episode-0000-on.json").write_text(json.dumps(told))
    return folder / "episode-0000-on.npz"

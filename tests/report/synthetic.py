"""Made-up run folders, written as the trainer writes them, whose figures are known."""

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np

from ambs.config.methods import METHODS
from ambs.foresight.figures import Truth, calibration_figures, score_figures
from ambs.storage.run_folder import RunFolder

LEVELS = {"dreamer": (19.0, 30.0), "lag": (18.0, 20.0), "penl": (16.0, 8.0), "plpg": (17.0, 10.0), "copt": (17.5, 9.0)}
"""Final return and violations per 1000 frames of a method."""


def make_run(
    root: Path,
    *,
    env: str = "PointGoal1-v0",
    method: str = "copt",
    seed: int = 0,
    frames: int = 20_000,
    wanted: int | None = None,
    episodes: int = 40,
    rows: int = 40,
    state: Any = "finished",
    names: int = 0,
    level: float | None = None,
    decided: bool = True,
    labels: dict[str, int] | None = None,
    config: dict[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """A run with a return that rises to its level and a constant rate of violations, both a little off by the seed.

    `labels`: frames per combination of labels, the same in every episode; None: not stored, as once.
    `level`: the Δ in force, with the figures of a run that calibrates it; None: a run from before there were any.
    `decided`: whether it was set on what the shield had decided.
    """
    rng = np.random.default_rng((seed, sum(map(ord, method))))
    top, rate = LEVELS.get(method, (10.0, 10.0))
    top, rate = top + rng.normal(), rate * np.exp(0.2 * rng.normal())
    shielded = method not in METHODS or METHODS[method].shielded
    settings = {
        "shield": {"safety_level": 0.1, "approximation_error": 0.09, "horizon": 30, "traces": 512},
        "training": {"frames": wanted or frames}, "obs": "vision", "method": method, "shielded": shielded, "seed": seed,
    }  # fmt: skip
    record = {"env": env, "method": method, "seed": seed, "command": ["ambs", "train", "--method", method]} | changes
    run = RunFolder.create(root, config=settings | (config or {}), device="cpu", **record)
    for index, at in enumerate(np.linspace(frames / rows, frames, rows).astype(int)):
        steps = at // 2
        row = {
            "frames": at, "agent_steps": steps, "violations": int(rate * at / 1000), "updates": at // 4,
            "overrides": steps // 10 if shielded else 0, "switches": steps // 20 if shielded else 0,
            "decisions": steps if shielded else 0, "traces": 80 * steps if shielded else 0,
            "model/kl": 3 + 5 * np.exp(-index / 10), "model/total": 20 * np.exp(-index / 10), "critic/task": 1.0,
            "labels/false_flags": 0.003, "labels/missed_onsets": 0.2, "labels/precision": 0.9, "labels/recall": 0.8,
            "labels/imagined_false_flags": 0.004, "time/frames_per_second": 500.0,
        }  # fmt: skip
        if level is not None:
            auroc = {"labels/auroc": 0.8, "trained/auroc": 0.9, "memorised/auroc": 0.1, "labels/detected": 0.6}
            row |= auroc | {"labels/imagined_per_real": 0.7, "labels/unsafe_windows": 0.2, "shield/level": level}
            row |= {"shield/calibrated_on": 900.0, "shield/by_decisions": 1.0} if decided else {}
        run.log_metrics(row | {f"more/{name}": rng.normal() for name in range(names)})
    length = frames // episodes
    for index in range(episodes):
        at = (index + 1) * length
        share = 1 - np.exp(-4 * (index + 1) / episodes)
        row = {"frames": at, "return": top * share + rng.normal(), "violations": int(rate * length / 1000)}
        row |= {} if labels is None else {"labels": labels, "violations": labels.get("hazard", 0)}
        run.log_episode(row | {"length": length, "steps": length // 2, "overrides": 0, "switches": 0, "decisions": 0})
    last = int(rate * frames / 1000)
    stored = {} if labels is None else {"psi": "!hazard", "atoms": ["hazard", "vase"]}
    run.write_status(state, frames=frames, agent_steps=frames // 2, updates=frames // 4, violations=last, **stored)
    run.close()
    return run.path


def add_foresight(run: Path) -> dict[str, Any]:
    """What `ambs foresight` would write of a score that is twice as sure of danger as it should be; returns it."""
    (run / "foresight.json").write_text(_foresight())
    return json.loads(_foresight())


@functools.cache
def _foresight() -> str:
    rng = np.random.default_rng(0)
    risk = rng.uniform(size=2000) ** 4
    ahead = np.where(rng.uniform(size=2000) < risk / 2, rng.choice([1, 5, 10, 20], 2000), 0)
    known, episode = Truth(ahead, np.ones(2000, bool), np.ones(2000, bool)), np.arange(2000) // 100
    figures = {**score_figures(risk, known, episode, 30), **calibration_figures(risk, known, episode)}
    facts = {
        "horizon": 30,
        "steps": 2000,
        "episodes": 20,
        "shield_labels": "mode",
        "checkpoint": 18_000,
        "level": 0.45,
        "asked": 0.1,
    }
    return json.dumps({**facts, "drawn": figures, "shield": figures})

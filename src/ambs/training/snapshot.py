"""A trainer as a checkpoint: everything that a run needs to go on exactly as if it had never stopped."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ambs.training.arrays import flatten, restore
from ambs.training.checkpoint import Checkpoint
from ambs.training.loop import Trainer

Arrays = dict[str, np.ndarray]


def capture(trainer: Trainer) -> tuple[dict[str, Arrays], dict[str, Any], Mapping[str, Callable[[], Arrays]]]:
    """Groups of arrays, plain numbers, and the replay buffer's pieces, as `checkpoint.save` takes them."""
    trainer.gather()
    pieces, tail = trainer.replay.pieces()
    groups = {
        "learned": flatten(trainer.learned),
        "memory": flatten({"carry": trainer.carry, "thresholds": trainer.thresholds, "row": trainer.row}),
        "accounts": {**trainer.accounts.open, "labels": trainer.labels},
        "envs": trainer.envs.get_state(),
        "replay": tail,
    }
    meta = {
        "totals": trainer.accounts.totals(),
        "last_totals": trainer.last_totals,
        "turns": trainer.turns,
        "updates": trainer.updates,
        "calibrated": trainer.calibrated,
        "skipped": trainer.skipped,
        "bad_run": trainer.bad_run,
        "logged": trainer.logged,
        "sums": {name: list(pair) for name, pair in trainer.sums.items()},
        "label_quality": {name: None if value != value else value for name, value in trainer.label_quality.items()},
        "replay_rows": trainer.replay.count,
        "interface": trainer.interface.to_dict(),
    }
    return groups, meta, pieces


def reinstate(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Bring a fresh trainer of the same settings to where the checkpoint was taken."""
    groups, meta = checkpoint.groups, checkpoint.meta
    trainer.learned = restore(trainer.learned, groups["learned"])
    like = {"carry": trainer.carry, "thresholds": trainer.thresholds, "row": trainer.row}
    memory = restore(like, groups["memory"])
    trainer.carry, trainer.thresholds = memory["carry"], jnp.asarray(memory["thresholds"])
    trainer.row = jax.tree.map(np.asarray, memory["row"])
    accounts = {name: np.array(value) for name, value in groups["accounts"].items()}
    trainer.labels = accounts.pop("labels")
    trainer.accounts.open = accounts
    for name, value in meta["totals"].items():
        setattr(trainer.accounts, name, value)
    for name in ("turns", "updates", "calibrated", "skipped", "bad_run", "logged", "last_totals"):
        setattr(trainer, name, meta[name])
    trainer.sums = {name: (float(total), int(count)) for name, (total, count) in meta["sums"].items()}
    trainer.label_quality = {
        name: float("nan") if value is None else value for name, value in meta["label_quality"].items()
    }
    trainer.envs.set_state(groups["envs"])
    trainer.replay.load(meta["replay_rows"], checkpoint.chunks, groups["replay"])

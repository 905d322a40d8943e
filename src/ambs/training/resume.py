"""A trainer as a checkpoint: everything that a run needs to go on exactly as if it had never stopped."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ambs.acting.fitting import check_meta, fitting
from ambs.acting.ranges import check_level, check_thresholds
from ambs.agent.networks import CRITICS
from ambs.errors import UserError
from ambs.storage.arrays import flatten, restore
from ambs.storage.checkpoint import Checkpoint
from ambs.training.trainer import Trainer

Arrays = dict[str, np.ndarray]


def capture(trainer: Trainer) -> tuple[dict[str, Arrays], dict[str, Any], Mapping[str, Callable[[], Arrays]]]:
    """Groups of arrays, plain numbers, and the replay buffer's pieces, as `checkpoint.save` takes them."""
    trainer.gather()
    pieces, tail = trainer.replay.pieces()
    groups = {
        "learned": flatten(trainer.learned),
        "memory": flatten(_memory(trainer)),
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
        "replay_lost": trainer.replay.lost,
        "interface": trainer.interface.to_dict(),
        "critics": list(CRITICS),
    }
    return groups, meta, pieces


def _memory(trainer: Trainer) -> dict[str, Any]:
    memory = {"carry": trainer.carry, "thresholds": trainer.thresholds, "row": trainer.row}
    return memory if trainer.level is None else memory | {"level": trainer.level}


def reinstate(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Bring a fresh trainer of the same settings to where the checkpoint was taken; a UserError if it does not fit."""
    check_meta(checkpoint)
    with fitting(checkpoint):
        _reinstate(trainer, checkpoint)


def _check_progress(trainer: Trainer, meta: dict[str, Any]) -> None:
    """Refuse counters that contradict each other: a run would go on for ever to make up for updates that were never due."""
    training, totals = trainer.config.training, meta["totals"]
    steps, turns = totals.get("agent_steps", -1), meta["turns"]
    due = training.updates_due(max(0, steps - training.prefill))
    # No update falls behind for longer than it takes to fill a window.
    most = max(training.train_ratio, training.early_ratio or 0.0) / (training.batch * training.length)
    behind = (4 * training.length + 4) * training.envs * most + 64 + 2 * trainer.per_call
    for name, right in (
        ("agent_steps", 0 <= steps <= turns * training.envs),
        ("frames", totals["frames"] <= steps * training.action_repeat),
        ("replay_rows", meta["replay_rows"] == turns),
        ("updates", due - meta["updates"] <= behind),
    ):
        if not right:
            value = totals.get(name, meta.get(name))
            raise UserError(f"its {name} cannot be {value} after {turns} turns and {meta['updates']} updates")


def _reinstate(trainer: Trainer, checkpoint: Checkpoint) -> None:
    groups, meta = checkpoint.groups, checkpoint.meta
    _check_progress(trainer, meta)
    trainer.learned = restore(trainer.learned, groups["learned"])
    # Checkpoints made before refusals were counted do not tell.
    none = {"carry/refused": np.zeros(trainer.config.training.envs, np.int32)}
    memory = restore(_memory(trainer), none | groups["memory"])
    check_thresholds(memory["thresholds"])
    if "level" in memory:
        trainer.level = jnp.asarray(check_level(memory["level"], trainer.config), jnp.int32)
    trainer.carry, trainer.thresholds = memory["carry"], jnp.asarray(memory["thresholds"])
    trainer.row = jax.tree.map(np.asarray, memory["row"])
    accounts = restore({**trainer.accounts.open, "labels": trainer.labels}, groups["accounts"])
    trainer.labels = accounts.pop("labels")
    trainer.accounts.open = accounts
    for name in trainer.accounts.totals():
        setattr(trainer.accounts, name, meta["totals"][name])
    for name in ("turns", "updates", "calibrated", "skipped", "bad_run", "logged", "last_totals"):
        setattr(trainer, name, meta[name])
    trainer.sums = {name: (float(total), int(count)) for name, (total, count) in meta["sums"].items()}
    trainer.label_quality = {
        name: float("nan") if value is None else value for name, value in meta["label_quality"].items()
    }
    trainer.envs.set_state(groups["envs"])
    trainer.envs.earlier_faults = trainer.accounts.faults
    lost = [*checkpoint.lost, *meta.get("replay_lost", [])]
    trainer.replay.load(meta["replay_rows"], checkpoint.chunks, groups["replay"], lost)

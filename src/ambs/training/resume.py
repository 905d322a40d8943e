"""A trainer as a checkpoint and back: exactly the fields of its state, each stored the way it says itself."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ambs.acting.fitting import check_meta, fitting
from ambs.acting.ranges import check_level, check_thresholds
from ambs.agent.networks import CRITICS
from ambs.errors import UserError
from ambs.storage.arrays import Arrays, flatten, restore
from ambs.storage.checkpoint import Checkpoint
from ambs.training.state import PARTS, Contents, TrainState, resumes_episodes
from ambs.training.trainer import Trainer


def capture(trainer: Trainer) -> tuple[dict[str, Arrays], dict[str, Any], Mapping[str, Callable[[], Arrays]]]:
    """Groups of arrays, plain numbers, and the replay buffer's pieces, as `checkpoint.save` takes them."""
    trainer.gather()
    return stored(trainer)


def stored(state: TrainState) -> tuple[dict[str, Arrays], dict[str, Any], Mapping[str, Callable[[], Arrays]]]:
    """Every field of a state."""
    contents = _contents(state)
    groups = {name: flatten(tree) for name, tree in contents.trees.items()} | contents.groups
    return groups, contents.meta | {"critics": list(CRITICS)}, contents.pieces


def _contents(state: TrainState) -> Contents:
    contents = Contents()
    for name, part in PARTS.items():
        part.put(name, getattr(state, name), contents)
    return contents


def reinstate(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Bring a fresh trainer of the same settings to where the checkpoint was taken; a UserError if it does not fit."""
    check_meta(checkpoint)
    with fitting(checkpoint):
        _check_progress(trainer, checkpoint.meta)
        found = read(trainer, checkpoint)
        memory = found.trees["memory"]
        check_thresholds(memory["thresholds"])
        if memory["level"] is not None:
            check_level(memory["level"], trainer.config)
        put_back(trainer, found)
        if not resumes_episodes(trainer.envs, checkpoint.groups["envs"]):
            trainer.accounts.abandon()


def read(like: TrainState, checkpoint: Checkpoint) -> Contents:
    """What a checkpoint holds, for a state of this form."""
    wanted = _contents(like).trees
    # Checkpoints made before refusals were counted, or control could stay with the backup policy, do not tell.
    nothing = np.zeros(like.carry.held.shape, np.int32)
    unknown = {"memory": {"carry/refused": nothing, "carry/latched": nothing}}
    trees = {name: restore(tree, unknown.get(name, {}) | checkpoint.groups[name]) for name, tree in wanted.items()}
    return Contents(trees, checkpoint.groups, checkpoint.meta, checkpoint.chunks, tuple(checkpoint.lost))


def put_back(state: TrainState, found: Contents) -> None:
    """Give every field of a state the value that was stored."""
    for name, part in PARTS.items():
        setattr(state, name, part.take(name, getattr(state, name), found))


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

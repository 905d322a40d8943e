"""Whether a checkpoint is that of a trainer and fits the run it lies in; told in a sentence where it does not."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ambs.agent.networks import CRITICS
from ambs.config import LARGEST
from ambs.errors import UserError
from ambs.storage.checkpoint import Checkpoint

_COUNTERS = ("turns", "updates", "calibrated", "skipped", "bad_run", "logged", "replay_rows")
_TABLES = ("totals", "last_totals", "sums", "label_quality", "interface", "positions")
MOST = 2**31 - 1
"""Turns, updates and whatever else is counted on the device."""
_GROUPS = ("learned", "memory", "accounts", "envs", "replay")


def check_meta(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint that is intact, but not one of a trainer."""
    meta = checkpoint.meta
    most = {"logged": LARGEST}
    wrong = [
        name for name in _COUNTERS if type(meta.get(name)) is not int or not 0 <= meta[name] <= most.get(name, MOST)
    ]
    wrong += [name for name in _TABLES if not isinstance(meta.get(name), dict)]
    for name in ("totals", "last_totals", "positions"):
        if name not in wrong and not _are_counts(meta[name]):
            wrong.append(name)
    if "totals" not in wrong and "frames" not in meta["totals"]:
        wrong.append("totals")
    if not isinstance(meta.get("replay_lost", []), list):
        wrong.append("replay_lost")
    counts = meta.get("open_labels", [])
    if not isinstance(counts, list) or not all(_are_counts(one) for one in counts):
        wrong.append("open_labels")
    wrong += [name for name in _GROUPS if name not in checkpoint.groups]
    if wrong:
        raise UserError(
            f"{checkpoint.path} is not the checkpoint of a training run: {wrong[0]} is missing or no such thing"
        )
    if meta.get("critics") != list(CRITICS):
        raise UserError(f"{checkpoint.path} was saved by another version of ambs, whose critics stood in another order")


def _are_counts(value: Any) -> bool:
    return isinstance(value, dict) and all(type(one) is int and 0 <= one <= LARGEST for one in value.values())


@contextmanager
def fitting(checkpoint: Checkpoint) -> Iterator[None]:
    """Within, whatever a checkpoint from elsewhere makes fail is told in a sentence."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{checkpoint.path} does not fit: {error}") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(f"{checkpoint.path} does not fit this run ({type(error).__name__}: {error})") from error

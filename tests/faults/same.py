"""Whether two finished runs are the same run."""

from pathlib import Path

import numpy as np

from ambs.storage import checkpoint
from ambs.storage.run_folder import RunFolder, read_rows

COMMON = ("frames", "length", "return", "violations", "overrides", "ended")


def differences(one: Path, two: Path) -> int:
    """How many arrays and rows two finished runs differ in."""
    mine, theirs = (checkpoint.load(path / "checkpoints") for path in (one, two))
    wrong = int(mine.step != theirs.step)
    for group, arrays in mine.groups.items():
        wrong += sum(_bits(array) != _bits(theirs.groups[group][name]) for name, array in arrays.items())
    training = RunFolder.open(one).config["training"]
    oldest = mine.meta["replay_rows"] - training["capacity"] // training["envs"]
    for chunk, read in mine.chunks.items():
        # Rows that the ring has overwritten since are no part of it: what is there depends on when the piece was stored.
        first = max(0, oldest - int(chunk.removeprefix("rows-")))
        other = theirs.chunks[chunk]()
        wrong += sum(_bits(array[first:]) != _bits(other[name][first:]) for name, array in read().items())
    rows = [[[row[key] for key in COMMON] for row in read_rows(path / "episodes.jsonl")] for path in (one, two)]
    return wrong + int(rows[0] != rows[1])


def _bits(array: np.ndarray) -> tuple[object, ...]:
    """What makes an array that array: one that is no number is like itself."""
    return array.dtype, array.shape, array.tobytes()

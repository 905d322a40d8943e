"""A process that does nothing but write checkpoints: `python -m tests.faults.writer FOLDER`, to be killed. No JAX.

The state is a number that each step scrambles, so that a continuation from anything but the true state shows.
"""

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ambs.training.arrays import Arrays
from ambs.training.checkpoint import Checkpoint, load, save

SIZE = 20_000


def value_at(step: int) -> int:
    """The state after so many steps, by repetition."""
    value = 0
    for number in range(step):
        value = scramble(value, number)
    return value


def scramble(value: int, step: int) -> int:
    digest = hashlib.sha256(f"{value} {step}".encode()).digest()
    return int.from_bytes(digest[:6], "little")


def chunks_at(step: int) -> dict[str, Callable[[], Arrays]]:
    """The last four pieces of a made-up replay buffer."""
    return {
        f"rows-{number:06d}": lambda number=number: {"rows": np.full(SIZE, number % 251, np.uint8)}
        for number in range(max(0, step - 4), step)
    }


def is_right(found: Checkpoint) -> bool:
    """Whether everything in a checkpoint is what it should be."""
    state, chunks = found.groups["state"], chunks_at(found.step)
    return (
        int(state["value"]) == value_at(found.step)
        and bool((state["filling"] == found.step % 1000).all())
        and found.chunks.keys() == chunks.keys()
        and all(np.array_equal(found.chunks[name]()["rows"], make()["rows"]) for name, make in chunks.items())
    )


def main(folder: Path) -> None:
    """Go on from the newest checkpoint, saving at every step, and say after each that it is safe."""
    if any(folder.glob("0*")):
        found = load(folder)
        step, value = found.step, int(found.groups["state"]["value"])
    else:
        step, value = 0, 0
    print("ready", flush=True)
    while True:
        value, step = scramble(value, step), step + 1
        groups = {"state": {"value": np.array(value), "filling": np.full(SIZE, step % 1000, np.int32)}}
        save(folder, step, groups, {}, chunks_at(step))
        print(step, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

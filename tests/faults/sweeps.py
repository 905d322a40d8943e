"""A sweep of small trainings on Ray for somebody who will kill its parts: `python -m tests.faults.sweeps FOLDER RUNS`."""

import dataclasses
import sys
import threading
from pathlib import Path

from ambs.config.resolve import resolve, to_dict
from ambs.sweep.attempt import Means
from ambs.sweep.drive import run_all
from ambs.sweep.on_ray import on_ray
from ambs.sweep.plan import Job, Needs
from ambs.training.signals import stopping
from tests.faults.counts import FULL

MEANS = Means("cpu", program=(sys.executable, "-m", "tests.reproduce.host"))
FRAMES, METHOD = (6000, "copt") if FULL else (9600, "dreamer")
CHANGES = {
    "env": "ambs/Grid-v0",
    "agent": {"imagination": 2, "imagine_from": 8},
    "shield": {"horizon": 4, "rolled": 3, "critics": "max", "traces": 40, "chunk": 20},
    "training": {
        # Short runs learn nothing, so that next to nothing need be compiled.
        "frames": FRAMES, "envs": 8, "action_repeat": 1, "prefill": 400 if FULL else FRAMES, "batch": 2, "length": 6,
        "train_ratio": 0.6, "updates_per_call": 2, "log_every": 200, "checkpoint_every": 200 if FULL else 800, "capacity": 4000,
    },
    "calibration": {"every": 0},
}  # fmt: skip


def jobs(folder: Path, count: int) -> list[Job]:
    found = []
    for seed in range(count):
        config = dataclasses.replace(resolve("quickstart", method=METHOD, changes=CHANGES), seed=seed)
        found.append(Job(f"{METHOD}-s{seed}", folder / f"{METHOD}-s{seed}", to_dict(config)))
    return found


def drive(folder: Path, count: int) -> int:
    """0 if all are finished."""
    with on_ray(Needs(), MEANS, None) as engine, stopping(threading.Event()) as stop:
        outcome = run_all(jobs(folder, count), engine, stop, lambda _: None)
    print(outcome, flush=True)
    return 0 if len(outcome.finished) == count else 1


if __name__ == "__main__":
    sys.exit(drive(Path(sys.argv[1]), int(sys.argv[2])))

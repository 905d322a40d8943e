"""A small world whose copies crash, die, hang, or return nonsense, as often as there are tickets for it."""

import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import ambs.envs
from tests.faults.counts import FULL

TICKETS = "AMBS_FAULT_TICKETS"
KINDS = ("raise", "die", "hang", "nan", "infinite reward", "shape", "labels", "reset")
TIMEOUT = 10.0
"""Seconds in which a step of microseconds must be answered, on a busy machine too."""


class Corridor(gymnasium.Env):
    """Five cells and two moves; the last cell ends an episode, the first is the hazard. NumPy only: workers start quickly."""

    observation_space = gymnasium.spaces.Box(0, 1, (5,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed, options=options)
        self.cell, self.steps = 1, 0
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        self.cell, self.steps = int(np.clip(self.cell + 2 * int(action) - 1, 0, 4)), self.steps + 1
        return self.seen(), float(self.cell), self.cell == 4, self.steps == 30, {}

    def seen(self) -> np.ndarray:
        return np.eye(5, dtype=np.float32)[self.cell]

    def get_state(self) -> dict[str, np.ndarray]:
        return {"place": np.array([self.cell, self.steps])}

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        self.cell, self.steps = (int(number) for number in state["place"])


class Faulty(gymnasium.Wrapper):
    """Now and then takes a ticket from the folder and does what is written on it."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.rng, self.due = random.Random(), 0

    def reset(self, **options: Any) -> Any:
        seen = self.env.reset(**options)
        # A ticket is due in every episode that lasts long enough.
        self.due = self.rng.randrange(1, 12)
        if self.due == 1 and (number := take()) is not None:
            return self.misbehave(KINDS[number % len(KINDS)], seen, is_reset=True)
        return seen

    def step(self, action: Any) -> Any:
        seen = self.env.step(action)
        self.due -= 1
        if self.due == 0 and (number := take()) is not None:
            return self.misbehave(KINDS[number % len(KINDS)], seen, is_reset=False)
        return seen

    def misbehave(self, kind: str, seen: Any, *, is_reset: bool) -> Any:
        observation, *rest = seen
        if kind == "die":
            os._exit(3)
        if kind == "hang":
            time.sleep(10_000)
        if kind == "nan":
            return (np.full_like(observation, np.nan), *rest)
        if kind == "shape":
            return (observation[:3], *rest)
        if kind == "labels":
            return (observation, *rest[:-1], {**rest[-1], "labels": [np.nan, 0.0]})
        if kind == "infinite reward" and not is_reset:
            return (observation, np.inf, *rest[1:])
        raise RuntimeError("broken on purpose")


def take() -> int | None:
    """The number of a ticket that nobody else has, or None: a folder is removed by one process only."""
    for name in sorted(os.listdir(os.environ[TICKETS])):
        try:
            os.rmdir(Path(os.environ[TICKETS]) / name)
        except OSError:
            continue
        return int(name)
    return None


def faulty() -> gymnasium.Env:
    """The factory; a copy that is only looked at takes no ticket."""
    labelled = ambs.envs.with_labels(
        Corridor(),
        labels=lambda seen, _: {"hazard": seen[0] > 0, "goal": seen[4] > 0},
        spec="!hazard",
        atoms=("hazard", "goal"),
    )
    return Faulty(labelled)


def children() -> set[int]:
    """Processes that this one has started and that have not gone."""
    listed = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {int(number) for file in listed for number in file.read_text().split()}


def job_envs(folder: Path, count: int) -> dict[str, Any]:
    """A run of eight copies that goes to its end although `count` of their steps fail."""
    from ambs.storage.run_folder import RunFolder, read_rows
    from tests.faults.host import SETTINGS, run_in, train

    tickets = folder / "tickets"
    tickets.mkdir()
    for number in range(count):
        (tickets / f"{number:04d}").mkdir()
    os.environ[TICKETS] = str(tickets)
    training = {**SETTINGS["training"], "max_faults": count, "env_timeout": TIMEOUT}
    if not FULL:
        training["prefill"] = training["frames"]  # Nothing is learned, so that nothing need be compiled.
    before, threads = children(), set(threading.enumerate())
    code = train(folder, "envs", env="tests.faults.worlds:faulty", training=training)
    run = run_in(folder / "envs")
    status = RunFolder.open(run).read_status()
    ended = [row["ended"] for row in read_rows(run / "episodes.jsonl")]
    resources = {process for process in children() - before if not _is_tracker(process)}
    return {
        "code": code,
        "injected": count - len(os.listdir(tickets)),
        "detected": status["faults"],
        "discarded": ended.count("fault"),
        "processes": len(resources),
        "updates": status["updates"],
        "threads": len({thread for thread in set(threading.enumerate()) - threads if thread.is_alive()}),
        "state": status["state"],
    }


def _is_tracker(process: int) -> bool:
    """Python's own watcher over semaphores, which lives as long as the process itself."""
    try:
        return b"resource_tracker" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return True

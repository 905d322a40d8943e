"""Sweeps whose runs are no trainings, and whose tests end: what is to happen is waited for, but not for ever."""

import contextlib
import dataclasses
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from ambs.config.resolve import resolve, to_dict
from ambs.sweep.drive import Engine, Outcome, run_all
from ambs.sweep.plan import Job

ROOT = Path(__file__).parents[2]
FAKE = (sys.executable, "-m", "tests.sweep.fake")
PATIENCE = 120.0
"""Seconds after which a test has failed; what they are for takes some, where other work keeps all cores busy."""

T = TypeVar("T")


def fake_jobs(folder: Path, count: int, behaviour: str | None = None) -> list[Job]:
    """Runs whose children end as they are told to, by a file in their folder or else by AMBS_FAKE."""
    changes = {"env": "PointWorld", "training": {"frames": 20_000}}
    config, found = resolve("quickstart", changes=changes), []
    for seed in range(count):
        job = Job(f"copt-s{seed}", folder / f"copt-s{seed}", to_dict(dataclasses.replace(config, seed=seed)))
        if behaviour is not None:
            job.home.mkdir(parents=True)
            (job.home / "fake").write_text(behaviour)
        found.append(job)
    return found


@contextlib.contextmanager
def driven(jobs: list[Job], engine: Engine) -> Iterator[tuple[Future[Outcome], threading.Event]]:
    """`run_all` while the test looks on: what will come of it, and an event that stops it, as the end of the block does."""
    found, stop = Future[Outcome](), threading.Event()

    def drive() -> None:
        try:
            found.set_result(run_all(jobs, engine, stop, lambda _: None))
        except BaseException as error:
            found.set_exception(error)

    thread = threading.Thread(target=drive, daemon=True)  # Who hangs keeps nobody from ending.
    thread.start()
    try:
        yield found, stop
    finally:
        stop.set()
        thread.join(PATIENCE)


def until(condition: Callable[[], T], seconds: float = PATIENCE) -> T:
    """Wait until it holds; what it found."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"waited {seconds:g} s in vain"
        time.sleep(0.05)
    return found


def alive(process: int) -> bool:
    """Whether it runs; one that has ended and that nobody has asked about does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def family(root: int | None = None, word: str = "") -> list[int]:
    """Processes that this one, or another, has started, and theirs, if their command line has this word."""
    found: set[int] = set()
    new = {root or os.getpid()}
    while new:
        found |= new
        new = {child for process in new for child in _children(process)} - found
    return sorted(process for process in found if word in _command(process))


def _children(process: int) -> list[int]:
    found = []
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, file.read_text().split())
    return found


def _command(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""

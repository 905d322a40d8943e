"""Whole runs, killed, stopped and let down by their environments; a trained agent fed with nonsense."""

import itertools
import json
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from ambs.errors import UserError
from ambs.storage import checkpoint
from ambs.storage.run_folder import RunFolder
from tests.faults.counts import FULL, count, report

pytestmark = pytest.mark.process

# What is compiled before the first checkpoint can take minutes where others compute too.
PATIENCE = count(300, 900)
WHOLE = count(600, 7200)
"""Seconds after which all jobs of a process must have ended."""
INTERVAL, STEP = 400, 8
"""Frames between two checkpoints, and of one step of all environments, as tests/faults/host.py has them."""


def environment():
    return {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}


def host(folder, *jobs):
    """Run jobs in a process of their own; {job: what it found}."""
    command = [sys.executable, "-m", "tests.faults", str(folder), *jobs]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=WHOLE)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line.pop("job"): line for line in lines}


@dataclass
class Kills:
    """What kill -9 did to trainers."""

    done: int = 0
    starting: int = 0
    """Those that hit a resumed run before its first checkpoint."""
    writing: int = 0
    """Those that left an unfinished file."""
    unrestorable: int = 0
    lost: int = 0
    """The most frames that were played in vain."""
    differing: int = 0


def kill(folder: Path, rng: random.Random, wanted: int, seen: Kills) -> None:
    """Start `ambs train`, or `ambs resume` what was killed, and kill it at a random moment, until one run is finished.

    A third of those that are resumed are hit while they start, the others at any time after their first checkpoint.
    """
    run: Path | None = None
    usual = 0.0
    while seen.done < wanted:
        arguments = ["train"] if run is None else ["resume", str(run)]
        command = [sys.executable, "-m", "tests.faults", str(folder), "cli", *arguments]
        (folder / "progress").unlink(missing_ok=True)
        started = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment())
        if early := run is not None and rng.random() < 1 / 3:
            time.sleep(rng.uniform(0, usual))
        else:
            run = wait_for_progress(process, folder / "killed")
            usual = time.monotonic() - started
            time.sleep(rng.uniform(0, 2))
        process.kill()
        if process.wait() == 0:
            break
        seen.done += 1
        seen.starting += early
        examine(run, folder / "progress", seen)


def examine(run: Path, progress: Path, seen: Kills) -> None:
    """What a killed run left behind."""
    folder = run / "checkpoints"
    seen.writing += any(
        name.startswith(".tmp-") for place in (run, folder, folder / "replay") for name in os.listdir(place)
    )
    try:
        found = checkpoint.load(folder)
    except UserError:
        seen.unrestorable += 1
        return
    seen.unrestorable += bool(found.skipped or found.lost)
    played = progress.read_text() if progress.exists() else ""
    seen.lost = max(seen.lost, int(played or 0) - found.step)


def wait_for_progress(process: subprocess.Popen, home: Path) -> Path:
    """Until this very process has written a checkpoint, or has ended."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        for file in home.glob("*/config.json"):
            status = RunFolder.open(file.parent).read_status()
            saved = any(name.name[0] == "0" for name in (file.parent / "checkpoints").iterdir())
            if (status["pid"] == process.pid and saved and status["updates"]) or process.poll() is not None:
                return file.parent
        time.sleep(0.05)
    raise AssertionError("no checkpoint came")


def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path):
    """And so does one that was asked to stop; environments that fail and numbers that are none do no harm. In one test,
    because all of it shares what is compiled."""
    wanted, rng, seen = count(1, 50), random.Random(0), Kills()
    for runs in itertools.count(1):
        kill(tmp_path, rng, wanted, seen)
        if seen.done == wanted:
            break
        finish(host(tmp_path, "finish"), seen)
        (tmp_path / "killed").rename(tmp_path / f"killed-{runs}")
    found = host(
        tmp_path,
        "finish",
        f"sigterm:{count(2, 100)}",
        f"numbers:{count(30, 1000)}",
        f"observations:{count(60, 2000)}",
        f"envs:{count(8, 100)}",
    )
    finish(found, seen)
    check_kills(seen, wanted, runs)
    check_stops(found["sigterm"], count(2, 100))
    check_numbers(found["numbers"], found["observations"])
    check_envs(found["envs"], count(8, 100))


def finish(found, seen):
    assert found["finish"]["code"] in (0, 2)  # 2: it had come to its end before it could be killed
    seen.differing += found["finish"]["differences"]


def check_kills(seen, wanted, runs):
    assert (seen.done, seen.unrestorable, seen.differing) == (wanted, 0, 0)
    assert seen.lost <= INTERVAL + STEP
    report(
        "kill -9 of the trainer",
        f"{seen.done} kills of {runs} runs, {seen.starting} of them while a resumed run started, {seen.writing} seen inside a "
        f"write: {seen.unrestorable} unrestorable, at most {seen.lost} frames lost where a checkpoint is written every "
        f"{INTERVAL}, {seen.differing} differing continuations",
    )


def check_stops(found, wanted):
    assert found["stopped"] == found["resumable"] >= wanted
    assert set(found["codes"]) == {0}
    assert found["differences"] == 0
    report(
        "SIGTERM at random moments",
        f"{found['stopped']}: {found['resumable']} resumable, {found['stopped']} with exit code 75; {found['finished']} runs "
        f"stopped and resumed to their end, {found['differences']} differing",
    )


def check_numbers(numbers, observations):
    assert numbers["overridden"] == numbers["injected"]
    # A shield that overrides everything would prove nothing.
    assert numbers["accepted_before"] > numbers["injected"] // 2
    assert observations["wrong"] == 0
    assert observations["refused"] > 0
    report(
        "NaN and ±∞ in observations, memory, label heads, continue heads and critics",
        f"{numbers['injected']}: {numbers['overridden']} overridden with a finite action in range; "
        f"{numbers['accepted_before']} of the decisions just before were accepted",
    )
    report(
        "fuzzed observations",
        f"{observations['tried']}: {observations['refused']} refused, {observations['harmless']} harmless, 0 tracebacks",
    )


def check_envs(found, wanted):
    assert (found["code"], found["state"]) == (0, "finished")
    assert found["injected"] == found["detected"] == wanted
    # At the very first reset there is no episode yet that could be discarded.
    assert wanted - 8 <= found["discarded"] <= wanted
    assert (found["processes"], found["threads"]) == (0, 0)
    assert found["updates"] > 0 or not FULL
    report(
        "environments that raise, die, hang or return nonsense, among eight",
        f"{found['injected']} injected: {found['detected']} detected, {found['discarded']} episodes discarded, "
        f"{found['processes']} processes and {found['threads']} threads left over, the run finished",
    )

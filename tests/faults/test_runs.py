"""Whole runs, killed, stopped and let down by their environments; a trained agent fed with nonsense."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from ambs.training import checkpoint
from ambs.training.run_folder import RunFolder
from tests.faults.counts import FULL, count, report

# What is compiled before the first checkpoint can take minutes where others compute too.
PATIENCE = 600
INTERVAL, STEP = 400, 8
"""Frames between two checkpoints, and of one step of all environments, as tests/faults/host.py has them."""


def host(folder, *jobs):
    """Run jobs in a process of their own; {job: what it found}."""
    command = [sys.executable, "-m", "tests.faults.host", str(folder), *jobs]
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line.pop("job"): line for line in lines}


def kill(folder: Path, rng: random.Random, kills: int) -> tuple[int, int]:
    """Start `ambs train`, or `ambs resume` what was killed, and kill it at a random moment after its first checkpoint.

    Returns how many were killed, and the most frames that any of them had played in vain.
    """
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = worst = 0
    run: Path | None = None
    while done < kills:
        arguments = ["train"] if run is None else ["resume", str(run)]
        command = [sys.executable, "-m", "tests.faults.host", str(folder), "cli", *arguments]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        run = wait_for_progress(process, folder / "killed")
        time.sleep(rng.uniform(0, 2))
        process.kill()
        if process.wait() == 0:
            break
        done += 1
        found = checkpoint.load(run / "checkpoints")
        assert not found.skipped
        worst = max(worst, RunFolder.open(run).read_status()["frames"] - found.step)
    return done, worst


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
    kills, rng = count(1, 50), random.Random(0)
    done = worst = different = runs = 0
    while done < kills:
        more, lost = kill(tmp_path, rng, kills - done)
        done, worst, runs = done + more, max(worst, lost), runs + 1
        found = host(tmp_path, "finish")["finish"]
        assert found["code"] in (0, 2)  # 2: it had come to its end before it could be killed
        different += found["differences"]
        (tmp_path / "killed").rename(tmp_path / f"killed-{runs}")
    assert different == 0
    assert worst <= INTERVAL + STEP
    report(
        "kill -9 of the trainer",
        f"{done} kills in {runs} runs: 0 unrestorable, at most {worst} frames lost where a checkpoint is written every "
        f"{INTERVAL}, {different} differing continuations",
    )
    found = host(
        tmp_path,
        f"sigterm:{count(2, 100)}",
        f"numbers:{count(30, 1000)}",
        f"observations:{count(60, 2000)}",
        f"envs:{count(8, 100)}",
    )
    check_stops(found["sigterm"], count(2, 100))
    check_numbers(found["numbers"], found["observations"])
    check_envs(found["envs"], count(8, 100))


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
    assert numbers["accepted_before"] > 0 or not FULL
    assert observations["wrong"] == 0
    assert observations["refused"] > 0
    report(
        "NaN and ±∞ in observations, memory, label heads, continue heads and critics",
        f"{numbers['injected']}: {numbers['overridden']} overridden with a finite action in range",
    )
    report(
        "fuzzed observations",
        f"{observations['tried']}: {observations['refused']} refused, {observations['harmless']} harmless, 0 tracebacks",
    )


def check_envs(found, wanted):
    assert (found["code"], found["state"]) == (0, "finished")
    assert found["injected"] == found["detected"] == wanted
    assert (found["processes"], found["threads"]) == (0, 0)
    report(
        "environments that raise, die, hang or return nonsense, among eight",
        f"{found['injected']} injected: {found['detected']} detected, {found['processes']} processes and {found['threads']} "
        "threads left over, the run finished",
    )

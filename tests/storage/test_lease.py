"""Leases: who takes over from whom, and that a writer that was stopped writes nothing when it wakes up."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ambs.errors import STOPPED, UserError
from ambs.storage import checkpoint, lease, lock
from ambs.storage.lease import Held, Lost, take
from ambs.storage.run_folder import RunFolder

ROOT = Path(__file__).parents[2]


@pytest.fixture
def elsewhere(monkeypatch):
    """As if this process were on another machine, over a file system without locks."""
    monkeypatch.setattr(lease, "_boot", lambda: "another machine")
    monkeypatch.setattr(lock, "_lock", lambda _: (_ for _ in ()).throw(OSError(errno.ENOLCK, "no locks")))
    monkeypatch.setenv(lease.VARIABLE, "1")


def age(folder, seconds):
    """Let the lease in force be as if it had been renewed so long ago."""
    path = lease._newest(folder)
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_who_may_take_over(tmp_path, monkeypatch):
    """Nobody while it is renewed; a lock tells that a writer of this machine is dead; else the time tells, or the release."""
    first = take(tmp_path)
    with pytest.raises(Held, match=rf"process {os.getpid()} on .*; if it is dead, its lease ends within 60 seconds"):
        take(tmp_path)
    first.check()
    second = take(tmp_path, alone=True)
    first._state.renewed -= 31  # As if it had slept for more than half of its lease.
    with pytest.raises(Lost, match="taken over") as lost:
        first.check()
    assert lost.value.code == STOPPED
    monkeypatch.setattr(lease, "_boot", lambda: "another machine")
    with pytest.raises(Held):
        take(tmp_path, alone=True)
    age(tmp_path, 59)
    with pytest.raises(Held):
        take(tmp_path)
    age(tmp_path, 62)
    third = take(tmp_path)
    third.release()
    fourth = take(tmp_path)
    second.release()  # Late, and of no effect.
    fourth.check()
    assert [path.name for path in tmp_path.iterdir()] == [".lease-000004"]
    told = json.loads((tmp_path / ".lease-000004").read_text())
    assert told == {"host": told["host"], "boot": "another machine", "pid": os.getpid(), "seconds": 60.0}


def test_two_that_find_it_expired_do_not_both_have_it(tmp_path, monkeypatch):
    """The later one's number is taken; or, had the quicker one been overtaken already, is no longer the highest."""
    dead = take(tmp_path)
    age(tmp_path, 100)
    old = lease._newest(tmp_path)
    monkeypatch.setattr(lease, "_expired", lambda *_: True)
    winner = take(tmp_path)
    looks = iter([old])
    newest = lease._newest
    monkeypatch.setattr(lease, "_newest", lambda folder: next(looks, None) or newest(folder))
    with pytest.raises(Held, match="quicker"):
        take(tmp_path)
    later = take(tmp_path)
    looks = iter([old])
    with pytest.raises(Held, match="quicker"):
        take(tmp_path)
    later.check()
    for one in (dead, winner):
        one._state.renewed -= 31
        with pytest.raises(Lost):
            one.check()


def test_it_is_renewed(tmp_path, monkeypatch):
    monkeypatch.setenv(lease.VARIABLE, "1")
    held = take(tmp_path)
    time.sleep(1.6)
    with pytest.raises(Held):
        take(tmp_path)
    held.check()
    held.release()
    for wrong in ("0", "soon", "1e9"):
        monkeypatch.setenv(lease.VARIABLE, wrong)
        with pytest.raises(UserError, match="AMBS_LEASE must be seconds from 1 to 86400"):
            take(tmp_path)


WRITER = """
import errno, sys, time
import numpy as np
from pathlib import Path
from ambs.storage import checkpoint, lock
def none(_): raise OSError(errno.ENOLCK, "no locks")
lock._lock = none
from ambs.storage.run_folder import RunFolder
run = RunFolder.open(Path(sys.argv[1]))
run.claim()
step = 0
while True:
    step += 1
    run.log_metrics({"frames": step})
    run.log_episode({"frames": step})
    run.flush()
    run.write_status("running", frames=step, agent_steps=0, updates=0)
    checkpoint.save(run.checkpoints, step, {"state": {"x": np.zeros(1000)}}, {}, still_ours=run.still_ours)
    print(step, flush=True)
"""


@pytest.mark.process
def test_a_writer_that_was_stopped_writes_nothing_when_it_wakes_up(tmp_path, elsewhere):
    """SIGSTOP for longer than its lease, somebody else goes on, SIGCONT: not a byte changes, and it ends with a sentence."""
    run = RunFolder.create(tmp_path, env="x", method="m", seed=0, config={}, command=[])
    run.close()
    environment = os.environ | {lease.VARIABLE: "1", "PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(run.path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    for _ in range(3):
        process.stdout.readline()
    # Between two steps, or in the middle of one: wherever it is.
    process.send_signal(signal.SIGSTOP)
    other = RunFolder.open(run.path)
    with pytest.raises(Held, match=f"process {process.pid} on"):
        other.claim()
    time.sleep(1.5)
    other.claim()
    found = checkpoint.load(run.checkpoints)
    checkpoint.rewind(run.checkpoints, found.step)
    other.log_metrics({"frames": 10**6})
    other.flush()
    other.write_status("running", frames=10**6, agent_steps=0, updates=0)
    before = contents(run.path)
    process.send_signal(signal.SIGCONT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 1  # Of a plain script: ambs makes 75 of it.
    if (
        "FileNotFoundError" not in said
    ):  # In the middle of a write its unfinished file was tidied away, and ambs goes on to the next.
        assert "Lost: the lease on" in said
        assert "has been taken over by another process; nothing more was written there" in said
    assert contents(run.path) == before
    other.still_ours()


def contents(folder):
    """All files but unfinished ones and the lease itself, which is touched."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(part.startswith((".tmp-", ".lease-")) for part in path.relative_to(folder).parts)
    }


def test_locks_that_work_still_hold(tmp_path):
    """A stopped writer on this machine keeps its lock, whatever its lease says."""
    run = RunFolder.create(tmp_path, env="x", method="m", seed=0, config={}, command=[])
    age(run.path, 1000)
    with pytest.raises(Held, match="being written by another process"):
        RunFolder.open(run.path).claim()
    assert lock.held(run.path / "config.json")
    run.close()
    assert not lock.held(run.path / "config.json")

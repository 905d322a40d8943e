"""Ray Core as the engine: one Ray on this machine, and children that are no trainings."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ambs.errors import UserError
from ambs.sweep.attempt import Ended, Means
from ambs.sweep.on_ray import OnRay, _running_here, connect, on_ray
from ambs.sweep.plan import Needs
from ambs.sweep.status import find, progress
from tests.sweep.driven import FAKE, PATIENCE, ROOT, alive, driven, fake_jobs, family, until

ray = pytest.importorskip(
    "ray", reason="Ray is not installed: `ambs sweep --on ray` is not tried (pip install 'ambs[ray]')"
)
pytestmark = [pytest.mark.process, pytest.mark.filterwarnings("ignore")]  # Ray's own are many.


@pytest.fixture(scope="module")
def engine():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setattr("ambs.sweep.on_ray._running_here", lambda: None)
        # As a job in the background starts it, whose children ignore what Ctrl-C sends; Ray interrupts tasks by just that.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            with on_ray(Needs(), Means("cpu", program=FAKE), None) as engine:
                signal.signal(signal.SIGINT, before)
                yield engine
        finally:
            signal.signal(signal.SIGINT, before)


def test_it_listens_on_this_machine_alone(engine):
    listed = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    ours = {inode for process in family() for inode in sockets(process)}
    listening = [
        line.split()[1] for line in listed.splitlines()[1:] if line.split()[3] == "0A" and line.split()[9] in ours
    ]
    assert listening
    assert {place.rpartition(":")[0] for place in listening} <= {"0100007F", "0000000000000000FFFF00000100007F"}


def sockets(process):
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(OSError):
                name = os.readlink(entry)
                if name.startswith("socket:["):
                    yield name[8:-1]


def test_runs_finish_and_what_is_refused_fails_alone(engine, tmp_path):
    todo = fake_jobs(tmp_path, 3, "0")
    (todo[1].home / "fake").write_text("2")
    with driven(todo, engine) as (found, _):
        outcome = found.result(PATIENCE)
    assert sorted(outcome.finished) == ["copt-s0", "copt-s2"]
    assert list(outcome.failed) == ["copt-s1"]
    assert "was refused: some words" in outcome.failed["copt-s1"]
    assert [find(job).state for job in todo] == ["finished", "missing", "finished"]


def test_lost_workers_are_replaced_and_a_stop_saves(engine, tmp_path):
    """One worker is killed: its child notices, saves and ends. One is asked to end: so is its child. Both runs begin again
    elsewhere. Then all is stopped."""
    todo = fake_jobs(tmp_path, 2, "wait")
    with driven(todo, engine) as (found, stop):
        first = [until(lambda job=job: progress(job.home))["pid"] for job in todo]
        for child, number in zip(first, (signal.SIGKILL, signal.SIGTERM), strict=True):
            os.kill(int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1]), number)
        until(lambda: not any(map(alive, first)))
        for job in todo:
            until(lambda home=job.home: len(list(home.glob("*/config.json"))) == 2 and progress(home))
        stop.set()
        outcome = found.result(PATIENCE)
    assert sorted(outcome.stopped) == ["copt-s0", "copt-s1"]
    assert [(job.home / "output.txt").read_text().count("asked to stop") for job in todo] == [2, 2]


def test_an_interruption_that_is_lost_is_repeated(tmp_path):
    """Ray promises no more than to try: here the first one reaches nobody."""
    (job,), interrupted = fake_jobs(tmp_path, 1), []

    class Forgetful:
        exceptions = ray.exceptions
        cancel = staticmethod(lambda ref, recursive: interrupted.append(ref))
        wait = staticmethod(lambda refs, **_: (refs, []) if len(interrupted) > 1 else ([], refs))
        get = staticmethod(lambda ref: Ended("stopped", f"{ref} has saved"))

    engine = object.__new__(OnRay)
    engine._ray, engine._under_way, engine._looked = Forgetful, {"a task": job}, time.monotonic()
    assert engine.stop() == [(job, Ended("stopped", "a task has saved"))]
    assert interrupted == ["a task"] * 2
    assert engine.stop() == []


def test_a_run_that_no_machine_can_hold_is_refused_at_once(engine):
    with pytest.raises(UserError, match="a run takes cpus = 1000, and all of this Ray has"):
        OnRay(ray, Needs(cpus=1000.0), Means(), None)


def test_what_was_left_behind_is_not_joined(monkeypatch):
    """An address at which nobody answers any more; one at which somebody does."""
    monkeypatch.setattr("ray._private.utils.read_ray_address", lambda: "127.0.0.1:1")
    assert _running_here() is None
    for address in ("127.0.0.1:1", "127.0.0.1:99999"):  # At once: Ray itself would try for minutes.
        with pytest.raises(UserError, match=f"there is no Ray at {address} "):
            connect(ray, address)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr("ray._private.utils.read_ray_address", lambda: address)
        assert _running_here() == address


def test_a_token_is_shown_to_a_ray_that_is_joined(tmp_path):
    """`ray start` asks for the one in the home folder; Ray itself brings none to an address that is named."""
    pytest.importorskip("ray._private.authentication", reason="this Ray knows no tokens")
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("a" * 64)
    code = "import os; from ambs.sweep.on_ray import _bring_token as bring; bring(); print(os.environ['RAY_AUTH_MODE'])"
    there = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH_")}
    home = there | {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=home, capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == "token\n", done.stderr

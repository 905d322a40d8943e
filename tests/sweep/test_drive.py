"""Driving a sweep: what is stopped loses nothing, what is killed is resumed, what fails fails alone."""

import dataclasses
import os
import signal
import subprocess
import sys
import threading

import pytest

from ambs.storage import leash
from ambs.storage.claim import Claim
from ambs.storage.run_folder import RunFolder
from ambs.sweep import drive
from ambs.sweep.attempt import Attempt, Ended, Means
from ambs.sweep.drive import run_all
from ambs.sweep.local import Local, fleet_size, side_by_side
from ambs.sweep.plan import Needs, as_fleets
from ambs.sweep.status import find
from tests.report.synthetic import make_run
from tests.sweep.driven import FAKE, ROOT, fake_jobs, until


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    """Four runs, and children that find the tests."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    return fake_jobs(tmp_path, 4)


def drive_all(jobs, parallel=2, stop=None, look=lambda _: None):
    return run_all(jobs, Local(Means("cpu", program=FAKE), parallel), stop or threading.Event(), look)


@pytest.mark.process
def test_a_stop_saves_what_is_under_way(jobs, monkeypatch):
    monkeypatch.setenv("AMBS_FAKE", "wait")
    stop = threading.Event()

    def look(names):
        if all(list(one.home.glob("*/config.json")) for one in jobs if one.name in names):
            stop.set()

    outcome = drive_all(jobs, stop=stop, look=look)
    assert (sorted(outcome.stopped), outcome.failed) == (["copt-s0", "copt-s1"], {})
    assert (outcome.finished, outcome.failed, outcome.busy) == ([], {}, [])
    assert not jobs[2].home.exists()


@pytest.mark.process
def test_what_fails_or_is_refused_fails_alone(jobs, monkeypatch):
    for code, word in (("70", "ended with code 70: "), ("2", "was refused: ")):
        monkeypatch.setenv("AMBS_FAKE", code)
        outcome = drive_all(jobs[:2])
        assert sorted(outcome.failed) == ["copt-s0", "copt-s1"]
        # What it said this time, not what others have said in the same file.
        assert all(word in why and why.count("some words") == 1 for why in outcome.failed.values())


class Scripted:
    """An engine whose attempts end as they are told to."""

    def __init__(self, ends):
        self.ends, self.under_way, self.begun = ends, [], []

    def room(self):
        return 1 - len(self.under_way)

    def begin(self, job):
        self.under_way.append(job)
        self.begun.append(job.name)

    def ended(self):
        found = [(job, self.ends[job.name].pop(0)) for job in self.under_way]
        self.under_way = []
        return found

    def stop(self):
        return []


def test_attempts_are_repeated_as_they_deserve(jobs, monkeypatch):
    """Stopped by others: until it is finished. Killed: as long as it comes further. Busy: when nothing else is to do, and not for
    ever. Failed: not at all."""
    monkeypatch.setattr(drive, "PAUSE", 0.001)
    monkeypatch.setattr(drive, "AGAIN", 0.002)
    monkeypatch.setattr(drive, "PATIENCE", 0.1)
    stopped, done = Ended("stopped"), Ended("finished")
    killed = [Ended("killed", "was killed", frames) for frames in (10, 10, 20, 20, 20)]
    busy = [Ended("busy")] * 2
    ends = {
        "copt-s0": [stopped] * 5 + [done],
        "copt-s1": killed,
        "copt-s2": [*busy, done],
        "copt-s3": [Ended("busy")] * 10_000,
    }
    engine = Scripted(ends)
    outcome = run_all(jobs, engine, threading.Event(), lambda _: None)
    assert sorted(outcome.finished) == ["copt-s0", "copt-s2"]
    assert outcome.failed == {"copt-s1": "was killed, 3 times without coming any further"}
    assert outcome.busy == ["copt-s3"]
    assert engine.begun.count("copt-s0") == 6
    assert ends["copt-s1"] == []


def test_a_job_goes_on_with_what_is_there(jobs, monkeypatch):
    """Finished: nothing is started. Claimed: left alone. Other settings: named, and never written to."""
    started = []
    monkeypatch.setattr("ambs.sweep.attempt.launch", lambda *args, **more: started.append(args))
    done, claimed, other, _ = jobs
    for one, settings in ((done, done.settings), (other, other.settings | {"obs": "both"})):
        run = make_run(one.home, env="PointWorld", config=settings)
        assert RunFolder.open(run).config["seed"] == one.settings["seed"]
    assert Attempt(done, Means()).poll().kind == "finished"
    somebody = Claim(claimed.home)
    assert find(claimed).state == "running"
    assert Attempt(claimed, Means()).poll().kind == "busy"
    somebody.release()
    refused = Attempt(other, Means()).poll()
    assert refused.kind == "failed"
    assert 'obs="both"' in refused.why
    assert started == []
    longer = dataclasses.replace(
        done, settings=done.settings | {"training": done.settings["training"] | {"frames": 30_000}}
    )
    assert find(longer).state == "broken"


def test_seeds_of_one_setting_make_a_fleet(jobs):
    """Together where the first of them was, so many at most; not with other settings, nor what only a run by itself can do, nor
    where the folder does not tell the seed."""
    first, other, third, last = jobs
    other = dataclasses.replace(other, settings=other.settings | {"method": "lag"})
    assert [one.name for one in as_fleets([first, other, third, last], 2)] == ["copt-s0,2", "copt-s1", "copt-s3"]
    (fleet,) = as_fleets(jobs, 5)
    assert (fleet.name, fleet.members) == ("copt-s0,1,2,3", tuple(jobs))
    assert fleet.pattern == str(first.home.parent / "copt-s{seed}")
    odd = dataclasses.replace(last, home=last.home.with_name("last"))
    shared = [
        dataclasses.replace(one, settings=one.settings | {"training": one.settings["training"] | {"devices": 2}})
        for one in (first, third)
    ]
    for alone in ([*jobs[:1], odd], shared):
        assert as_fleets(alone, 5) == alone
    assert as_fleets(jobs, 1) == jobs


@pytest.mark.process
def test_a_fleet_is_one_process_and_goes_on_with_what_is_there(jobs, monkeypatch):
    """Begun together in the folder of each; stopped together; what broke off is resumed after the others have begun."""
    monkeypatch.setenv("AMBS_FAKE", "wait")
    stop = threading.Event()

    def look(names):
        if all(list(one.home.glob("*/config.json")) for one in jobs[:2]):
            stop.set()

    outcome = drive_all(as_fleets(jobs[:2], 5), stop=stop, look=look)
    assert (outcome.stopped, outcome.failed) == (["copt-s0,1"], {})
    runs = [find(one).path for one in jobs[:2]]
    for run, seed in zip(runs, (0, 1), strict=True):
        assert RunFolder.open(run).config["seed"] == seed
        break_off(run)
    assert not (jobs[1].home / "output.txt").exists()  # One process, one log.
    monkeypatch.setenv("AMBS_FAKE", "0")
    assert drive_all(as_fleets(jobs[:3], 5)).finished == ["copt-s0,1,2"]
    assert [find(one).state for one in jobs[:3]] == ["finished"] * 3
    assert [find(one).path for one in jobs[:2]] == runs
    assert drive_all(as_fleets(jobs[:3], 5)).finished == ["copt-s0,1,2"]


@pytest.mark.process
@pytest.mark.parametrize("what", ["other settings", "fails", "busy"])
def test_what_is_wrong_with_one_of_a_fleet_is_no_others(jobs, monkeypatch, what):
    """One run was broken off, one has yet to begin, and one cannot: the fleet falls apart, and the first two finish."""
    monkeypatch.setattr(drive, "PATIENCE", 0.5)
    monkeypatch.setenv("AMBS_FAKE", "0")
    break_off(make_run(jobs[0].home, env="PointWorld", config=jobs[0].settings, state="running"))
    bad, claim = jobs[2], None
    if what == "other settings":
        make_run(bad.home, env="PointWorld", config=bad.settings | {"obs": "both"})
    elif what == "fails":
        bad.home.mkdir()
        (bad.home / "fake").write_text("70")
        jobs[1].home.mkdir()
        (jobs[1].home / "fake").write_text("70")
    else:
        claim = Claim(bad.home)
    fleet = as_fleets(jobs[:3], 5)
    assert len(fleet) == 1
    if what == "fails":  # The fleet fails as its first new run does; by itself that one is well.
        real = Attempt.poll

        def poll(attempt):
            if not attempt.job.crew:
                (jobs[1].home / "fake").write_text("0")
            return real(attempt)

        monkeypatch.setattr(Attempt, "poll", poll)
    outcome = drive_all(fleet)
    assert sorted(outcome.finished) == ["copt-s0", "copt-s1"]
    if claim is None:
        assert list(outcome.failed) == ["copt-s2"]
        assert ('obs="both"' if what == "other settings" else "ended with code 70") in outcome.failed["copt-s2"]
    else:
        assert (outcome.failed, outcome.busy) == ({}, ["copt-s2"])
        claim.release()


def break_off(run):
    """Leave a run as a checkpoint and no process."""
    (run / "checkpoints" / "000000000100").mkdir(parents=True, exist_ok=True)
    (run / "checkpoints" / "000000000100" / "manifest.json").write_text("{}")


def test_who_is_saving_already_is_not_told_again(monkeypatch):
    told = []
    monkeypatch.setattr(os, "kill", lambda *given: told.append(given))
    saving, working = threading.Event(), threading.Event()
    saving.set()
    for stop in (saving, working):
        leash._watch(-1, stop)
    leash._severed.clear()
    assert told == [(os.getpid(), signal.SIGTERM)]


@pytest.mark.process
def test_a_child_ends_with_its_parent(jobs, tmp_path):
    """A driver that is killed leaves nobody who goes on writing, and the folder is free as soon as the last of them has ended."""
    code = (
        "import subprocess, sys, os; from pathlib import Path; from ambs.storage.claim import Claim\n"
        "claim = Claim(Path(sys.argv[1]))\n"
        "child = 'import time; from ambs.storage.leash import wear; wear(); time.sleep(60)'\n"
        "env = os.environ | {'AMBS_LEASH': str(os.getpid())}\n"
        "print(subprocess.Popen([sys.executable, '-c', child], pass_fds=[claim.fd], env=env).pid, flush=True)\n"
        "import time; time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "home")], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    os.kill(child, signal.SIGSTOP)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    home = dataclasses.replace(jobs[0], home=tmp_path / "home")
    assert find(home).state == "running"
    os.kill(child, signal.SIGCONT)
    until(lambda: find(home).state != "running")
    Claim(home.home).release()


def test_how_many_fit(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr("ambs.sweep.local.has_gpu", lambda: True)
    assert side_by_side(None, Needs(cpus=2.0), "cpu") == 4
    assert side_by_side(None, Needs(), "auto") == 1
    assert side_by_side(None, Needs(gpus=0.25), "auto") == 4
    assert side_by_side(3, Needs(), "auto") == 3
    assert [fleet_size(None, told, Needs(gpus=gpus), "auto") for told, gpus in ((None, None), (2, None), (1, 0.5))] == [
        5,
        1,
        1,
    ]
    assert [fleet_size(told, None, Needs(), "cpu") for told in (None, 3)] == [1, 3]
    share = Local(Means("gpu"), 4)._means.environment()
    assert share["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.225"

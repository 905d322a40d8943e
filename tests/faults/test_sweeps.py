"""Sweeps whose workers, raylet, driver and nodes are killed: every run finishes once, as if nothing had happened."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter

import pytest

from ambs.storage.run_folder import RunFolder
from ambs.sweep.attempt import Means
from ambs.sweep.local import Local
from ambs.sweep.on_ray import OnRay
from ambs.sweep.plan import Needs
from ambs.sweep.status import find, places, progress
from tests.faults.counts import FULL, count, report
from tests.faults.same import differences
from tests.faults.sweeps import FRAMES, MEANS, jobs
from tests.sweep.driven import FAKE, PATIENCE, ROOT, alive, driven, fake_jobs, family, until

ray = pytest.importorskip(
    "ray", reason="Ray is not installed: what kills a sweep on it is not tried (pip install 'ambs[ray]')"
)
pytestmark = [pytest.mark.process, pytest.mark.filterwarnings("ignore")]  # Ray's own are many.

ENOUGH = count(300, 7200)
"""Seconds after which a whole sweep has failed; where nobody else computes, a tenth of them is enough."""


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """For children, which have their own flags for XLA."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    monkeypatch.setenv("AMBS_LEASE", "5")


@contextlib.contextmanager
def started(folder, runs):
    """A sweep in a process of its own, which ends with the block, however that ends."""
    words = [sys.executable, "-m", "tests.faults.sweeps", str(folder), str(runs)]
    with (folder.parent / f"{folder.name}.txt").open("ab") as file:
        driver = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield driver
    finally:
        driver.kill()
        driver.wait()


VICTIMS = {
    "worker": "ray::advance",
    "raylet": "raylet/raylet",
    "child": "tests.reproduce.host",
    "driver": "tests.faults.sweeps",
}


def killed(driver, kind, rng):
    """kill -9 for a process of a kind; whether one was there."""
    there = [driver.pid] if kind == "driver" else family(driver.pid, VICTIMS[kind])
    try:
        os.kill(rng.choice(there), signal.SIGKILL)
    except (IndexError, ProcessLookupError):
        return False
    return True


def test_a_sweep_survives_its_parts(tmp_path):
    """12 runs and 30 kills in full; as a quiet sweep's, the results, and no run is made twice."""
    runs, rng = count(2, 12), random.Random(0)
    quiet, loud = (jobs(tmp_path / name, runs) for name in ("quiet", "loud"))
    # One after the other: the second need not compile what the first did.
    with driven(quiet, Local(MEANS, 1)) as (found, _):
        assert len(found.result(ENOUGH).finished) == runs
    kinds = [rng.choice(["worker", "worker", "child", "driver", "raylet"]) for _ in range(30)]
    kinds = kinds if FULL else ["driver", "worker"]
    # Spread over what there is to do, so that runs are hit on their way, and there is something to resume.
    apart = runs * FRAMES / (len(kinds) + 1)
    done, starts, code, end = Counter(), 0, None, time.monotonic() + ENOUGH
    while code != 0:
        starts += 1
        with started(tmp_path / "loud", runs) as driver:
            while (code := driver.poll()) is None:
                assert time.monotonic() < end, (tmp_path / "loud.txt").read_text()[-2000:]
                time.sleep(0.1)
                number = done.total()
                if number < len(kinds) and played(loud) > (number + 1) * apart:
                    time.sleep(rng.uniform(0, count(0, 6)))
                    done[kinds[number]] += killed(driver, kinds[number], rng)
    assert [find(job).state for job in loud] == ["finished"] * runs
    made = [RunFolder.open(path).read_status()["state"] for job in loud for path in places(job.home)]
    assert made.count("finished") == runs
    assert [differences(find(a).path, find(b).path) for a, b in zip(quiet, loud, strict=True)] == [0] * runs
    resumed = sum((job.home / "output.txt").read_text().count(", seed ") for job in loud) - len(made)
    told = ", ".join(f"{number} of a {kind}" for kind, number in sorted(done.items()))
    told = f"{done.total()} ({told}) in {starts} starts of {runs} runs, {resumed} times resumed: each finished once, 0 differing"
    report("kill -9 in a sweep on Ray", told)
    assert done.total() > 0
    # Short runs may be over before whoever was to be hit is.
    assert (done.total() == len(kinds) and resumed > 0) or not FULL


def played(todo):
    """Frames of all runs, as far as they tell."""
    return sum(progress(job.home).get("frames", 0) for job in todo)


def test_the_loss_of_a_node_is_survived(tmp_path, monkeypatch):
    """Two nodes on one machine, a shared folder: the run of the node that is lost goes on at the other."""
    from ray.cluster_utils import Cluster

    ray.shutdown()
    place = tempfile.mkdtemp(dir="/tmp")  # Where no other sweep finds it; short, for sockets have short names.
    monkeypatch.setenv("RAY_TMPDIR", place)
    todo = fake_jobs(tmp_path, 2, "wait")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        node = cluster.add_node(num_cpus=1)
        engine = OnRay(ray, Needs(), Means("cpu", program=FAKE), cluster.address)
        with driven(todo, engine) as (found, _):
            children = [until(lambda job=job: progress(job.home))["pid"] for job in todo]
            for job in todo:
                (job.home / "fake").write_text("0")
            cluster.remove_node(node, allow_graceful=False)
            # The other node's first run waits to be told to stop; what was lost cannot begin before. Whether its child
            # was asked to stop or killed depends on who is faster.
            until(lambda: not all(map(alive, children)))
            (other,) = filter(alive, children)
            os.kill(other, signal.SIGTERM)
            outcome = found.result(PATIENCE)
        assert sorted(outcome.finished) == ["copt-s0", "copt-s1"]
        made = [RunFolder.open(path).read_status()["state"] for job in todo for path in places(job.home)]
        assert sorted(made) == ["finished", "finished", "running", "running"]  # Once each, and once each begun before.
        report("loss of one of two nodes of Ray", "2 of 2 runs finished, each once")
    finally:
        ray.shutdown()
        cluster.shutdown()
        shutil.rmtree(place, ignore_errors=True)

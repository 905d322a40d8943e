"""Sweeps whose workers, raylet, driver and nodes are killed: every run finishes once, as if nothing had happened."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from ambs.storage.run_folder import RunFolder
from ambs.sweep.attempt import Means
from ambs.sweep.drive import run_all
from ambs.sweep.on_ray import OnRay
from ambs.sweep.plan import Needs
from ambs.sweep.status import find, progress
from tests.faults.counts import FULL, count, report
from tests.faults.sweeps import jobs
from tests.sweep.test_on_ray import FAKE, ray_processes, until
from tests.sweep.test_on_ray import jobs as fake_jobs

ray = pytest.importorskip(
    "ray", reason="Ray is not installed: what kills a sweep on it is not tried (pip install 'ambs[ray]')"
)
pytestmark = [pytest.mark.process, pytest.mark.filterwarnings("ignore")]  # Ray's own are many.

ROOT = Path(__file__).parents[2]
PATIENCE = 1800


def environment():
    return {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | {
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "AMBS_LEASE": "5",
    }


def start(folder, runs, on):
    words = [sys.executable, "-m", "tests.faults.sweeps", str(folder), str(runs), on]
    with (folder.parent / f"{folder.name}.txt").open("ab") as file:
        return subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, env=environment())


def family(root, word):
    """Processes below one whose command line has this word."""
    found = []
    for process in ray_processes(root):
        try:
            if word in Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode():
                found.append(process)
        except OSError:
            continue
    return found


VICTIMS = {
    "worker": "ray::advance",
    "raylet": "raylet/raylet",
    "child": "tests.reproduce.host",
    "driver": "tests.faults.sweeps",
}


def kill_something(driver, rng, kinds, done):
    """kill -9 for a process of a kind that is there; whether there was one."""
    kind = rng.choice(kinds)
    there = [driver.pid] if kind == "driver" else family(driver.pid, VICTIMS[kind])
    if not there:
        return
    os.kill(rng.choice(there), signal.SIGKILL)
    done[kind] += 1


def test_a_sweep_survives_its_parts(tmp_path):
    """12 runs and 30 kills in full; as a quiet sweep's, the results, and no run is made twice."""
    runs, wanted, rng = count(2, 12), count(3, 30), random.Random(0)
    quiet, loud = tmp_path / "quiet", tmp_path / "loud"
    quiet.mkdir()
    loud.mkdir()
    assert start(quiet, runs, "local").wait(PATIENCE) == 0
    done, starts, end = Counter(), 0, time.monotonic() + PATIENCE * count(1, 4)
    kinds = ["worker", "worker", "child", "driver", "raylet"] if FULL else ["worker", "child", "driver"]
    while True:
        starts += 1
        driver = start(loud, runs, "ray")
        while driver.poll() is None:
            assert time.monotonic() < end, (loud.parent / "loud.txt").read_text()[-2000:]
            begun = [job for job in jobs(loud, runs) if find(job).state in ("running", "broken")]
            if begun and done.total() < wanted and family(driver.pid, VICTIMS["worker"]):
                kill_something(driver, rng, kinds, done)
                time.sleep(rng.uniform(1, 6))
            time.sleep(0.2)
        if driver.returncode == 0:
            break
    assert [find(job).state for job in jobs(loud, runs)] == ["finished"] * runs
    states = [RunFolder.open(path.parent).read_status()["state"] for home in folders(loud, runs) for path in home]
    assert states.count("finished") == runs
    compared = [compare(find(a).path, find(b).path) for a, b in zip(jobs(quiet, runs), jobs(loud, runs), strict=True)]
    assert compared == [0] * runs
    told = ", ".join(f"{number} of a {kind}" for kind, number in sorted(done.items()))
    told = f"{done.total()} ({told}) in {starts} starts of {runs} runs: each finished once, 0 differing"
    report("kill -9 in a sweep on Ray", told)
    assert done.total() >= (wanted if FULL else 1)


def folders(folder, runs):
    return [list(job.home.glob("*/config.json")) for job in jobs(folder, runs)]


def compare(one, two):
    """How many arrays and rows two runs differ in; apart, since it sets up JAX for itself."""
    code = (
        "import sys; from pathlib import Path; from tests.faults.host import differences\n"
        "print(differences(*map(Path, sys.argv[1:])))"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, str(one), str(two)], capture_output=True, text=True, env=environment()
    )
    return json.loads(told.stdout)


def test_the_loss_of_a_node_is_survived(tmp_path, monkeypatch):
    """Two nodes on one machine, a shared folder: the run of the node that is lost goes on at the other."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    ray.shutdown()
    place = tempfile.mkdtemp(dir="/tmp")  # Where no other sweep finds it; short, for sockets have short names.
    monkeypatch.setenv("RAY_TMPDIR", place)
    todo, outcomes, stop = fake_jobs(tmp_path, 2, "wait"), [], threading.Event()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    engine = OnRay(ray, Needs(), Means("cpu", program=FAKE), cluster.address)
    thread = threading.Thread(target=lambda: outcomes.append(run_all(todo, engine, stop, lambda _: None)))
    try:
        thread.start()
        children = {job.name: until(lambda job=job: progress(job.home))["pid"] for job in todo}
        for job in todo:
            (job.home / "fake").write_text("0")
        cluster.remove_node(nodes[0], allow_graceful=False)
        # The other node's first run waits to be told to stop; what was lost cannot begin before. Whether its child was
        # asked to stop or killed depends on who is faster.
        until(lambda: not all(Path(f"/proc/{pid}").exists() for pid in children.values()), PATIENCE)
        (other,) = [pid for pid in children.values() if Path(f"/proc/{pid}").exists()]
        os.kill(other, signal.SIGTERM)
        thread.join(PATIENCE)
        assert not thread.is_alive()
        assert sorted(outcomes[0].finished) == ["copt-s0", "copt-s1"]
        report("loss of one of two nodes of Ray", "2 of 2 runs finished, each once")
    finally:
        stop.set()
        thread.join(PATIENCE)
        ray.shutdown()
        cluster.shutdown()
        shutil.rmtree(place, ignore_errors=True)

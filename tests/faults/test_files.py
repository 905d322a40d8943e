"""Checkpoints under kill -9, mutation, hostile makers and failing disks; run folders under races. No trainer, no JAX."""

import collections
import errno
import hashlib
import json
import multiprocessing
import os
import pickle
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ambs.errors import UserError
from ambs.storage.checkpoint import load, save
from ambs.storage.run_folder import RunFolder
from tests.faults import rivals, writer
from tests.faults.counts import count, report
from tests.storage.checkpoints import check, put, reseal

pytestmark = pytest.mark.process


def test_killed_while_writing(tmp_path):
    """kill -9 at random moments of a process that writes checkpoints without a pause."""
    kills, rng = count(4, 150), random.Random(0)
    safe = unrestorable = lost = differing = inside = 0
    for _ in range(kills):
        command = [sys.executable, "-m", "tests.faults.writer", str(tmp_path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(rng.uniform(0, 0.2))
        process.kill()
        said = process.stdout.read().split()
        process.stdout.close()
        process.wait()
        inside += any(
            name.startswith(".tmp-") for folder in (tmp_path, tmp_path / "replay") for name in listing(folder)
        )
        safe = max([safe, *(int(word) for word in said)])
        try:
            found = load(tmp_path)
        except UserError:
            unrestorable += safe > 0  # Before the first was said to be safe there need not be any.
            continue
        unrestorable += bool(found.skipped or found.lost)
        lost += found.step < safe
        differing += not writer.is_right(found)
    assert safe > 0
    assert (unrestorable, lost, differing) == (0, 0, 0)
    report(
        "kill -9 of the checkpoint writer",
        f"{kills} kills, {inside} of them seen inside a write: {unrestorable} unrestorable, {lost} lost a checkpoint that was "
        f"said to be safe, {differing} differing continuations ({safe} checkpoints written)",
    )


def listing(folder):
    return os.listdir(folder) if folder.is_dir() else []


def flip(path, other, rng):
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def truncate(path, other, rng):
    os.truncate(path, rng.randrange(path.stat().st_size))


def swap(path, other, rng):
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)


def delete(path, other, rng):
    path.unlink()


def extend(path, other, rng):
    with path.open("ab") as file:
        file.write(rng.randbytes(rng.randrange(1, 50)))


def test_mutations(tmp_path):
    """Each is found. What is damaged is passed over for the checkpoint before; only where both share the damaged chunk is the
    newest taken without it, and says so. A load by step is refused or says so as well."""
    trials, rng = count(60, 1000), random.Random(0)
    put(tmp_path / "sound", 10, "ab")
    put(tmp_path / "sound", 20, "bc")
    sound = {path.relative_to(tmp_path / "sound"): path.read_bytes() for path in files_in(tmp_path / "sound")}
    kinds, ways = collections.Counter(), collections.Counter()
    for trial in range(trials):
        folder = tmp_path / str(trial)
        shutil.copytree(tmp_path / "sound", folder)
        files = sorted((folder / "000000000020").iterdir())
        files += [folder / "replay" / f"{name}.safetensors" for name in "bc"]
        path, other = rng.sample(files, 2)
        kind = (flip, truncate, swap, delete, extend)[trial % 5]
        kind(path, other, rng)
        kinds[kind.__name__] += 1
        changed = {name for name, data in sound.items() if not is_same(folder / name, data)}
        ways[how_it_loads(folder, changed)] += 1
        shutil.rmtree(folder)
    assert sum(ways.values()) == trials
    named = ", ".join(f"{name} {number}" for name, number in kinds.items())
    seen = ", ".join(f"{number} {way}" for way, number in ways.items())
    report(
        "mutations of checkpoint files", f"{trials} ({named}): {trials} detected ({seen}), 0 crashes, 0 silent loads"
    )


def files_in(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def is_same(path, data):
    return path.exists() and path.read_bytes() == data


def how_it_loads(folder, changed):
    """Compares what is loaded with what must be, given the files that were changed."""
    lost = {path.stem for path in changed if path.parts[0] == "replay"}
    own = any(path.parts[0] == "000000000020" for path in changed)
    found = load(folder)
    if "b" in lost and not own:
        check(found, 20, set("bc") - lost)
        assert found.lost.keys() == lost
        return "loaded without the shared chunk"
    check(found, 10, set("ab") - lost)
    assert found.lost.keys() == lost & set("ab")
    assert len(found.skipped) == 1
    assert "is damaged: " in found.skipped[0]
    if own:
        with pytest.raises(UserError, match="no intact checkpoint"):
            load(folder, 20)
    else:
        assert load(folder, 20).lost.keys() == lost
    return "passed over for one without the shared chunk" if found.lost else "passed over for the one before"


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, target):
        self.target = str(target)

    def __reduce__(self):
        return (os.system, (f"touch {self.target}",))


def hostile(folder: Path, outside: Path, number: int) -> None:
    """Fill a folder with one of many tricks, all of them under a manifest whose hashes are right."""
    put(folder, 20, "a")
    bodies = hostile_bodies(outside, random.Random(number))
    names = {
        "up": "../../outside/secret.safetensors",
        "absolute": str(outside / "secret.safetensors"),
        "dots": "..safetensors/../../../outside/secret.safetensors",
        "other": "loop.pickle",
        "nul": "a\0.safetensors",
        "slash": "a/b.safetensors",
        "long": "a" * 5000 + ".safetensors",
    }
    claims = {"sparse": 2**40, "negative": -1, "fraction": 1.5, "text": "9"}
    manifests = ("pickle manifest", "deep manifest", "other meta", "list")
    chunks = {"chunk pickle": bodies["pickle"], "chunk huge": bodies["huge shape"], "chunk link": b""}
    tricks = [*bodies, *names, *claims, *LINKS, *manifests, *chunks]
    trick = tricks[number % len(tricks)]
    path = folder / "000000000020"
    file = path / "learned.safetensors"
    if trick in bodies:
        file.write_bytes(bodies[trick])
        reseal(path, files={"learned.safetensors": entry_of(bodies[trick])})
    elif trick in chunks:
        chunk = folder / "replay" / "a.safetensors"
        chunk.unlink()
        reseal(path, chunks={"a": entry_of(chunks[trick])})
        chunk.symlink_to(outside / "secret.safetensors") if trick == "chunk link" else chunk.write_bytes(chunks[trick])
    elif trick in names:
        reseal(path, files={names[trick]: entry_of((outside / "secret.safetensors").read_bytes())})
    elif trick in claims:
        if trick == "sparse":
            os.truncate(file, claims["sparse"])
        reseal(path, files={"learned.safetensors": {"sha256": "0" * 64, "bytes": claims[trick]}})
    elif trick in LINKS:
        link_away(folder, path, outside, number, trick)
    else:
        texts = {"pickle manifest": bodies["pickle"], "deep manifest": b"[" * 200_000, "list": b"[]"}
        data = texts.get(trick) or json.dumps({"format": 1, "step": 20, "meta": [], "files": {}, "chunks": {}}).encode()
        (path / "manifest.json").write_bytes(data)
        (path / "manifest.sha256").write_text(f"{hashlib.sha256(data).hexdigest()}  manifest.json\n")


LINKS = ("link to file", "link to folder", "link to replay", "pipe", "device")


def hostile_bodies(outside: Path, rng: random.Random) -> dict[str, bytes]:
    """Files that are no arrays, or claim to be more of them than there could be."""
    huge = json.dumps({"w": {"dtype": "F32", "shape": [2**40, 2**20], "data_offsets": [0, 2**62]}}).encode()
    zeros = json.dumps({"w": {"dtype": "F32", "shape": [0, 2**62], "data_offsets": [0, 0]}}).encode()
    return {
        "pickle": pickle.dumps(Bomb(outside / "executed")),
        "huge shape": len(huge).to_bytes(8, "little") + huge,
        "huge empty shape": len(zeros).to_bytes(8, "little") + zeros,
        "huge header": (2**62).to_bytes(8, "little") + b"{}",
        "no header": b"",
        "random": rng.randbytes(rng.randrange(1, 2000)),
        "nested": (100_000).to_bytes(8, "little") + b"[" * 100_000,
    }


def entry_of(data: bytes) -> dict[str, str | int]:
    """What a manifest says of a file."""
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


def link_away(folder: Path, path: Path, outside: Path, number: int, trick: str) -> None:
    """Let something of the folder be elsewhere."""
    if trick in ("link to folder", "link to replay"):
        moved, there = (path, "elsewhere") if trick == "link to folder" else (folder / "replay", "replay")
        moved.rename(outside / f"{there}-{number}")
        moved.symlink_to(outside / f"{there}-{number}")
        return
    file = path / "learned.safetensors"
    file.unlink()
    makers = {"pipe": os.mkfifo, "device": lambda p: p.symlink_to("/dev/zero")}
    makers.get(trick, lambda p: p.symlink_to(outside / "secret.safetensors"))(file)


VISIT = """
import json, sys
from pathlib import Path
from ambs.errors import UserError
from ambs.storage.checkpoint import load
def memory():  # getrusage would tell the parent's if that was more.
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
taken, before = [], memory()
for folder in sys.argv[1:]:
    try:
        found = load(Path(folder))
        for read in found.chunks.values():
            read()
        if not found.lost:
            taken.append(folder)
    except UserError:
        pass
print(json.dumps([taken, (memory() - before) / 1024]))
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="memory is read from /proc")
def test_hostile_folders(tmp_path):
    """Nothing in them is run, nothing outside is touched, they are refused in a sentence, and memory stays small."""
    folders = count(30, 60)
    outside = tmp_path / "outside"
    outside.mkdir()
    put(tmp_path / "other", 1)
    shutil.copy(tmp_path / "other" / "000000000001" / "loop.safetensors", outside / "secret.safetensors")
    for number in range(folders):
        hostile(tmp_path / str(number), outside, number)
    before = {path: path.stat().st_mtime_ns for path in outside.rglob("*")}
    # In a process of its own: the most memory that this one ever had says nothing of what follows.
    command = [sys.executable, "-c", VISIT, *(str(tmp_path / str(number)) for number in range(folders))]
    taken, grown = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert taken == []
    # An honest checkpoint of 40 MB shows that memory is measured.
    save(tmp_path / "large", 1, {"learned": {"w": np.zeros(5_000_000)}}, {})
    honest = json.loads(subprocess.run([*command[:3], str(tmp_path / "large")], check=True, capture_output=True).stdout)
    assert honest[0] == [str(tmp_path / "large")]
    assert honest[1] > 35
    assert {path: path.stat().st_mtime_ns for path in outside.rglob("*")} == before
    assert not (outside / "executed").exists()
    assert grown < 20
    report(
        "hostile checkpoint folders",
        f"{folders}: {len(taken)} loaded, 0 code executed, 0 files touched outside, at most {grown:.0f} MiB of memory more",
    )


CALLS = ("open", "write", "fsync", "replace", "mkdir", "unlink", "rmdir")


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EROFS], ids=["ENOSPC", "EIO", "EROFS"])
def test_every_write_call_fails_once(tmp_path, monkeypatch, error):
    """Of a checkpoint: the one before stays loadable, and after the next one nothing is left of the attempt."""
    put(tmp_path / "start", 10, "ab")
    failed = 0
    for number in range(1, 1000):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "start", folder)
        calls = 0

        def fail(name, real, *args, number=number, **options):
            nonlocal calls
            if not (name == "open" and not args[1] & os.O_CREAT):
                calls += 1
                if calls == number:
                    raise OSError(error, os.strerror(error))
            return real(*args, **options)

        with monkeypatch.context() as patch:
            for name in CALLS:
                real = getattr(os, name)
                patch.setattr(os, name, lambda *args, _n=name, _r=real, **options: fail(_n, _r, *args, **options))
            try:
                put(folder, 20, "bc")
                done = True
            except OSError as problem:
                done = False
                assert problem.errno == error
        if calls < number:
            break
        failed += 1
        found = load(folder)
        check(found, found.step, "ab" if found.step == 10 else "bc")
        assert found.step == 20 or not done
        put(folder, 30, "cd")
        check(load(folder), 30, "cd")
        assert not [name for name in os.listdir(folder) if name.startswith(".tmp-")]
        shutil.rmtree(folder)
    assert failed > 20
    report(
        f"write calls of a checkpoint failing with {errno.errorcode[error]}",
        f"each of {failed} once: 0 lost checkpoints",
    )


def test_races_for_a_run_folder(tmp_path):
    """One winner each; the winner dies without a word every time, and its lock keeps nobody out."""
    races, many = count(5, 100), 4
    run = RunFolder.create(tmp_path, env="x", method="m", seed=0, config={}, command=[])
    with pytest.raises(UserError, match=rf"being written by another process: process {os.getpid()} on "):
        RunFolder.open(run.path).claim()
    run.close()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", "tests.faults.rivals"])
    for _ in range(races):
        barrier, results = context.Barrier(many), context.SimpleQueue()
        processes = [
            context.Process(target=rivals.contend, args=(str(run.path), barrier, results)) for _ in range(many)
        ]
        for process in processes:
            process.start()
        answers = [results.get() for _ in processes]
        for process in processes:
            process.join()
        results.close()
        assert answers.count("won") == 1
        assert sum("being written by another process" in answer for answer in answers) == many - 1
    RunFolder.open(run.path).claim()
    report("races for one run folder", f"{races} races of {many} processes: {races} times exactly one winner")


def test_a_read_only_folder(tmp_path, monkeypatch):
    """Every call that would write fails: said at once, and what is there can be read."""
    put(tmp_path, 10)

    def refusing(real):
        def call(*args, **options):
            if real is reading and not args[1] & os.O_CREAT:
                return real(*args, **options)
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        return call

    reading = os.open
    for name in CALLS:
        monkeypatch.setattr(os, name, refusing(getattr(os, name)))
    with pytest.raises(OSError, match="Read-only file system"):
        put(tmp_path, 20, "c")
    check(load(tmp_path), 10)

"""Checkpoints are whole or not there, whatever interrupts the writing."""

import os
import shutil

import pytest

from ambs.storage import checkpoint
from ambs.storage.checkpoint import load
from tests.storage.checkpoints import check, flip, put


class Killed(BaseException):
    """Stands for the end of the process."""


class Disk:
    """Counts what changes the disk and fails it from the n-th call on: once with an error, or for good like a power cut.

    A power cut also halves every file whose bytes were not fsynced. Nothing may be deleted before the new checkpoint's
    name is fsynced, and no chunk before the old one's has gone.
    """

    CALLS = ("open", "write", "fsync", "replace", "rename", "mkdir", "unlink", "rmdir", "ftruncate", "truncate")

    def __init__(self, monkeypatch, n, error):
        self.n, self.error, self.count, self.dead = n, error, 0, False
        self.unsynced, self.renamed = set(), set()
        self.real = {name: getattr(os, name) for name in self.CALLS}
        for name in self.CALLS:
            monkeypatch.setattr(os, name, lambda *args, _name=name, **kw: self.call(_name, *args, **kw))

    def call(self, name, *args, **kw):
        if name == "open" and not args[1] & os.O_CREAT:
            return self.real[name](*args, **kw)
        if self.dead:
            raise Killed
        self.count += 1
        path = os.readlink(f"/proc/self/fd/{args[0]}") if name in ("write", "fsync") else str(args[0])
        if self.count == self.n and self.error is not None:
            if name == "write":
                self.real[name](args[0], args[1][:5])
            raise OSError(self.error, os.strerror(self.error))
        if self.count == self.n:
            self.power_cut()
            raise Killed
        self.note(name, path, args)
        return None if name == "fsync" else self.real[name](*args, **kw)

    def note(self, name, path, args):
        if name == "write":
            self.unsynced.add(path)
        elif name == "fsync":
            self.unsynced.discard(path)
            self.renamed = {new for new in self.renamed if os.path.dirname(new) != path}
        elif name in ("replace", "rename"):
            new = str(args[1])
            self.unsynced = {old.replace(path, new, 1) if old.startswith(path) else old for old in self.unsynced}
            self.renamed.add(new)
        elif name in ("unlink", "rmdir"):
            assert not {new for new in self.renamed if ".tmp-" not in new or "/replay/" in path}
            self.unsynced = {old for old in self.unsynced if os.path.basename(old) != os.path.basename(path)}

    def power_cut(self):
        self.dead = True
        for path in self.unsynced:
            self.real["truncate"](path, os.path.getsize(path) // 2)


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="finds files by /proc")
@pytest.mark.parametrize("error", [None, 28], ids=["power cut", "disk full"])
@pytest.mark.parametrize("step", [20, 10], ids=["next step", "same step"])
def test_interrupted_anywhere(tmp_path, monkeypatch, error, step):
    """Fail each call in turn: what loads is the old checkpoint or the new one, and the next save leaves no trace of it."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # Hundreds of them: `Disk` notes who asks, no disk need work.
    put(tmp_path / "start", 10, "ab")
    outcomes = []
    for n in range(1, 1000):
        folder = tmp_path / str(n)
        shutil.copytree(tmp_path / "start", folder)
        with monkeypatch.context() as patch:
            disk = Disk(patch, n, error)
            try:
                put(folder, step, "bc", keep=1)
                done = True
            except (Killed, OSError):
                done = False
        found = load(folder)
        new = found.chunks.keys() == {"b", "c"}
        check(found, step if new else 10, "bc" if new else "ab")
        assert not found.skipped
        if disk.count < n:
            break
        if not done:
            outcomes.append(new)
        assert not done or error, "a power cut was survived"
        put(folder, 30, "cd", keep=1)
        check(load(folder), 30, "cd")
        assert sorted(os.listdir(folder)) == ["000000000030", "replay"]
        assert sorted(os.listdir(folder / "replay")) == ["c.safetensors", "d.safetensors"]
        shutil.rmtree(folder)
    assert done
    assert not disk.unsynced
    assert len(outcomes) > 25
    assert outcomes == sorted(outcomes), "once the new one is there it stays"


def test_written_wrongly(two, monkeypatch):
    """A disk that does not give back what it got: the earlier checkpoints stay."""
    real = checkpoint.verify
    monkeypatch.setattr(
        checkpoint, "verify", lambda path, entry: flip(path) or real(path, entry) if "30" in str(path) else None
    )
    with pytest.raises(OSError, match=r"000000000030 was not written correctly: learned.safetensors does not match"):
        put(two, 30)
    monkeypatch.undo()
    found = load(two)
    check(found, 20, "bc")
    assert len(found.skipped) == 1

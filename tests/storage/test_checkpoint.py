"""Checkpoints: whole or not there, whatever interrupts the writing; damage and tricks are found and named."""

import errno
import hashlib
import json
import os
import shutil

import numpy as np
import pytest

from ambs.errors import UserError
from ambs.storage import checkpoint
from ambs.storage.checkpoint import load, rewind, save


def piece(value):
    return {"frames": np.full(100, value, np.uint8)}


def put(folder, step, names="ab", keep=2):
    """A checkpoint whose arrays all tell its step, and chunks that tell their name."""
    groups = {"learned": {"w": np.full((2, 3), step, np.float32)}, "loop": {"t": np.array(step)}}
    chunks = {name: lambda name=name: piece(ord(name)) for name in names}
    return save(folder, step, groups, {"positions": [step]}, chunks, keep)


def check(found, step, names="ab"):
    assert found.step == step == found.groups["loop"]["t"]
    assert (found.groups["learned"]["w"] == step).all()
    assert found.meta == {"positions": [step]}
    assert set(found.chunks) == set(names)
    assert all((read()["frames"] == ord(name)).all() for name, read in found.chunks.items())


def reseal(path, **changes):
    """Change a manifest as somebody would who knows the format."""
    manifest = json.loads((path / "manifest.json").read_text()) | changes
    data = json.dumps(manifest).encode()
    (path / "manifest.json").write_bytes(data)
    (path / "manifest.sha256").write_text(f"{hashlib.sha256(data).hexdigest()}  manifest.json\n")


@pytest.fixture
def two(tmp_path):
    put(tmp_path, 10, "ab")
    put(tmp_path, 20, "bc")
    return tmp_path


def test_newest_and_by_step(two):
    check(load(two), 20, "bc")
    check(load(two, 10), 10, "ab")
    check(load(two, 10, chunks=False), 10, "")
    assert load(two).skipped == ()
    assert sorted(path.name for path in two.iterdir()) == ["000000000010", "000000000020", "replay"]
    listing = {path.name for path in (two / "000000000020").iterdir()}
    assert listing == {"learned.safetensors", "loop.safetensors", "manifest.json", "manifest.sha256"}


def test_manifest_by_hand(two):
    """Sizes and hashes are those of the files, and `sha256sum --check` would agree."""
    path = two / "000000000020"
    manifest = json.loads((path / "manifest.json").read_text())
    assert (manifest["format"], manifest["step"], manifest["meta"]) == (2, 20, {"positions": [20]})
    data = (path / "learned.safetensors").read_bytes()
    assert manifest["files"]["learned.safetensors"] == {
        "sha256": hashlib.sha256(data).hexdigest(),
        "bytes": len(data),
    }
    assert manifest["chunks"]["b"]["bytes"] == (two / "replay" / "b.safetensors").stat().st_size
    assert (path / "manifest.sha256").read_text().split() == [
        hashlib.sha256((path / "manifest.json").read_bytes()).hexdigest(),
        "manifest.json",
    ]


def test_chunks_are_written_once_and_collected(two):
    """A chunk that is there is neither made nor touched again; nobody refers to it: it goes."""
    before = (two / "replay" / "b.safetensors").stat()
    made = []
    save(two, 30, {}, {}, {name: lambda name=name: made.append(name) or piece(ord(name)) for name in "bd"})
    after = (two / "replay" / "b.safetensors").stat()
    assert made == ["d"]
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert {path.name[0] for path in (two / "replay").iterdir()} == {"b", "c", "d"}
    put(two, 40, "", keep=1)
    assert not list((two / "replay").iterdir())
    assert [path.name for path in sorted(two.iterdir())] == ["000000000040", "replay"]


@pytest.mark.parametrize("how", ["unknown", "short", "manifest"])
def test_a_chunk_nobody_vouches_for_is_made_again(tmp_path, how):
    put(tmp_path, 10, "a")
    chunk = tmp_path / "replay" / "a.safetensors"
    if how == "unknown":
        (tmp_path / "replay" / "b.safetensors").write_bytes(chunk.read_bytes())
    elif how == "short":
        chunk.write_bytes(chunk.read_bytes()[:-1])
    else:
        (tmp_path / "000000000010" / "manifest.json").write_text("{}")
        chunk.write_bytes(bytes(chunk.stat().st_size))
    put(tmp_path, 20, "ab")
    check(load(tmp_path), 20, "ab")


def test_same_step_again(two):
    """The first stays until the second is safe, then goes."""
    assert put(two, 20, "bc").name == "000000000020-1"
    check(load(two), 20, "bc")
    check(load(two, 20), 20, "bc")
    assert put(two, 20, "bc", keep=1).name == "000000000020-2"
    assert sorted(path.name for path in two.iterdir()) == ["000000000020-2", "replay"]


def test_rewind(two):
    """A run that goes on from an earlier step does not meet the later one's checkpoints or chunks; until it has saved its
    own, they are only out of sight."""
    rewind(two, 10)
    check(load(two), 10, "ab")
    assert sorted(os.listdir(two)) == [".tmp-old-000000000020", "000000000010", "replay"]
    save(two, 15, {}, {}, {"c": lambda: piece(0)})
    assert (load(two).chunks["c"]()["frames"] == 0).all()
    assert sorted(os.listdir(two)) == ["000000000010", "000000000015", "replay"]
    assert {path.name[0] for path in (two / "replay").iterdir()} == {"a", "b", "c"}


def test_save_of_an_earlier_step_drops_later_ones(two):
    put(two, 15, "ac")
    assert [path.name for path in sorted(two.iterdir())] == ["000000000010", "000000000015", "replay"]
    check(load(two), 15, "ac")


def test_keep_passes_over_damaged_ones(two):
    (two / "000000000020" / "loop.safetensors").unlink()
    put(two, 30, "b", keep=2)
    assert [path.name for path in sorted(two.iterdir())] == ["000000000010", "000000000030", "replay"]


def flip(path, where=-1):
    data = bytearray(path.read_bytes())
    data[where] ^= 4
    path.write_bytes(data)


def swap(path):
    a, b = path / "learned.safetensors", path / "loop.safetensors"
    a.rename(path / "x")
    b.rename(a)
    (path / "x").rename(b)


def link(path):
    real = path.with_name("elsewhere")
    path.rename(real)
    path.symlink_to(real)


def pipe(path):
    path.unlink()
    os.mkfifo(path)


DAMAGE = {
    "flip in data": (lambda p: flip(p / "learned.safetensors"), "learned.safetensors does not match its SHA-256"),
    "flip in header": (lambda p: flip(p / "learned.safetensors", 12), "learned.safetensors does not match its SHA-256"),
    "flip in manifest": (lambda p: flip(p / "manifest.json", 20), "manifest.json does not match manifest.sha256"),
    "flip in digest": (lambda p: flip(p / "manifest.sha256", 3), "manifest.json does not match manifest.sha256"),
    "flip in own chunk": (lambda p: flip(p.parent / "replay" / "c.safetensors"), "c.safetensors does not match its SHA-256"),
    "truncated": (lambda p: os.truncate(p / "loop.safetensors", 10), "loop.safetensors has 10 bytes instead of"),
    "extended": (lambda p: (p / "loop.safetensors").open("ab").write(b"x"), "loop.safetensors has"),
    "missing": (lambda p: (p / "learned.safetensors").unlink(), "learned.safetensors: No such file"),
    "missing manifest": (lambda p: (p / "manifest.json").unlink(), "manifest.json: No such file"),
    "own chunk missing": (lambda p: (p.parent / "replay" / "c.safetensors").unlink(), "c.safetensors: No such file"),
    "swapped": (swap, "learned.safetensors has"),
    "link": (lambda p: link(p / "loop.safetensors"), "loop.safetensors is a link"),
    "link to folder": (link, "not a plain folder"),
    "pipe": (lambda p: pipe(p / "loop.safetensors"), "loop.safetensors is not a plain file"),
    "folder": (lambda p: (p / "manifest.json").unlink() or (p / "manifest.json").mkdir(), "manifest.json is not a plain file"),
    "old format": (lambda p: reseal(p, format=0), "not a manifest in format 2"),
    "no format": (lambda p: reseal(p, format="1"), "not a manifest in format 2"),
    "other step": (lambda p: reseal(p, step=21), "it says it is of step 21"),
    "no list": (lambda p: reseal(p, files=[]), "not a manifest in format 2"),
    "no size": (lambda p: reseal(p, files={"a.safetensors": {"bytes": True}}), "does not give size and SHA-256"),
    "up": (lambda p: reseal(p, files={"../000000000010/loop.safetensors": {}}), "not a file of a checkpoint"),
    "absolute": (lambda p: reseal(p, files={"/etc/passwd.safetensors": {}}), "not a file of a checkpoint"),
    "other file": (lambda p: reseal(p, files={"loop.pickle": {}}), "not a file of a checkpoint"),
    "dots": (lambda p: reseal(p, chunks={"..": {}}), "names '..', which is not a file of a checkpoint"),
    "nul": (lambda p: reseal(p, chunks={"a\0b": {}}), "not a file of a checkpoint"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named_and_passed_over(two, kind):
    damage, sentence = DAMAGE[kind]
    path = two / "000000000020"
    damage(path)
    found = load(two)
    check(found, 10, "ab")
    assert len(found.skipped) == 1
    assert found.skipped[0].startswith("checkpoint 000000000020 is damaged: ")
    assert sentence in found.skipped[0]
    if "chunk" in kind:
        assert sentence in load(two, 20).lost["c"]
    else:
        with pytest.raises(UserError, match=r"no intact checkpoint in .*000000000020 is damaged"):
            load(two, 20)
    rewind(two, found.step)
    put(two, 30, "cd")
    check(load(two), 30, "cd")


@pytest.mark.parametrize("own_damage", [False, True])
def test_a_chunk_that_all_share(two, own_damage):
    """Damaged, it costs its rows and not the run: the newest of which nothing else is damaged is loaded without it."""
    flip(two / "replay" / "b.safetensors")
    if own_damage:
        (two / "000000000020" / "loop.safetensors").unlink()
    found = load(two)
    check(found, *((10, "a") if own_damage else (20, "c")))
    assert found.lost == {"b": "b.safetensors does not match its SHA-256"}
    assert len(found.skipped) == own_damage
    # Whoever still has the rows in memory writes them again, and all are intact.
    put(two, 30, "bc")
    check(load(two), 30, "bc")
    check(load(two, 10), 10, "ab") if own_damage else check(load(two, 20), 20, "bc")
    assert not load(two).lost


def test_only_some_stored_chunks_are_read_again(tmp_path, monkeypatch):
    """Each of them sooner or later."""
    put(tmp_path, 0, "abcd")
    monkeypatch.setattr(checkpoint, "RECHECKED", 1)
    seen, real = [], checkpoint.verify
    monkeypatch.setattr(checkpoint, "verify", lambda path, entry: seen.append(path) or real(path, entry))
    for step in range(1, 30):
        put(tmp_path, step, "abcd")
    again = [path.name[0] for path in seen if path.parent.name == "replay"]
    assert len(again) == 29
    assert set(again) == set("abcd")


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EMFILE, errno.ESTALE])
@pytest.mark.parametrize("file", ["manifest.json", "loop.safetensors", "c.safetensors"])
def test_what_cannot_be_read_now_is_not_damaged(two, monkeypatch, code, file):
    real = os.open

    def fail(path, *rest, **options):
        if str(path).endswith(file):
            raise OSError(code, os.strerror(code), str(path))
        return real(path, *rest, **options)

    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(UserError, match=rf"20 cannot be read now \({file}: {os.strerror(code)}\); it may be whole"):
        load(two)
    monkeypatch.undo()
    check(load(two), 20, "bc")


def test_too_large_for_this_machine_is_not_damaged(two, monkeypatch):
    monkeypatch.setattr(os, "sysconf", lambda name: 10)
    with pytest.raises(UserError, match=r"20 needs \d+ bytes, more than half of this machine's memory"):
        load(two)


def test_newer_format_is_not_fallen_behind(two):
    reseal(two / "000000000020", format=3)
    with pytest.raises(UserError, match="has format 3, this version of ambs reads 2"):
        load(two)
    with pytest.raises(UserError, match="has format 3"):
        put(two, 30)
    check(load(two, 10), 10)


def test_all_damaged(two):
    flip(two / "000000000010" / "loop.safetensors")
    (two / "000000000020" / "loop.safetensors").unlink()
    with pytest.raises(UserError, match=r"20 is damaged: loop.safetensors: No such.*; .*10 is damaged: loop.*SHA-256$"):
        load(two)


def test_nothing_there(tmp_path, two):
    for folder in (tmp_path / "none", tmp_path / "replay"):
        with pytest.raises(UserError, match="there is no checkpoint in"):
            load(folder)
    with pytest.raises(UserError, match=r"no checkpoint of step 11 in .*, only of 20, 10$"):
        load(two, 11)


def test_chunk_damaged_after_loading(two):
    found = load(two)
    flip(two / "replay" / "c.safetensors")
    with pytest.raises(UserError, match=r"replay buffer of .* has been damaged: c.safetensors"):
        found.chunks["c"]()


def test_replay_must_not_be_a_link(two):
    link(two / "replay")
    with pytest.raises(UserError, match="is damaged: replay is a link"):
        load(two)
    with pytest.raises(UserError, match="is a link"):
        put(two, 30)


@pytest.mark.parametrize("name", ["", "..", "a/b", "/a", ".hidden", "a\n", "ä"])
def test_names(tmp_path, name):
    for arguments in ({"groups": {name: {}}}, {"groups": {}, "chunks": {name: dict}}):
        with pytest.raises(ValueError, match="cannot be the name of a file"):
            save(tmp_path, 1, meta={}, **arguments)
    assert not list(tmp_path.iterdir())


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


def test_arguments(tmp_path):
    for bad in ({"step": -1}, {"step": 1, "keep": 0}):
        with pytest.raises(ValueError, match="step must be"):
            save(tmp_path, groups={}, meta={}, **bad)
    with pytest.raises(ValueError, match="not JSON compliant"):
        save(tmp_path, 1, {}, {"loss": float("nan")})
    with pytest.raises(UserError, match="no checkpoint"):
        load(tmp_path)

"""Checkpoints that are damaged, forged or unreadable: each is named and passed over, or refused in a sentence."""

import errno
import os

import pytest

from ambs.errors import UserError
from ambs.storage.checkpoint import load, rewind
from tests.storage.checkpoints import check, flip, link, put, reseal


def swap(path):
    a, b = path / "learned.safetensors", path / "loop.safetensors"
    a.rename(path / "x")
    b.rename(a)
    (path / "x").rename(b)


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

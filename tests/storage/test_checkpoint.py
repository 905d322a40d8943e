"""Checkpoints: what is written, kept, referred to and found again."""

import hashlib
import json
import os

import pytest

from ambs.errors import UserError
from ambs.storage import checkpoint
from ambs.storage.checkpoint import load, rewind, save
from tests.storage.checkpoints import check, piece, put


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


def test_nothing_there(tmp_path, two):
    for folder in (tmp_path / "none", tmp_path / "replay"):
        with pytest.raises(UserError, match="there is no checkpoint in"):
            load(folder)
    with pytest.raises(UserError, match=r"no checkpoint of step 11 in .*, only of 20, 10$"):
        load(two, 11)


@pytest.mark.parametrize("name", ["", "..", "a/b", "/a", ".hidden", "a\n", "ä"])
def test_names(tmp_path, name):
    for arguments in ({"groups": {name: {}}}, {"groups": {}, "chunks": {name: dict}}):
        with pytest.raises(ValueError, match="cannot be the name of a file"):
            save(tmp_path, 1, meta={}, **arguments)
    assert not list(tmp_path.iterdir())


def test_arguments(tmp_path):
    for bad in ({"step": -1}, {"step": 1, "keep": 0}):
        with pytest.raises(ValueError, match="step must be"):
            save(tmp_path, groups={}, meta={}, **bad)
    with pytest.raises(ValueError, match="not JSON compliant"):
        save(tmp_path, 1, {}, {"loss": float("nan")})
    with pytest.raises(UserError, match="no checkpoint"):
        load(tmp_path)

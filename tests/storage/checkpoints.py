"""Checkpoints whose contents tell which they are, and ways to damage them."""

import hashlib
import json

import numpy as np

from ambs.storage.checkpoint import save


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


def flip(path, where=-1):
    data = bytearray(path.read_bytes())
    data[where] ^= 4
    path.write_bytes(data)


def link(path):
    real = path.with_name("elsewhere")
    path.rename(real)
    path.symlink_to(real)

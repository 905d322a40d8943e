"""The manifest of a checkpoint: which files belong to it, and whether their bytes are those that were written.

Damage is what a file *is*: other bytes, another size, no file at all. That it cannot be read at the moment (an input/output
error, missing rights, too many open files) says nothing of it and stays an OSError.
"""

import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ambs.errors import UserError
from ambs.storage.arrays import Arrays, from_bytes
from ambs.storage.files import UnfitError, hash_plain, read_plain, reason, to_json, write_synced

FORMAT = 2
UNBOUND = 1
"""The format before: a checkpoint that does not say which settings it was made with."""
MANIFEST, DIGEST, SUFFIX = "manifest.json", "manifest.sha256", ".safetensors"
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
FOLDER = re.compile(r"([0-9]{12})(?:-([0-9]+))?")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV)


class DamagedError(Exception):
    """Says what is wrong with a checkpoint."""


def step_of(path: Path) -> int:
    """The step in the name of a checkpoint's folder."""
    match = FOLDER.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def write_manifest(folder: Path, step: int, meta: Mapping[str, Any], files: Any, chunks: Any) -> None:
    """Write the manifest and its digest."""
    manifest = to_json({"format": FORMAT, "step": step, "meta": meta, "files": files, "chunks": chunks})
    write_synced(folder / MANIFEST, manifest)
    write_synced(folder / DIGEST, _digest(manifest))


def read_manifest(path: Path) -> dict[str, Any]:
    """A checkpoint's manifest, if it is what was written and names nothing outside its folder.

    A newer format is a UserError, so that nobody falls back behind it unawares.
    """
    with _telling_damage():
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise DamagedError("it is not a plain folder")
        data, digest = read_plain(path / MANIFEST), read_plain(path / DIGEST)
    if digest != _digest(data):
        raise DamagedError(f"{MANIFEST} does not match {DIGEST}")
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{MANIFEST} is not valid JSON") from error
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if type(found) is int and found > FORMAT:
        raise UserError(
            f"checkpoint {path.name} has format {found}, this version of ambs reads {FORMAT}: update ambs or choose an "
            "earlier step"
        )
    known = type(found) is int and found in (UNBOUND, FORMAT)
    if not known or type(manifest.get("step")) is not int or not isinstance(manifest.get("meta"), dict):
        raise DamagedError(f"{MANIFEST} is not a manifest in format {FORMAT}")
    if manifest["step"] != step_of(path):
        raise DamagedError(f"it says it is of step {manifest['step']}")
    _check_entries(manifest.get("files"), SUFFIX)
    _check_entries(manifest.get("chunks"), "")
    return manifest


def _check_entries(entries: object, suffix: str) -> None:
    if not isinstance(entries, dict):
        raise DamagedError(f"{MANIFEST} is not a manifest in format {FORMAT}")
    for name, entry in entries.items():
        if not name.endswith(suffix) or not NAME.fullmatch(name.removesuffix(suffix)):
            raise DamagedError(f"{MANIFEST} names {name!r}, which is not a file of a checkpoint")
        size, sha256 = (entry.get("bytes"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
        if type(size) is not int or size < 0 or not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
            raise DamagedError(f"{MANIFEST} does not give size and SHA-256 of {name}")


def entry_of(data: bytes) -> dict[str, Any]:
    """What a manifest says of a file."""
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


def read_arrays(path: Path, entry: Mapping[str, Any]) -> Arrays:
    """The arrays of a file, if its bytes are those the manifest vouches for."""
    with _telling_damage():
        data = read_plain(path, size=entry["bytes"])
    _compare(path, hashlib.sha256(data).hexdigest(), entry)
    try:
        return from_bytes(data)
    except ValueError as error:
        raise DamagedError(f"{path.name} is {error}") from error


def verify(path: Path, entry: Mapping[str, Any]) -> None:
    """Whether a file's bytes are those the manifest vouches for, read piece by piece."""
    with _telling_damage():
        found = hash_plain(path, size=entry["bytes"])
    _compare(path, found, entry)


def has_size(path: Path, entry: Mapping[str, Any]) -> bool:
    """Whether a plain file of the right size is there."""
    try:
        status = os.lstat(path)
    except OSError as error:
        if error.errno in _NOT_THERE:
            return False
        raise
    return stat.S_ISREG(status.st_mode) and status.st_size == entry["bytes"]


def _compare(path: Path, found: str, entry: Mapping[str, Any]) -> None:
    if found != entry["sha256"]:
        raise DamagedError(f"{path.name} does not match its SHA-256")


@contextmanager
def _telling_damage() -> Iterator[None]:
    """Within, an OSError that says what a file is becomes a `DamagedError`; others pass."""
    try:
        yield
    except OSError as error:
        if isinstance(error, UnfitError) or error.errno in _NOT_THERE:
            raise DamagedError(reason(error)) from error
        raise


def _digest(manifest: bytes) -> bytes:
    """In the format of `sha256sum --check`."""
    return f"{hashlib.sha256(manifest).hexdigest()}  {MANIFEST}\n".encode()

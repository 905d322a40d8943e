"""Checkpoints: folders that are complete and verified or not there at all; docs/run-folder.md is their reference.

To resume: `load`, then `rewind` to the step that was loaded, then `RunFolder.cut`, then go on and `save`.
"""

import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ambs.errors import UserError
from ambs.training.arrays import Arrays, flatten, from_bytes, restore, to_bytes
from ambs.training.files import (
    TEMPORARY,
    hash_plain,
    read_plain,
    reason,
    sync_folder,
    to_json,
    write_atomic,
    write_synced,
)

__all__ = ["Arrays", "Checkpoint", "flatten", "load", "restore", "rewind", "save"]

FORMAT = 1
MANIFEST, DIGEST, REPLAY, SUFFIX = "manifest.json", "manifest.sha256", "replay", ".safetensors"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_FOLDER = re.compile(r"([0-9]{12})(?:-([0-9]+))?")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and found intact."""

    path: Path
    step: int
    groups: dict[str, Arrays]
    meta: dict[str, Any]
    chunks: dict[str, Callable[[], Arrays]]
    """By name a function that reads the chunk, verifying it again."""
    skipped: tuple[str, ...] = ()
    """A sentence for each newer checkpoint that is damaged and was passed over."""


class _DamagedError(Exception):
    """Says what is wrong with a checkpoint."""


def save(
    folder: Path,
    step: int,
    groups: Mapping[str, Arrays],
    meta: Mapping[str, Any],
    chunks: Mapping[str, Callable[[], Arrays]] | None = None,
    keep: int = 2,
) -> Path:
    """Write `folder/<step>/`, read it back, and only then delete all but the `keep` last checkpoints up to this step.

    `chunks` are immutable pieces of the replay buffer: those already stored by an earlier checkpoint are referred to, the
    functions of the others are called and the result stored once in `folder/replay/`. OSErrors are raised; the earlier
    checkpoints are then as they were.
    """
    chunks = chunks or {}
    _check_arguments(step, [*groups, *chunks], keep)
    folder.mkdir(parents=True, exist_ok=True)
    stored = _store_chunks(folder / REPLAY, chunks, _vouched(folder, step))
    path = _unused(folder, step)
    temporary = folder / f"{TEMPORARY}{path.name}"
    try:
        _remove(temporary)
        temporary.mkdir()
        _write(temporary, step, groups, meta, stored)
        os.replace(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)  # A full disk needs the space.
        raise
    sync_folder(folder)
    try:
        for name, entry in _manifest(path)["files"].items():
            _verify(path / name, entry)
    except _DamagedError as error:
        raise OSError(f"checkpoint {path.name} was not written correctly: {error}") from error
    earlier = [old for old in _candidates(folder) if old != path and _step(old) <= step and _plausible(old)]
    _keep_only(folder, [path, *earlier[: keep - 1]])
    return path


def load(folder: Path, step: int | None = None, *, chunks: bool = True) -> Checkpoint:
    """The newest intact checkpoint, or the one of `step`; all its files are verified before anything is returned.

    Without `chunks` the replay buffer is neither verified nor returned. A checkpoint in a newer format is not damaged: it
    is a UserError, so that nobody falls back behind it unawares.
    """
    candidates = _candidates(folder)
    if not candidates:
        raise UserError(f"there is no checkpoint in {folder}")
    chosen = [path for path in candidates if step is None or _step(path) == step]
    if not chosen:
        there = ", ".join(dict.fromkeys(str(_step(path)) for path in candidates))
        raise UserError(f"there is no checkpoint of step {step} in {folder}, only of {there}")
    skipped: list[str] = []
    for path in chosen:
        try:
            return replace(_open(path, chunks=chunks), skipped=tuple(skipped))
        except _DamagedError as error:
            skipped.append(f"checkpoint {path.name} is damaged: {error}")
    raise UserError(f"no intact checkpoint in {folder}: {'; '.join(skipped)}")


def rewind(folder: Path, step: int) -> None:
    """Delete the checkpoints after `step`, which a run that goes on from there will never have made."""
    _keep_only(folder, [path for path in _candidates(folder) if _step(path) <= step])


def _check_arguments(step: int, names: Iterable[str], keep: int) -> None:
    if not 0 <= step < 10**12 or keep < 1:
        raise ValueError(f"step must be in [0, 10¹²) and keep at least 1, got {step} and {keep}")
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot be the name of a file: letters, digits, '_', '-' and '.' only")


def _vouched(folder: Path, step: int) -> dict[str, Any]:
    """What the intact manifests up to this step say of the chunks; a chunk that none of them knows is not trusted."""
    known: dict[str, Any] = {}
    for path in reversed(_candidates(folder)):
        if _step(path) <= step:
            try:
                known |= _manifest(path)["chunks"]
            except _DamagedError:
                continue
    return known


def _store_chunks(
    replay: Path, chunks: Mapping[str, Callable[[], Arrays]], known: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Entries of the manifest; a chunk is written unless it is known and there, by its size."""
    replay.mkdir(exist_ok=True)
    if replay.is_symlink():
        raise UserError(f"{replay} is a link, a plain folder is needed")
    stored = {}
    for name, make in chunks.items():
        path, entry = replay / f"{name}{SUFFIX}", known.get(name)
        if entry is None or not _has_size(path, entry["bytes"]):
            data = to_bytes(make())
            entry = _entry(data)
            write_atomic(path, data)
            try:
                _verify(path, entry)
            except _DamagedError as error:
                raise OSError(f"chunk {name} was not written correctly: {error}") from error
        stored[name] = entry
    return stored


def _write(
    folder: Path, step: int, groups: Mapping[str, Arrays], meta: Mapping[str, Any], chunks: Mapping[str, Any]
) -> None:
    files = {}
    for group, arrays in groups.items():
        data = to_bytes(arrays)
        files[f"{group}{SUFFIX}"] = _entry(data)
        write_synced(folder / f"{group}{SUFFIX}", data)
    manifest = to_json({"format": FORMAT, "step": step, "meta": meta, "files": files, "chunks": chunks})
    write_synced(folder / MANIFEST, manifest)
    write_synced(folder / DIGEST, _digest(manifest))
    sync_folder(folder)


def _keep_only(folder: Path, kept: list[Path]) -> None:
    """Delete all other checkpoints, then the chunks that none of the kept ones refers to, then unfinished files."""
    for path in _candidates(folder):
        if path not in kept:
            _remove(path)
    sync_folder(folder)  # No chunk may go before the manifests that refer to it.
    needed = set()
    for path in kept:
        try:
            needed |= {f"{name}{SUFFIX}" for name in _manifest(path)["chunks"]}
        except _DamagedError:
            return  # It may need any of them.
    for parent, rubbish in ((folder / REPLAY, lambda name: name not in needed), (folder, _is_temporary)):
        for name in sorted(os.listdir(parent)) if parent.is_dir() and not parent.is_symlink() else ():
            if rubbish(name):
                _remove(parent / name)


def _is_temporary(name: str) -> bool:
    return name.startswith(TEMPORARY)


def _remove(path: Path) -> None:
    """Delete a file or folder, if it is there; a checkpoint loses its name first, so that none is ever seen in part."""
    if not os.path.lexists(path):
        return
    if path.is_symlink() or not path.is_dir():
        os.unlink(path)
        return
    if not _is_temporary(path.name):
        nameless = path.with_name(f"{TEMPORARY}old-{path.name}")
        _remove(nameless)
        os.replace(path, nameless)
        path = nameless
    shutil.rmtree(path)


def _candidates(folder: Path) -> list[Path]:
    """All checkpoints, intact or not, newest first."""
    names = os.listdir(folder) if folder.is_dir() else []
    return sorted((folder / name for name in names if _FOLDER.fullmatch(name)), key=_order, reverse=True)


def _order(path: Path) -> tuple[int, int]:
    """Step and attempt: a step that is saved again gets `<step>-1`, so that the first stays until the second is safe."""
    match = _FOLDER.fullmatch(path.name)
    assert match is not None
    return int(match[1]), int(match[2] or 0)


def _step(path: Path) -> int:
    return _order(path)[0]


def _unused(folder: Path, step: int) -> Path:
    attempts = [_order(path)[1] for path in _candidates(folder) if _step(path) == step]
    return folder / (f"{step:012d}-{max(attempts) + 1}" if attempts else f"{step:012d}")


def _open(path: Path, *, chunks: bool) -> Checkpoint:
    manifest = _manifest(path)
    replay = path.parent / REPLAY
    pieces = {name: (replay / f"{name}{SUFFIX}", entry) for name, entry in manifest["chunks"].items()} if chunks else {}
    if pieces and replay.is_symlink():
        raise _DamagedError(f"{REPLAY} is a link")
    _check_sizes(manifest)
    for file, entry in pieces.values():
        _verify(file, entry)
    groups = {name.removesuffix(SUFFIX): _arrays(path / name, entry) for name, entry in manifest["files"].items()}

    def reader(file: Path, entry: Mapping[str, Any]) -> Callable[[], Arrays]:
        def read() -> Arrays:
            try:
                return _arrays(file, entry)
            except _DamagedError as error:
                raise UserError(f"the replay buffer of {path} has been damaged: {error}") from error

        return read

    readers = {name: reader(*piece) for name, piece in pieces.items()}
    return Checkpoint(path, manifest["step"], groups, manifest["meta"], readers)


def _manifest(path: Path) -> dict[str, Any]:
    """A checkpoint's manifest, if it is what was written and names nothing outside its folder."""
    if path.is_symlink() or not path.is_dir():
        raise _DamagedError("it is not a plain folder")
    try:
        data, digest = read_plain(path / MANIFEST), read_plain(path / DIGEST)
    except OSError as error:
        raise _DamagedError(reason(error)) from error
    if digest != _digest(data):
        raise _DamagedError(f"{MANIFEST} does not match {DIGEST}")
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _DamagedError(f"{MANIFEST} is not valid JSON") from error
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if type(found) is int and found > FORMAT:
        raise UserError(
            f"checkpoint {path.name} has format {found}, this version of ambs reads {FORMAT}: update ambs or choose an "
            "earlier step"
        )
    if found != FORMAT or type(manifest.get("step")) is not int or not isinstance(manifest.get("meta"), dict):
        raise _DamagedError(f"{MANIFEST} is not a manifest in format {FORMAT}")
    if manifest["step"] != _step(path):
        raise _DamagedError(f"it says it is of step {manifest['step']}")
    _check_entries(manifest.get("files"), SUFFIX)
    _check_entries(manifest.get("chunks"), "")
    return manifest


def _check_entries(entries: object, suffix: str) -> None:
    if not isinstance(entries, dict):
        raise _DamagedError(f"{MANIFEST} is not a manifest in format {FORMAT}")
    for name, entry in entries.items():
        if not name.endswith(suffix) or not _NAME.fullmatch(name.removesuffix(suffix)):
            raise _DamagedError(f"{MANIFEST} names {name!r}, which is not a file of a checkpoint")
        size, sha256 = (entry.get("bytes"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
        if type(size) is not int or size < 0 or not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
            raise _DamagedError(f"{MANIFEST} does not give size and SHA-256 of {name}")


def _check_sizes(manifest: Mapping[str, Any]) -> None:
    """Refuse what does not fit into this machine's memory before any of it is read."""
    largest = max((entry["bytes"] for entry in manifest["chunks"].values()), default=0)
    needed = largest + sum(entry["bytes"] for entry in manifest["files"].values())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory // 2:
        raise _DamagedError(f"its files claim {needed} bytes, more than half of this machine's memory")


def _arrays(path: Path, entry: Mapping[str, Any]) -> Arrays:
    try:
        return from_bytes(_contents(path, entry))
    except ValueError as error:
        raise _DamagedError(f"{path.name} is {error}") from error


def _contents(path: Path, entry: Mapping[str, Any]) -> bytes:
    """The bytes of a file, if they are those the manifest vouches for."""
    try:
        data = read_plain(path, size=entry["bytes"])
    except OSError as error:
        raise _DamagedError(reason(error)) from error
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise _DamagedError(f"{path.name} does not match its SHA-256")
    return data


def _verify(path: Path, entry: Mapping[str, Any]) -> None:
    """Whether a file's bytes are those the manifest vouches for, read piece by piece."""
    try:
        found = hash_plain(path, size=entry["bytes"])
    except OSError as error:
        raise _DamagedError(reason(error)) from error
    if found != entry["sha256"]:
        raise _DamagedError(f"{path.name} does not match its SHA-256")


def _plausible(path: Path) -> bool:
    """Whether a checkpoint is intact as far as names and sizes tell."""
    try:
        manifest = _manifest(path)
    except _DamagedError:
        return False
    replay = path.parent / REPLAY
    files = [(path / name, entry) for name, entry in manifest["files"].items()]
    files += [(replay / f"{name}{SUFFIX}", entry) for name, entry in manifest["chunks"].items()]
    return all(_has_size(file, entry["bytes"]) for file, entry in files)


def _has_size(path: Path, size: int) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == size


def _entry(data: bytes) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


def _digest(manifest: bytes) -> bytes:
    """In the format of `sha256sum --check`."""
    return f"{hashlib.sha256(manifest).hexdigest()}  {MANIFEST}\n".encode()

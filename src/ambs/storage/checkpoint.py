"""Checkpoints: folders that are complete and verified or not there at all; docs/run-folder.md is their reference.

To resume: `load`, then `rewind` to the step that was loaded, then `RunFolder.cut`, then go on and `save`.
"""

import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ambs.errors import UserError
from ambs.storage.arrays import Arrays, to_bytes
from ambs.storage.files import TEMPORARY, reason, sync_folder, write_atomic, write_synced
from ambs.storage.manifest import (
    FOLDER,
    FORMAT,
    NAME,
    SUFFIX,
    DamagedError,
    entry_of,
    has_size,
    read_arrays,
    read_manifest,
    step_of,
    verify,
    write_manifest,
)

REPLAY = "replay"
RECHECKED = 1 << 26
"""Bytes of chunks that are already stored and that each save reads again, at least one chunk."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and found intact, but for the chunks in `lost`."""

    path: Path
    step: int
    groups: dict[str, Arrays]
    meta: dict[str, Any]
    chunks: dict[str, Callable[[], Arrays]]
    """By name a function that reads the chunk, verifying it again."""
    lost: dict[str, str] = field(default_factory=dict)
    """By name what is wrong with a chunk; not empty only where no checkpoint is intact with all its chunks."""
    format: int = FORMAT
    skipped: tuple[str, ...] = ()
    """A sentence for each newer checkpoint that is damaged and was passed over."""


class LeftoversError(OSError):
    """The new checkpoint is whole, but what is no longer needed could not be deleted."""


def save(
    folder: Path,
    step: int,
    groups: Mapping[str, Arrays],
    meta: Mapping[str, Any],
    chunks: Mapping[str, Callable[[], Arrays]] | None = None,
    keep: int = 2,
    still_ours: Callable[[], None] = lambda: None,
) -> Path:
    """Write `folder/<step>/`, read it back, and only then delete all but the `keep` last checkpoints up to this step.

    `chunks` are immutable pieces of the replay buffer: those already stored by an earlier checkpoint are referred to, the
    functions of the others are called and the result stored once in `folder/replay/`. OSErrors are raised; the earlier
    checkpoints are then as they were, and after a `LeftoversError` the new one is whole too. `still_ours` is asked before
    anything is written, given its name or deleted, and raises where somebody else writes there by now.
    """
    chunks = chunks or {}
    _check_arguments(step, [*groups, *chunks], keep)
    still_ours()
    folder.mkdir(parents=True, exist_ok=True)
    stored = _store_chunks(folder / REPLAY, chunks, _vouched(folder, step), step, still_ours)
    path = _unused(folder, step)
    temporary = folder / f"{TEMPORARY}{path.name}"
    try:
        _remove(temporary)
        temporary.mkdir()
        _write(temporary, step, groups, meta, stored)
        still_ours()
        os.replace(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)  # A full disk needs the space.
        raise
    sync_folder(folder)
    try:
        for name, entry in read_manifest(path)["files"].items():
            verify(path / name, entry)
    except DamagedError as error:
        raise OSError(f"checkpoint {path.name} was not written correctly: {error}") from error
    still_ours()
    try:
        earlier = [old for old in _candidates(folder) if old != path and step_of(old) <= step and _plausible(old)]
        _keep_only(folder, [path, *earlier[: keep - 1]])
    except (DamagedError, OSError) as error:
        raise LeftoversError(*error.args) from error
    return path


def load(folder: Path, step: int | None = None, *, chunks: bool = True) -> Checkpoint:
    """The newest intact checkpoint, or the one of `step`; all its files are verified before anything is returned.

    If there is none, the newest that lacks nothing but chunks, without these: they are shared, so that one damaged file can
    be missing from all. Without `chunks` the replay buffer is neither verified nor returned. A UserError where a file
    cannot be read at the moment or its format is newer: that is not damage, and what is whole must not be passed over.
    """
    candidates = _candidates(folder)
    if not candidates:
        raise UserError(f"there is no checkpoint in {folder}")
    chosen = [path for path in candidates if step is None or step_of(path) == step]
    if not chosen:
        there = ", ".join(dict.fromkeys(str(step_of(path)) for path in candidates))
        raise UserError(f"there is no checkpoint of step {step} in {folder}, only of {there}")
    skipped: list[str] = []
    partial: Checkpoint | None = None
    for path in chosen:
        try:
            found = replace(_open(path, chunks=chunks), skipped=tuple(skipped))
            if not found.lost:
                return found
            partial = partial or found
            skipped.append(f"checkpoint {path.name} is damaged: {next(iter(found.lost.values()))}")
        except DamagedError as error:
            skipped.append(f"checkpoint {path.name} is damaged: {error}")
        except OSError as error:
            raise UserError(
                f"checkpoint {path.name} cannot be read now ({reason(error)}); it may be whole, so nothing was changed"
            ) from error
    if partial is None:
        raise UserError(f"no intact checkpoint in {folder}: {'; '.join(skipped)}")
    return partial


def rewind(folder: Path, step: int) -> None:
    """Take their names from the checkpoints after `step`, which a run that goes on from there will never have made.

    The next `save` deletes them; until then nothing is lost that a person could want to look at.
    """
    for path in _candidates(folder):
        if step_of(path) > step:
            _unname(path)
    sync_folder(folder)


def _check_arguments(step: int, names: Iterable[str], keep: int) -> None:
    if not 0 <= step < 10**12 or keep < 1:
        raise ValueError(f"step must be in [0, 10¹²) and keep at least 1, got {step} and {keep}")
    for name in names:
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot be the name of a file: letters, digits, '_', '-' and '.' only")


def _vouched(folder: Path, step: int) -> dict[str, Any]:
    """What the intact manifests up to this step say of the chunks; a chunk that none of them knows is not trusted."""
    known: dict[str, Any] = {}
    for path in reversed(_candidates(folder)):
        if step_of(path) <= step:
            try:
                known |= read_manifest(path)["chunks"]
            except DamagedError:
                continue
    return known


def _store_chunks(
    replay: Path,
    chunks: Mapping[str, Callable[[], Arrays]],
    known: Mapping[str, Any],
    step: int,
    still_ours: Callable[[], None],
) -> dict[str, dict[str, Any]]:
    """Entries of the manifest; a chunk is written unless it is known and there, by its size and, in turn, by its bytes."""
    replay.mkdir(exist_ok=True)
    if replay.is_symlink():
        raise UserError(f"{replay} is a link, a plain folder is needed")
    there = {name: known[name] for name in chunks if name in known and has_size(_chunk(replay, name), known[name])}
    good = there.keys() - _found_damaged(replay, there, step)
    stored = {}
    for name, make in chunks.items():
        if name not in good:
            still_ours()
        stored[name] = there[name] if name in good else _store(replay, name, make())
    return stored


def _found_damaged(replay: Path, there: Mapping[str, Any], step: int) -> set[str]:
    """Chunks whose bytes have changed or cannot be read, among some that are read again; others at every save."""
    names, damaged, read = sorted(there), set(), 0
    first = zlib.crc32(str(step).encode()) % max(len(names), 1)
    for name in names[first:] + names[:first]:
        try:
            verify(_chunk(replay, name), there[name])
        except (DamagedError, OSError):
            damaged.add(name)
        read += there[name]["bytes"]
        if read >= RECHECKED:
            break
    return damaged


def _store(replay: Path, name: str, arrays: Arrays) -> dict[str, Any]:
    data = to_bytes(arrays)
    entry, path = entry_of(data), _chunk(replay, name)
    write_atomic(path, data)
    try:
        verify(path, entry)
    except DamagedError as error:
        raise OSError(f"chunk {name} was not written correctly: {error}") from error
    return entry


def _chunk(replay: Path, name: str) -> Path:
    return replay / f"{name}{SUFFIX}"


def _write(
    folder: Path, step: int, groups: Mapping[str, Arrays], meta: Mapping[str, Any], chunks: Mapping[str, Any]
) -> None:
    files = {}
    for group, arrays in groups.items():
        data = to_bytes(arrays)
        files[f"{group}{SUFFIX}"] = entry_of(data)
        write_synced(folder / f"{group}{SUFFIX}", data)
    write_manifest(folder, step, meta, files, chunks)
    sync_folder(folder)


def _keep_only(folder: Path, kept: list[Path]) -> None:
    """Delete all other checkpoints, then the chunks that none of the kept ones refers to, then unfinished files."""
    for path in _candidates(folder):
        if path not in kept:
            _remove(path)
    sync_folder(folder)  # No chunk may go before the manifests that refer to it.
    needed = {f"{name}{SUFFIX}" for path in kept for name in read_manifest(path)["chunks"]}
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
    shutil.rmtree(path if _is_temporary(path.name) else _unname(path))


def _unname(path: Path) -> Path:
    """Give a checkpoint a name under which it is none; returns its new path."""
    nameless = path.with_name(f"{TEMPORARY}old-{path.name}")
    _remove(nameless)
    os.replace(path, nameless)
    return nameless


def _candidates(folder: Path) -> list[Path]:
    """All checkpoints, intact or not, newest first."""
    names = os.listdir(folder) if folder.is_dir() else []
    return sorted((folder / name for name in names if FOLDER.fullmatch(name)), key=_order, reverse=True)


def _order(path: Path) -> tuple[int, int]:
    """Step and attempt: a step that is saved again gets `<step>-1`, so that the first stays until the second is safe."""
    match = FOLDER.fullmatch(path.name)
    assert match is not None
    return int(match[1]), int(match[2] or 0)


def _unused(folder: Path, step: int) -> Path:
    attempts = [_order(path)[1] for path in _candidates(folder) if step_of(path) == step]
    return folder / (f"{step:012d}-{max(attempts) + 1}" if attempts else f"{step:012d}")


def _open(path: Path, *, chunks: bool) -> Checkpoint:
    manifest = read_manifest(path)
    replay = path.parent / REPLAY
    pieces = {name: (_chunk(replay, name), entry) for name, entry in manifest["chunks"].items()} if chunks else {}
    if pieces and replay.is_symlink():
        raise DamagedError(f"{REPLAY} is a link")
    for name, entry in manifest["files"].items():
        if not has_size(path / name, entry):
            verify(path / name, entry)  # Says what is wrong.
    _check_memory(path, manifest)
    groups = {name.removesuffix(SUFFIX): read_arrays(path / name, entry) for name, entry in manifest["files"].items()}
    lost: dict[str, str] = {}
    for name, piece in pieces.items():
        try:
            verify(*piece)
        except DamagedError as error:
            lost[name] = str(error)

    def reader(file: Path, entry: Mapping[str, Any]) -> Callable[[], Arrays]:
        def read() -> Arrays:
            try:
                return read_arrays(file, entry)
            except DamagedError as error:
                raise UserError(f"the replay buffer of {path} has been damaged: {error}") from error

        return read

    readers = {name: reader(*piece) for name, piece in pieces.items() if name not in lost}
    return Checkpoint(path, manifest["step"], groups, manifest["meta"], readers, lost, manifest["format"])


def _check_memory(path: Path, manifest: Mapping[str, Any]) -> None:
    """Refuse what does not fit into this machine's memory before any of it is read."""
    largest = max((entry["bytes"] for entry in manifest["chunks"].values()), default=0)
    needed = largest + sum(entry["bytes"] for entry in manifest["files"].values())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory // 2:
        raise UserError(
            f"checkpoint {path.name} needs {needed} bytes, more than half of this machine's memory; nothing was changed"
        )


def _plausible(path: Path) -> bool:
    """Whether a checkpoint is intact as far as names and sizes tell."""
    try:
        manifest = read_manifest(path)
    except DamagedError:
        return False
    replay = path.parent / REPLAY
    files = [(path / name, entry) for name, entry in manifest["files"].items()]
    files += [(_chunk(replay, name), entry) for name, entry in manifest["chunks"].items()]
    return all(has_size(file, entry) for file, entry in files)

"""Files that survive a crash: written whole or not at all, and read only if they are plain files of a sane size."""

import hashlib
import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

TEMPORARY = ".tmp-"
"""How names of unfinished files and folders begin; whatever bears one is rubbish once its writer is gone."""


class UnfitError(OSError):
    """A file that is there and can be read, but is a link, a device or of another size than it should be."""


def write_atomic(path: Path, data: bytes) -> None:
    """Put `data` at `path` so that, whatever happens, `path` holds the old bytes or all of the new ones."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    try:
        write_synced(temporary, data)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(path.parent)


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and wait until its bytes are on the disk."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
    try:
        write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data`: one call of `os.write` may take only part of it."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder (new, renamed, deleted) are on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_plain(path: Path, *, size: int | None = None, limit: int = 1 << 26) -> bytes:
    """The bytes of a plain file; an OSError says in words what is wrong with a link, a device or an unexpected size.

    With `size` the file must have exactly that many bytes, else at most `limit`; both are checked before reading.
    """
    with open_plain(path, size, limit) as (file, length):
        data = file.read(length + 1)
    if len(data) != length:
        raise OSError(f"{path.name} changed while it was read")
    return data


def hash_plain(path: Path, *, size: int) -> str:
    """The SHA-256 of a plain file of exactly this size, which is never in memory as a whole; else as `read_plain`."""
    digest, seen = hashlib.sha256(), 0
    with open_plain(path, size, size) as (file, length):
        while seen <= length and (part := file.read(1 << 20)):
            digest.update(part)
            seen += len(part)
    if seen != length:
        raise OSError(f"{path.name} changed while it was read")
    return digest.hexdigest()


@contextmanager
def open_plain(path: Path, size: int | None = None, limit: int = 1 << 62) -> Iterator[tuple[BinaryIO, int]]:
    """A plain file, open for reading, and its length; else as `read_plain`."""
    if path.is_symlink():
        raise UnfitError(f"{path.name} is a link")
    # O_NONBLOCK: opening a named pipe must not wait for a writer.
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise UnfitError(f"{path.name} is not a plain file")
        if size is not None and status.st_size != size:
            raise UnfitError(f"{path.name} has {status.st_size} bytes instead of {size}")
        if size is None and status.st_size > limit:
            raise UnfitError(f"{path.name} has {status.st_size} bytes, more than the {limit} allowed")
        with os.fdopen(fd, "rb", closefd=False) as file:
            yield file, status.st_size
    finally:
        os.close(fd)


def reason(error: OSError) -> str:
    """An OSError in words, without the path."""
    if error.errno is None:
        return str(error)
    name = f"{os.path.basename(error.filename)}: " if isinstance(error.filename, str | os.PathLike) else ""
    return f"{name}{error.strerror}"


def to_json(value: Any, *, indent: int | None = 1) -> bytes:
    """UTF-8 JSON; NaN and infinity are a ValueError. NumPy and JAX values become numbers and lists.

    Bytes of a path that are no UTF-8, which Python has as halves of surrogate pairs, are written as JSON's own escapes.
    """
    text = json.dumps(value, indent=indent, allow_nan=False, default=_plain, ensure_ascii=False)
    return text.encode(errors="backslashreplace")


def finite(value: Any) -> Any:
    """The same value made of JSON's types only, with None for NaN and ±∞."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def utc_now() -> datetime:
    """The time, in UTC and whole seconds."""
    return datetime.now(UTC).replace(microsecond=0)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")

"""The diaries of a run: files of JSON lines that are cut back to whole lines, whatever interrupts the writing."""

import os
from contextlib import suppress
from pathlib import Path

from ambs.errors import UserError
from ambs.storage.files import write_all


class Lines:
    """A file of JSON lines; what is on the disk always ends with a whole line, save after a crash."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        self._length = 0
        self._pending: list[bytes] = []

    def append(self, line: bytes) -> None:
        """Write a line at once, or leave it to `flush` behind others that could not be written."""
        self._pending.append(line)
        if len(self._pending) == 1:
            self.flush()

    def flush(self) -> None:
        """Write all lines that are waiting; if that fails they go on waiting and the file is as before."""
        if not self._pending:
            return
        fd, data = self._open(), b"".join(self._pending)
        try:
            write_all(fd, data)
        except OSError:
            with suppress(OSError):
                os.ftruncate(fd, self._length)
            raise
        self._length += len(data)
        self._pending.clear()

    def sync(self) -> None:
        """Wait until all is on the disk."""
        os.fsync(self._open())

    def length(self) -> int:
        """Bytes in the file."""
        self._open()
        return self._length

    def check(self, position: int) -> None:
        """Refuse a position that is not the end of a line; changes nothing."""
        length = os.path.getsize(self._path) if os.path.lexists(self._path) else 0
        if not 0 <= position <= length:
            raise UserError(
                f"{self._path} has {length} bytes, fewer than the {position} it had at the checkpoint: rows are missing"
            )
        if position and _byte(self._path, position - 1) != b"\n":
            raise UserError(f"{self._path} has no end of a line at byte {position}: it is not the checkpoint's file")

    def cut(self, position: int) -> None:
        """Drop everything after a position."""
        fd = self._open()
        self._pending.clear()
        os.ftruncate(fd, position)
        os.fsync(fd)
        self._length = position

    def close(self) -> None:
        """Close the file; lines that are waiting are lost."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd = None

    def _open(self) -> int:
        """Open on first use, and drop what a crash left of its last line."""
        if self._fd is None:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
            try:
                data = self._path.read_bytes()
                length = data.rfind(b"\n") + 1
                if length < len(data):
                    os.ftruncate(fd, length)
            except OSError:
                os.close(fd)
                raise
            self._fd, self._length = fd, length
        return self._fd


def _byte(path: Path, position: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        return os.pread(fd, 1, position)
    finally:
        os.close(fd)

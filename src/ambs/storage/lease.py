"""A lease on a folder: who writes in it, renewed while that process lives. It holds where locks do not reach: on file systems
without them, and for nodes that are gone and never say so.

The file `.lease-<number>` with the highest number is the lease in force. Its holder renews it by touching the file that it has
open; who takes it over makes the next number, which only one process can (`O_EXCL`), and deletes those before. So a holder that
was stopped for longer than its lease and wakes up finds its own file gone or a later one there, and can neither renew nor mend
that. Ages are told by the file server's clock alone.
"""

import json
import os
import re
import socket
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ambs.errors import STOPPED, RunError, UserError
from ambs.storage.files import TEMPORARY, read_plain, write_all

NAME = re.compile(r"\.lease-(\d{6})")
VARIABLE = "AMBS_LEASE"
"""Environment variable: seconds of a lease."""
USUAL = 60.0
BEATS = 4
"""Renewals in the time of a lease."""
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Goes on while a machine sleeps, as leases do."""


class Held(UserError):  # noqa: N818 (it is what the folder is)
    """Somebody else is writing."""


class Lost(RunError):  # noqa: N818 (it is what the lease is)
    """Somebody else has taken over what this process was writing."""


@dataclass
class _State:
    """What the thread that renews a lease and its owner both know."""

    path: Path
    fd: int
    seconds: float
    renewed: float
    """When the lease was last known to be renewed, by `_CLOCK`."""
    lost: bool = False
    over: threading.Event = field(default_factory=threading.Event)

    def renew(self) -> bool:
        """Renew it, unless it is lost; an error of the file system leaves it as old as it is."""
        begun = time.clock_gettime(_CLOCK)
        try:
            there = os.stat(self.path, follow_symlinks=False)
            mine = os.fstat(self.fd)
            same = (there.st_ino, there.st_dev) == (mine.st_ino, mine.st_dev)
            self.lost = self.lost or not same or os.path.lexists(_numbered(self.path.parent, _number(self.path) + 1))
            if not self.lost:
                os.utime(self.fd)
                self.renewed = begun
        except FileNotFoundError:
            self.lost = True
        except OSError:
            return False
        return not self.lost

    def keep(self) -> None:
        """Renew it until it is over or lost."""
        while not self.over.wait(self.seconds / BEATS) and (self.renew() or not self.lost):
            pass


class Lease:
    """A lease that is renewed by a thread until `release`, or until the process ends."""

    def __init__(self, path: Path, fd: int, seconds: float, begun: float) -> None:
        self._state = _State(path, fd, seconds, begun)
        self._thread: threading.Thread | None = threading.Thread(target=self._state.keep, name="lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Refuse to go on if somebody else may be writing by now; to be called before every write.

        A lease that was renewed less than half its time ago cannot have been taken over; else the folder is looked at.
        """
        state = self._state
        fresh = time.clock_gettime(_CLOCK) - state.renewed < state.seconds / 2
        if state.lost or not (fresh or state.renew()):
            why = "has been taken over by another process" if state.lost else "could not be renewed in time"
            raise Lost(f"the lease on {state.path.parent} {why}; nothing more was written there", STOPPED)

    @property
    def lost(self) -> bool:
        """Whether somebody else is known to have taken it over."""
        return self._state.lost

    def release(self) -> None:
        """Let others have it at once; may be called again."""
        if self._thread is None:
            return
        self._state.over.set()
        self._thread.join()
        self._thread = None
        with suppress(OSError):
            os.utime(self._state.fd, (0, 0))
        os.close(self._state.fd)

    def __del__(self) -> None:
        self.release()


def take(folder: Path, *, alone: bool = False) -> Lease:
    """The lease of a folder, from now on; `Held` if somebody else has it. OSErrors are raised.

    `alone`: a lock has just told that no other process of this machine writes there, so that a lease of this machine is that
    of a dead one.
    """
    number = 0
    if (old := _newest(folder)) is not None:
        number = _number(old)
        holder = read(old)
        if not (alone and holder.get("boot") == _boot()) and not _expired(old, holder):
            raise Held(f"{folder} is being written by another process: {_words(holder)}")
    begun, seconds = time.clock_gettime(_CLOCK), _seconds()
    path = _numbered(folder, number + 1)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        raise Held(f"{folder} is being written by another process, which was quicker") from None
    if (
        _number(_newest(folder) or path) > number + 1
    ):  # Two were quicker, and the second has deleted the file of the first.
        os.close(fd)
        path.unlink(missing_ok=True)
        raise Held(f"{folder} is being written by another process, which was quicker")
    told = {"host": socket.gethostname(), "boot": _boot(), "pid": os.getpid(), "seconds": seconds}
    write_all(fd, json.dumps(told).encode() + b"\n")
    for earlier in _all(folder):
        if _number(earlier) <= number:
            earlier.unlink(missing_ok=True)
    return Lease(path, fd, seconds, begun)


def standing(folder: Path) -> bool:
    """Whether somebody of another machine, or of this one without locks, seems to hold it; nothing is written, and this machine's
    clock is taken for the server's."""
    old = _newest(folder)
    if old is None:
        return False
    try:
        return time.time() - os.stat(old).st_mtime < read(old).get("seconds", USUAL)
    except OSError:
        return False


def of_this_machine(folder: Path) -> bool:
    """Whether the lease in force was taken on this machine, since it was started."""
    old = _newest(folder)
    return old is not None and read(old).get("boot") == _boot()


def read(path: Path) -> dict[str, Any]:
    """What a lease says of its holder; nothing where it is unfinished."""
    try:
        told = json.loads(read_plain(path, limit=1 << 12))
    except (OSError, ValueError, RecursionError):
        return {}
    known = {"host": str, "boot": str, "pid": int, "seconds": int | float}
    return {
        name: told[name] for name, kind in known.items() if isinstance(told, dict) and isinstance(told.get(name), kind)
    }


def _expired(path: Path, holder: dict[str, Any]) -> bool:
    """Whether it was released, or not renewed for all its time: by the age of a file that is made now, on the same server."""
    probe = path.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")
    fd = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        now = os.fstat(fd).st_mtime
    finally:
        os.close(fd)
        probe.unlink()
    try:
        # Opened, because a client of NFS may else tell what it remembers.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False  # Somebody was quicker.
    try:
        return now - os.fstat(fd).st_mtime > holder.get("seconds", USUAL)
    finally:
        os.close(fd)


def _newest(folder: Path) -> Path | None:
    return max(_all(folder), key=_number, default=None)


def _all(folder: Path) -> list[Path]:
    return [folder / name for name in os.listdir(folder) if NAME.fullmatch(name)]


def _number(path: Path) -> int:
    return int(path.name.removeprefix(".lease-"))


def _numbered(folder: Path, number: int) -> Path:
    return folder / f".lease-{number:06d}"


def _seconds() -> float:
    told = os.environ.get(VARIABLE, "")
    try:
        seconds = float(told) if told else USUAL
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 86400:
        raise UserError(f"{VARIABLE} must be seconds from 1 to 86400, got {told!r}")
    return seconds


def _words(holder: dict[str, Any]) -> str:
    if "pid" not in holder:
        return "one that has just begun"
    left = f"if it is dead, its lease ends within {holder.get('seconds', USUAL):g} seconds"
    return f"process {holder['pid']} on {holder.get('host', 'another machine')}; {left}"


@cache
def _boot() -> str:
    """This machine since it was started."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{socket.gethostname()}-{uuid.getnode():x}"

"""One writer for a folder: an exclusive `flock` on a file of it, which nobody but the writer ever replaces.

The kernel drops the lock when its holder ends, however it ends, so a dead writer's lock is no lock, nothing has to be
cleaned up, and taking it changes no byte of the folder. Beyond one machine a lease stands beside it.
"""

import errno
import fcntl
import os
import time
from pathlib import Path

from ambs.errors import UserError
from ambs.storage.files import reason
from ambs.storage.lease import Held, of_this_machine, standing

_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
"""What file systems say that know no such locks."""


class Lock:
    """A lock that is held until `release`, or until this process ends and all that it handed the file to."""

    def __init__(self, fd: int, sure: bool = True) -> None:
        self._fd: int | None = fd
        self.sure = sure
        """Whether the file system knows such locks."""

    @property
    def fd(self) -> int:
        """The file, for a child that shares the lock."""
        assert self._fd is not None
        return self._fd

    def release(self) -> None:
        """Let others write; may be called again."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd = None

    def __del__(self) -> None:
        self.release()


def lock(path: Path) -> Lock:
    """Lock a file at once; `Held` if somebody else has it, a UserError if it cannot be written.

    Where the file system has no locks, the file is open and nobody is kept out: there, leases hold (`ambs.storage.lease`).
    """
    try:
        # For writing, because locks over NFS ask for it; children do not inherit it.
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise UserError(f"{path.parent} cannot be written to ({reason(error)})") from error
    try:
        _lock(fd)
    except BlockingIOError as error:
        os.close(fd)
        raise Held(f"{path.parent} is being written by another process") from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            os.close(fd)
            raise UserError(f"{path.parent} cannot be locked ({reason(error)})") from error
        return Lock(fd, sure=False)
    return Lock(fd)


def _lock(fd: int) -> None:
    """At the third try at the latest: somebody may just be looking (`held`)."""
    for pause in (0.01, 0.05):
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(pause)
    return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def held(path: Path) -> bool:
    """Whether somebody writes in the folder of this file, as far as can be told without changing anything."""
    try:
        found = lock(path)
    except Held:
        return True
    except UserError:
        return standing(path.parent)
    sure = found.sure
    found.release()
    return standing(path.parent) and not (sure and of_this_machine(path.parent))

"""One writer for a run folder: an exclusive `flock` on its `config.json`, which nobody but the writer ever replaces.

The kernel drops the lock when its holder ends, however it ends, so a dead writer's lock is no lock; nothing has to be
cleaned up, and taking it changes no byte of the folder.
"""

import errno
import fcntl
import os
from pathlib import Path

from ambs.errors import UserError
from ambs.storage.files import reason

_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
"""What file systems say that know no such locks."""


class Held(UserError):  # noqa: N818 (it is what the lock is)
    """Somebody else is writing."""


class Lock:
    """A lock that is held until `release`, or until the process ends."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd

    def release(self) -> None:
        """Let others write; may be called again."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd = None

    def __del__(self) -> None:
        self.release()


def lock(path: Path) -> Lock:
    """Lock a file at once; `Held` if somebody else has it, a UserError if it cannot be written.

    Where the file system has no locks, the file is open and nobody is kept out.
    """
    try:
        # For writing, because locks over NFS ask for it; children do not inherit it.
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise UserError(f"{path.parent} cannot be written to ({reason(error)})") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise Held(f"{path.parent} is being written by another process") from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            os.close(fd)
            raise UserError(f"{path.parent} cannot be locked ({reason(error)})") from error
    return Lock(fd)

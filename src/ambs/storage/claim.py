"""The right to start and resume what lies in a folder: of one process at a time, and of the children it shares it with."""

import os
from pathlib import Path

from ambs.errors import UserError
from ambs.storage.files import reason
from ambs.storage.lease import take
from ambs.storage.lock import held, lock

FILE = ".claim"


class Claim:
    """A folder that is claimed until `release`."""

    def __init__(self, folder: Path) -> None:
        """Claim it; `Held` if somebody else has."""
        file = folder / FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))
            self._lock = lock(file)
            self._lease = take(folder, alone=self._lock.sure)
        except OSError as error:
            raise UserError(f"{folder} cannot be written to ({reason(error)})") from error

    @property
    def fd(self) -> int:
        """What a child inherits, so that the folder stays claimed until it, too, has ended."""
        return self._lock.fd

    @property
    def lost(self) -> bool:
        """Whether somebody else has taken it over, since this process was thought dead."""
        return self._lease.lost

    def release(self) -> None:
        """Let others have it."""
        self._lease.release()
        self._lock.release()


def is_claimed(folder: Path) -> bool:
    """Whether somebody has claimed it, as far as can be told without changing anything."""
    return (folder / FILE).exists() and held(folder / FILE)

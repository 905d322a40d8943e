"""A process that ends with the one that started it, however that one ended: it saves first, as if it were asked to stop."""

import os
import signal
import threading
import time

VARIABLE = "AMBS_LEASH"
"""Environment variable: the process whose end is to be noticed."""
PAUSE = 0.5
"""Seconds between two looks."""
_severed = threading.Event()


def wear() -> None:
    """From now on, if whoever started this process asked for it: its end is a SIGTERM."""
    parent = os.environ.pop(VARIABLE, "")  # Children of this process are its own affair.
    if parent.isdigit():
        threading.Thread(target=_watch, args=(int(parent),), name="leash", daemon=True).start()


def severed() -> bool:
    """Whether whoever started this process has ended: then nothing new is to be begun."""
    return _severed.is_set()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PAUSE)
    _severed.set()
    os.kill(os.getpid(), signal.SIGTERM)

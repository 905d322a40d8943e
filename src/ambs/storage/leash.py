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


def wear(stop: threading.Event | None = None) -> None:
    """From now on, if whoever started this process asked for it: its end is a SIGTERM, unless it was asked to `stop` before."""
    parent = os.environ.pop(VARIABLE, "")  # Children of this process are its own affair.
    if parent.isdigit():
        threading.Thread(target=_watch, args=(int(parent), stop), name="leash", daemon=True).start()


def severed() -> bool:
    """Whether whoever started this process has ended: then nothing new is to be begun."""
    return _severed.is_set()


def _watch(parent: int, stop: threading.Event | None) -> None:
    while os.getppid() == parent:
        time.sleep(PAUSE)
    _severed.set()
    if stop is None or not stop.is_set():  # A second signal would break off the saving.
        os.kill(os.getpid(), signal.SIGTERM)

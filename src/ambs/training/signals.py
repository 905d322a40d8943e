"""Being asked to stop: the first SIGINT, SIGTERM or SIGHUP sets a flag, the second ends the process at once. No JAX here."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stopping(stop: threading.Event | None = None) -> Iterator[threading.Event]:
    """Within, the first SIGINT, SIGTERM or SIGHUP sets the event that is yielded; a second one is a KeyboardInterrupt.

    Signals reach the main thread only: elsewhere nothing is changed. What is ignored stays so (`nohup`).
    """
    stop = stop or threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    # None: a handler that was not installed from Python and could not be put back.
    before = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}

    def request(_number: int, _frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    for number in before:
        signal.signal(number, request)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

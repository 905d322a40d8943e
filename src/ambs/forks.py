"""One process per use of JAX: a child made by `fork` inherits its locks without the threads that hold them, and would hang."""

import os

from ambs.errors import UserError

_home: list[int] = []
"""The process in which something was first computed here."""


def refuse_after_fork() -> None:
    """Refuse to compute in a process that was forked from one that has computed already."""
    if not _home:
        _home.append(os.getpid())
    if _home[0] != os.getpid():
        raise UserError(
            "this process was forked from one that has used JAX, which would hang here: start it by `spawn` "
            '(multiprocessing.get_context("spawn")) and load the agent there'
        )

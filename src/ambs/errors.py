"""The exceptions that are meant for people; docs/reliability.md lists the exit codes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

STOPPED = 75
"""Exit code of a run that was asked to stop and can be resumed (EX_TEMPFAIL)."""
RUN_FAILED = 70
"""… of a run that cannot go on by itself (EX_SOFTWARE)."""
DISK_FAILED = 74
"""… of a disk that does not take what must be kept (EX_IOERR)."""
NO_READER = 141
"""… where whoever read what is printed has gone away (`ambs … | head`), as of a program that SIGPIPE ends."""


class UserError(ValueError):
    """Bad input, told in a sentence: the command line prints it without a traceback and exits with 2."""


class RunError(RuntimeError):
    """A run had to end: the command line prints the sentence without a traceback and exits with `code`."""

    def __init__(self, sentence: str, code: int = RUN_FAILED) -> None:
        super().__init__(sentence)
        self.code = code


EXTRAS = {
    "mujoco": ("MuJoCo", "gym"),
    "matplotlib": ("matplotlib", "report"),
    "PIL": ("Pillow", "report"),
    "tensorboard": ("TensorBoard", "tensorboard"),
    "ray": ("Ray", "ray"),
}
"""Packages that a small installation does without: what they are called, and the extra that brings them."""


@contextmanager
def extras() -> Iterator[None]:
    """Within, the import of a package that an extra would have brought fails with a sentence that names the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        title, extra = EXTRAS[package]
        raise UserError(f"this needs {title}, which is not installed: pip install 'ambs[{extra}]'") from None


def one_line(value: Any) -> str:
    """Anything as one short line."""
    text = " ".join(str(value).split())
    return text if len(text) <= 120 else f"{text[:117]}…"

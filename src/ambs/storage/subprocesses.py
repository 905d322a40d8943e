"""Trainings in processes of their own, each with a log; stopping them loses nothing."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ambs.errors import UserError
from ambs.storage.run_folder import RunFolder

AMBS = (sys.executable, "-P", "-m", "ambs")
"""`-P`: whatever lies in the current folder is not taken for a module."""


@dataclass
class Child:
    """A run in a process of its own."""

    name: str
    process: subprocess.Popen
    home: Path
    """Where it makes its run folder."""
    log: Path
    known: frozenset[Path]
    """Run folders that were there before."""
    resumed: Path | None = None
    """The run it goes on with, if it does."""
    written: int = 0
    """Bytes of the log that others wrote before."""

    @property
    def run(self) -> Path | None:
        """Its run folder, as soon as there is one."""
        made = (path.parent for path in self.home.glob("*/config.json") if path.parent not in self.known)
        return self.resumed or next(made, None)

    def status(self) -> dict[str, Any]:
        """What its status file says; empty before there is one."""
        run = self.run
        try:
            return {} if run is None else RunFolder.open(run).read_status()
        except UserError:
            return {}

    def last_words(self) -> str:
        """How its part of the log ends."""
        return " / ".join(self.log.read_bytes()[self.written :].decode(errors="replace").strip().splitlines()[-3:])


def launch(
    name: str,
    arguments: Sequence[str],
    home: Path,
    *,
    program: Sequence[str] = AMBS,
    environment: Mapping[str, str] | None = None,
    resumed: Path | None = None,
    shared: Sequence[int] = (),
) -> Child:
    """Start `ambs` with these arguments; what it prints is added to `home/output.txt`. It inherits the files in `shared`."""
    home.mkdir(parents=True, exist_ok=True)
    log = home / "output.txt"
    known = frozenset(path.parent for path in home.glob("*/config.json"))
    with log.open("ab") as file:
        written = file.tell()
        # A session of its own: a terminal's Ctrl-C is for the parent, which then asks each child, once, to save and end.
        process = subprocess.Popen(
            [*program, *arguments],
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
            pass_fds=shared,
        )
    return Child(name, process, home, log, known, resumed, written)


def stop(children: Sequence[Child]) -> None:
    """Ask all that are still running to write a checkpoint and end, and wait until they have."""
    for child in children:
        if child.process.poll() is None:
            child.process.terminate()
    for child in children:
        child.process.wait()

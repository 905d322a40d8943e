"""A run of a sweep, or a fleet, taken a step further: a subprocess that starts or resumes, whose exit code says how it went.

The runs of a fleet differ in the seed and are trained in one process: those that have yet to begin do so together, and those that
broke off are resumed together, once there are no others. Whatever is wrong with one of them is wrong with the fleet; its runs can
then be tried one by one.
"""

import os
import stat
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ambs.errors import STOPPED, UserError
from ambs.storage.claim import Claim
from ambs.storage.files import to_json, write_atomic
from ambs.storage.lease import Held
from ambs.storage.leash import VARIABLE
from ambs.storage.subprocesses import AMBS, Child, launch, stop
from ambs.sweep.plan import Job
from ambs.sweep.status import Found, find

SETTINGS = "settings.json"
"""File in a job's folder from which its run is made."""
REFUSED = 2
BROKEN_OFF = 130
"""Exit code of what never began."""

Kind = Literal["finished", "stopped", "killed", "failed", "busy"]
"""`stopped`: saved, to be resumed. `killed`: by a signal, such as that of a full memory. `busy`: another process is at it."""


@dataclass(frozen=True)
class Ended:
    """How an attempt ended."""

    kind: Kind
    why: str = ""
    frames: int = 0
    """How far the run is."""


@dataclass(frozen=True)
class Means:
    """How the subprocesses are started."""

    device: str = "auto"
    share: float = 1.0
    """Of a GPU's memory."""
    local_cache: bool = False
    """Whether what is compiled is kept on this machine's own disk, and not in the user's home, which may be anywhere."""
    program: Sequence[str] = AMBS

    def environment(self) -> dict[str, str]:
        """Variables for a child, where the user has not set them."""
        found: dict[str, str] = {VARIABLE: str(os.getpid())}
        if self.share < 1:
            # JAX takes three quarters of a GPU's memory for one process.
            found["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.9 * self.share:.3f}"
        if self.local_cache and "JAX_COMPILATION_CACHE_DIR" not in os.environ and (own := _local_cache()):
            found["AMBS_CACHE"] = own
        return found | {name: value for name, value in os.environ.items() if name != VARIABLE}


class Attempt:
    """A job being started or resumed; `poll` until it says how that ended."""

    def __init__(self, job: Job, means: Means) -> None:
        self.job, self.means = job, means
        self._child: Child | None = None
        self._claims: list[Claim] = []
        self._asked = False

    def poll(self) -> Ended | None:
        """How it ended, or None while it goes on."""
        if self._child is None:
            ended = self._begin()
        elif any(claim.lost for claim in self._claims):
            stop([self._child])
            ended = Ended("busy", "another process has taken it over")
        else:
            code = self._child.process.poll()
            ended = None if code is None else self._told(self._child, code)
        if ended is not None:
            self._release()
        return ended

    def ask(self) -> None:
        """Ask it to save and end."""
        if self._child is not None and self._child.process.poll() is None and not self._asked:
            self._asked = True  # Once: a second SIGTERM ends it without a checkpoint.
            self._child.process.terminate()

    def stop(self) -> Ended:
        """Wait until it has saved and ended; if it was not asked yet, it is."""
        if self._child is None:
            self._release()
            return Ended("stopped")
        self.ask()
        ended = self._told(self._child, self._child.process.wait())
        self._release()
        return ended

    def _begin(self) -> Ended | None:
        try:
            for one in self.job.members:
                self._claims.append(Claim(one.home))
            # Only now: nobody else changes what there is.
            found = [(one, find(one, claimed=True)) for one in self.job.members]
            for one, there in found:
                if there.state == "running":
                    return Ended("busy", f"{there.path} is being written by another process", there.frames)
                if there.others and one.strict:
                    return Ended("failed", _other_settings(there), there.frames)
            due = [(one, there) for one, there in found if there.state != "finished"]
            if not due:
                return Ended("finished", frames=sum(there.frames for _, there in found))
            fresh = [(one, there) for one, there in due if there.state != "broken" or there.path is None]
            if not fresh and len({there.wanted for _, there in due}) > 1:
                return Ended("failed", "was not resumed: its runs go to different numbers of frames")
            self._child = self._launch(fresh or due)
        except Held as error:
            return Ended("busy", str(error))
        except (UserError, OSError) as error:
            return Ended("failed", str(error))
        return None

    def _launch(self, due: list[tuple[Job, Found]]) -> Child:
        (job, found), settings = due[0], due[0][0].settings
        place = ["--device", self.means.device]
        if found.state == "broken" and found.path is not None:
            words = ["resume", *(str(there.path) for _, there in due), "--env", settings["env"]]
            if found.wanted < job.frames:
                words += ["--frames", str(job.frames)]
            resumed: Path | None = found.path
        else:
            write_atomic(job.home / SETTINGS, to_json(settings))
            words = ["train", "--config", str(job.home / SETTINGS), "--env", settings["env"]]
            if len(due) > 1:
                seeds = ",".join(str(one.settings["seed"]) for one, _ in due)
                words += ["--seeds", seeds, "--out", str(job.pattern)]
            else:
                words += ["--out", str(job.home)]
            words += ["--shield", "on" if settings["shielded"] else "off"]
            resumed = None
        return launch(
            job.name,
            [*words, *place],
            job.home,
            program=self.means.program,
            environment=self.means.environment(),
            resumed=resumed,
            shared=tuple(claim.fd for claim in self._claims),
        )

    def _told(self, child: Child, code: int) -> Ended:
        if not self.job.crew and code in (0, STOPPED):
            return Ended("finished" if code == 0 else "stopped", frames=child.status().get("frames", 0))
        found = [find(one, claimed=True) for one in self.job.members]
        frames = sum(there.frames for there in found)
        if all(there.state == "finished" for there in found):  # A resumed run may find out that it was finished.
            return Ended("finished", frames=frames)
        if code in (0, STOPPED, BROKEN_OFF):  # By a second signal, while it saved: its last checkpoint is whole.
            return Ended("stopped", frames=frames)
        if code < 0:
            return Ended("killed", f"was killed by signal {-code}; see {child.log}", frames)
        word = "was refused" if code == REFUSED else f"ended with code {code}"
        return Ended("failed", f"{word}: {child.last_words()}; see {child.log}", frames)

    def _release(self) -> None:
        for claim in self._claims:
            claim.release()
        self._claims = []


def _other_settings(found: Found) -> str:
    few = ", ".join(found.others[:4]) + (" and others" if len(found.others) > 4 else "")
    return (
        f"was not begun: {found.path} is a run with other settings ({few}); move it away, or give the sweep another out"
    )


def _local_cache() -> str | None:
    """A folder of this user alone on this machine's disk; None where somebody else has put one there."""
    path = Path(tempfile.gettempdir()) / f"ambs-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        facts = path.lstat()
    except OSError:
        return None
    mine = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o077
    return str(path / "xla") if mine else None

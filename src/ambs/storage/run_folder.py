"""The folder a training run leaves behind, format 1; docs/run-folder.md is its reference. Nothing here learns."""

import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from ambs.config.checks import folder
from ambs.errors import DISK_FAILED, STOPPED, RunError, UserError
from ambs.storage.files import (
    TEMPORARY,
    finite,
    open_plain,
    read_plain,
    reason,
    sync_folder,
    to_json,
    utc_now,
    write_atomic,
    write_synced,
)
from ambs.storage.lease import Held, Lease, Lost, take
from ambs.storage.leash import severed
from ambs.storage.lines import Lines
from ambs.storage.lock import Lock, lock
from ambs.storage.provenance import source, versions

if TYPE_CHECKING:
    from ambs.storage.tensorboard import EventFile

FORMAT = 1
CONFIG = "config.json"
LEDGER = "sweep.jsonl"
"""In the folder of a sweep: which runs it has (`ambs.sweep.ledger`)."""
METRICS, EPISODES = "metrics.jsonl", "episodes.jsonl"
PREFIXES = {METRICS: "", EPISODES: "episode/"}
"""What precedes a row's names in TensorBoard."""
State = Literal["running", "finished", "interrupted", "failed"]


class RunFolder:
    """A run's files, open for one writer (one thread of one process) and any number of readers.

    A full disk must not end a run because of its diary: an OSError while logging is kept in `log_error`, the rows wait in
    memory for the next `flush`, and TensorBoard's events are then made anew. Status and checkpoints do raise it.
    """

    def __init__(self, path: Path, data: bytes) -> None:
        """`data`: the bytes of `config.json`."""
        self.path = path
        self.record: dict[str, Any] = json.loads(data)
        """The contents of `config.json`."""
        self.digest = hashlib.sha256(data).hexdigest()
        """SHA-256 of its bytes, as they were written or found."""
        self.log_error: str | None = None
        """The last error while logging, in words."""
        self.notes: dict[str, Any] = {}
        """What else every status from now on says."""
        self._lines = {name: Lines(path / name) for name in PREFIXES}
        self._events: EventFile | None = None
        self._lock: Lock | None = None
        self._lease: Lease | None = None

    @classmethod
    def create(
        cls,
        root: Path,
        *,
        env: str,
        method: str,
        seed: int,
        config: Mapping[str, Any],
        command: list[str],
        device: str | None = None,
    ) -> "RunFolder":
        """Make `root/<env>-<method>-s<seed>-<UTC time>/` and lock it; `config` are the resolved settings, `device` JAX's in
        words."""
        if severed():
            raise RunError("whoever started this run has ended, and so it was not begun", STOPPED)
        now = utc_now()
        record = {
            "format": FORMAT, "env": env, "method": method, "seed": seed, "config": config, "versions": versions(),
            **source(), "command": command, "created": now.isoformat(), "platform": platform.platform(), "device": device,
        }  # fmt: skip
        try:
            data = to_json(record)
        except ValueError as error:
            raise UserError("the settings of a run must be finite numbers") from error
        path = _claim(root, f"{_safe(env)}-{_safe(method)}-s{seed}-{now:%Y%m%d-%H%M%S}")
        run = cls(path, data)
        try:
            run._fill(data)
        except OSError as error:
            run.remove()
            raise RunError(f"a run folder could not be written in {root} ({reason(error)})", DISK_FAILED) from error
        except BaseException:
            run.remove()
            raise
        return run

    def _fill(self, data: bytes) -> None:
        """Write a new folder's files and lock it."""
        for made in (self.checkpoints, self.tensorboard):
            made.mkdir()
        for name in PREFIXES:
            (self.path / name).touch()
        self.write_status("running", frames=0, agent_steps=0, updates=0)
        # Last: from here on it is a run folder, and locked from the moment it is one.
        temporary = self.path / f"{TEMPORARY}{CONFIG}"
        write_synced(temporary, data)
        self._lock = lock(temporary)
        self._lease = take(self.path)
        os.replace(temporary, self.path / CONFIG)
        sync_folder(self.path)
        sync_folder(self.path.parent)

    def remove(self) -> None:
        """Delete a folder in which nothing has happened yet."""
        self.unlock()
        shutil.rmtree(self.path, ignore_errors=True)

    def claim(self) -> None:
        """Become the folder's only writer, until `close`; a UserError if somebody else is."""
        if self._lock is not None:
            return
        try:
            self._lock = lock(self.path / CONFIG)
        except Held as error:
            raise Held(f"{error}{self._writer()}") from None
        # Whoever has written meanwhile may have replaced the file: what is locked then is none, and the lease is another's.
        if RunFolder.open(self.path).digest != self.digest:
            self.unlock()
            raise UserError(f"{self.path / CONFIG} has changed while it was read: try again")
        try:
            self._lease = take(self.path, alone=self._lock.sure)
        except OSError as error:
            self.unlock()
            raise UserError(f"{self.path} cannot be written to ({reason(error)})") from error
        except UserError:
            self.unlock()
            raise

    def still_ours(self) -> None:
        """Refuse, with `Lost`, to write on where somebody else has taken over from a writer that seemed dead."""
        if self._lease is not None:
            self._lease.check()

    def extend(self, frames: int) -> None:
        """Change, for good, to how many frames the run goes; only for the writer.

        `config.json` is replaced as a whole, the lock with it, and keeps the digest of what it was under `earlier`, by which the
        checkpoints made until now are still known to be its own.
        """
        self.still_ours()
        record = json.loads(to_json(self.record))
        record["config"]["training"]["frames"] = frames
        record["earlier"] = [*record.get("earlier", []), self.digest]
        data, temporary = to_json(record), self.path / f"{TEMPORARY}{CONFIG}"
        write_synced(temporary, data)
        new = lock(temporary)
        try:
            os.replace(temporary, self.path / CONFIG)
        except BaseException:
            new.release()
            temporary.unlink(missing_ok=True)
            raise
        if self._lock is not None:
            self._lock.release()
        self._lock = new
        sync_folder(self.path)
        self.record, self.digest = record, hashlib.sha256(data).hexdigest()

    def _writer(self) -> str:
        """Who wrote the status last, in words."""
        try:
            status = self.read_status()
            return f": process {status['pid']} on {status['host']}, last heard of at {status['updated']}"
        except (UserError, KeyError):
            return ""

    @classmethod
    def open(cls, path: Path | str) -> "RunFolder":
        """An existing run, to read or to go on with; nothing is changed before something is logged."""
        path = folder("path", path)
        try:
            data = read_plain(path / CONFIG)
            record = json.loads(data)
        except OSError as error:
            raise UserError(f"{path} is not a run folder ({reason(error)}){_inside(path)}") from error
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path / CONFIG} is not valid JSON") from error
        found = record.get("format") if isinstance(record, dict) else None
        if type(found) is int and found > FORMAT:
            raise UserError(f"{path} has run format {found}, this version of ambs reads {FORMAT}: please update ambs")
        if found != FORMAT or not isinstance(record.get("config"), dict):
            raise UserError(f"{path / CONFIG} is not the settings of a run in format {FORMAT}")
        return cls(path, data)

    @property
    def config(self) -> dict[str, Any]:
        """The resolved settings."""
        return self.record["config"]

    @property
    def words(self) -> str:
        """The folder as a command names it, with its environment where that is none of ours and must be named, too."""
        env = self.config.get("env")
        return f"{self.path} --env {shlex.quote(env)}" if isinstance(env, str) and ":" in env else str(self.path)

    @property
    def checkpoints(self) -> Path:
        """The folder that `ambs.storage.checkpoint` writes to."""
        return self.path / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        """The folder of event files."""
        return self.path / "tensorboard"

    def log_metrics(self, row: Mapping[str, Any]) -> None:
        """Add a row of scalars; it needs `frames`, and `time` is added."""
        self._log(METRICS, row)

    def log_episode(self, row: Mapping[str, Any]) -> None:
        """Add a row about a finished episode; it needs `frames`, and `time` is added."""
        self._log(EPISODES, row)

    def _log(self, name: str, row: Mapping[str, Any]) -> None:
        row = {"frames": int(row["frames"]), "time": round(time.time(), 3)} | {
            key: finite(value) for key, value in row.items() if key != "frames"
        }
        line = to_json(row, indent=None) + b"\n"
        self.still_ours()
        with self.forgiving():
            self._lines[name].append(line)
            if self._events is not None:
                self._events.add(row, PREFIXES[name])

    def flush(self) -> None:
        """Hand all rows to the operating system, those too that an earlier error held back, and TensorBoard's events."""
        from ambs.storage.tensorboard import rewrite

        self.still_ours()
        with self.forgiving():
            for lines in self._lines.values():
                lines.flush()
            if self._events is None:
                rows = {prefix: iterate_rows(self.path / name) for name, prefix in PREFIXES.items()}
                self._events = rewrite(self.tensorboard, rows)
            if self._events is not None:
                self._events.flush()

    @contextmanager
    def forgiving(self) -> Iterator[None]:
        """Within, an OSError is kept in `log_error` and ends nothing but the block."""
        try:
            yield
        except OSError as error:
            self.log_error = reason(error)
            self._drop_events()

    def _drop_events(self) -> None:
        if self._events is not None:
            with suppress(OSError):
                self._events.close()
        self._events = None

    def positions(self) -> dict[str, int]:
        """Lengths in bytes of `metrics.jsonl` and `episodes.jsonl`, on the disk; a checkpoint keeps them for `cut`."""
        self.flush()
        with self.forgiving():
            for lines in self._lines.values():
                lines.sync()
        return {name: lines.length() for name, lines in self._lines.items()}

    def check(self, positions: Mapping[str, int]) -> None:
        """Refuse positions to which the files cannot be cut."""
        for name, lines in self._lines.items():
            lines.check(positions[name])

    def cut(self, positions: Mapping[str, int]) -> None:
        """Forget the rows after `positions`, which a checkpoint that is resumed knows nothing of; renew the events."""
        self.check(positions)
        self.still_ours()
        self._drop_events()
        for name, lines in self._lines.items():
            lines.cut(positions[name])
        self.flush()

    def write_status(
        self, state: State, *, frames: int, agent_steps: int, updates: int, message: str = "", **more: Any
    ) -> None:
        """Replace `status.json`."""
        status = {
            "state": state, "frames": frames, "agent_steps": agent_steps, "updates": updates, "message": message,
            "pid": os.getpid(), "host": socket.gethostname(), "updated": utc_now().isoformat(), "log_error": self.log_error,
        }  # fmt: skip
        self.still_ours()
        write_atomic(self.path / "status.json", to_json(finite(status | more | self.notes)))

    def read_status(self) -> dict[str, Any]:
        """The contents of `status.json`."""
        path = self.path / "status.json"
        try:
            status = json.loads(read_plain(path))
        except OSError as error:
            raise UserError(f"the status of {self.path} cannot be read ({reason(error)})") from error
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path} is not valid JSON") from error
        if not isinstance(status, dict) or status.get("state") not in get_args(State):
            raise UserError(f"{path} is not the status of a run")
        return status

    def close(self) -> None:
        """Flush and close all files, and let others write."""
        with suppress(Lost):
            self.flush()
        self._drop_events()
        for lines in self._lines.values():
            lines.close()
        self.unlock()

    def unlock(self) -> None:
        """Let others write, without touching a file but the lease."""
        if self._lease is not None:
            self._lease.release()
        self._lease = None
        if self._lock is not None:
            self._lock.release()
        self._lock = None

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _inside(path: Path) -> str:
    """Runs that lie one or two levels below, as a hint."""
    try:
        found = sorted(config.parent for depth in ("*", "*/*") for config in path.glob(f"{depth}/{CONFIG}"))
    except OSError:
        return ""
    return f"; did you mean {' or '.join(map(str, found[:3]))}?" if found else ""


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a `.jsonl` file; a last line without its end, which a crash leaves or a writer is at, is passed over."""
    try:
        return list(iterate_rows(path))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({reason(error)})") from error


def iterate_rows(path: Path, damaged: list[int] | None = None) -> Iterator[dict[str, Any]]:
    """`read_rows`, one at a time; with `damaged`, lines that are no rows are passed over and their numbers put there."""
    with open_plain(path) as (file, _):
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if isinstance(row, dict):
                yield row
            elif damaged is None:
                raise UserError(f"line {number} of {path} is not a JSON object")
            else:
                damaged.append(number)


def _claim(root: Path, name: str) -> Path:
    """A folder nobody else has: `mkdir` succeeds for one process only."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        for number in range(1, 10_000):
            path = root / (name if number == 1 else f"{name}-{number}")
            with suppress(FileExistsError):
                path.mkdir()
                return path
    except (FileExistsError, NotADirectoryError) as error:
        raise UserError(f"no run folder can be made in {root} ({reason(error)})") from error
    except OSError as error:
        raise RunError(f"no run folder can be made in {root} ({reason(error)})", DISK_FAILED) from error
    raise UserError(f"{root} already holds 10,000 runs called {name}")


def _safe(name: str) -> str:
    """A name with no character that means something to a shell or file system."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-.")[:60] or "unnamed"

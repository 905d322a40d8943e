"""Run folders as a report reads them: whatever is there, and a sentence about whatever is not."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from ambs.config.migration import migrated
from ambs.errors import UserError
from ambs.report.foresight import read_foresight
from ambs.report.sweeps import varied
from ambs.storage.files import reason
from ambs.storage.run_folder import EPISODES, METRICS, RunFolder, iterate_rows

BESIDES = frozenset(
    (".png", ".json", ".jsonl", ".md", ".csv", ".html", ".svg", ".pdf", ".txt", ".log", ".gif", ".mp4", ".npz")
)
"""Plots, tables, logs and recordings that lie among run folders; not worth a word."""
DEPTH = 3
"""How many folders deep runs are looked for in a folder that is none."""
COUNTERS = ("agent_steps", "violations", "overrides", "switches", "decisions", "traces")
"""Running totals in the rows of `metrics.jsonl`."""
EPISODE_FIELDS = ("return", "violations", "length", "steps", "overrides", "switches", "decisions", "traces")


@dataclass
class Series:
    """One recorded quantity: values at frames, both `[rows]`, frames never falling, no value NaN."""

    frames: np.ndarray
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.frames)


@dataclass
class Run:
    """What is known of one run."""

    path: Path
    record: dict[str, Any]
    """`config.json`."""
    status: dict[str, Any] = field(default_factory=dict)
    """`status.json`; empty where there is none."""
    metrics: dict[str, Series] = field(default_factory=dict)
    episodes: dict[str, Series] = field(default_factory=dict)
    foresight: dict[str, Any] | None = None
    """What `ambs foresight` found; None where it was not asked."""
    missing: list[str] = field(default_factory=list)
    """What is not there or not right, in sentences."""
    varied: dict[str, Any] = field(default_factory=dict)
    """In which settings it differs from others of its sweep, where it is one of a sweep's."""
    name: str = ""
    """The folder's name, with that of the folder it is in where two runs would have the same."""

    def __post_init__(self) -> None:
        self.name = self.name or self.path.name

    @property
    def env(self) -> str:
        """The environment's id, without the namespace."""
        return str(self.record.get("env") or "unknown").rsplit("/", 1)[-1]

    @property
    def method(self) -> str:
        """The method's name."""
        return str(self.record.get("method") or "unknown")

    @property
    def seed(self) -> Any:
        """The seed, or None."""
        return self.record.get("seed")

    @property
    def state(self) -> str:
        """`running`, `finished`, `interrupted`, `failed`, or `unknown`."""
        return str(self.status.get("state", "unknown"))

    @property
    def config(self) -> dict[str, Any]:
        """The resolved settings."""
        return migrated(self.record["config"])

    @property
    def frames(self) -> int:
        """Frames that its rows or its status know of."""
        last = [int(rows.frames[-1]) for part in (self.metrics, self.episodes) for rows in part.values() if len(rows)]
        told = self.status.get("frames")
        return max([*last, int(told) if _count(told) else 0])

    @property
    def wanted(self) -> int | None:
        """Frames it was to train for, or None."""
        training = self.config.get("training")
        wanted = training.get("frames") if isinstance(training, dict) else None
        return int(wanted) if _count(wanted) and wanted > 0 else None


def read_runs(paths: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """The runs at or below these paths, each once, and a sentence about every path that holds none.

    Plots and tables are passed over. A path that does not exist is a user's mistake, and so is finding no run at all.
    """
    runs: dict[Path, Run] = {}
    notes: list[str] = []
    for path in paths:
        if not path.exists():
            raise UserError(f"there is no {path}")
        if not path.is_dir():
            if path.suffix.lower() not in BESIDES:
                notes.append(f"{path} is not a run folder")
            continue
        found = list(_folders(path, DEPTH))
        if not found:
            notes.append(f"{path} holds no run (there is no config.json in it)")
        for folder in found:
            if folder.resolve() in runs:
                continue
            try:
                runs[folder.resolve()] = read_run(folder)
            except UserError as error:
                notes.append(str(error))
    if not runs:
        told = "; ".join(notes) if notes else "name run folders, or folders of them, such as runs"
        raise UserError(f"there is no run to report on: {told}")
    known: dict[Path, dict[Path, dict[str, Any]]] = {}
    for run in runs.values():
        run.varied = varied(run.path, known)
    names = Counter(run.path.name for run in runs.values())
    for folder, run in runs.items():
        if names[run.name] > 1:
            run.name = f"{folder.parent.name}/{run.name}"
    return list(runs.values()), notes


def read_run(path: Path) -> Run:
    """One run folder; only a folder that is no run folder is an error."""
    folder = RunFolder.open(path)
    run = Run(path, folder.record)
    run.metrics = _read_series(path / METRICS, run.missing, None)
    run.episodes = _read_series(path / EPISODES, run.missing, EPISODE_FIELDS)
    try:
        run.status = folder.read_status()
    except UserError as error:
        if run.wanted and run.frames >= run.wanted:
            run.status = {"state": "finished"}  # Kept without its status, but all frames were played.
        else:
            run.missing.append(_sentence(error, path))
    try:
        run.foresight = read_foresight(path)
    except UserError as error:
        run.missing.append(str(error))
    _add_totals(run)
    run.missing += _shortcomings(run)
    return run


def _folders(path: Path, depth: int) -> Iterator[Path]:
    """Folders with a `config.json`, in order of name."""
    if (path / "config.json").is_file():
        yield path
    elif depth:
        try:
            inside = sorted(entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False))
        except OSError:
            return
        for child in inside:
            yield from _folders(Path(child), depth - 1)


def _read_series(path: Path, missing: list[str], fields: tuple[str, ...] | None) -> dict[str, Series]:
    """All numbers of a `.jsonl` file by name; rows without `frames` and values that are not finite are left out."""
    columns: dict[str, tuple[list[float], list[float]]] = {}
    damaged: list[int] = []
    try:
        for row in iterate_rows(path, damaged):
            frames = row.get("frames")
            if not _count(frames):
                damaged.append(0)
                continue
            for name, value in row.items():
                if name not in ("frames", "time") and (fields is None or name in fields) and _number(value):
                    at, values = columns.setdefault(name, ([], []))
                    at.append(float(frames))
                    values.append(float(value))
    except OSError as error:
        missing.append(f"{path.name} cannot be read ({reason(error)})")
    if damaged:
        count = f"{len(damaged)} damaged lines" if len(damaged) > 1 else "1 damaged line"
        missing.append(f"{path.name} has {count}, passed over")
    return {name: _series(*column) for name, column in columns.items()}


def _number(value: Any) -> TypeGuard[int | float]:
    """Whether it is a finite number that can be reckoned with; JSON may hold others."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e30 < value < 1e30


def _count(value: Any) -> TypeGuard[int | float]:
    """Whether it can be a number of frames."""
    return _number(value) and 0 <= value < 1e15


def _series(frames: list[float], values: list[float]) -> Series:
    at, found = np.asarray(frames), np.asarray(values)
    order = np.argsort(at, kind="stable")
    return Series(at[order], found[order])


def _add_totals(run: Run) -> None:
    """Complete the running totals: from the episodes where the metrics have none, and by what the status knows last."""
    for name in COUNTERS:
        source = {"agent_steps": "steps"}.get(name, name)
        if name not in run.metrics and source in run.episodes:
            rows = run.episodes[source]
            run.metrics[name] = Series(rows.frames, np.cumsum(rows.values))
        last, frames = run.status.get(name), run.status.get("frames")
        if name in run.metrics and _number(last) and _count(frames) and frames > run.metrics[name].frames[-1]:
            rows = run.metrics[name]
            run.metrics[name] = Series(np.append(rows.frames, float(frames)), np.append(rows.values, float(last)))


def _shortcomings(run: Run) -> list[str]:
    """What a reader should know before trusting this run's figures."""
    found = []
    share = f" ({run.frames:,} of {run.wanted:,} frames)" if run.wanted else f" ({run.frames:,} frames)"
    if run.state == "running":
        found.append(
            f"is still running, or was killed{share}; last sign of life {run.status.get('updated', 'unknown')}"
        )
    elif run.state in ("interrupted", "failed"):
        message = run.status.get("message")
        found.append(f"{run.state}{share}" + (f": {message}" if message else ""))
    if not run.episodes.get("return"):
        found.append("no episode has ended yet: there is no return")
    if not run.metrics.get("violations"):
        found.append("nothing is known of violations yet")
    if run.status.get("log_error"):
        found.append(f"some rows could not be logged ({run.status['log_error']})")
    return found


def _sentence(error: UserError, path: Path) -> str:
    return str(error).replace(f"{path}{os.sep}", "").replace(f"of {path} ", "")


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as `{"shield.horizon": "30"}`, values as JSON."""
    found: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = json.dumps(value, ensure_ascii=False)
    return found

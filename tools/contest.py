"""Settings against each other within a given time: train a sweep's runs side by side, stop them by the clock, judge them all.

    python tools/contest.py examples/cameras.toml --train 1150 --judge 330 --early 100000 --worlds 500 --keep KEPT

Every run is trained at the same time (on a GPU with XLA_PYTHON_CLIENT_PREALLOCATE=false, so that they share it) and asked to save
after `--train` seconds. Then `ambs foresight` and `ambs eval --shield paired` judge each in the worlds of `--worlds`, all at the
same time, for `--judge` seconds at most; 0 leaves that out. Judged is the newest checkpoint, or with `--at` the one at so many
frames. With `--early` the first run of each setting is judged as soon as it has a checkpoint from there on, too, while training
goes on; that also compiles what the judges at the end will ask for, and they have no time to lose. Prints tables in Markdown:
violations and return as training went on; all runs at the largest number of frames that all have reached, with means over seeds;
and what the judges found. The same command goes on with runs that were stopped. `--keep` copies what the runs have to show,
thinned, from time to time while they are trained: whatever ends the machine, so much is left.
"""

import argparse
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from run_results import keep

from ambs.errors import UserError
from ambs.storage.manifest import FOLDER, step_of
from ambs.storage.run_folder import read_rows
from ambs.storage.subprocesses import AMBS
from ambs.sweep.file import read_sweep
from ambs.sweep.plan import Job
from ambs.sweep.status import find

GRACE = 60
"""Seconds that a training has for saving."""
EPISODES = 32
"""Episodes over which returns are averaged, the last ones."""
PAUSE = 60
"""Seconds between two copies of what there is to show."""
FORESIGHT, EVALUATION, EARLY = "foresight.json", "evaluation.json", "early-"


def main() -> None:
    """Train, judge, tell, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path, help="a file of ambs sweep")
    parser.add_argument("--out", type=Path, help="the sweep's folder; else the file's own")
    parser.add_argument(
        "--train", type=float, required=True, help="seconds of training, starting and compiling included"
    )
    parser.add_argument("--judge", type=float, default=0.0, help="seconds of judging")
    parser.add_argument("--at", type=int, help="frames of the checkpoint that is judged; else the newest is")
    parser.add_argument("--early", type=int, help="frames from which on the first run of each setting is judged, too")
    parser.add_argument("--worlds", type=int, default=400, help="seed of the worlds in which they are judged")
    parser.add_argument("--episodes", type=int, default=24, help="pairs of episodes with and without the shield")
    parser.add_argument("--long", type=int, help="episodes by which foresight is judged; else as many as it takes")
    parser.add_argument("--every", type=int, default=50_000, help="frames between columns of the first table")
    parser.add_argument(
        "--window", type=int, default=60_000, help="frames over which the second table counts violations"
    )
    parser.add_argument("--keep", type=Path, help="where to copy what the runs have to show")
    options = parser.parse_args()
    try:
        jobs = list(read_sweep(options.sweep, out=options.out).jobs)
    except UserError as error:
        raise SystemExit(str(error)) from None
    train(options, jobs)
    runs = found(jobs)
    if options.judge:
        end = time.monotonic() + options.judge
        for run in runs.values():
            for name in (FORESIGHT, EVALUATION):  # What was found earlier is not to be taken for this.
                (run / name).unlink(missing_ok=True)
        done([judge for run in runs.values() for judge in judges(run, options, options.at)], end)
    print(told(runs, {job.name: job.varied for job in jobs}, options))
    keep_all(runs, options.keep)


def found(jobs: list[Job]) -> dict[str, Path]:
    """The runs that there are."""
    return {job.name: run for job in jobs if (run := find(job).path) is not None}


def keep_all(runs: dict[str, Path], where: Path | None) -> None:
    """Copy what the runs have to show so far, in place of what they had before."""
    for name, run in runs.items() if where else ():
        evaluation = run / EVALUATION
        target = keep(run, where, evaluation if evaluation.exists() else None, called=name)
        for verdict in (FORESIGHT, EVALUATION):
            if not (run / verdict).exists():
                (target / verdict).unlink(missing_ok=True)
        for early in run.glob(f"{EARLY}*.json"):
            shutil.copy(early, target)


def train(options: argparse.Namespace, jobs: list[Job]) -> None:
    """All runs side by side, until the time is over; meanwhile the first of each setting is judged early."""
    end, kept = time.monotonic() + options.train, time.monotonic()
    words = [*AMBS, "sweep", str(options.sweep), "--on", "local", "--parallel", str(len(jobs))]
    words += ["--out", str(options.out)] if options.out else []
    young = list({_named(job.varied): job for job in reversed(jobs)}.values()) if options.early else []
    sweep, judging = subprocess.Popen(words, stdout=subprocess.DEVNULL), list[Judge]()
    try:
        while sweep.poll() is None and time.monotonic() < end:
            time.sleep(min(1.0, max(0.0, end - time.monotonic())))
            for job in tuple(young):
                if run := reached(job, options.early):
                    young.remove(job)
                    judging += judges(run, options, max(checkpoints(run, options.early)), EARLY)
            judging = [judge for judge in judging if not judge.told()]
            if time.monotonic() > kept + PAUSE:
                try:
                    keep_all(found(jobs), options.keep)
                except (OSError, UserError) as error:
                    print(f"nothing could be kept: {error}", file=sys.stderr, flush=True)
                kept = time.monotonic()
        sweep.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            sweep.wait(GRACE)
    finally:
        sweep.kill()
        done(judging, time.monotonic())


def reached(job: Job, frames: int) -> Path | None:
    """The job's run, once it has a checkpoint from this frame on."""
    run = find(job).path
    return run if run is not None and checkpoints(run, frames) else None


def checkpoints(run: Path, frames: int) -> list[int]:
    """Those that are whole, from this frame on."""
    whole = [path.parent for path in (run / "checkpoints").glob("*/manifest.sha256")]
    return [step for path in whole if FOLDER.fullmatch(path.name) and (step := step_of(path)) >= frames]


class Judge(NamedTuple):
    """A program that judges a run, and where what it finds goes once it has found it."""

    process: subprocess.Popen
    into: Path

    def told(self) -> bool:
        """Whether it has ended; what it found is then in its place. `foresight.json`, which is of the last judge, is not left."""
        if (code := self.process.poll()) is None:
            return False
        if code == 0:
            self.into.with_suffix(".part").replace(self.into)
        if self.into.name.startswith(EARLY):
            (self.into.parent / FORESIGHT).unlink(missing_ok=True)
        return True


def judges(run: Path, options: argparse.Namespace, frames: int | None, prefix: str = "") -> list[Judge]:
    """Foresight and a paired evaluation begin."""
    worlds = ["--seed", str(options.worlds), *(["--frames", str(frames)] if frames is not None else []), "--json"]
    paired = ["eval", str(run), "--shield", "paired", "--episodes", str(options.episodes), *worlds]
    told = ["foresight", str(run), *worlds, *(["--episodes", str(options.long)] if options.long else [])]
    begun = []
    for words, name in ((told, FORESIGHT), (paired, EVALUATION)):
        into = run / f"{prefix}{name}"
        with into.with_suffix(".part").open("w") as file, into.with_suffix(".log").open("w") as log:
            begun.append(Judge(subprocess.Popen([*AMBS, *words], stdout=file, stderr=log), into))
    return begun


def done(judging: list[Judge], end: float) -> None:
    """Wait for them until then; what is not ready by then is given up."""
    for judge in judging:
        try:
            judge.process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            judge.process.kill()
            judge.process.wait()
        judge.told()


def told(runs: dict[str, Path], varied: dict[str, dict[str, Any]], options: argparse.Namespace) -> str:
    """The three tables."""
    episodes = {name: read_rows(run / "episodes.jsonl") for name, run in runs.items()}
    metrics = {name: read_rows(run / "metrics.jsonl") for name, run in runs.items()}
    ends = {name: rows[-1]["frames"] if rows else 0 for name, rows in metrics.items()}
    common = min(ends.values(), default=0)
    columns = range(options.every, max(ends.values(), default=0) + 1, options.every)
    training = [["run", *(f"by {frames:,}" for frames in columns), "the end"]]
    same = [
        [f"at {common:,} frames", "violations", f"per 1000 in the last {options.window:,}", "return", "level in force"]
    ]
    groups: dict[str, list[list[float | None]]] = defaultdict(list)
    for name in runs:
        cells = [_so_far(episodes[name], metrics[name], frames) for frames in columns if frames <= ends[name]]
        cells += ["–"] * (len(columns) - len(cells))
        training.append([name, *cells, f"{_so_far(episodes[name], metrics[name], ends[name])} ({ends[name]:,})"])
        at = figures(episodes[name], metrics[name], common, options.window)
        same.append([name, *map(_cell, at)])
        groups[_named(varied[name])].append(at)
    for group, rows in groups.items():
        same.append([f"mean: {group}", *(_cell(_mean(column)) for column in zip(*rows, strict=True))])
    header = [
        "run",
        "AUROC",
        "flagged 1, 5, 20 steps before",
        "calibration error",
        "stays, shield on",
        "spared",
        "kept",
        "Δ",
    ]
    found = {name: verdict(run) for name, run in runs.items()}
    judged = [header, *([name, *_verdict_cells(one)] for name, one in found.items())]
    for group in groups:
        those = [found[name] for name in runs if _named(varied[name]) == group]
        means = [_mean(column) for column in zip(*those, strict=True)]
        means[1:3] = [None, None]  # An interval of a mean is not the mean of intervals.
        judged.append([f"mean: {group}", *_verdict_cells(means)])
    return "\n\n".join(map(_table, [training, same, *([judged] if options.judge else [])]))


def figures(episodes: list[dict], metrics: list[dict], frames: int, window: int) -> list[float | None]:
    """Violations by then, per 1000 frames in the last `window`, mean return of the last episodes, level in force."""
    rows = [row for row in metrics if row["frames"] <= frames]
    before = [row["violations"] for row in rows if row["frames"] <= frames - window]
    so_far = rows[-1]["violations"] if rows else None
    lately = None if so_far is None or not before else 1000 * (so_far - before[-1]) / window
    returns = [row["return"] for row in episodes if row["frames"] <= frames][-EPISODES:]
    levels = [row["shield/level"] for row in rows if row.get("shield/level") is not None]
    return [so_far, lately, mean(returns) if returns else None, levels[-1] if levels else None]


def verdict(run: Path) -> list[float | None]:
    """What the judges found: AUROC and its interval, flagged 1, 5, 20 steps before, calibration error, stays (median, mean),
    share spared, share kept, Δ; None where they were not ready."""
    seen, paired = (_read(run / name) for name in (FORESIGHT, EVALUATION))
    cells: list[float | None] = [None] * 12
    if seen is not None:
        area, detection = seen["drawn"]["auroc"], seen["drawn"]["detection"]
        leads = [detection.get(lead, {}).get("0.05", {}).get("mean") for lead in ("1", "5", "20")]
        cells[:7] = [*(area[name] for name in ("mean", "low", "high")), *leads, seen["drawn"]["ece"]["mean"]]
        cells[7:9] = [seen["stays"]["on"][name] for name in ("median", "mean")]
    if paired is not None:
        off, on = paired["off"], paired["on"]
        cells[9] = _share(off["violations"]["mean"] - on["violations"]["mean"], off["violations"]["mean"])
        cells[10:] = [_share(on["return"]["mean"], off["return"]["mean"]), paired.get("level")]
    return cells


def _verdict_cells(found: list[float | None]) -> list[str]:
    mean, low, high, one, five, twenty, error, median, stay, *rest = map(_cell, found)
    area = mean if "–" in (low, high) else f"{mean} [{low}, {high}]"
    return [area, f"{one}, {five}, {twenty}", error, f"{median} / {stay}", *rest]


def _named(varied: dict[str, Any]) -> str:
    """A setting, by what distinguishes it from the others."""
    return ", ".join(f"{key}={value}" for key, value in varied.items()) or "all"


def _so_far(episodes: list[dict], metrics: list[dict], frames: int) -> str:
    violations, _, returned, _ = figures(episodes, metrics, frames, frames)
    return f"{_cell(violations)} / {_cell(returned)}"


def _read(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text()) if path.exists() else None


def _share(part: float, of: float) -> float | None:
    return part / of if of else None


def _mean(column: tuple[float | None, ...]) -> float | None:
    known = [value for value in column if value is not None]
    return mean(known) if known else None


def _cell(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _table(rows: list[list[str]]) -> str:
    lines = [" | ".join(row) for row in rows]
    return "\n".join(f"| {line} |" for line in [lines[0], " | ".join("---" for _ in rows[0]), *lines[1:]])


if __name__ == "__main__":
    main()

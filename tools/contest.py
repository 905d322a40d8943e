"""Settings against each other within a given time: train a sweep's runs side by side, stop them by the clock, judge them all.

    python tools/contest.py examples/pixels.toml --train 390 --judge 180 --worlds 400 --keep results/foresight/level

Every run is trained at the same time (on a GPU with XLA_PYTHON_CLIENT_PREALLOCATE=false, so that they share it) and asked to save
after `--train` seconds. Then `ambs foresight` and `ambs eval --shield paired` judge each in the worlds of `--worlds`, all at the
same time, for `--judge` seconds at most; 0 leaves that out. Prints tables in Markdown: violations and return as training went
on; all runs at the largest number of frames that all have reached, with means over seeds; and what the judges found. The same
command goes on with runs that were stopped. `--keep` copies what the runs have to show, thinned.
"""

import argparse
import json
import signal
import subprocess
import time
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

from run_results import keep

from ambs.errors import UserError
from ambs.storage.run_folder import read_rows
from ambs.storage.subprocesses import AMBS
from ambs.sweep.file import read_sweep
from ambs.sweep.status import find

GRACE = 60
"""Seconds that a training has for saving."""
EPISODES = 32
"""Episodes over which returns are averaged, the last ones."""
EVALUATION = "evaluation.json"


def main() -> None:
    """Train, judge, tell, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path, help="a file of ambs sweep")
    parser.add_argument("--out", type=Path, help="the sweep's folder; else the file's own")
    parser.add_argument(
        "--train", type=float, required=True, help="seconds of training, starting and compiling included"
    )
    parser.add_argument("--judge", type=float, default=0.0, help="seconds of judging")
    parser.add_argument("--worlds", type=int, default=400, help="seed of the worlds in which they are judged")
    parser.add_argument("--episodes", type=int, default=24, help="pairs of episodes with and without the shield")
    parser.add_argument("--every", type=int, default=50_000, help="frames between columns of the first table")
    parser.add_argument(
        "--window", type=int, default=60_000, help="frames over which the second table counts violations"
    )
    parser.add_argument("--keep", type=Path, help="where to copy what the runs have to show")
    options = parser.parse_args()
    try:
        jobs = read_sweep(options.sweep, out=options.out).jobs
    except UserError as error:
        raise SystemExit(str(error)) from None
    train(options, len(jobs))
    runs = {job.name: found.path for job in jobs if (found := find(job)).path is not None}
    if options.judge:
        judge(list(runs.values()), options)
    print(told(runs, {job.name: job.varied for job in jobs}, options))
    for name, run in runs.items() if options.keep else ():
        evaluation = run / EVALUATION
        keep(run, options.keep, evaluation if evaluation.exists() else None, called=name)


def train(options: argparse.Namespace, count: int) -> None:
    """All runs side by side, until the time is over."""
    words = [*AMBS, "sweep", str(options.sweep), "--on", "local", "--parallel", str(count)]
    words += ["--out", str(options.out)] if options.out else []
    sweep = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        sweep.wait(options.train)
    except subprocess.TimeoutExpired:
        sweep.send_signal(signal.SIGTERM)
        sweep.wait(GRACE)
    finally:
        sweep.kill()


def judge(runs: list[Path], options: argparse.Namespace) -> None:
    """Foresight and a paired evaluation of every run, as far as the time goes."""
    end, asked = time.monotonic() + options.judge, []
    for run in runs:
        worlds = ["--seed", str(options.worlds)]
        paired = ["--shield", "paired", "--episodes", str(options.episodes), *worlds, "--json"]
        for words, out in (["foresight", str(run), *worlds], None), (["eval", str(run), *paired], run / EVALUATION):
            file = subprocess.DEVNULL if out is None else out.with_suffix(".part").open("w")
            asked.append((subprocess.Popen([*AMBS, *words], stdout=file), out))
    for process, out in asked:
        try:
            done = process.wait(max(0.0, end - time.monotonic())) == 0
        except subprocess.TimeoutExpired:
            process.kill()
            done = False
        if out is not None and done:
            out.with_suffix(".part").replace(out)


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
        groups[", ".join(f"{key}={value}" for key, value in varied[name].items())].append(at)
    for group, rows in groups.items():
        same.append([f"mean: {group or 'all'}", *(_cell(_mean(column)) for column in zip(*rows, strict=True))])
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
    judged = [header, *([name, *verdict(run)] for name, run in runs.items())]
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


def verdict(run: Path) -> list[str]:
    """What the judges found; a dash where they were not ready."""
    seen, paired = (_read(run / name) for name in ("foresight.json", EVALUATION))
    cells = ["–"] * 7
    if seen is not None:
        leads = [seen["drawn"]["detection"].get(lead, {}).get("0.05", {}).get("mean") for lead in ("1", "5", "20")]
        area = seen["drawn"]["auroc"]
        cells[0] = f"{_cell(area['mean'])} [{_cell(area['low'])}, {_cell(area['high'])}]"
        cells[1], cells[2] = ", ".join(map(_cell, leads)), _cell(seen["drawn"]["ece"]["mean"])
        stays = seen["stays"]["on"]
        cells[3] = f"{_cell(stays['median'])} / {_cell(stays['mean'])}"
    if paired is not None:
        off, on = paired["off"], paired["on"]
        cells[4] = _cell(_share(off["violations"]["mean"] - on["violations"]["mean"], off["violations"]["mean"]))
        cells[5] = _cell(_share(on["return"]["mean"], off["return"]["mean"]))
        cells[6] = _cell(paired.get("level"))
    return cells


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

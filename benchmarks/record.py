"""What `ambs eval --record` costs beside `ambs eval`; prints one JSON line.

    python benchmarks/record.py RUN [--episodes 3] [--repeat 2]

`ratio` is that of the whole commands, imports and compiling included (the least of each over `repeat`). `warm_ratio` is that
of playing alone, in a process that has compiled everything.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("--episodes", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(options, Path(folder))))


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Both, cold and warm, by turns."""
    cold: dict[bool, list[float]] = {False: [], True: []}
    for number in range(options.repeat):
        for record in cold:
            cold[record].append(_command(options, folder / f"cold-{number}" if record else None))
    warm = _warm(options, folder)
    plain, recorded = min(cold[False]), min(cold[True])
    facts = {"run": options.run.name, "episodes": options.episodes, "seconds": plain, "recording_seconds": recorded}
    facts |= {"ratio": recorded / plain, "warm_seconds": warm[False], "warm_recording_seconds": warm[True]}
    facts["warm_ratio"] = warm[True] / warm[False]
    facts["bytes_per_episode"] = sum(path.stat().st_size for path in folder.glob("cold-0/*.npz")) // options.episodes
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in facts.items()}


def _command(options: argparse.Namespace, record: Path | None) -> float:
    words = [sys.executable, "-m", "ambs", "eval", str(options.run), "--episodes", str(options.episodes), "--json"]
    begun = time.perf_counter()
    subprocess.run([*words, *(["--record", str(record)] if record else [])], check=True, capture_output=True)
    return time.perf_counter() - begun


def _warm(options: argparse.Namespace, folder: Path) -> dict[bool, float]:
    from ambs.acting.agent import load
    from ambs.acting.evaluate import evaluate
    from ambs.recording.recorder import Recorder

    agent, found = load(options.run), {False: float("inf"), True: float("inf")}
    kept = None
    for number in range(options.repeat + 1):
        for record in found:
            begun = time.perf_counter()
            watch = Recorder(agent, folder / f"warm-{number}", None) if record else None
            if watch is not None and watch.details is not None and kept is not None:
                watch.details.reuse(kept)
            evaluate(agent, options.episodes, watch=watch)
            if watch is not None:
                kept = watch.details
                watch.close()
            found[record] = min(found[record], time.perf_counter() - begun)
    return found


if __name__ == "__main__":
    main()

"""Run the quickstart for several seeds and write what README shows: `results/quickstart.json`, `.png` and `.md`.

python tools/quickstart_results.py [--seeds 0 1 2] [--runs runs] [--results results]
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ambs import __version__
from ambs.apps.quickstart import SHIELDED, UNSHIELDED
from ambs.config.methods import title_with_shield

NAMES = {"random": "random play"} | {name: title_with_shield(name) for name in (UNSHIELDED, SHIELDED)}


def main() -> None:
    """Run, gather, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the runs go")
    parser.add_argument("--results", type=Path, default=Path("results"))
    options = parser.parse_args()
    options.results.mkdir(exist_ok=True)
    first = options.seeds[0]
    found = [one(seed, options.runs, options.results, picture=seed == first) for seed in options.seeds]
    publish(found, options.results)


def publish(found: list[dict[str, Any]], results: Path) -> None:
    """Write what the seeds gave."""
    for result in found:
        result.pop("files"), result.pop("runs")
    record = {
        "command": "python tools/quickstart_results.py --seeds " + " ".join(str(result["seed"]) for result in found),
        "date": time.strftime("%Y-%m-%d"),
        "versions": {"ambs": __version__, "jax": version("jax"), "python": platform.python_version()},
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "held": all(result["held"] for result in found),
        "seeds": found,
    }
    (results / "quickstart.json").write_text(json.dumps(record, indent=1) + "\n")
    (results / "quickstart.md").write_text(table(found))
    print(table(found))


def one(seed: int, runs: Path, results: Path, *, picture: bool) -> dict[str, Any]:
    """One seed, by the command that users have."""
    begun = time.monotonic()
    subprocess.run([sys.executable, "-m", "ambs", "quickstart", "--seed", str(seed), "--out", str(runs)], check=True)
    seconds = time.monotonic() - begun
    folder = max(runs.glob(f"quickstart-s{seed}-*"), key=lambda path: path.stat().st_mtime)
    if picture:
        shutil.copy(folder / "quickstart.png", results / "quickstart.png")
    return json.loads((folder / "quickstart.json").read_text()) | {"seconds": round(seconds)}


def table(found: list[dict[str, Any]]) -> str:
    """Markdown: one row per seed and agent."""
    lines = [
        "| seed | agent | return, last quarter | violating frames per 1000, last quarter | violating frames in all | "
        "evaluation: return | evaluation: violating frames per 1000 |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in found:
        for name, title in NAMES.items():
            train, judged = result["last_quarter"].get(name), result["evaluation"][name]
            cells = [f"{train['return']:.1f}", f"{train['violations_per_1000']:.1f}"] if train else ["–", "–"]
            total = result["cumulative_violations"].get(name, "–")
            cells += [str(total), interval(judged["return"]), interval(judged["violations_per_1000"])]
            lines.append(f"| {result['seed']} | {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def interval(value: dict[str, float | None]) -> str:
    """Mean and 95 % interval, where there is one: no spread, no interval."""
    if value["low"] is None or value["high"] is None:
        return f"{value['mean']:.1f}"
    return f"{value['mean']:.1f} [{value['low']:.1f}, {value['high']:.1f}]"


if __name__ == "__main__":
    main()

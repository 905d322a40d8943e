"""Keep what finished runs have to show: settings, thinned metrics, episodes, status, and an evaluation if given.

    python tools/run_results.py RUN [RUN ...] --results results/pointgoal1 [--evaluation eval.json] [--at FRAMES]

Writes `<results>/<method>-s<seed>/` (config.json, metrics.jsonl, episodes.jsonl, status.json, evaluation.json), and draws
`<results>/curves.png` and `<results>/table.md` (at so many frames) of every run that is there; without a RUN it only draws.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from ambs.report.summary import summarise
from ambs.report.write import write
from ambs.storage.run_folder import RunFolder, read_rows

ROWS = 300
"""Rows of metrics that are kept, evenly spaced, the last among them."""
MOST = 6_000_000
"""Bytes that the results of one task may have in all."""
OF_ONE_MACHINE = ("pid", "host")


def main() -> None:
    """Copy and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN")
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--evaluation", type=Path, help="what `ambs eval RUN --json` printed")
    parser.add_argument("--at", type=int, help="frames at which the table compares them")
    options = parser.parse_args()
    for run in options.runs:
        keep(run, options.results, options.evaluation)
    summary = summarise([options.results], at=options.at)
    write(summary, options.results / "curves.png", "png")
    write(summary, options.results / "table.md", "md")
    size = sum(path.stat().st_size for path in options.results.rglob("*") if path.is_file())
    if size > MOST:
        raise SystemExit(f"{options.results} has {size / 1e6:.1f} MB, more than {MOST / 1e6:g}")


def keep(run: Path, results: Path, evaluation: Path | None = None, called: str | None = None) -> Path:
    """Copy one run, with what it is said to foresee; returns where to: `called`, or as its method is."""
    folder = RunFolder.open(run)
    target = results / (called or f"{name(folder.record)}-s{folder.record['seed']}")
    target.mkdir(parents=True, exist_ok=True)
    (target / "config.json").write_text(json.dumps(without_places(folder.record), indent=1) + "\n")
    shutil.copy(run / "episodes.jsonl", target / "episodes.jsonl")
    status = {key: value for key, value in folder.read_status().items() if key not in OF_ONE_MACHINE}
    if status["state"] == "running":
        status |= {"state": "interrupted", "message": "killed"}
    (target / "status.json").write_text(json.dumps(status, indent=1) + "\n")
    rows = read_rows(run / "metrics.jsonl")
    kept = rows[:: -max(1, -(-len(rows) // ROWS))][::-1]
    (target / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    if evaluation is not None:
        shutil.copy(evaluation, target / "evaluation.json")
    if (run / "foresight.json").exists():
        shutil.copy(run / "foresight.json", target)
    return target


def name(record: dict[str, Any]) -> str:
    """The method, as `ambs reproduce` calls it: the two rules of the Lagrangian are told apart."""
    rule = record["config"].get("agent", {}).get("lag_rule")
    return "lag-max" if record["method"] == "lag" and rule == "max" else record["method"]


def without_places(record: dict[str, Any]) -> dict[str, Any]:
    """Without folders and kernels, which are of no use on another machine."""
    command = list(record["command"])
    if "--out" in command:
        place = command.index("--out")
        del command[place : place + 2]
    command = [word for word in command if not word.startswith("--out=")]
    return record | {"command": command, "platform": str(record.get("platform", "")).split("-")[0]}


if __name__ == "__main__":
    main()

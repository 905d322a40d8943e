"""Keep what a finished run has to show: settings, thinned metrics, episodes, curves, and its evaluation if given.

    python tools/run_results.py RUN --results results/pointgoal1-vector [--evaluation eval.json]

Writes `<results>/<method>-s<seed>/` (config.json, metrics.jsonl, episodes.jsonl, evaluation.json) and draws
`<results>/curves.png` from every run that is there.
"""

import argparse
import json
import shutil
from pathlib import Path

from ambs.report.quickstart_plot import draw
from ambs.training.run_folder import RunFolder, read_rows

ROWS = 300
"""Rows of metrics that are kept, evenly spaced."""


def main() -> None:
    """Copy and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--evaluation", type=Path, help="what `ambs eval RUN --json` printed")
    options = parser.parse_args()
    keep(options.run, options.results, options.evaluation)
    runs = {path.parent.name: read_rows(path) for path in sorted(options.results.glob("*/episodes.jsonl"))}
    methods = [name.rsplit("-s", 1)[0] for name in runs]
    labels = methods if len(set(methods)) == len(methods) else list(runs)
    draw(dict(zip(labels, runs.values(), strict=True)), options.results / "curves.png")


def keep(run: Path, results: Path, evaluation: Path | None) -> None:
    """Copy one run."""
    record = RunFolder.open(run).record
    target = results / f"{record['method']}-s{record['seed']}"
    target.mkdir(parents=True, exist_ok=True)
    command = record["command"]
    if "--out" in command:  # A place on one machine is of no use on another.
        place = command.index("--out")
        command = command[:place] + command[place + 2 :]
    record = record | {"command": [word for word in command if not word.startswith("--out=")]}
    (target / "config.json").write_text(json.dumps(record, indent=1) + "\n")
    for name in ("episodes.jsonl", "status.json"):
        if (run / name).exists():
            shutil.copy(run / name, target / name)
    rows = read_rows(run / "metrics.jsonl")
    kept = rows[:: -max(1, -(-len(rows) // ROWS))][::-1]
    (target / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    if evaluation is not None:
        shutil.copy(evaluation, target / "evaluation.json")


if __name__ == "__main__":
    main()

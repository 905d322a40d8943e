"""Run the quickstart for several seeds and write what README shows: `results/quickstart.json`, `.png` and `.md`.

python tools/quickstart_results.py [--seeds 0 1 2 3 4] [--runs runs] [--results results]

The marked parts of README.md and docs/quickstart.md are made of `results/quickstart.json`, too; `--only-pages` writes them anew
without running anything.
"""

import argparse
import json
import os
import platform
import re
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
from ambs.report.promise import asked_in_words
from ambs.storage.run_folder import RunFolder

ROOT = Path(__file__).parents[1]
NAMES = {"random": "random play"} | {name: title_with_shield(name) for name in (UNSHIELDED, SHIELDED)}
BEGIN, END = (
    "<!-- results/quickstart.json, by tools/quickstart_results.py -->",
    "<!-- end of results/quickstart.json -->",
)

WINDOWS = (
    "Last quarter: training episodes that ended in the last quarter of the frames; evaluation: {} episodes in unseen worlds, "
    "mean [95 % interval]."
)


def main() -> None:
    """Run, gather, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the runs go")
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--pages", type=Path, default=ROOT, help="the folder of README.md and docs/")
    parser.add_argument(
        "--only-pages", action="store_true", help="write README.md and docs/ from the figures that are there"
    )
    options = parser.parse_args()
    options.results.mkdir(exist_ok=True)
    if not options.only_pages:
        first = options.seeds[0]
        found = [one(seed, options.runs, options.results, picture=seed == first) for seed in options.seeds]
        publish(found, options.results)
    fill_pages(json.loads((options.results / "quickstart.json").read_text()), options.pages)


def publish(found: list[dict[str, Any]], results: Path) -> None:
    """Write what the seeds gave."""
    source, settings = provenance([Path(result["runs"][SHIELDED]) for result in found])
    kept = [{key: value for key, value in result.items() if key not in ("files", "runs", "report")} for result in found]
    record = {
        "command": "python tools/quickstart_results.py --seeds " + " ".join(str(result["seed"]) for result in kept),
        "date": time.strftime("%Y-%m-%d"),
        **source,
        "versions": {"ambs": __version__, "jax": version("jax"), "python": platform.python_version()},
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "settings": settings,
        "held": all(result["held"] for result in kept),
        "seeds": kept,
    }
    (results / "quickstart.json").write_text(json.dumps(record, indent=1) + "\n")
    (results / "quickstart.md").write_text(table(kept))
    print(table(kept))


def provenance(runs: list[Path]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Commit, whether anything differed from it, and the settings without the seed; the same for all runs, or it ends here."""
    records = [RunFolder.open(run).record for run in runs]
    settings = [{name: value for name, value in record["config"].items() if name != "seed"} for record in records]
    commits = {record["commit"] for record in records}
    if len(commits) > 1 or any(one != settings[0] for one in settings):
        raise SystemExit("the seeds were not run with the same source and settings")
    return {"commit": commits.pop(), "modified": any(record["modified"] for record in records)}, settings[0]


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


def fill_pages(record: dict[str, Any], root: Path) -> None:
    """Write the marked parts of README.md and docs/quickstart.md anew."""
    for page, text in parts(record).items():
        before = (root / page).read_text()
        after, count = re.subn(rf"(?s){re.escape(BEGIN)}.*?{re.escape(END)}", lambda _, text=text: text, before)
        if count != 1:
            raise SystemExit(f"{page} has {count} marked parts, and 1 is wanted")
        (root / page).write_text(after)


def parts(record: dict[str, Any]) -> dict[str, str]:
    """The marked part of each page, marks included."""
    told = f"{asked(record)}\n\n{verdict(record)}"
    seeds = f"{table(record['seeds'])}\n{WINDOWS.format(record['seeds'][0]['evaluation'][SHIELDED]['episodes'])}"
    readme = f"{told} ([Each seed](docs/quickstart.md), [results/quickstart.json](results/quickstart.json); {source(record)}.)"
    return {
        "README.md": f"{BEGIN}\n{readme}\n{END}",
        "docs/quickstart.md": f"{BEGIN}\n{told}\n\n{seeds} `results/quickstart.json`: {source(record)}.\n{END}",
    }


def asked(record: dict[str, Any]) -> str:
    """What was asked of the shield, and what the theorems say of it."""
    used = [result["evaluation"][SHIELDED]["traces_per_decision"]["mean"] for result in record["seeds"]]
    return f"Asked of the shield: {asked_in_words(record['settings'], sum(used) / len(used))}."


def verdict(record: dict[str, Any]) -> str:
    """For which seeds the comparison held, and by how much."""
    seeds = record["seeds"]
    held = [str(result["seed"]) for result in seeds if result["held"]]
    shares = {
        key: [result["last_quarter"][SHIELDED][key] / result["last_quarter"][UNSHIELDED][key] for result in seeds]
        for key in ("violations_per_1000", "return")
    }
    fewer, kept = (f"{100 * min(found):.0f} to {100 * max(found):.0f} %" for found in shares.values())
    frames = f"{record['settings']['training']['frames']:,}".replace(",", " ")
    return (
        f"It held for {len(held)} of {len(seeds)} seeds ({', '.join(held) or 'none'}): in the last quarter of {frames} frames "
        f"AMBS + COPT had {fewer} of DreamerV3's violating frames at {kept} of its return."
    )


def source(record: dict[str, Any]) -> str:
    """Where the figures come from."""
    commit = "a source without a commit" if record["commit"] is None else f"commit {record['commit'][:12]}"
    changed = " with local changes" if record["modified"] else ""
    return f"`{record['command']}`, {commit}{changed}, {record['date']}"


if __name__ == "__main__":
    main()

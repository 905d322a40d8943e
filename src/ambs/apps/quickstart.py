"""The quickstart: an unshielded DreamerV3 and an AMBS agent learn `point_world` side by side, and are compared.

Both are ordinary runs of `ambs train --preset quickstart`, each in a process of its own, from the same seed.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ambs.errors import UserError
from ambs.report.outcomes import END
from ambs.storage.files import write_atomic
from ambs.storage.run_folder import RunFolder, read_rows
from ambs.storage.subprocesses import Child, launch, stop

UNSHIELDED, SHIELDED = "dreamer", "copt"
LEAST_VIOLATIONS, LARGEST_SHARE, LEAST_RETURN = 5.0, 1 / 3, 0.9
"""What is to be shown: the unshielded agent violates so often per 1000 frames, the shielded one at most this share of it, at
no less than this share of the return."""


def start(method: str, seed: int, out: Path, extra: list[str]) -> Child:
    """Start training one agent."""
    home = out / method
    words = ["train", "--preset", "quickstart", "--method", method, "--seed", str(seed), "--out", str(home)]
    return launch(method, [*words, "--device", "cpu", *extra], home)


def wait(children: list[Child], on_progress: Callable[[str, dict[str, Any]], None]) -> None:
    """Until all have finished; a child that fails stops the others and is quoted."""
    while True:
        codes = [child.process.poll() for child in children]
        for child in children:
            on_progress(child.name, child.status())
        for child, code in zip(children, codes, strict=True):
            if code not in (None, 0):
                stop(children)
                raise UserError(f"training {child.name} ended with code {code}: {child.last_words()}; see {child.log}")
        if None not in codes:
            return
        time.sleep(0.5)


def last_quarter(run: Path) -> dict[str, Any]:
    """Training episodes that ended in the last quarter of the frames: return, violating frames per 1000, override rate."""
    frames = RunFolder.open(run).config["training"]["frames"]
    rows = [row for row in read_rows(run / "episodes.jsonl") if row["frames"] > (1 - END) * frames]
    if not rows:
        raise UserError(f"no episode of {run} ended in the last quarter of its frames")
    return {
        "episodes": len(rows),
        "return": sum(row["return"] for row in rows) / len(rows),
        "violations_per_1000": 1000 * sum(row["violations"] for row in rows) / sum(row["length"] for row in rows),
        "override_rate": sum(row["overrides"] for row in rows) / sum(row["steps"] for row in rows),
    }


def evaluate(runs: dict[str, Path], episodes: int, seed: int) -> dict[str, Any]:
    """Both agents and random play in the same unseen worlds, each in a process of its own."""
    jobs = {
        UNSHIELDED: (runs[UNSHIELDED], ["--shield", "off"]),
        SHIELDED: (runs[SHIELDED], ["--shield", "on"]),
        "random": (runs[UNSHIELDED], ["--shield", "off", "--policy", "random"]),
    }
    processes = {
        name: subprocess.Popen(
            [
                sys.executable,
                "-m",
                "ambs",
                "eval",
                str(run),
                "--episodes",
                str(episodes),
                "--seed",
                str(seed),
                "--json",
                *flags,
            ],
            stdout=subprocess.PIPE,
        )
        for name, (run, flags) in jobs.items()
    }
    found = {}
    for name, process in processes.items():
        output, _ = process.communicate()
        if process.returncode:
            raise UserError(f"evaluating {name} ended with code {process.returncode}")
        result = json.loads(output)
        found[name] = result[result["shield"]]
    return found


def verdict(training: dict[str, dict[str, Any]], evaluation: dict[str, Any]) -> dict[str, Any]:
    """What was to be shown, and whether it held for this seed."""
    off, on = training[UNSHIELDED], training[SHIELDED]
    chance = evaluation["random"]["return"]
    clear = min(evaluation[name]["return"]["low"] or -1e9 for name in (UNSHIELDED, SHIELDED))
    checks = {
        "unshielded violates": off["violations_per_1000"] >= LEAST_VIOLATIONS,
        "shielded violates a third at most": on["violations_per_1000"] <= LARGEST_SHARE * off["violations_per_1000"],
        "shielded keeps nine tenths of the return": on["return"] >= LEAST_RETURN * off["return"],
        "both beat random": clear > (chance["high"] if chance["high"] is not None else chance["mean"]),
    }
    return {"held": all(checks.values()), "checks": checks}


def compare(runs: dict[str, Path], out: Path, seed: int, episodes: int) -> dict[str, Any]:
    """Evaluate both runs, write `quickstart.json`, `quickstart.png` and `report.html`, and return the figures."""
    evaluation = evaluate(runs, episodes, seed)
    training = {name: last_quarter(run) for name, run in runs.items()}
    totals = {name: RunFolder.open(run).read_status()["violations"] for name, run in runs.items()}
    result = {
        "seed": seed,
        "runs": {name: str(run) for name, run in runs.items()},
        "cumulative_violations": totals,
        "last_quarter": training,
        "evaluation": evaluation,
        **verdict(training, evaluation),
    }
    from ambs.report.quickstart_plot import draw

    picture = out / "quickstart.png"
    draw({name: read_rows(run / "episodes.jsonl") for name, run in runs.items()}, picture)
    result["files"] = [str(out / "quickstart.json"), str(picture)]
    write_atomic(out / "quickstart.json", json.dumps(result, indent=1).encode())
    result["report"] = str(report(list(runs.values()), out / "report.html"))
    return result


def report(runs: list[Path], path: Path) -> Path:
    """Write what `ambs report` writes of these runs, and return where."""
    from ambs.report.summary import summarise
    from ambs.report.write import write

    write(summarise(runs), path, "html")
    return path

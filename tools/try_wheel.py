"""Build the wheel, install it into fresh environments outside the repository (small, with MuJoCo, with all extras), and try it.

python tools/try_wheel.py [--python python3.11 python3.12 python3.13] [--small]

Prints a line per step; ends with 1 if one failed. Packages come from where pip is set up to find them. Takes minutes per
interpreter, most of them for the installation and for what XLA compiles; interpreters that are not there are passed over.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PYTHONS = ("python3.11", "python3.12", "python3.13")
PATIENCE = 1200
"""Seconds for a step."""
TINY = "--preset quickstart --device cpu --frames 600 --training.prefill 100 --training.batch 4 --training.length 8"


class Step(NamedTuple):
    """A command, how it must end, and what it must say."""

    name: str
    words: list[str]
    code: int = 0
    says: str = ""


def main() -> int:
    """Build, then try with every interpreter."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", nargs="+", default=PYTHONS, help="interpreters to try")
    parser.add_argument("--small", action="store_true", help="without extras only")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ambs-wheel-") as folder:
        home = Path(folder)
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(home), str(ROOT)]
        if not attempt("wheel", Step("build", pip), home):
            return 1
        (wheel,) = home.glob("*.whl")
        found = [python for python in options.python if there(python)]
        for python in set(options.python) - set(found):
            print(f"{python:12} not there, passed over")
        # A step that fails does not keep the next interpreter from being tried.
        results = [try_with(python, wheel, home / Path(python).name, options.small) for python in found]
    return 0 if results and all(results) else 1


def there(python: str) -> bool:
    """Whether it runs, and can make environments."""
    try:
        return (
            subprocess.run([python, "-c", "import venv, ensurepip"], capture_output=True, check=False).returncode == 0
        )
    except OSError:
        return False


def try_with(python: str, wheel: Path, home: Path, small: bool) -> bool:
    """All steps with one interpreter, until one fails."""
    home.mkdir()
    return all(attempt(Path(python).name, step, home) for step in steps(python, wheel, home, small))


def steps(python: str, wheel: Path, home: Path, small: bool) -> Iterator[Step]:
    """What is done with the wheel: first without extras, then with MuJoCo's, then with all."""
    own, ambs = str(home / "venv" / "bin" / "python"), str(home / "venv" / "bin" / "ambs")
    version = wheel.name.split("-")[1]
    yield Step("venv", [python, "-m", "venv", str(home / "venv")])
    yield Step("install", [own, "-m", "pip", "install", "--quiet", str(wheel)])
    yield Step(
        "import", [own, "-c", "import ambs; print(ambs.__file__, ambs.parse_formula('!hazard'))"], says=str(home)
    )
    yield Step("--version", [ambs, "--version"], says=f"ambs {version}")
    yield Step("check", [ambs, "check", "P>=0.9 [ G<=30 !hazard ]"], says="no hazard")
    yield Step("bad verb", [ambs, "trian"], code=2)
    yield Step("bad value", [ambs, "train", "--method", "ppo"], code=2, says="copt")
    yield Step("no extra", [ambs, "demo"], code=2, says="pip install 'ambs[report]'")
    yield Step("train", [ambs, "train", *TINY.split()], says="Finished")
    run = str(next((home / "runs").iterdir()))
    yield Step("record", [ambs, "eval", run, "--episodes", "1", "--shield", "on", "--record", "recorded"], says="Wrote")
    yield Step("inspect", [ambs, "inspect", "recorded"], says="Wrote")
    yield Step("report", [ambs, "report", run, "--out", "report.html"], says="1 run")
    yield Step("no picture", [ambs, "report", run, "--out", "report.png"], code=2, says="pip install 'ambs[report]'")
    if small:
        return
    verify = [ambs, "verify", "golden", str(ROOT / "tests" / "golden" / "PointGoal1.npz")]
    yield Step("no MuJoCo", verify, code=2, says="pip install 'ambs[gym]'")
    yield Step("gym", [own, "-m", "pip", "install", "--quiet", f"{wheel}[gym]"])
    yield Step("verify", verify)
    yield Step("still small", [ambs, "demo"], code=2, says="pip install 'ambs[report]'")
    yield Step("all extras", [own, "-m", "pip", "install", "--quiet", f"{wheel}[all]"])
    yield Step("demo", [ambs, "demo", "--episodes", "2"], says="demo.png")
    yield Step("doctor", [ambs, "doctor"], says="fit for training")


def attempt(who: str, step: Step, home: Path) -> bool:
    """Run a step outside the repository and print how it went; what it said only if that was wrong."""
    settings = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    settings |= {"AMBS_CACHE": str(home / "cache"), "COLUMNS": "200"}
    begun = time.monotonic()
    try:
        done = subprocess.run(
            step.words, cwd=home, env=settings, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        said, code = done.stdout + done.stderr, done.returncode
    except subprocess.TimeoutExpired:
        said, code = f"took longer than {PATIENCE} s", -1
    good = code == step.code and step.says in said and "Traceback" not in said
    print(f"{who:12} {step.name:12} {'ok' if good else 'FAILED':7} {time.monotonic() - begun:6.1f} s", flush=True)
    if not good:
        print(f"  ended with {code} instead of {step.code}; wanted {step.says!r} in:\n{said[-2000:]}")
    return good


if __name__ == "__main__":
    sys.exit(main())

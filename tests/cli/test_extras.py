"""A small installation: what it does without, and what is said about that."""

import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import ambs
from ambs.cli.main import main
from ambs.errors import EXTRAS, UserError, extras

BLOCKED = """
import sys
for name in ("mujoco", "matplotlib", "PIL", "tensorboard"):
    sys.modules[name] = None  # To Python it is not there.

from pathlib import Path
from ambs.apps.doctor import mujoco_steps, packages
from ambs.cli.main import main
from ambs.storage.run_folder import RunFolder

for words in {commands}:
    try:
        main(words)
    except SystemExit as end:
        print("ended with", end.code, file=sys.stderr)
run = RunFolder.create(Path("runs"), env="e", method="m", seed=0, config={{}}, command=[])
run.log_metrics({{"frames": 3}})
run.close()
from ambs.cli.display import MISSING
print(mujoco_steps(), packages(("mujoco", "jax")), MISSING, run.log_error, list(run.tensorboard.iterdir()))
"""


@pytest.mark.process
def test_what_is_missing_is_named_with_its_extra(tmp_path):
    """And named at once: neither demo nor quickstart begins. What needs nothing of it works."""
    sentences = {
        ("play", "PointGoal1"): "MuJoCo, which is not installed: pip install 'ambs[gym]'",
        ("verify", "golden", "x.npz"): "MuJoCo, which is not installed: pip install 'ambs[gym]'",
        ("play", "Grid"): "Pillow, which is not installed: pip install 'ambs[report]'",
        ("demo",): "matplotlib, which is not installed: pip install 'ambs[report]'",
        ("quickstart",): "matplotlib, which is not installed: pip install 'ambs[report]'",
    }
    commands = [list(words) for words in sentences] + [["envs"], ["check", "!hazard"]]
    code = BLOCKED.format(commands=commands)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    told = [line for sentence in sentences.values() for line in (f"ambs: this needs {sentence}", "ended with 2")]
    assert done.stderr.splitlines() == [*told, "ended with 0", "ended with 0"]
    assert "ambs/PointGoal1-v0" in done.stdout
    assert "ambs/Grid-v0" in done.stdout
    assert "Driving" not in done.stdout
    *_, last = done.stdout.splitlines()
    assert "nothing is written for TensorBoard: this needs TensorBoard, which is not installed" in last
    assert last.endswith("None []")
    assert last.count("state='problem'") == 0
    assert {path.name for path in tmp_path.iterdir()} == {"runs"}


def test_a_rehearsal_names_what_the_run_would_miss(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(SystemExit) as end:
        main(["train", "--preset", "quickstart", "--training.wandb", "--dry-run"])
    assert end.value.code == 2
    told = capsys.readouterr()
    assert told.err.startswith("ambs: ")
    assert "ambs[wandb]" in told.err
    assert not told.out


def test_other_packages_are_missed_as_ever():
    with pytest.raises(ModuleNotFoundError, match="no_such_package"), extras():
        import no_such_package  # noqa: F401
    with pytest.raises(UserError, match=r"needs MuJoCo.*ambs\[gym\]"), extras():
        raise ModuleNotFoundError("No module named 'mujoco'", name="mujoco")


def test_every_extra_is_declared():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    for package, (title, extra) in EXTRAS.items():
        wanted = [title.lower(), package.lower()]
        assert any(line.startswith(tuple(wanted)) for line in project["optional-dependencies"][extra])
        assert not any(line.startswith(tuple(wanted)) for line in project["dependencies"])
        # Ray is for many machines, and not for all.
        assert extra == "ray" or extra in project["optional-dependencies"]["all"][0]


def test_the_version(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"ambs {version('ambs')}\n" == f"ambs {ambs.__version__}\n"

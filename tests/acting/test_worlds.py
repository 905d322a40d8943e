"""A run folder runs no code: an environment that is none of ours is imported only on the user's own word."""

import subprocess
import sys

import pytest

from ambs.acting.worlds import GIVEN, check_world, worlds_of
from ambs.cli.main import main
from ambs.cli.train import parse_train
from ambs.config.resolve import resolve
from ambs.errors import UserError
from ambs.reproduce.grid import COMPARISONS, SCALES, cells, job, panels
from ambs.storage.subprocesses import Child
from ambs.sweep.attempt import Attempt, Means
from ambs.training.session import reopen
from tests.report.synthetic import make_run
from tests.storage.test_binding import make

EVIL = "import pathlib\npathlib.Path('executed').touch()\nraise SystemExit('never')\n"


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A module that betrays whoever imports it, in the current folder, which is on the path as after `python -m`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "evil_world.py").write_text(EVIL)
    yield "evil_world:make"
    assert not (tmp_path / "executed").exists()
    assert "evil_world" not in sys.modules


def test_a_folder_names_no_code(evil, tmp_path, capsys):
    config = resolve("quickstart", changes={"env": evil})
    for ask in (
        lambda: check_world(config, None),
        lambda: worlds_of(config, None, False, 1),
        lambda: reopen(make(tmp_path, config)),
    ):
        with pytest.raises(UserError, match=r"would run that module's code.*--env evil_world:make\).*--trust"):
            ask()
    with pytest.raises(SystemExit) as stop:
        main(["resume", str(make(tmp_path, config))])
    assert stop.value.code == 2
    assert "--env evil_world:make" in capsys.readouterr().err
    # Trusted, but here: it may have come with the folder.
    with pytest.raises(UserError, match="lies in the current folder"):
        check_world(config, None, trust=True)
    with pytest.raises(UserError, match=r"one of evil_world:make, and cannot go on in ambs/Grid-v0"):
        check_world(config, "ambs/Grid-v0")


def test_a_world_that_a_function_made_is_made_by_one_that_is_named():
    config = resolve("quickstart", changes={"env": GIVEN})
    named = worlds_of(config, "tests.training.worlds:cartpole", False, 2)
    named.close()
    assert named.num_envs == 2
    with pytest.raises(UserError, match=r"pass that again \(make=…\), or name it"):
        worlds_of(config, None, False, 1)
    with pytest.raises(UserError, match="cannot go on in ambs/Grid-v0"):
        check_world(config, "ambs/Grid-v0")


@pytest.mark.process
def test_nothing_is_imported_from_the_current_folder(tmp_path):
    """Not even by `python -m`, which looks there first: a folder may have brought modules of well-known names."""
    for name in ("tyro", "wandb", "rich"):
        (tmp_path / f"{name}.py").write_text(EVIL)
    done = subprocess.run(
        [sys.executable, "-m", "ambs", "check", "hazard"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "executed").exists()


def test_a_file_of_settings_names_no_code(evil, tmp_path):
    path = make(tmp_path, resolve("quickstart", changes={"env": evil}))
    with pytest.raises(UserError, match=r"--config names the environment evil_world:make.*name it yourself"):
        parse_train(["--config", str(path / "config.json")])
    assert parse_train(["--config", str(path / "config.json"), "--env", evil]).settings.env == evil


def test_who_is_named_again_is_made(tmp_path, monkeypatch):
    """From the current folder, too, if the user says so; elsewhere on the path, trust is enough."""
    text = "from ambs.envs import make as inner\ndef make():\n    return inner('Grid').unwrapped\n"
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, place in (("kind_world_here", tmp_path / "here"), ("kind_world_installed", tmp_path)):
        (place / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = resolve("quickstart", changes={"env": "kind_world_installed:make"})
    envs = worlds_of(config, None, True, 1)
    assert envs.num_envs == 1
    assert str(tmp_path / "here") not in sys.path
    envs.close()
    worlds_of(resolve("quickstart", changes={"env": "kind_world_here:make"}), "kind_world_here:make", False, 1).close()


@pytest.mark.parametrize("env", ["os:abort", "os.path:join", "sys:exit", "subprocess:run"])
def test_python_itself_makes_no_environments(env):
    for named, trust in ((None, True), (env, False)):
        with pytest.raises(UserError, match="is part of Python"):
            worlds_of(resolve("quickstart", changes={"env": env}), named, trust, 1)


def test_modules_that_fail_are_a_sentence(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "broken_world.py").write_text("1 / 0")
    with pytest.raises(UserError, match="cannot be imported: ZeroDivisionError: division by zero"):
        check_world(resolve("quickstart", changes={"env": "broken_world:make"}), None, trust=True)


def test_a_grid_resumes_only_what_it_would_have_trained(tmp_path, monkeypatch):
    """`reproduce` names its own task to whoever resumes."""
    (cell,) = cells(panels(COMPARISONS["figure4"], SCALES["tiny"], methods=("copt",)), 1)
    one = job(cell, tmp_path, SCALES["tiny"])
    run = make_run(one.home, frames=1000, wanted=3200, state="running")
    (run / "checkpoints" / "000000500000").mkdir()
    (run / "checkpoints" / "000000500000" / "manifest.json").touch()
    child = Child("", subprocess.Popen("true"), tmp_path, tmp_path, frozenset())
    started = []
    monkeypatch.setattr("ambs.sweep.attempt.launch", lambda _, words, *rest, **more: started.append(words) or child)
    assert Attempt(one, Means()).poll() is None
    child.process.wait()
    (words,) = started
    assert words[:2] == ["resume", str(run)]
    assert words[words.index("--env") + 1] == cell.panel.task
    # Short or long, a name means the same world.
    check_world(resolve("quickstart", changes={"env": "PointWorld"}), "ambs/PointWorld-v0")

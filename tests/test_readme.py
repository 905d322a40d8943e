"""What the README shows is run as it stands."""

import re
import shlex
from pathlib import Path

import pytest

from ambs.cli.main import main

README = (Path(__file__).parents[1] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_python_example_runs(capsys):
    (code,) = blocks("python")
    exec(compile(code, "README.md", "exec"), {})
    assert re.match(r"(accept|override): \d+ of \d+ imagined futures", capsys.readouterr().out)


def test_shell_examples_run(capsys, tmp_path, monkeypatch):
    # What they write goes to a folder of its own; what they read is found as from the project's root.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").symlink_to(Path(__file__).parent)
    commands = [line for block in blocks("sh") for line in block.splitlines() if line.startswith(".venv/bin/ambs")]
    assert len(commands) >= 2
    for command in commands:
        with pytest.raises(SystemExit) as stop:
            main(shlex.split(command)[1:])
        assert stop.value.code == 0


def test_shown_output_is_the_real_one(capsys):
    with pytest.raises(SystemExit):
        main(["check", "P>=0.9 [ G<=30 !hazard ]", "--atoms", "hazard"])
    assert capsys.readouterr().out in README

"""What the README shows: its example and its output; tests/test_docs.py runs its commands."""

import re
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


def test_shown_output_is_the_real_one(capsys):
    with pytest.raises(SystemExit):
        main(["check", "P>=0.9 [ G<=30 !hazard ]", "--atoms", "hazard"])
    assert capsys.readouterr().out in README

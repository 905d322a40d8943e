"""The public API: every name is there, is listed, is known to type checkers, and is documented."""

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import ambs

ROOT = Path(__file__).parents[1]
TREE = ast.parse((ROOT / "src" / "ambs" / "__init__.py").read_text())


def test_every_name_is_there_and_listed():
    for name, home in ambs._PUBLIC.items():
        assert getattr(ambs, name) is getattr(import_module(home), name)
    assert set(ambs.__all__) <= set(dir(ambs))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ambs.nothing  # noqa: B018


def test_type_checkers_see_the_same_names():
    """They cannot follow a lazy import, and read the ones that are never run."""
    typed = {
        alias.asname: node.module
        for node in ast.walk(TREE)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("ambs.")
        for alias in node.names
    }
    assert typed == ambs._PUBLIC


def test_every_name_is_documented():
    told = set(re.findall(r"^::: ambs\.[\w.]*?(\w+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE))
    assert set(ambs._PUBLIC) <= told


MISTAKES = {
    "ambs.train('quickstart')": "train takes settings, such as ambs.resolve('quickstart') gives, not 'quickstart'",
    "ambs.load(3)": "load takes the path of a run folder, got 3",
    "ambs.make(None)": "an environment is meant by its name, such as 'PointGoal1', got None",
    "ambs.make_vector(None, 2)": "an environment is meant by its name, such as 'PointGoal1', or by a factory, got None",
    "ambs.make('PointWorld', observation='vector')": "ambs/PointWorld-v0 has no option 'observation'; it has ",
    "ambs.make('CartPole-v1', sutton_barto=True)": "CartPole-v1 has no option 'sutton_barto'; it has ",
    "gymnasium.register('Gone-v0', 'gone:Env') or ambs.make('Gone-v0')": "Gone-v0 cannot be made here: No module named 'gone'",
}
"""Calls, and how the sentence begins that each gets."""


@pytest.mark.process
def test_mistakes_get_a_sentence():
    """In a process of its own, without the checks of annotations that are made in tests only."""
    lines = ["import ambs, gymnasium"]
    for call in MISTAKES:
        lines += ["try:", f"    {call}", "except ambs.UserError as error:", "    print(error)"]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    told = done.stdout.splitlines()
    assert [sentence[: len(wanted)] for sentence, wanted in zip(told, MISTAKES.values(), strict=True)] == [
        *MISTAKES.values()
    ]


@pytest.mark.process
def test_nothing_heavy_comes_unasked():
    code = "import sys, ambs, ambs.config.methods; dir(ambs); print({'jax', 'numpy', 'gymnasium'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"

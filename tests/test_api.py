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


@pytest.mark.process
def test_nothing_heavy_comes_unasked():
    code = "import sys, ambs, ambs.config.methods; dir(ambs); print({'jax', 'numpy', 'gymnasium'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"

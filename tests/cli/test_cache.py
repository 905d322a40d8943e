"""What XLA compiled: where it is kept, and what happens where it cannot be."""

import os
import re
import sys
from pathlib import Path

import jax
import pytest

from ambs.cli import cache

CACHE = "jax_compilation_cache_dir"


@pytest.fixture
def told(monkeypatch):
    """JAX's settings that were changed; the test run has a cache of its own, which stays."""
    changed = {}
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.delenv(cache.VARIABLE, raising=False)
    monkeypatch.setattr(jax.config, "update", changed.__setitem__)
    return changed


def test_compiled_programs_are_kept_in_the_users_cache_folder(told, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.keep_compiled() is None
    folder = Path(told[CACHE])
    assert folder.parent == tmp_path / "ambs" / "xla"
    assert folder.stat().st_mode & 0o077 == 0
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache.user_cache() == tmp_path / "home" / ".cache"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache.user_cache() == tmp_path / "home" / "Library" / "Caches"


def test_a_variable_switches_it_off_or_names_a_folder(told, tmp_path, monkeypatch):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "mine"))
    assert cache.keep_compiled() is None
    assert Path(told.pop(CACHE)).parent == tmp_path / "mine"
    monkeypatch.setenv(cache.VARIABLE, "off")
    assert cache.keep_compiled() is None
    monkeypatch.delenv(cache.VARIABLE)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "jax's own")
    assert cache.keep_compiled() is None
    assert not told


def test_a_folder_that_cannot_be_written_is_a_sentence(told, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "file"))
    told_of = re.escape(str(tmp_path / "file"))
    assert re.match(rf"compiled programs cannot be kept in {told_of}/\w+ \(Not a directory\)", cache.keep_compiled())
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "read-only"))
    monkeypatch.setattr(os, "access", lambda *_: False)  # To root all may be written to.
    assert "(Permission denied): AMBS_CACHE names another folder" in cache.keep_compiled()
    assert not told


def test_what_was_not_used_for_longest_goes_first(tmp_path):
    for age, name in enumerate(("new", "middle", "old")):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    cache.prune(tmp_path, 250)
    assert {path.name for path in tmp_path.iterdir()} == {"new", "middle"}
    cache.prune(tmp_path, 250)
    assert len(list(tmp_path.iterdir())) == 2

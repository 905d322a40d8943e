"""What is kept of a run under `results/` is enough for reports, small, and says nothing about one machine."""

import json
import sys
from pathlib import Path

import pytest

from ambs.report.runs import read_run
from ambs.storage.run_folder import read_rows
from tests.report.synthetic import make_run

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    import run_results

    yield run_results
    sys.modules.pop("run_results")


def test_a_kept_run_shows_what_the_run_showed(tool, tmp_path):
    path = make_run(tmp_path / "runs", rows=950, command=["ambs", "train", "--out", "/home/x", "--seed", "0"])
    kept = read_run(tool.keep(path, tmp_path / "results"))
    whole = read_run(path)
    assert kept.path == tmp_path / "results" / "copt-s0"
    # Every fourth of 950 rows, counted from the last.
    assert len(read_rows(kept.path / "metrics.jsonl")) == 238
    assert (kept.state, kept.frames, kept.missing) == ("finished", 20_000, [])
    assert kept.metrics["violations"].values[-1] == whole.metrics["violations"].values[-1]
    assert kept.record["command"] == ["ambs", "train", "--seed", "0"]
    text = "".join(file.read_text() for file in kept.path.iterdir())
    assert not any(f'"{word}"' in text for word in ("pid", "host"))


def test_both_rules_of_the_lagrangian_are_kept(tool):
    for rule, name in (("min", "lag"), ("max", "lag-max")):
        assert tool.name({"method": "lag", "config": {"agent": {"lag_rule": rule}}}) == name
    assert tool.name({"method": "copt", "config": {}}) == "copt"


def test_curves_and_table_are_drawn(tool, tmp_path, monkeypatch):
    make_run(tmp_path / "runs")
    (run,) = (tmp_path / "runs").iterdir()
    monkeypatch.setattr(sys, "argv", ["run_results.py", str(run), "--results", str(tmp_path / "results")])
    tool.main()
    tool.main()  # Its own files are no runs.
    assert {path.name for path in (tmp_path / "results").iterdir()} == {"copt-s0", "curves.png", "table.md"}
    assert json.loads((tmp_path / "results" / "copt-s0" / "status.json").read_text())["state"] == "finished"


def test_committed_results_are_small_and_whole():
    """All of them are runs that a report can show."""
    results = ROOT / "results"
    for config in results.glob("*/*/config.json"):
        run = read_run(config.parent)
        assert run.state in ("finished", "interrupted")
        assert len(run.episodes["return"]) > 1
        assert run.metrics["violations"]
    for task in (path for path in results.iterdir() if path.is_dir()):
        assert sum(file.stat().st_size for file in task.rglob("*")) < 6_000_000

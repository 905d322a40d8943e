"""What is kept of a run under `results/` is enough for reports, small, and says nothing about one machine."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from ambs.config.presets import PRESETS
from ambs.config.resolve import from_dict
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


@pytest.fixture
def quickstart(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    import quickstart_results

    yield quickstart_results
    sys.modules.pop("quickstart_results")


def headline():
    return json.loads((ROOT / "results" / "quickstart.json").read_text())


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


def test_committed_tables_name_their_window():
    """`python tools/run_results.py --results FOLDER --at FRAMES` writes one anew."""
    tables = {path: path.read_text() for path in (ROOT / "results").glob("*/table.md")}
    assert len(tables) == 7
    for path, text in tables.items():
        assert "| episode return, last quarter |" in text, path
        assert "last tenth" not in text, path
        assert "at the end" not in text, path


def test_the_headline_is_what_the_file_says(quickstart):
    """`python tools/quickstart_results.py --only-pages` writes the pages anew."""
    for page, text in quickstart.parts(headline()).items():
        assert text in (ROOT / page).read_text(), f"{page} shows other figures than results/quickstart.json"
    assert (ROOT / "results" / "quickstart.md").read_text() == quickstart.table(headline()["seeds"])


def test_the_headline_was_made_with_the_preset():
    """If not, the seeds must be run again: `python tools/quickstart_results.py`."""
    assert from_dict(headline()["settings"]) == PRESETS["quickstart"]()
    assert re.fullmatch("[0-9a-f]{40}", headline()["commit"])


def test_five_seeds_fill_the_pages(quickstart, tmp_path):
    """Of which one did not hold; and seeds that were run with other settings are refused."""
    settings = {"shield": headline()["settings"]["shield"], "training": {"frames": 80_000, "action_repeat": 4}}
    runs = [make_run(tmp_path / "runs", seed=seed, config=settings) for seed in range(5)]
    found = [
        headline()["seeds"][0] | {"seed": seed, "runs": {"copt": str(run)}, "files": [], "held": seed != 3}
        for seed, run in enumerate(runs)
    ]
    for folder in ("results", "docs"):
        (tmp_path / folder).mkdir()
    for page in ("README.md", "docs/quickstart.md"):
        shutil.copy(ROOT / page, tmp_path / page)
    quickstart.publish(found, tmp_path / "results")
    record = json.loads((tmp_path / "results" / "quickstart.json").read_text())
    quickstart.fill_pages(record, tmp_path)
    readme, page = ((tmp_path / name).read_text() for name in ("README.md", "docs/quickstart.md"))
    for text in (readme, page):
        assert "It held for 4 of 5 seeds (0, 1, 2, 4)" in text
        assert "n = 3 steps (12 frames), at most 200 futures" in text
        assert f"commit {record['commit'][:12]}" in text
    assert page.count("| AMBS + COPT, shield |") == 5
    assert record["commit"] == json.loads((runs[0] / "config.json").read_text())["commit"]
    other = make_run(tmp_path / "other", config=settings | {"obs": "vector"})
    with pytest.raises(SystemExit, match="not run with the same source and settings"):
        quickstart.provenance([runs[0], other])

"""Running a grid: what is there is found, skipped or resumed; what is stopped loses nothing."""

import shutil
import sys
from pathlib import Path

import pytest

from ambs.cli.main import main
from ambs.reproduce.grid import COMPARISONS, SCALES, cells, job, panels, wanted
from ambs.reproduce.render import render, show
from ambs.reproduce.status import find_run
from ambs.storage.run_folder import RunFolder
from ambs.storage.subprocesses import launch
from ambs.sweep import attempt
from tests.report.synthetic import make_run

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
HOST = (sys.executable, "-m", "tests.reproduce.host")
SMALL = SCALES["small"]


def there(cell, out):
    return find_run(cell, job(cell, out, SMALL))


def make(out, cell, scale=SMALL, **more):
    """A run of a cell, where reproduce would look for it; frames and settings are the cell's own."""
    config = wanted(cell, scale)
    given = {"frames": cell.panel.frames, "config": config, "env": cell.panel.task, "method": cell.variant.method}
    return make_run(out / cell.folder, **(given | {"seed": cell.seed, "wanted": cell.panel.frames} | more))


def call(*words) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    return stop.value.code


def test_a_grid_runs_through(tmp_path, monkeypatch, capsys):
    """Two seeds of two runs of PointWorld, a fleet each: one finishes, one is killed, falls apart, and its runs are resumed or
    made anew; the same command again leaves all of them alone."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    monkeypatch.setattr(attempt, "launch", lambda *words, **more: launch(*words, **more | {"program": HOST}))
    monkeypatch.setenv("AMBS_DIES", "pointworld-long")
    words = ("reproduce", "table1", "--scale", "tiny", "--methods", "copt", "--device", "cpu", "--out", tmp_path)
    words += ("--seeds", 2, "--fleet", 2)
    assert call(*words) == 0
    told = capsys.readouterr().out
    assert "4 of 4 runs are finished" in told
    assert "pointworld/copt-s0,1 begins" in told
    (done,) = tmp_path.glob("pointworld/copt-s0/*/config.json")
    assert not (tmp_path / "pointworld" / "copt-s1" / "output.txt").exists()  # It was trained with the other.
    for seed in (0, 1):
        assert f"pointworld-long/copt-s{seed} begins" in told
        ended = [
            status
            for path in tmp_path.glob(f"pointworld-long/copt-s{seed}/*/config.json")
            if (status := RunFolder.open(path.parent).read_status())["state"] == "finished"
        ]
        assert [status["frames"] >= 3200 for status in ended] == [True]
    assert {path.name for path in tmp_path.glob("table1.*")} == {"table1.png", "table1.md", "table1.html"}
    table = (tmp_path / "table1.md").read_text()
    assert table.count("| AMBS + COPT | episode return, last quarter | 2 |") == 2
    assert "## PointWorld at 1,600" in table
    assert "## PointWorld (long run) at 3,200" in table

    before = (done.parent / "status.json").read_bytes(), done.stat().st_mtime_ns
    assert call(*words) == 0
    assert "Nothing is left to run" in capsys.readouterr().out
    assert ((done.parent / "status.json").read_bytes(), done.stat().st_mtime_ns) == before


def test_what_is_there(tmp_path):
    """Whole run folders and results kept of runs; finished, broken off, being trained, and with other settings."""
    whole, kept, broken, busy, fresh = chosen = cells(panels(COMPARISONS["figure3"], SMALL, tasks=("CarGoal1",)), 1)
    make(tmp_path, whole)
    result = make(tmp_path, kept, frames=400_000, wanted=400_000, state="running")
    for name in ("config.json", "metrics.jsonl", "episodes.jsonl"):  # As tools/run_results.py keeps them.
        shutil.move(result / name, tmp_path / kept.folder / name)
    shutil.rmtree(result)
    for cell in (broken, busy):
        run = make(tmp_path, cell, frames=500_000, state="running")
        (run / "checkpoints" / "000000500000").mkdir()
        (run / "checkpoints" / "000000500000" / "manifest.json").touch()
    writer = RunFolder.open(run)
    writer.claim()
    try:
        found = [there(cell, tmp_path) for cell in chosen]
        # A run that was killed before its first checkpoint is made anew.
        young = make(tmp_path, fresh, frames=1000, state="running")
        half = young / "checkpoints" / ".tmp-000000001000"  # Killed while it wrote its first one.
        half.mkdir(parents=True)
        (half / "manifest.json").touch()
        again = there(fresh, tmp_path)
    finally:
        writer.unlock()
    assert [one.state for one in found] == ["finished", "partial", "broken", "running", "missing"]
    assert again.state == "partial"
    assert [one.frames for one in found] == [1_000_000, 400_000, 500_000, 500_000, 0]
    assert all(one.others == () for one in found)


def test_results_with_other_settings_count_and_are_named(tmp_path):
    (cell,) = cells(panels(COMPARISONS["figure3"], SMALL, ("copt",), ("PointGoal1",)), 1)
    config = wanted(cell, SMALL)
    config["shield"]["horizon"] = 15
    config["training"]["frames"] = 500_000
    make(tmp_path, cell, config=config, frames=500_000)
    found = there(cell, tmp_path)
    assert (found.state, found.others) == ("finished", ("shield.horizon=15",))
    notes = show([found])["notes"]
    assert notes == ["pointgoal1/copt-s0 was run with settings that are not this grid's: shield.horizon=15"]


def test_rendering_stands_beside_the_paper(tmp_path):
    """Short and long runs of one task are apart, each beside the paper's figures at its own length; nothing is trained."""
    chosen = cells(panels(COMPARISONS["table1"], SMALL, ("copt", "lag", "lag-max"), ("PointGoal1",)), 1)
    for cell in chosen:
        make(tmp_path, cell, rows=20, episodes=20)
    found = [there(cell, tmp_path) for cell in chosen]
    absent = [there(cell, tmp_path / "empty") for cell in chosen]
    assert show(found[:1] + absent[1:])["notes"][0].startswith("5 of the 6 runs of this comparison are not there yet: ")
    short, long = show(found)["environments"]
    assert (short["env"], long["env"]) == ("PointGoal1", "PointGoal1 (long run)")
    for part, frames, paper in ((short, 1_000_000, 10766), (long, 10_000_000, 18320)):
        rows = [row for row in part["paper"] if row["method"] == "copt"]
        assert [(row["frames"], row["paper"]["violations"]["mean"]) for row in rows] == [(frames, paper)]
        assert rows[0]["ours"]["seeds"] == 1
        # Both rules of LAG stand beside the paper's one.
        assert len([row for row in part["paper"] if row["method"] == "lag" and row["ours"]]) == 2
    assert [path.name for path in render(COMPARISONS["table1"], found, tmp_path)] == [
        "table1.png", "table1.md", "table1.html",
    ]  # fmt: skip
    assert render(COMPARISONS["table1"], [there(chosen[0], tmp_path / "empty")], tmp_path / "empty") == []
    assert not (tmp_path / "empty").exists()


def test_dry_run_lists_the_grid_and_writes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call("reproduce", "table1", "--scale", "small", "--dry-run") == 0
    told = capsys.readouterr().out
    assert told.count("missing") == 20
    assert "On one NVIDIA H200: about " in told
    assert list(tmp_path.iterdir()) == []
    assert call("reproduce", "figure4", "--methods", "none", "--dry-run") == 2
    assert call("reproduce", "figure4", "--seeds", "0", "--dry-run") == 2

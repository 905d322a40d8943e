"""Run folders in every state: what is there is read, what is not is told."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from ambs.errors import UserError
from ambs.report.runs import read_run, read_runs
from ambs.report.summary import summarise
from ambs.report.write import write
from ambs.storage.run_folder import RunFolder
from tests.report.synthetic import make_run


def test_a_whole_run(tmp_path):
    run = read_run(make_run(tmp_path, frames=20_000))
    assert (run.env, run.method, run.seed, run.state, run.frames, run.wanted) == (
        "PointGoal1-v0", "copt", 0, "finished", 20_000, 20_000,
    )  # fmt: skip
    assert run.missing == []
    assert run.metrics["agent_steps"].values[-1] == 10_000
    assert len(run.episodes["return"]) == 40


def test_finds_runs_and_passes_over_plots(tmp_path):
    one = make_run(tmp_path / "a" / "copt", seed=0)
    two = make_run(tmp_path / "b", seed=1)
    for name in ("table.md", "figure.png", "data.json", "page.HTML"):
        (tmp_path / name).write_text("x")
    (tmp_path / "strange.bin").write_text("x")
    (tmp_path / "empty").mkdir()
    runs, notes = read_runs([*sorted(tmp_path.iterdir()), one])
    assert [run.path for run in runs] == [one, two]
    assert len(notes) == 2
    assert any("empty holds no run" in note for note in notes)
    assert any("strange.bin is not a run folder" in note for note in notes)


def test_mistakes(tmp_path):
    with pytest.raises(UserError, match=r"there is no .*nowhere"):
        read_runs([tmp_path / "nowhere"])
    with pytest.raises(UserError, match=r"no run to report on: .* holds no run"):
        read_runs([tmp_path])


def test_foreign_folders(tmp_path):
    make_run(tmp_path)
    for name, text in (("json", "{}"), ("broken", "{"), ("newer", '{"format": 9, "config": {}}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    summary = summarise([tmp_path])
    assert len(summary["runs"]) == 1
    assert len(summary["notes"]) == 3
    assert any("run format 9" in note for note in summary["notes"])


def test_a_run_that_has_only_begun(tmp_path):
    RunFolder.create(tmp_path, env="X", method="y", seed=0, config={}, command=[]).close()
    make_run(tmp_path)
    summary = summarise([tmp_path])
    new = next(run for run in summary["runs"] if run["env"] == "X")
    assert (new["state"], new["frames"], new["counted"]) == ("running", 0, False)
    told = " ".join(new["missing"])
    for words in ("still running, or was killed", "no episode has ended", "nothing is known of violations"):
        assert words in told


def test_a_crash(tmp_path):
    path = make_run(tmp_path, state="failed", frames=10_000, wanted=20_000)
    with (path / "metrics.jsonl").open("ab") as file:
        file.write(
            b'nonsense\n{"no frames": 1}\n{"frames": 10001, "violations": "many", "model/kl": null}\n{"frames": 1'
        )
    (path / "episodes.jsonl").unlink()
    run = read_run(path)
    told = " ".join(run.missing)
    assert "metrics.jsonl has 2 damaged lines" in told
    assert "episodes.jsonl cannot be read" in told
    assert "failed (10,000 of 20,000 frames)" in told
    assert run.metrics["violations"].frames[-1] == 10_000
    (path / "status.json").write_text("[]")
    assert read_run(path).state == "unknown"
    summary = summarise([path])
    assert "violations" in summary["environments"][0]["groups"][0]["outcomes"]
    assert "return" not in summary["environments"][0]["groups"][0]["outcomes"]


def test_totals_come_from_episodes_or_status_where_metrics_lack_them(tmp_path):
    path = make_run(tmp_path, frames=1000, episodes=4)
    (path / "metrics.jsonl").write_text("")
    rows = [{"frames": 250 * n, "return": 1.0, "violations": n, "length": 250} for n in (1, 2, 3)]
    (path / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    status = json.loads((path / "status.json").read_text()) | {"violations": 9}
    (path / "status.json").write_text(json.dumps(status))
    run = read_run(path)
    np.testing.assert_array_equal(run.metrics["violations"].frames, [250, 500, 750, 1000])
    np.testing.assert_array_equal(run.metrics["violations"].values, [1, 3, 6, 9])


JUNK = (
    None, True, -1, 0, 0.5, 10**400, -(10**400), 1e308, 1e-300, 2**63, "", "x", "<b>", "\ud800", [], [1], {}, {"a": {}}, [[{}]],
)  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_junk_in_any_place(tmp_path, seed):
    """Whatever stands where a number or a name should, a report in every format comes of it."""
    rng = np.random.default_rng(seed)

    def spoil(value):
        return JUNK[rng.integers(len(JUNK))] if rng.uniform() < 0.4 else value

    make_run(tmp_path / "runs", seed=0)
    path = make_run(tmp_path / "runs", seed=1, method="lag")
    record = json.loads((path / "config.json").read_text())
    record = {key: value if key in ("format", "config") else spoil(value) for key, value in record.items()}
    record["config"] = {key: spoil(value) for key, value in record["config"].items()}
    (path / "config.json").write_text(json.dumps(record))
    status = json.loads((path / "status.json").read_text())
    (path / "status.json").write_text(json.dumps({key: spoil(value) for key, value in status.items()}))
    for name in ("metrics.jsonl", "episodes.jsonl"):
        rows = [json.loads(line) for line in (path / name).read_text().splitlines()]
        spoilt = [json.dumps({key: spoil(value) for key, value in row.items()}) for row in rows]
        (path / name).write_text("".join(f"{line}\n" for line in spoilt))
    summary = summarise([tmp_path / "runs"])
    assert len(summary["runs"]) == 2
    for kind in ("html", "md", "png", "csv", "json"):
        write(summary, tmp_path / f"report.{kind}", kind)
        assert (tmp_path / f"report.{kind}").stat().st_size > 100


def test_a_pipe_is_passed_over(tmp_path):
    """Opening one waits for somebody who writes into it."""
    run = make_run(tmp_path)
    (run / "metrics.jsonl").unlink()
    os.mkfifo(run / "metrics.jsonl")
    (found,), _ = read_runs([tmp_path])
    assert found.missing == ["metrics.jsonl cannot be read (metrics.jsonl is not a plain file)"]
    assert len(found.episodes["return"]) == 40


def test_results_kept_of_runs(tmp_path):
    """Settings, metrics and episodes alone: a run that played all its frames has finished; equal names are told apart."""
    for task in ("a", "b"):
        run = make_run(tmp_path / "runs", seed=len(list(tmp_path.glob("runs/*"))))
        kept = tmp_path / task / "copt-s0"
        kept.mkdir(parents=True)
        for name in ("config.json", "metrics.jsonl", "episodes.jsonl"):
            shutil.copy(run / name, kept / name)
    runs, _ = read_runs([tmp_path / "a", tmp_path / "b"])
    assert [(run.name, run.state, run.missing) for run in runs] == [
        ("a/copt-s0", "finished", []), ("b/copt-s0", "finished", []),
    ]  # fmt: skip


@pytest.mark.process
def test_imports_no_learning_code():
    code = (
        "import sys, ambs.report.summary, ambs.report.write, ambs.report.document, ambs.report.plots;"
        "print({'jax', 'equinox', 'optax', 'mujoco'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"

"""The file that declares a sweep, what is made of it, and what the command says of it."""

import json
import shutil
from pathlib import Path

import pytest

from ambs.cli.main import main
from ambs.cli.train import parse_train
from ambs.config.resolve import to_dict
from ambs.errors import UserError
from ambs.report.groups import group_runs
from ambs.report.runs import read_runs
from ambs.report.summary import summarise
from ambs.report.write import write
from ambs.sweep.file import _word, read_sweep
from ambs.sweep.ledger import read_ledger, write_ledger
from ambs.sweep.plan import Needs
from ambs.sweep.status import find
from tests.report.synthetic import make_run

ROOT = Path(__file__).parents[2]
WHOLE = """
[sweep]
out = "here"
seeds = [3, 5]
gpus = 0.25
[settings]
preset = "quickstart"
env = "PointWorld"
agent.lam = 0.9
[grid]
method = ["copt", "dreamer"]
"model.label_scale" = [1, 30.0]
[[list]]
"shield.horizon" = 5
[stop]
metric = "return"
at = 10_000
below = 2
"""


def declared(tmp_path, text):
    path = tmp_path / "many.toml"
    path.write_text(text)
    return read_sweep(path)


def test_values_that_differ_have_folders_that_differ():
    values = (-1, 1, -0.5, 0.5, 0.1234567, 0.1234568, "minus", True, None)
    assert len({_word(value) for value in values}) == len(values)


def test_a_file_becomes_runs(tmp_path):
    """Counted by hand: two methods, two scales, one entry, two seeds; seed by seed."""
    sweep = declared(tmp_path, WHOLE)
    assert [job.name for job in sweep.jobs] == [
        f"horizon5-{method}-label_scale{scale}-s{seed}"
        for seed in (3, 5) for method in ("copt", "dreamer") for scale in (1, 30)
    ]  # fmt: skip
    assert (sweep.out, sweep.needs) == (Path("here"), Needs(1.0, 0.25))
    one = sweep.jobs[-1]
    assert one.home == Path("here") / one.name
    assert one.varied == {"shield.horizon": 5, "method": "dreamer", "model.label_scale": 30.0}
    settings = one.settings
    assert (settings["seed"], settings["env"], settings["shielded"], settings["agent"]["lam"]) == (
        5,
        "PointWorld",
        False,
        0.9,
    )
    assert settings["stop"] == {"metric": "return", "at": 10_000, "below": 2.0}
    # What a child is given makes the very same settings.
    file = tmp_path / "settings.json"
    file.write_text(json.dumps(settings))
    assert to_dict(parse_train(["--config", str(file), "--env", "PointWorld", "--shield", "off"]).settings) == settings


def test_the_example_is_what_it_says(tmp_path):
    sweep = read_sweep(ROOT / "examples" / "sweep.toml", out=tmp_path)
    assert [job.name for job in sweep.jobs] == ["dreamer-s0", "copt-s0", "dreamer-s1", "copt-s1"]
    assert {job.frames for job in sweep.jobs} == {6000}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("[grid]", "[gird]"), "a part of .*many.toml must be one of .*; did you mean 'grid'"),
        (("seeds = [3, 5]", "seed = 3"), r"a name in \[sweep\] .*did you mean 'seeds'"),
        (("seeds = [3, 5]", "seeds = [3, 3]"), "list of different seeds"),
        (("seeds = [3, 5]", "seeds = 0"), "sweep.seeds must be a whole number from 1"),
        (("gpus = 0.25", "gpus = 1.5"), "sweep.gpus must be a whole number where it is above 1"),
        (("gpus = 0.25", "cpus = 0"), "sweep.cpus must be above 0"),
        (("[1, 30.0]", "30.0"), "grid.model.label_scale .* must be a list"),
        (("[1, 30.0]", "[1, 1.0]"), "declares the run horizon5-copt-label_scale1 more than once"),
        (
            ("agent.lam = 0.9", "agent.lamb = 0.9"),
            "the run horizon5-copt-label_scale1: unknown setting 'agent.lamb'; did you",
        ),
        (("agent.lam = 0.9", "agent.lam = 2"), "the run .*: lam must lie in"),
        (("agent.lam = 0.9", "seed = 1"), r"settings.seed: seeds are told in \[sweep\]"),
        (('"shield.horizon" = 5', 'method = "lag"'), "method is in the grid and in the list"),
        (('"dreamer"]', '"guard"]'), "guard needs the policy that acts"),
        (('"PointWorld"', '"evil:make"'), r"must be named \(--env evil:make\)"),
        (("at = 10_000", "at = 0"), "stop.at must be the frame at which return is looked at"),
        (("[grid]", "[grid"), "is not valid TOML"),
    ],
)
def test_mistakes_get_a_sentence(tmp_path, change, says):
    assert change[0] in WHOLE
    with pytest.raises(UserError, match=says):
        declared(tmp_path, WHOLE.replace(*change))


def call(capsys, *words) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    return stop.value.code, "".join(capsys.readouterr())


def test_one_setting_with_a_long_name_is_told_in_the_sweeps_words(tmp_path):
    """And smaller values come before larger ones, whatever their folders are called."""
    grid = '[grid]\n"training.train_ratio" = [512, 64]'
    sweep = declared(tmp_path, f'[sweep]\nout = "{tmp_path}/here"\n[settings]\nenv = "PointWorld"\n{grid}')
    for job in sweep.jobs:
        make_run(job.home, env="PointWorld", config=job.settings)
    write_ledger(sweep, [(job, find(job)) for job in sweep.jobs], {})
    (groups,) = group_runs(read_runs([sweep.out])[0]).values()
    assert [group.label for group in groups] == ["AMBS + COPT (train_ratio 64)", "AMBS + COPT (train_ratio 512)"]


def test_dry_run_status_and_report(tmp_path, monkeypatch, capsys):
    """Of a sweep of which half is there: listed, counted, shown as small multiples; nothing is written but the report."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "examples" / "sweep.toml", "grid.toml")
    sweep = declared(tmp_path, WHOLE)
    for job in sweep.jobs[:4]:
        settings = job.settings
        make_run(job.home, env="PointWorld", method=settings["method"], seed=3, config=settings, frames=80_000)
    before = sorted(tmp_path.rglob("*"))
    code, told = call(capsys, "sweep", "many.toml", "--dry-run", "--on", "local")
    assert (code, told.count("missing"), told.count("finished")) == (0, 4, 4)
    assert "Left: 4 runs, 320,000 frames" in told
    # 80,000 frames of each at 500 frames per second, as the finished ones logged, on a quarter of a GPU.
    assert "About 11 min (0.0 GPU hours)" in told
    assert sorted(tmp_path.rglob("*")) == before
    write_ledger(sweep, [(job, find(job)) for job in sweep.jobs], {sweep.jobs[5].name: "was refused: for a reason"})
    for where in ("many.toml", "here"):
        code, told = call(capsys, "sweep", "status", where)
        assert "8 runs: 4 finished, 4 missing; 320,000 of 640,000 frames" in told
    assert "for a reason" in told
    assert [one.state for _, one in read_ledger(Path("here"))] == ["finished"] * 4 + ["missing"] * 4
    runs, _ = read_runs([Path("here")])
    assert {run.varied["model.label_scale"] for run in runs} == {1, 30.0}
    summary = summarise([Path("here")])
    labels = [group["label"] for group in summary["environments"][0]["groups"]]
    assert len(labels) == len(set(labels)) == 4
    assert any("30" in label for label in labels)
    write(summary, Path("r.html"), "html")
    page = Path("r.html").read_text()
    # Return and violations of four experiments, each with the curves of the three others behind it.
    assert page.count('class="own"') == 8
    assert page.count('class="other"') == 8 * 3
    shutil.rmtree(sweep.jobs[0].home)
    Path("here/sweep.jsonl").write_text("[]")
    assert call(capsys, "sweep", "status", "here")[0] == 2
    for words, says in (
        (("sweep", "status"), "needs the sweep's file or folder"),
        (("sweep", "none.toml"), "there is no none.toml"),
        (("sweep", "here"), "is a folder"),
        (("sweep", "many.toml", "--on", "local", "--address", "x:1"), "--address is that of a Ray cluster"),
    ):
        code, told = call(capsys, *words)
        assert code == 2
        assert says in " ".join(told.split())


def test_a_comparison_is_a_sweep_by_its_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, told = call(capsys, "sweep", "table1", "--scale", "tiny", "--dry-run", "--on", "local")
    assert (code, told.count("missing")) == (0, 10)

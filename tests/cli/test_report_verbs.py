"""`ambs report`, `ambs compare` and `ambs doctor` as a user meets them."""

import json
from pathlib import Path
from unittest.mock import ANY

import pytest

from ambs.apps.doctor import disk, examine, packages, python
from ambs.apps.doctor import self_test as examine_self
from ambs.apps.quickstart import report
from ambs.apps.selftest import Figures
from ambs.cli.main import main
from tests.report.synthetic import make_run


def call(*words) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    return stop.value.code


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for seed in (0, 1, 2):
        make_run(root, seed=seed)
        make_run(root, seed=seed, method="lag")
    (root / "quickstart.png").write_text("")
    return root


@pytest.mark.parametrize("kind", ["html", "md", "png", "csv", "json"])
def test_report_writes_every_format(runs, tmp_path, capsys, kind):
    out = tmp_path / "deep" / f"r.{kind}"
    assert call("report", *sorted(runs.iterdir()), "--out", out) == 0
    assert capsys.readouterr().out == f"Wrote {out}: 6 runs\n"
    start = {"html": b"<!doctype html>", "md": b"# What", "png": b"\x89PNG", "csv": b"environment,", "json": b"{"}[kind]
    assert out.read_bytes().startswith(start)


def test_report_by_default_is_a_page(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert call("report", runs) == 0
    assert call("report", runs, "--format", "md") == 0
    assert call("report", runs, "--out", "odd.name") == 0
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "report.md", "odd.name"}
    assert (tmp_path / "odd.name").read_text().startswith("<!doctype html>")


def test_the_quickstart_ends_with_a_report(runs, tmp_path):
    path = report([runs], tmp_path / "report.html")
    assert "AMBS + COPT" in path.read_text()


def test_the_quickstart_says_where_its_report_is():
    import io

    from rich.console import Console

    from ambs.cli.quickstart import _print

    recorded = json.loads((Path(__file__).parents[2] / "results" / "quickstart.json").read_text())["seeds"][0]
    told = io.StringIO()
    written = {"files": ["q/quickstart.json", "q/quickstart.png"], "report": "q/report.html"}
    _print(Console(file=told, width=160), recorded | written, Path("q/copt/run"))
    assert "Look at all of it:  q/report.html" in told.getvalue()
    assert "The comparison held for seed 0." in told.getvalue()


def test_mistakes_get_a_sentence(tmp_path, capsys):
    for words in (("report", tmp_path / "none"), ("compare", tmp_path), ("report", tmp_path, "--out", tmp_path)):
        assert call(*words) == 2
        told = capsys.readouterr().err
        assert told.startswith("ambs: ")
        assert told.count("\n") == 1


def test_compare_prints_what_the_intervals_support(runs, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert call("compare", runs) == 0
    told = capsys.readouterr().out
    for words in (
        "AMBS + COPT",
        "DreamerV3 + LAG − AMBS + COPT",
        "supported",
        "9,354 ± 3,734",
        "Nominally 95 %; with 3 seeds",
    ):
        assert words in told
    assert call("compare", runs, "--json") == 0
    (part,) = json.loads(capsys.readouterr().out)["environments"]
    assert {row["outcome"] for row in part["comparisons"]} == {"return", "violations", "violations_per_1000"}


def test_one_seed_is_no_evidence(tmp_path, capsys):
    make_run(tmp_path)
    make_run(tmp_path, method="lag")
    assert call("compare", tmp_path) == 0
    assert "One seed tells nothing" in capsys.readouterr().out


@pytest.mark.learns
def test_doctor_finds_a_fit_machine(tmp_path, capsys, monkeypatch):
    """Whatever machine this is: enough memory and disk, and no GPU that JAX could have used."""
    import ambs.apps.doctor

    monkeypatch.setattr(ambs.apps.doctor, "memory_gb", lambda: 8.0)
    monkeypatch.setattr(ambs.apps.doctor, "LEAST_DISK", 0.0)
    monkeypatch.setattr(ambs.apps.doctor, "nvidia_driver", lambda: False)
    assert call("doctor", "--skip-self-test", "--json", "--out", tmp_path / "not" / "there") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["fit"]
    found = {finding["what"]: finding for finding in told["findings"]}
    assert set(found) == {"machine", "Python", "packages", "JAX", "MuJoCo", "OpenGL", "disk"}
    assert "(64, 64, 3)" in found["MuJoCo"]["said"]
    assert "none is needed" in found["OpenGL"]["said"]


def test_doctor_says_what_to_do(tmp_path, capsys, monkeypatch):
    import ambs.apps.doctor

    monkeypatch.setattr(ambs.apps.doctor, "mujoco_steps", lambda: 1 / 0)
    monkeypatch.setattr(ambs.apps.doctor, "LEAST_DISK", 1e9)
    assert call("doctor", "--skip-self-test", "--out", tmp_path) == 1
    told = capsys.readouterr().out
    assert "ZeroDivisionError" in told
    assert "→ free at least" in told
    assert "in the way of training" in told


def test_a_gpu_that_is_not_used_is_a_problem(monkeypatch):
    import jax

    import ambs.apps.doctor

    if jax.default_backend() != "cpu":
        pytest.skip("JAX uses the GPU here")
    monkeypatch.setattr(ambs.apps.doctor, "nvidia_driver", lambda: True)
    assert ambs.apps.doctor.jax_backend().state == "problem"
    monkeypatch.setattr(ambs.apps.doctor, "nvidia_driver", lambda: False)
    assert ambs.apps.doctor.jax_backend().state == "note"


def test_problems_are_told_apart(tmp_path, monkeypatch):
    assert python((3, 10, 2)).state == "problem"
    assert packages(("numpy", "no-such-package")).said == "missing: no-such-package"
    assert disk(tmp_path).state in ("ok", "note")
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert disk(tmp_path / (300 * "x")).said.endswith(": File name too long")
    for name in ("file", "loop"):
        assert disk(tmp_path / name / "runs") == ("disk", "problem", f"{tmp_path / name} is no folder", ANY)
    good = Figures(1.0, 2.0, 3.0, 4.0, finite=True, fails_safe=True)
    for figures, state in (
        (good, "ok"),
        (good._replace(finite=False), "problem"),
        (good._replace(fails_safe=False), "problem"),
    ):
        monkeypatch.setattr("ambs.apps.selftest.self_test", lambda figures=figures: figures)
        assert examine_self().state == state
    assert examine(tmp_path)[-1].what == "self-test"


@pytest.mark.slow
def test_self_test_acts_shields_and_learns():
    from ambs.apps.selftest import self_test

    found = self_test()
    assert found.finite
    assert found.fails_safe
    assert 0 < found.act_ms < found.shield_ms

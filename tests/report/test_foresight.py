"""The panel of foresight: figures as they were measured, points where they belong, and nothing of a file that is not right."""

import json

import pytest

from ambs.errors import UserError
from ambs.report.foresight import EDGE, SIDE, brief, diagram, read_brief, read_foresight
from ambs.report.summary import summarise
from ambs.report.write import text_of
from tests.report.synthetic import add_foresight, make_run


def test_figures_are_shown_as_measured(tmp_path):
    written = add_foresight(make_run(tmp_path, seed=0))
    make_run(tmp_path, seed=1)
    summary = summarise([tmp_path])
    (row,) = summary["environments"][0]["foresight"]
    assert row["seed"] == 0
    for found in (written["drawn"]["auroc"], written["drawn"]["detection"]["5"]["0.05"], written["drawn"]["ece"]):
        shown = f"{found['mean']:.3g} [{found['low']:.3g}, {found['high']:.3g}]"
        assert shown in text_of(summary, "html")
        assert shown in text_of(summary, "md").replace("\\", "")
    assert "within 30 steps" in text_of(summary, "md")
    assert " at 18,000 frames, Δ = 0.45 in force | labels drawn |" in text_of(summary, "md")


def test_a_file_from_before_levels_is_shown_without_them(tmp_path):
    run = make_run(tmp_path)
    old = {name: part for name, part in add_foresight(run).items() if name not in ("checkpoint", "level", "asked")}
    (run / "foresight.json").write_text(json.dumps(old))
    assert f"| {run.name} | labels drawn |" in text_of(summarise([tmp_path]), "md").replace("\\", "")


def test_what_is_told_beside_an_episode_is_what_was_measured(tmp_path):
    """Of the scoring that the shield's labels make; and what is read back is what was told."""
    run = make_run(tmp_path)
    written = add_foresight(run)
    written["drawn"]["auroc"] = {"mean": 0.75, "low": 0.5, "high": None}
    for labels, scoring in (("sample", "drawn"), ("mode", "shield")):
        (run / "foresight.json").write_text(json.dumps(written | {"shield_labels": labels}))
        told = brief(read_foresight(run))
        assert told["auroc"]["mean"] == written[scoring]["auroc"]["mean"]
        assert (told["checkpoint"], told["level"], told["asked"], told["labels"]) == (18_000, 0.45, 0.1, labels)
        assert list(told["detection"]) == ["1", "5", "10", "20"]
        assert read_brief(json.loads(json.dumps(told))) == told
    for wrong in (
        None,
        [],
        "x",
        {},
        told | {"level": "<b>"},
        told | {"checkpoint": 1e3},
        told | {"auroc": {"mean": 2}},
    ):
        with pytest.raises(ValueError, match="ambs foresight"):
            read_brief(wrong)


def test_points_lie_where_they_should():
    """Foreseen ¼, real ½ with an interval of [¼, 1]: a quarter along, half way up."""
    row = {"states": 7, "predicted": 0.25, "observed": 0.5, "low": 0.25, "high": 1.0}
    drawn = diagram({"drawn": {"reliability": [row]}}, "x")
    top = 8
    assert f'cx="{EDGE + SIDE / 4}" cy="{top + SIDE / 2}"' in drawn
    assert f'y1="{top + 0.75 * SIDE}" y2="{float(top)}"' in drawn
    assert "foreseen 0.25, real 0.50 [0.25, 1.00], 7 states" in drawn


@pytest.mark.parametrize("what", ["{", "[]", "script", "beyond", "missing"])
def test_a_file_that_is_not_right_gets_a_sentence(tmp_path, what):
    run = make_run(tmp_path)
    assert read_foresight(run) is None
    found = add_foresight(run)
    if what == "script":
        found["drawn"]["auroc"]["mean"] = "<script>"
    elif what == "beyond":
        found["drawn"]["reliability"][0]["predicted"] = 1e9
    elif what == "missing":
        del found["shield"]
    (run / "foresight.json").write_text(what if what in ("{", "[]") else json.dumps(found))
    with pytest.raises(UserError, match=r"foresight\.json"):
        read_foresight(run)
    summary = summarise([tmp_path])
    assert summary["environments"][0]["foresight"] == []
    assert any("foresight.json" in sentence for sentence in summary["runs"][0]["missing"])

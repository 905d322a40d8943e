"""The panel of foresight: figures as they were measured, points where they belong, and nothing of a file that is not right."""

import json

import pytest

from ambs.errors import UserError
from ambs.report.foresight import EDGE, SIDE, diagram, read_foresight
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

"""Runs with different Ψ are judged by one, counted by hand from the labels of their episodes, or not at all."""

import json

import pytest

from ambs.errors import UserError
from ambs.report.recount import atoms_in
from ambs.report.summary import summarise
from ambs.report.write import text_of
from tests.report.synthetic import make_run

# 40 episodes of 500 frames each: 20 frames in a hazard, 5 of them while touching a vase, 10 in a vase alone.
LABELS = {"": 470, "hazard": 15, "hazard+vase": 5, "vase": 10}


def two_kinds(root, labels=LABELS, **other):
    for seed in (0, 1):
        make_run(root, seed=seed, labels=LABELS)
        make_run(root, seed=seed, method="lag", labels=labels, config={"psi": "!vase & !hazard", **other})
    return root


def violations(part):
    return {group["label"]: group["outcomes"]["violations"]["values"] for group in part["groups"]}


def compared(part):
    return {row["outcome"] for row in part["comparisons"]}


def test_violations_are_counted_by_one_formula(tmp_path):
    """By hand: 40 × 30 frames break `!vase & !hazard` (LAG stands first), 40 × 20 break `!hazard`, 40 × 15 `!vase`."""
    (part,) = summarise([two_kinds(tmp_path)])["environments"]
    assert violations(part) == {"AMBS + COPT": [1200.0] * 2, "DreamerV3 + LAG": [1200.0] * 2}
    (sentence,) = part["unlike"]
    assert "counted again by Ψ = !vase & !hazard, that of PointGoal1-v0-lag-s0" in sentence
    for psi, each in (("!hazard", 800.0), ("P>=0.9 [ G<=30 !vase ]", 600.0), ("hazard -> vase", 600.0)):
        summary = summarise([tmp_path], psi=psi)
        told = "of P>=0.9 [ G<=30 !vase ] only Ψ = !vase counts here: frames that violate it"
        assert (told in summary["notes"]) == psi.startswith("P")
        (part,) = summary["environments"]
        assert violations(part) == {"AMBS + COPT": [each] * 2, "DreamerV3 + LAG": [each] * 2}
        assert compared(part) == {"return", "violations", "violations_per_1000"}
        assert "as asked for" in text_of(summary, "html")
        assert "as asked for" in text_of(summary, "md")


def test_violations_of_older_runs_are_not_compared(tmp_path):
    (part,) = summarise([two_kinds(tmp_path, labels=None)])["environments"]
    assert compared(part) == {"return"}
    assert "violations are not compared: PointGoal1-v0-lag-s0" in part["unlike"][0]
    assert "does not have the labels of 40 of the 40 episodes" in part["unlike"][0]
    with pytest.raises(UserError, match=r"cannot be counted by Ψ = !vase: .* does not have the labels of 40 of"):
        summarise([tmp_path], psi="!vase")


def test_a_formula_must_be_about_what_is_labelled(tmp_path):
    two_kinds(tmp_path)
    with pytest.raises(UserError, match="does not label 'vaze'"):
        summarise([tmp_path], psi="!vaze")


def test_counts_that_do_not_add_up_are_none(tmp_path):
    two_kinds(tmp_path)
    path = next(tmp_path.glob("*lag-s1*")) / "episodes.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[3]["labels"] = {"": 499}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (part,) = summarise([tmp_path])["environments"]
    assert compared(part) == {"return"}
    assert "the labels of 1 of the 40 episodes" in part["unlike"][0]


def test_other_settings_that_differ_are_named(tmp_path):
    two_kinds(tmp_path / "a", training={"frames": 20_000, "action_repeat": 4}, semantics="paper")
    (part,) = summarise([tmp_path / "a"])["environments"]
    assert "action repeat (frames per step) (4 in DreamerV3 + LAG, not set in AMBS + COPT)" in part["unlike"][1]
    assert "semantics (paper in DreamerV3 + LAG, not set in AMBS + COPT)" in part["unlike"][1]
    for seed in (0, 1):
        make_run(tmp_path / "b", seed=seed)
        make_run(tmp_path / "b", seed=seed, method="lag")
    (part,) = summarise([tmp_path / "b"])["environments"]
    assert part["unlike"] == []
    assert compared(part) == {"return", "violations", "violations_per_1000"}


def test_names_come_back_as_they_were_joined():
    assert atoms_in("") == frozenset()
    assert atoms_in('wet+"a+b"+off') == {"wet", "a+b", "off"}

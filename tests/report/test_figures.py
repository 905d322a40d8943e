"""Groups, curves and outcomes against values worked out by hand."""

import json

import numpy as np
import pytest
from scipy import stats

from ambs.apps.quickstart import last_quarter
from ambs.errors import UserError
from ambs.report import levels
from ambs.report.curves import aggregate, common_frames, grid, recent_mean, recent_ratio, total
from ambs.report.groups import colours, group_runs, settings_that_differ
from ambs.report.levels import MOST_LENIENT
from ambs.report.outcomes import OUTCOMES, compared_frames, comparisons, group_outcomes, outcome_of, takes_part
from ambs.report.panels import FORESIGHT, needed_alpha
from ambs.report.paper import COLUMNS, TABLE_1, beside_the_paper
from ambs.report.promise import asked_in_words
from ambs.report.runs import Run, Series, read_run, read_runs
from ambs.report.summary import summarise
from ambs.report.write import text_of
from ambs.shield.config import HIGHEST_LEVEL
from ambs.training import calibration
from tests.report.synthetic import make_run


def bare(tmp_path, seed=0, frames=100, **series):
    """A run of which only these series are known: `name=(frames, values)`."""
    record = {"config": {"seed": seed}, "env": "E", "method": "copt", "seed": seed}
    found = {name: Series(np.asarray(at, float), np.asarray(values, float)) for name, (at, values) in series.items()}
    episodes = {"return": found.pop("return")} if "return" in found else {}
    return Run(tmp_path / f"s{seed}", record, {"frames": frames, "state": "finished"}, found, episodes)


def test_recent_mean(tmp_path):
    run = bare(tmp_path, **{"return": ([10, 10, 20, 60], [1, 3, 5, 7])})
    # Gaps between rows are 10 and 40, their median 25: the window is 50 although 20 was asked for.
    found = recent_mean("episodes", "return")(run, np.array([5.0, 10, 20, 60, 65, 100]), 20.0)
    np.testing.assert_allclose(found, [np.nan, 2, 3, 6, 6, 7])
    assert np.isnan(recent_mean("metrics", "nothing")(run, np.array([5.0]), 1.0)).all()


def test_one_window_for_one_figure(tmp_path):
    """What the quickstart calls the last quarter of a run is what a report means by it."""
    path = make_run(tmp_path, frames=20_000, episodes=40)
    (returns,) = (outcome for outcome in OUTCOMES if outcome.key == "return")
    assert returns.title.endswith("last quarter")
    found = last_quarter(path)
    assert found["episodes"] == 10
    assert outcome_of(read_run(path), returns, 20_000) == pytest.approx(found["return"])


def test_totals_and_ratios(tmp_path):
    run = bare(tmp_path, violations=([20, 40], [10, 20]), decisions=([20, 40], [0, 10]), overrides=([20, 40], [0, 5]))
    at = np.array([10.0, 20, 30, 40])
    np.testing.assert_allclose(total("violations")(run, at, 1.0), [5, 10, 15, 20])
    np.testing.assert_allclose(recent_ratio("violations", "frames", 1000.0)(run, at, 10.0), [500] * 4)
    np.testing.assert_allclose(recent_ratio("overrides", "decisions")(run, at, 10.0), [np.nan, np.nan, 0.5, 0.5])


def test_aggregate_by_hand(tmp_path):
    runs = [bare(tmp_path, seed, violations=([100], [total])) for seed, total in enumerate((100, 200, 300))]
    runs[2].status["frames"] = 0
    runs[2].metrics["violations"] = Series(np.array([50.0]), np.array([150.0]))
    curve = aggregate(runs, total("violations"), np.array([50.0, 100.0]), least=0.0)
    # At 50: 50, 100, 150; at 100 the third run has ended: 100, 200.
    np.testing.assert_allclose(curve.mean, [100, 150])
    np.testing.assert_array_equal(curve.seeds, [3, 2])
    spread = np.array([50 / np.sqrt(3), np.std([100, 200], ddof=1) / np.sqrt(2)])
    half = stats.t.ppf(0.975, [2, 1]) * spread
    np.testing.assert_allclose(curve.high, np.array([100, 150]) + half)
    np.testing.assert_allclose(curve.low, np.maximum(np.array([100, 150]) - half, 0))
    capped = aggregate(runs, total("violations"), np.array([50.0, 100.0]), most=200.0)
    np.testing.assert_allclose(capped.high, np.minimum(np.array([100, 150]) + half, 200))


def test_grid_ends_where_most_runs_do(tmp_path):
    runs = [bare(tmp_path, seed, frames) for seed, frames in enumerate((1000, 990, 500))]
    assert common_frames(runs) == 990
    assert grid(990)[-1] == 990
    assert len(grid(990)) == 160


def test_a_group_is_one_configuration(tmp_path):
    for seed in (0, 1):
        make_run(tmp_path, seed=seed)
        make_run(tmp_path, seed=seed, config={"shielded": False})
    make_run(tmp_path, seed=0, wanted=40_000)  # A repeated seed; the number of frames makes no other experiment.
    make_run(tmp_path, seed=0, method="lag", config={"obs": "vector"})
    make_run(tmp_path, seed=0, method="lag", config={"obs": "both"})
    groups = group_runs(read_runs([tmp_path])[0])["PointGoal1-v0"]
    assert {group.label: (len(group.runs), len(group.doubles)) for group in groups} == {
        'DreamerV3 + LAG (obs="vector")': (1, 0),
        'DreamerV3 + LAG (obs="both")': (1, 0),
        "AMBS + COPT": (2, 1),
        "AMBS + COPT (shield off)": (2, 0),
    }
    numbers = colours({"PointGoal1-v0": groups})
    assert numbers["AMBS + COPT"] == 5
    assert len(set(numbers.values())) == 4
    assert settings_that_differ(groups)["obs"][:2] in (['"vector"', '"both"'], ['"both"', '"vector"'])


def test_many_settings_get_a_short_name_and_a_note(tmp_path):
    """A label names one short setting; others stand in a note that every format shows."""
    for alpha, horizon in ((1.0, 30), (0.2, 6)):
        make_run(tmp_path, config={"agent": {"alpha": alpha}, "shield": {"horizon": horizon}})
    summary = summarise([tmp_path])
    told = {group["label"]: group["note"] for group in summary["environments"][0]["groups"]}
    assert told == {
        "AMBS + COPT (A)": "agent.alpha=1.0, shield.horizon=30",
        "AMBS + COPT (B)": "agent.alpha=0.2, shield.horizon=6",
    }
    assert "agent.alpha=0.2, shield.horizon=6" in text_of(summary, "html")
    assert "AMBS + COPT (B): agent.alpha=0.2, shield.horizon=6" in text_of(summary, "md")


def test_outcomes_by_hand(tmp_path):
    runs = []
    for seed, (level, violations) in enumerate(((10, 100), (20, 300))):
        returns = ([700, 750, 760, 1000], [0, 0, level - 1, level + 1])
        counts = {"violations": ([750, 1000], [violations * 0.5, violations])}
        runs.append(bare(tmp_path, seed, 1000, **{"return": returns}, **counts))
    (group,) = group_runs(runs)["E"]
    found = group_outcomes(group, 1000)
    # In the last quarter: the episodes after frame 750, and the growth of the total since then.
    assert found["return"]["values"] == [10, 20]
    assert found["violations"]["values"] == [100, 300]
    assert found["violations_per_1000"]["values"] == pytest.approx([200, 600])
    assert found["violations"]["mean"] == {"mean": 200, "low": 0, "high": pytest.approx(200 + 12.7062 * 100, rel=1e-5)}
    assert "override_rate" not in found


def test_compared_frames(tmp_path):
    """A short trial and a crash do not shorten the comparison; a method whose runs are all shorter does."""

    def frames_of(*lengths, method="copt", state="finished", first=0):
        runs = [bare(tmp_path, seed, frames) for seed, frames in enumerate(lengths, start=first)]
        for run in runs:
            run.status["state"] = state
            run.record["method"] = method
        return runs

    def compared(*runs):
        return compared_frames(group_runs(list(runs))["E"])

    assert compared(*frames_of(1000, 995, 990)) == 995
    assert compared(*frames_of(1000, 10)) == 1000
    assert compared(*frames_of(1000, 1000, 1000, 10_000)) == 1000
    assert compared(*frames_of(1000, 1000), *frames_of(50, state="failed", first=2)) == 1000
    assert compared(*frames_of(1000, 1000), *frames_of(400, method="lag")) == 400
    assert compared(*frames_of(300, 200, 100, state="running")) == 200
    assert compared(bare(tmp_path, 0, 0)) == 0
    assert [takes_part(run, 1000) for run in frames_of(1000, 985, 970, 0)] == [True, True, False, False]
    assert outcome_of(bare(tmp_path), OUTCOMES[0], 100) is None


def test_verdicts():
    def one(*values):
        return {"return": {"values": list(values)}}

    labels = ["a", "b", "c"]
    rows = comparisons(labels, [one(1.0, 1.1, 1.2), one(9.0, 9.1, 9.3), one(5.0)])
    assert [(row["first"], row["second"], row["verdict"]) for row in rows] == [
        ("a", "b", "supported"), ("a", "c", "no interval"), ("b", "c", "no interval"),
    ]  # fmt: skip
    rows = comparisons(labels, [one(1.0, 2.0, 3.0), one(1.1, 2.5, 2.6), one(3.5, 4.6, 5.0)])
    assert [row["verdict"] for row in rows] == ["not supported", "alone", "alone"]


def test_the_papers_table():
    """Its own claims: the shielded methods violate less than LAG, which has the best return; typed anew from the page."""
    assert sorted(TABLE_1) == [
        ("CarGoal1", 1_000_000), ("PointGoal1", 1_000_000), ("PointGoal1", 10_000_000), ("PointGoal2", 1_500_000),
    ]  # fmt: skip
    pairs = {key: [(cell[1][0], cell[0][0]) for cell in row] for key, row in TABLE_1.items()}
    assert pairs == {
        ("PointGoal1", 1_000_000): [(9354, 17.32), (13937, 17.76), (10766, 18.19), (24996, 19.15)],
        ("PointGoal2", 1_500_000): [(29720, 10.64), (30673, 10.30), (30839, 9.16), (52157, 15.78)],
        ("CarGoal1", 1_000_000): [(11423, 8.87), (13236, 5.86), (14500, 5.96), (28639, 11.23)],
        ("PointGoal1", 10_000_000): [(19039, 16.60), (17049, 19.45), (18320, 18.66), (46153, 19.74)],
    }
    for row in TABLE_1.values():
        lag = row[COLUMNS.index("lag")]
        assert all(cell[1][0] < lag[1][0] and cell[0][0] < lag[0][0] for cell in row[:3])


def test_ours_stands_beside_the_paper_at_its_frames_only(tmp_path):
    for seed in (0, 1):
        make_run(tmp_path, method="copt", seed=seed, frames=1_000_000)
    make_run(tmp_path, method="penl", frames=400_000)
    groups = group_runs(read_runs([tmp_path])[0])["PointGoal1-v0"]
    rows = {row["method"]: row for row in beside_the_paper(groups)}
    assert rows["copt"]["ours"]["seeds"] == 2
    assert 1000 < rows["copt"]["ours"]["violations"]["mean"] < 20_000
    assert (rows["penl"]["ours"], rows["penl"]["why"]) == (None, "reached 400,000 frames")
    assert rows["lag"]["why"] == "no run of this method"
    assert {row["frames"] for row in rows.values()} == {1_000_000}
    assert {row["frames"] for row in beside_the_paper(groups, 10_000_000)} == {10_000_000}
    assert beside_the_paper(groups, 1600) == beside_the_paper([]) == []


def test_needed_alpha(tmp_path):
    make_run(tmp_path)
    make_run(tmp_path, seed=1, config={"shield": {"approximation_error": "much", "horizon": 0}})
    groups = group_runs(read_runs([tmp_path])[0])["PointGoal1-v0"]
    (line,) = needed_alpha(groups)
    assert line["value"] == pytest.approx(0.09**2 / (2 * 30**2))


def test_the_level_in_force_is_told_with_its_reason(tmp_path):
    """Of seeds the range; of a run that was never calibrated, that has no shield, or is from before, what is true of it."""
    settings = {"shield": {"safety_level": 0.1}, "training": {"frames": 20_000}, "calibration": {"false_alarms": 0.05}}
    for seed, level in enumerate((0.25, 0.45)):
        make_run(tmp_path, seed=seed, level=level, config=settings)
    make_run(tmp_path, method="penl", level=0.1, config=settings)
    make_run(tmp_path, method="plpg", level=0.98, config=settings, decided=False)
    make_run(tmp_path, method="lag", level=0.98, config=settings)
    make_run(tmp_path, method="ambs")
    part = summarise([tmp_path])["environments"][0]
    than = "5 % of the decisions that turn out safe would be flagged"
    once = "5 % of the safe windows of held-out worlds would be flagged"
    assert [row["sentence"] for row in part["levels"]] == [
        f"asked for Δ = 0.1; in force Δ = 0.1: no more than {than.replace('would be', 'are')}",
        f"asked for Δ = 0.1; in force Δ = 0.98: at less, more than {once}; 0.98 is the highest there is, and in force before the "
        "first calibration, too",
        f"asked for Δ = 0.1; in force Δ = 0.25 to 0.45 (2 seeds): at less, more than {than}",
    ]
    assert part["levels"][2]["in_force"] == [0.25, 0.45]
    shown = [panel["key"] for panel in part["panels"] if panel["section"] == FORESIGHT]
    assert shown[:3] == ["labels/auroc", "trained/auroc", "memorised/auroc"]
    assert shown[3:] == ["labels/detected", "labels/imagined_per_real", "shield/level"]
    assert MOST_LENIENT == HIGHEST_LEVEL
    assert (levels.BASIS, levels.BY_DECISIONS) == (calibration.BASIS, calibration.BY_DECISIONS)
    for seed, (decided, told) in enumerate(
        ((True, {"shield/calibrated_on": 0.0}), (False, {"shield/by_decisions": 0.0}))
    ):
        found = read_run(make_run(tmp_path / f"more {seed}", level=0.1, config=settings, decided=decided))
        found.metrics.update({name: Series(np.array([20_000]), np.array([value])) for name, value in told.items()})
        (line,) = levels.levels_in_force(*group_runs([found]).values())
        assert line["sentence"].endswith(
            ("nothing to calibrate it on", "safe windows of held-out worlds are flagged")[seed]
        )
    for wrong in ({}, {"safety_level": "<b>"}, {"safety_level": True}, 7):
        make_run(tmp_path / "odd", level=0.3, config={"shield": wrong}, seed=len(str(wrong)))
    assert summarise([tmp_path / "odd"])["environments"][0]["levels"] == []


def test_compared_at_frames_that_were_asked_for(tmp_path):
    make_run(tmp_path, method="copt", frames=1_000_000)
    make_run(tmp_path, method="penl", frames=400_000)
    (part,) = summarise([tmp_path], curves=False, at=800_000)["environments"]
    assert part["frames"] == 800_000
    whole = summarise([tmp_path], curves=False, at=1_000_000)["environments"][0]
    early, late = ({group["method"]: group["outcomes"] for group in found["groups"]} for found in (part, whole))
    assert "violations" not in early["penl"]
    (few,), (all_of_them,) = (found["copt"]["violations"]["values"] for found in (early, late))
    assert 0 < few < all_of_them
    assert [text for text in part["left_out"] if "400,000 of the 800,000" in text]
    given_up = make_run(tmp_path, method="penl", frames=300_000, seed=1, wanted=1_000_000)
    status = json.loads((given_up / "status.json").read_text()) | {"stopped": "return was 1 at frame 300000, below 2"}
    (given_up / "status.json").write_text(json.dumps(status))
    told = summarise([tmp_path], curves=False, at=800_000)["environments"][0]["left_out"]
    assert [text for text in told if "given up by its rule at 300,000 frames" in text and "flatters" in text]
    with pytest.raises(UserError, match="not at 0"):
        summarise([tmp_path], at=0)


def test_across_environments(tmp_path):
    for env in ("A-v0", "B-v0"):
        for seed in (0, 1):
            make_run(tmp_path, env=env, seed=seed)
    rows = summarise([tmp_path], curves=False)["across"]
    assert {(row["label"], *row["environments"], row["runs"]) for row in rows} == {("AMBS + COPT", "A-v0", "B-v0", 4)}


def test_other_settings_are_not_pooled_across_environments(tmp_path):
    """Within one environment the label need not tell the horizon; across two it is another experiment."""
    shield = {"approximation_error": 0.09, "traces": 512}
    make_run(tmp_path, env="A-v0", config={"shield": shield | {"horizon": 30}})
    make_run(tmp_path, env="B-v0", config={"shield": shield | {"horizon": 3}})
    assert summarise([tmp_path], curves=False)["across"] == []
    make_run(tmp_path, env="B-v0", config={"shield": shield | {"horizon": 30}})
    rows = summarise([tmp_path], curves=False)["across"]
    assert {(row["label"], row["runs"]) for row in rows} == {("AMBS + COPT (shield.horizon=30)", 2)}


def test_what_was_asked_is_told_with_what_the_theorems_say(tmp_path):
    """By hand: m ≥ ln(2/.01)/(2·.1²) = 264.9, and for a model four times as many."""
    shield = {"safety_level": 0.3, "approximation_error": 0.1, "horizon": 3, "traces": 200, "rule": "sequential"}
    for method in ("copt", "dreamer"):
        make_run(tmp_path, method=method, config={"shield": shield, "training": {"action_repeat": 4}})
    summary = summarise([tmp_path])
    (asked,) = summary["environments"][0]["asked"]
    assert asked["label"] == "AMBS + COPT"  # The other had no shield.
    assert asked["sentence"].startswith("Δ = 0.3, ε = 0.1, δ = 0.01, n = 3 steps (12 frames), at most 200 futures; as")
    assert (
        "Theorem 1 asks for 265 futures and is not met, Theorem 2 asks for 1060 futures and is not met"
        in asked["sentence"]
    )
    assert asked["sentence"].endswith("; used on average: 80 (AMBS + COPT)")
    assert asked["sentence"] in text_of(summary, "html")
    critics = {"shield": {**shield, "critics": "min"}}
    assert "no theorem applies" in asked_in_words(critics)
    assert "no theorem applies" in asked_in_words({"shield": {**shield, "labels": "mean"}})
    assert "another property" in asked_in_words({"shield": {**shield, "check_initial": False}})
    told = {
        kind: asked_in_words({"shield": {**shield, "kind": kind, "short": 2}})
        for kind in ("recovery", "critic", "latent")
    }
    assert all(sentence.startswith(f"kind {kind}, Δ") for kind, sentence in told.items())
    assert "backup policy is imagined" in told["recovery"]
    assert "no theorem applies" in told["critic"]
    assert f"it looks 2 of {shield['horizon']} steps" in told["latent"]
    assert asked_in_words({"shield": {**shield, "path": "!hazard U<=3 goal"}}).startswith("!hazard U<=3 goal, Δ")
    assert asked_in_words({"shield": {**shield, "traces": "many"}}) is None

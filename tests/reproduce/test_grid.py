"""The grid against the paper's text: which runs there are, and that the commands give the settings they should."""

from pathlib import Path

import pytest

from ambs.errors import UserError
from ambs.reproduce.grid import COMPARISONS, SCALES, Cell, cells, job, panels, wanted
from ambs.sweep.estimate import SPEEDS, Kind, Speed, Work, estimate, seconds, work


def grid(name, scale="paper", seeds=None, **only):
    scale = SCALES[scale]
    return cells(panels(COMPARISONS[name], scale, **only), seeds or scale.seeds)


def named(found):
    """(task, millions of frames, method) of every run, without the second rule of LAG, which the paper does not have."""
    return {(c.panel.task, c.panel.frames / 1e6, c.variant.name) for c in found if c.variant.name != "lag-max"}


def test_the_papers_grid():
    """Table 1 has four columns and four rows; the appendix adds vanilla DreamerV3 and vanilla AMBS; 5 seeds."""
    short = {("PointGoal1", 1.0), ("PointGoal2", 1.5), ("CarGoal1", 1.0)}
    columns = {"penl", "plpg", "copt", "lag"}
    table = {(*row, name) for row in short | {("PointGoal1", 10.0)} for name in columns}
    assert named(grid("table1")) == table
    assert named(grid("figure3")) | named(grid("figure4")) == table
    assert named(grid("appendix")) == {(*row, name) for row in short for name in ("dreamer", "lag", "penl")} | {
        ("PointGoal1", 10.0, name) for name in ("ambs", "penl", "plpg", "copt")
    }
    assert len(grid("figure4")) == 5 * (4 + 1)
    assert {c.panel.train_ratio for c in grid("table1")} == {512.0, 64.0}
    assert {c.seed for c in grid("table1")} == set(range(5))


def test_comparisons_share_runs_and_no_two_have_the_same_folder():
    every = {c for name in COMPARISONS for c in grid(name)}
    folders = [c.folder for name in COMPARISONS for c in grid(name)]
    # 4 tasks × 5 columns, DreamerV3 on three tasks, AMBS on one; 5 seeds.
    assert len(set(folders)) == (4 * 5 + 3 + 1) * 5
    assert len({(c.folder, c.panel.frames, c.panel.train_ratio, c.variant) for c in every}) == len(set(folders))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("semantics", ["corrected", "paper"])
def test_cells_have_the_settings(scale, semantics):
    size = {"paper": "l", "small": "xs", "tiny": "xxs"}[scale]
    for cell in (c for c in grid("table1", scale, seeds=1) if c.variant.name in ("copt", "lag-max")):
        settings = wanted(cell, SCALES[scale], semantics)
        assert (settings["env"], settings["method"]) == (cell.panel.task, cell.variant.method)
        assert settings["training"]["frames"] == cell.panel.frames
        assert settings["model"]["size"] == size
        assert settings["semantics"] == semantics
        assert settings["agent"]["lag_rule"] == (
            "max" if cell.variant.name == "lag-max" or semantics == "paper" else "min"
        )
        assert settings["obs"] == ("vector" if scale == "tiny" else "vision")


def test_updates_at_the_papers_scale():
    """250k updates for 1M frames, about 312k for 10M; the small scale makes half of them, half as large, and
    1250 more early: 20 000 steps at 160 instead of 128."""
    for name, scale, wanted_updates in (
        ("figure3", "paper", 250_000), ("figure4", "paper", 312_500), ("figure3", "small", 126_250),
    ):  # fmt: skip
        cell = grid(name, scale, 1, methods=("copt",), tasks=("PointGoal1",))[0]
        assert work(job(cell, Path(), SCALES[scale])).updates == wanted_updates


def test_a_part_of_the_grid():
    assert named(grid("figure3", tasks=("CarGoal1",), methods=("copt", "lag"))) == {
        ("CarGoal1", 1.0, "copt"), ("CarGoal1", 1.0, "lag"),
    }  # fmt: skip
    for only, says in (({"methods": ("cpot",)}, "no method 'cpot', only penl"), ({"tasks": ("cargoal1",)}, "no task")):
        with pytest.raises(UserError, match=says):
            grid("table1", **only)
    with pytest.raises(UserError, match="none of these"):
        grid("appendix", methods=("ambs",), tasks=("CarGoal1",))
    with pytest.raises(UserError, match="at least 1"):
        cells(panels(COMPARISONS["table1"], SCALES["tiny"]), 0)


def test_estimate_by_hand():
    """1000 turns of 3 ms and decisions of 2 ms, 200 updates of 10 ms: 7 s; with a size that only a larger one is known of."""
    kind = Kind("CarGoal1", "xs", "vision", 512.0, 16)
    speed = Speed("abacus", {"xs": 10.0}, {"s": 2.0}, 1.0, {"CarGoal1": 3.0}, "counting")
    left = Work(kind, 16_000, 1000.0, 200)
    assert seconds(left, speed) == pytest.approx(7.0)
    assert seconds(Work(kind, 16_000, 1000.0, 200, shielded=False), speed) == pytest.approx(6.0)
    assert seconds(Work(kind._replace(size="l"), 16_000, 1000.0, 200), speed) is None
    assert estimate([], {}) == ["Nothing is left to run."]
    assert "(0.2 GPU hours)" in estimate([left], {kind: 10.0}, gpus=0.5)[-1]  # Half of 1600 s.
    assert "About 27 min" in estimate([left], {kind: 10.0})[-1]
    told = " ".join(estimate([left], {}))
    assert "16,000 frames" in told
    assert SPEEDS[0].device in told
    assert SPEEDS[0].source in told
    other = Work(Kind("PointWorld", "xxs", "vector", 1.0, 4), 1600, 1.0, 1)
    assert "was not measured" in estimate([other], {})[-1]


def test_a_cell_has_the_folder_of_results():
    (cell,) = grid("figure3", "small", methods=("copt",), tasks=("PointGoal1",))
    assert isinstance(cell, Cell)
    assert str(cell.folder) == "pointgoal1/copt-s0"

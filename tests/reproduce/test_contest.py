"""What a contest tells of its runs, from rows written by hand."""

import json
import sys
from argparse import Namespace
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture
def contest(monkeypatch):
    monkeypatch.syspath_prepend(TOOLS)
    import contest

    yield contest
    for name in ("contest", "run_results"):
        sys.modules.pop(name)


def write(run, ends):
    """A run with a row of metrics and an episode each 1000 frames: violations 2, 4, … and returns 1, 2, …"""
    run.mkdir(parents=True)
    rows = [{"frames": 1000 * n, "violations": 2 * n, "shield/level": n / 100} for n in range(1, ends + 1)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = [{"frames": 1000 * n, "return": float(n)} for n in range(1, ends + 1)]
    (run / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def test_tables_by_hand(contest, tmp_path):
    runs = {name: write(tmp_path / name, ends) for name, ends in {"a-s0": 40, "a-s1": 50, "b-s0": 60}.items()}
    seen = {"auroc": {"mean": 0.8, "low": 0.7, "high": 0.9}, "ece": {"mean": 0.03}}
    seen["detection"] = {lead: {"0.05": {"mean": mean}} for lead, mean in {"1": 0.5, "5": 0.25}.items()}
    foresight = {"drawn": seen, "stays": {"on": {"median": 6.5, "mean": 8.25}}}
    (runs["b-s0"] / "foresight.json").write_text(json.dumps(foresight))
    sides = {"off": (20.0, 10.0), "on": (5.0, 9.0)}
    paired = {n: {"violations": {"mean": v}, "return": {"mean": r}} for n, (v, r) in sides.items()}
    (runs["b-s0"] / "evaluation.json").write_text(json.dumps(paired | {"level": 0.1}))
    varied = {"a-s0": {"x": 1}, "a-s1": {"x": 1}, "b-s0": {"x": 2}}
    text = contest.told(runs, varied, Namespace(every=25_000, window=10_000, judge=1.0))
    training, same, judged = (table.splitlines() for table in text.split("\n\n"))
    assert training[0] == "| run | by 25,000 | by 50,000 | the end |"
    # The last 32 of returns 1 … n: their mean is n − 15.5, or (n + 1) / 2 if there are no more.
    assert training[2] == "| a-s0 | 50 / 13 | – | 80 / 24.5 (40,000) |"
    assert training[4] == "| b-s0 | 50 / 13 | 100 / 34.5 | 120 / 44.5 (60,000) |"
    # At 40 000 frames, the most that all have reached, 20 violations in the last 10 000: 2 per 1000.
    assert same[0].startswith("| at 40,000 frames | violations | per 1000 in the last 10,000 |")
    assert same[2:] == [
        f"| {name} | 80 | 2 | 24.5 | 0.4 |" for name in ("a-s0", "a-s1", "b-s0", "mean: x=1", "mean: x=2")
    ]
    assert judged[2] == "| a-s0 | – | –, –, – | – | – / – | – | – | – |"
    assert judged[4] == "| b-s0 | 0.8 [0.7, 0.9] | 0.5, 0.25, – | 0.03 | 6.5 / 8.25 | 0.75 | 0.9 | 0.1 |"
    assert judged[5] == "| mean: x=1 | – | –, –, – | – | – / – | – | – | – |"
    assert judged[6] == judged[4].replace("b-s0", "mean: x=2").replace(" [0.7, 0.9]", "")

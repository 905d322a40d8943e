"""Giving up a run by its own rule: judged once, recorded, and the same after a resume."""

import json

import pytest

from ambs.config.resolve import resolve
from ambs.config.settings import StopConfig
from ambs.errors import UserError
from ambs.storage.files import write_atomic
from ambs.storage.run_folder import RunFolder
from ambs.training.early import Verdict, judge
from ambs.training.session import reopen, start
from tests.tiny import tiny_sizes

# Nothing is learned, so that next to nothing need be compiled.
CHANGES = {
    "env": "ambs/Grid-v0",
    "training": {
        "frames": 2000, "envs": 8, "action_repeat": 1, "prefill": 2000, "batch": 2, "length": 6, "capacity": 2000,
        "log_every": 200, "checkpoint_every": 0,
    },
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """Rows at 100, 200 … 500; an episode with each, whose return is its frame."""
    run = RunFolder.create(tmp_path, env="x", method="m", seed=0, config={}, command=[])
    for frames in range(100, 501, 100):
        run.log_episode({"frames": frames, "return": float(frames), "length": 7})
        run.log_metrics({"frames": frames, "violations": frames // 10, "odd": float("nan")})
    run.close()
    return run.path


def test_the_first_row_from_then_on_is_judged(folder):
    """At 250: the row of 300, by when three episodes had returned 100, 200, 300."""
    rule = StopConfig("return", 250, 200.5)
    assert judge(rule, folder, 500) == Verdict(True, "return was 200 at frame 300, below 200.5")
    assert judge(rule, folder, 299) is None
    assert judge(StopConfig("return", 250, 200.0), folder, 500) == Verdict(
        False, "return was 200 at frame 300, not below 200"
    )
    assert judge(StopConfig("violations", 500, 51.0), folder, 500) == Verdict(
        True, "violations was 50 at frame 500, below 51"
    )
    assert judge(StopConfig("violations", 501, 51.0), folder, 10**6) is None
    for name in ("odd", "never"):
        assert judge(StopConfig(name, 100, 51.0), folder, 500) == Verdict(False, f"{name} was not known at frame 100")
    assert judge(StopConfig(), folder, 500) is None


def test_rules_that_cannot_be_meant():
    for changes, says in (
        ({"metric": "return"}, "stop.at must be the frame"),
        ({"metric": ""}, "stop.metric must name"),
    ):
        with pytest.raises(UserError, match=says):
            resolve("quickstart", changes={"stop": changes})


@pytest.mark.learns
def test_a_run_that_gets_nowhere_ends_and_says_why(tmp_path):
    with tiny_sizes():
        for below, ends in ((1e9, True), (-1e9, False)):
            stop = {"metric": "return", "at": 500, "below": below}
            session = start(resolve("quickstart", changes=CHANGES | {"stop": stop}), tmp_path / str(ends), command=[])
            assert session.run() == "finished"
            status = session.folder.read_status()
            assert 500 <= status["frames"] < 1000 if ends else status["frames"] >= 2000
            assert ("stopped" in status, "rule" in status) == (ends, not ends)
            if ends:
                # Killed before it could say so, it is found out, and not played on.
                running = {name: value for name, value in status.items() if name != "stopped"} | {"state": "running"}
                write_atomic(session.folder.path / "status.json", json.dumps(running).encode())
                with pytest.raises(UserError, match="is finished: it was given up by its rule, since return was"):
                    reopen(session.folder.path)
                assert session.folder.read_status() == status

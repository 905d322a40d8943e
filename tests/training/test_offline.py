"""Learning from logs: what is learned from is what was logged, and what comes of it is a run like any other."""

import contextlib
import io
import json

import numpy as np
import pytest

import ambs
from ambs.cli import main as cli
from ambs.errors import UserError
from ambs.spec import parse_formula
from ambs.storage.episodes import write_episode
from ambs.training.offline import fit, limits
from ambs.training.session import begin
from tests.envs.test_logged import episode
from tests.tiny import tiny_sizes

SHORT = {
    "training": {"envs": 2, "batch": 2, "length": 4, "updates_per_call": 1},
    "agent": {"imagination": 2, "imagine_from": 4},
    "shield": {"horizon": 2, "traces": 64, "chunk": 64},
    "calibration": {"every": 0},
}


def files(folder, count=4, **changes):
    """Episodes of 4, 5, … steps, each of which ends in a violating state."""
    paths = []
    for number in range(count):
        one = episode(number, 4 + number, terminated=number == 0)._replace(**changes)
        paths.append(folder / f"{number}.npz")
        write_episode(paths[-1], one)
    return paths


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A run from the command line: its session, its folder and what was printed."""
    folder, sessions = tmp_path_factory.mktemp("logs"), []
    paths = [str(path) for path in files(folder, policy="mine")]
    (folder / "short.json").write_text(json.dumps(SHORT))
    words = ["--spec", "P>=0.9 [ G<=2 !end ]", "--updates", "2", "--config", str(folder / "short.json")]
    with tiny_sizes() as patch, io.StringIO() as printed, contextlib.redirect_stdout(printed):
        kept = lambda *given, **how: sessions.append(begin(*given, **how)) or sessions[0]  # noqa: E731
        patch.setattr("ambs.training.offline.begin", kept)
        with pytest.raises(SystemExit) as stop:
            cli.main(["fit", "--data", *paths, *words, "--out", str(folder / "runs")])
        assert stop.value.code == 0
        (run,) = (folder / "runs").iterdir()
        yield sessions[0], run, printed.getvalue()


@pytest.mark.learns
@pytest.mark.process
def test_the_replay_buffer_holds_what_was_logged(fitted):
    """Dealt: episodes 3 and 0 (8 + 5 rows), and 2 and 1 (7 + 6 rows). Actions reach to 1, proposals are their negatives."""
    trainer = fitted[0].trainer
    assert (trainer.logs.num_envs, trainer.logs.rows) == (2, 13)
    assert trainer.config.training.frames == 22
    rows = trainer.replay.data
    assert trainer.replay.count == 13
    seen = rows.observation["vector"]
    assert seen[:, 0].tolist() == [[3, at] for at in range(8)] + [[0, at] for at in range(5)]
    assert seen[:, 1].tolist() == [[2, at] for at in range(7)] + [[1, at] for at in range(6)]
    assert np.flatnonzero(rows.is_first[:, 0]).tolist() == [0, 8]
    assert np.flatnonzero(rows.proceed[:, 0] == 0).tolist() == [12]
    assert (rows.proceed[:, 1] == 1).all()
    # An action stands beside the observation that it led to, a proposal beside the one that it was made at.
    np.testing.assert_allclose(rows.action[8:, 0, 0], [0, 0, 0.1, 0.2, 0.3], atol=1e-6)
    np.testing.assert_allclose(rows.proposed[8:, 0, 0], [0, -0.1, -0.2, -0.3, np.nan], atol=1e-6)
    np.testing.assert_allclose(rows.reward[:, 1], [0, 201, 202, 203, 204, 205, 206, 0, 101, 102, 103, 104, 105])
    assert np.flatnonzero(rows.labels[:, 0, 0, 0]).tolist() == [7, 12]
    assert not rows.labels[..., 1].any()


@pytest.mark.learns
@pytest.mark.process
def test_a_run_comes_of_it_that_guards(fitted):
    _, run, told = fitted
    assert "It knows 4 episodes of mine, 22 steps; 4 states in them violate !end." in told
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["updates"], status["psi"]) == ("finished", 2, "!end")
    guard = ambs.load(run).guard(lambda o: [0.25], failsafe=[0.0])
    decision = guard.act(np.array([1.0, 1.0], np.float32))
    assert decision.proposed.tolist() == [0.25]
    assert np.isfinite(decision.action).all()


def test_what_cannot_be_learned_from_is_refused(tmp_path):
    paths = files(tmp_path)
    for changes, sentence in (
        ({"data": []}, "no files"),
        ({}, "say so"),
        ({"spec": "!never"}, "no state in these files violates !never"),
        ({"spec": "!elsewhere"}, "elsewhere"),
        ({"spec": "!end", "updates": 0}, "updates must be a whole number of at least 1, got 0"),
    ):
        with pytest.raises(UserError, match=sentence):
            fit(**{"data": paths, "out": tmp_path, "changes": SHORT} | changes)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_what_logs_cannot_tell_is_said():
    """All actions but the first are other than proposed; then none is; and a label that Ψ speaks of never holds."""
    one = episode(1, 4)
    psi = parse_formula("!end & !never")
    told = " ".join(limits([one], psi))
    assert "1 episodes, 4 steps; 1 states in them violate" in told
    assert "In 75% of the steps something else was executed" in told
    assert "The label never never changes" in told
    assert "rewards" not in told
    alone = " ".join(limits([one._replace(proposed=None, reward=None)], parse_formula("!end")))
    assert "Nothing but what the policy proposes was ever executed" in alone
    assert "never changes" not in alone
    assert "nothing of rewards" in alone

"""A whole measurement of an agent that knows nothing, against the world's own tables and a plain evaluation."""

import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ambs.acting.evaluate import evaluate
from ambs.acting.scoring import foresee, of_model
from ambs.acting.worlds import make_envs
from ambs.cli.main import main
from ambs.config.resolve import resolve
from ambs.envs.worlds.grid import Grid
from ambs.foresight import branch, measure
from ambs.foresight.collect import Record, play
from ambs.foresight.entries import entry_figures, stay_figures
from ambs.foresight.figures import cost_figures, discounted, truth
from ambs.streams import at, stream
from tests.tiny import ignorant_agent

pytestmark = pytest.mark.learns

GRID = Grid()
CONFIG = resolve(
    "quickstart",
    changes={
        "env": "ambs/Grid-v0",
        "shield": {"horizon": 1, "traces": 40, "chunk": 20, "safety_level": 0.5, "approximation_error": 0.3},
        "training": {"action_repeat": 1},
    },
)


@pytest.fixture(scope="module")
def agent():
    with ignorant_agent(CONFIG) as made:
        yield made


@pytest.fixture(scope="module")
def record(agent):
    return play(agent, episodes=6, traces=4, keep_every=3, batch=4)


def test_a_record_tells_what_an_evaluation_does(agent, record):
    """The same worlds and noise: violations, lengths and ends of every episode; and the labels are those of the cells."""
    rows = evaluate(agent, 6, shield=False, batch=4)
    for row in rows:
        own = record.episode == row["episode"]
        assert own.sum() == row["steps"]
        assert record.violated[own].sum() == row["violations"]
        assert record.over[own].any() == (row["ended"] == "terminated")
    assert record.violated.any()
    inside = np.flatnonzero(record.episode[1:] == record.episode[:-1])
    np.testing.assert_array_equal(record.unsafe_now[inside + 1], record.violated[inside])
    assert ((record.risk >= 0) & (record.risk <= 1)).all()
    assert np.isfinite([record.cost, record.critic, record.shield]).all()
    assert not record.overridden.any()
    assert (record.action.sum(axis=1) == 1).all()


def test_a_policy_that_is_given_plays_in_place_of_the_clone(agent):
    record = play(agent, episodes=2, traces=4, batch=2, given=lambda observation: 1)
    assert (record.action.argmax(axis=1) == 1).all()
    assert np.isfinite(record.risk).all()


def test_scores_are_those_of_the_shields_own_futures(agent):
    """Asked with the shield's key, the very futures that it decided by; and where it draws labels, the chance of failure is
    the same with less luck in it."""
    near = agent.behind(labels="sample", horizon=3)
    envs = make_envs(near.config, 4)
    raw, infos = envs.reset(seed=0)
    envs.close()
    near.start(4, shield=True)
    decision = near.act(raw, infos["labels"])
    key = at(stream(near.root, "shield"), 0)
    model = of_model(near.player, near.config)
    state, proposed = near.memory.latent, jnp.asarray(near.raw_proposed)
    found = jax.jit(lambda key: foresee(model, key, state, proposed, 20))(key)
    np.testing.assert_allclose(found.shield, (decision.evidence.first_violation[:, :20] > 0).mean(axis=1), rtol=1e-5)
    assert 0.2 < float(found.risk.mean()) < 0.8
    np.testing.assert_allclose(found.risk, found.shield, atol=4.5 * np.sqrt(0.25 / 20))


def test_real_futures_are_the_worlds_own(agent, record):
    """One step ahead the chance to fail is the kernel's, whatever the policy; and every future has luck of its own."""
    kept = record.kept
    assert branch.can_branch(kept)
    cells = np.array([int(own["0.cell"]) for own in kept.snapshot])
    exact = GRID.kernel[cells, kept.proposed.argmax(axis=1)] @ GRID.labels[:, 0]
    risky, harmless = np.flatnonzero((exact > 0.02) & (exact < 0.98))[:10], np.flatnonzero(exact == 0)[:2]
    found = branch.branched(agent, kept, np.concatenate([risky, harmless]))
    assert len(risky) > 4
    assert (found[len(risky) :] == 0).all()
    luck = np.sqrt((exact[risky] * (1 - exact[risky])).sum() / branch.FUTURES)
    assert (found[: len(risky)] - exact[risky]).sum() == pytest.approx(0, abs=4.5 * luck)
    assert len(np.unique(found[: len(risky)])) > 2, "futures of one state differ"


def test_the_command_measures_writes_and_prints(agent, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("ambs.acting.agent.load", lambda *_, **__: agent)
    monkeypatch.setattr("ambs.config.resolve.from_dict", lambda _: CONFIG)
    monkeypatch.setattr("ambs.storage.run_folder.RunFolder.open", lambda _: types.SimpleNamespace(config={}))
    monkeypatch.setattr(measure, "AT_ONCE", 4)
    with pytest.raises(SystemExit) as stop:
        main(["foresight", str(tmp_path), "--episodes", "4", "--traces", "4", "--branched", "2", "--json"])
    assert stop.value.code == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "foresight.json").read_text())
    assert printed["episodes"] == 4
    assert printed["horizon"] == 1
    assert (printed["checkpoint"], printed["level"], printed["asked"]) == (None, 0.5, 0.5)
    assert [row["step"] for row in printed["by_step"]] == [1]
    assert printed["entries"]["off"]["told"] is False
    assert printed["branched"]["states"] == 2
    assert set(printed["costs"]) == {"task", "backup"}
    states = printed["states"]
    assert states["fail"] + states["safe"] == states["counted"] == printed["steps"] - states["violating_now"]
    blurred = {key: printed[key] for key in printed if key != "run"} | {"checkpoint": 12000, "level": 0.7}
    monkeypatch.setattr("ambs.foresight.measure.measure", lambda *_, **__: blurred)
    with pytest.raises(SystemExit):
        main(["foresight", str(tmp_path)])
    told = capsys.readouterr().out
    assert "AUROC" in told
    assert "checkpoint at 12,000 frames; behind its shield Δ = 0.7 is in force where Δ = 0.5 was asked for" in " ".join(
        told.split()
    )
    assert "not told by this world" in told
    with pytest.raises(SystemExit) as stop:
        main(["foresight", str(tmp_path), "--episodes", "0"])
    assert stop.value.code == 2
    assert "--episodes must be a whole number from 1 to 1000000, got 0" in capsys.readouterr().err


def blank(rows: int, **parts) -> Record:
    names = [name for name in Record._fields if name != "kept"]
    found = {
        name: np.zeros(rows, bool)
        if name in ("unsafe_now", "violated", "over", "overridden")
        else np.full(rows, np.nan)
        for name in names
    }
    return Record(**{**found, "episode": np.zeros(rows, int), **{name: np.array(part) for name, part in parts.items()}})


def test_stays_and_entries_by_hand():
    """Two episodes: stays of 2 and 1 steps in the first, one of 3 up to its end, one of 1 at the start of the second."""
    violated = [*[0, 1, 1, 0, 1, 0, 1, 1, 1], *[1, 0, 0]]
    inside = [*[0, 0, 1, 1, 0, 1, 0, 1, 1], *[0, 1, 0]]
    entered = [1, 4, 6, 9]
    forwards, in_view = np.full(12, np.nan), np.full(12, np.nan)
    forwards[entered], in_view[entered] = [0.5, -0.2, 0.1, 0.0], [1, 0, 0, 1]
    found = blank(
        12, episode=[0] * 9 + [1] * 3, violated=np.array(violated, bool), unsafe_now=np.array(inside, bool),
        overridden=np.arange(12) >= 8, forwards=forwards, in_view=in_view,
    )  # fmt: skip
    assert stay_figures(found) == {
        "steps": 12,
        "stays": 4,
        "median": 1.5,
        "mean": 1.75,
        "max": 3,
        "backup_acted": 2 / 7,
    }
    told = {"forwards": 3, "backwards": 1, "out_of_view": 2, "forwards_in_view": 2}
    assert entry_figures(found) == {"entries": 4, "told": True, **told}
    assert stay_figures(blank(3))["median"] is None


def test_discounted_costs_by_hand():
    """γ = ½: costs 0, 2, 4 | 8 give 0 + 1 + 1, 2 + 2, 4 | 8, and of two steps at a time 1, 4, 4 | 8."""
    episode, cost = np.array([0, 0, 0, 1]), np.array([0.0, 2.0, 4.0, 8.0])
    np.testing.assert_allclose(discounted(episode, cost, 0.5, None), [2, 4, 4, 8])
    np.testing.assert_allclose(discounted(episode, cost, 0.5, 2), [1, 4, 4, 8])
    known = truth(episode, np.zeros(4, bool), cost > 0, np.zeros(4, bool), 2)
    found = cost_figures(episode, cost, np.array([2.0, 5.0, 0, 0]), np.array([7.0, 9.0, 0, 0]), known, 2, 0.5)
    # Only of the first two states were two steps played.
    assert (found["states"], found["imagined"], found["real"], found["critic"]) == (2, 3.5, 2.5, 8.0)
    assert found["real_to_the_end"] == 3.0
    assert found["correlation"] == pytest.approx(1.0)

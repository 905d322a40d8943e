"""A small run on `grid` from start to end: stopped and resumed it equals the one that was not, bit by bit."""

import json
import shutil
import subprocess
import sys
import threading
import types

import jax
import numpy as np
import pytest

import ambs
from ambs.acting.act import compiled_act
from ambs.acting.evaluate import evaluate
from ambs.cli.main import main
from ambs.config.resolve import changed, resolve
from ambs.errors import UserError
from ambs.shield import Reason
from ambs.storage import checkpoint
from ambs.storage.run_folder import RunFolder, read_rows
from ambs.training.compiled import compiled_learn
from ambs.training.observers import Observer, weights_and_biases
from ambs.training.resume import capture, reinstate
from ambs.training.session import Session, _without, reopen, start
from ambs.training.trainer import Diverged
from tests.tiny import tiny_sizes

pytestmark = pytest.mark.learns

CONFIG = resolve(
    "quickstart",
    method="copt",
    changes={
        "env": "ambs/Grid-v0",
        "agent": {"imagination": 3, "imagine_from": 16},
        "shield": {"horizon": 4},
        "training": {
            "frames": 1600, "envs": 4, "action_repeat": 1, "prefill": 400, "batch": 4, "length": 8, "train_ratio": 4.0,
            "updates_per_call": 2, "log_every": 200, "checkpoint_every": 500, "capacity": 1200,
        },
        "calibration": {"every": 40, "windows": 256},
    },
)  # fmt: skip


# A process with the small networks of these tests.
TINY_AMBS = (
    "from ambs import config; from ambs.cli.main import main; from tests.tiny import TINY\n"
    "config.SIZES['xxs'] = TINY; main()"
)


@pytest.fixture(scope="module", autouse=True)
def small():
    """What is shown here is the same for networks of any size."""
    with tiny_sizes():
        yield


def whole(out) -> Session:
    session = start(CONFIG, out, command=[])
    assert session.run() == "finished"
    return session


@pytest.fixture(scope="module")
def runs(small, tmp_path_factory) -> tuple[Session, RunFolder]:
    """The run in one go, and the same stopped twice, at moments that no schedule knows; the last part is played by a new
    process."""
    out = tmp_path_factory.mktemp("runs")
    straight = whole(out)
    session = start(CONFIG, out, command=[])
    path = session.folder.path
    stopped_at(session, 133)
    # What a killed process may have logged after its last checkpoint is cut.
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"frames": 99999}\n')
    # Rows that it could not log do not come back.
    status = json.loads((path / "status.json").read_text()) | {"log_error": "No space left on device"}
    (path / "status.json").write_text(json.dumps(status))
    session, skipped = reopen(path)
    assert skipped == ()
    stopped_at(session, 301)
    subprocess.run([sys.executable, "-c", TINY_AMBS, "resume", str(path)], check=True, capture_output=True)
    return straight, RunFolder.open(path)


def stopped_at(session: Session, moment: int) -> None:
    """Run to this turn and stop, as on Ctrl-C."""

    def watch(trainer):
        if trainer.turns == moment:
            session.stop.set()

    session.trainer.observers.append(Observer(turn=watch))
    assert session.run() == "interrupted"
    assert session.folder.read_status()["state"] == "interrupted"


def test_resuming_changes_nothing(runs):
    """Parameters, optimisers, memory, replay, environments; metrics and episodes."""
    straight, resumed = runs
    mine, theirs = (checkpoint.load(folder.checkpoints) for folder in (straight.folder, resumed))
    assert mine.step == theirs.step >= CONFIG.training.frames
    assert set(mine.groups) == set(theirs.groups) >= {"learned", "memory"}
    for group, arrays in mine.groups.items():
        assert set(arrays) == set(theirs.groups[group])
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, theirs.groups[group][name], err_msg=f"{group}/{name}")
    assert len(mine.groups["learned"]) > 50
    for name in ("metrics.jsonl", "episodes.jsonl"):
        rows = [
            [
                {key: value for key, value in row.items() if not key.startswith("time")}
                for row in read_rows(folder.path / name)
            ]
            for folder in (straight.folder, resumed)
        ]
        assert rows[0] == rows[1]
        assert len(rows[0]) >= 8


def test_rows_that_are_missing_stay_on_record(runs):
    assert [folder.read_status()["log_error"] for folder in (runs[0].folder, runs[1])] == [
        None,
        "No space left on device",
    ]


def test_nothing_is_compiled_twice(runs):
    assert compiled_act(CONFIG, True)._cache_size() == 1
    assert compiled_learn(CONFIG, None)._cache_size() == 1


def test_what_is_logged(runs):
    straight, _ = runs
    last = read_rows(straight.folder.path / "metrics.jsonl")[-1]
    training = CONFIG.training
    played = last["agent_steps"] - training.prefill
    assert last["frames"] == last["agent_steps"] >= training.frames
    # 4 / (4·8) updates per agent step, two at a time; the last step's own are not due before the next.
    assert 0 <= played / 8 - last["updates"] <= 3
    wanted = {
        "violations", "overrides", "switches", "traces", "shield/override_rate", "shield/switch_rate", "shield/traces",
        "model/kl", "model/total", "labels/precision", "labels/recall", "labels/false_flags", "time/decision_ms",
        "time/frames_per_second", "time/updates_per_second", "updates/skipped", "violations_per_1000",
    }  # fmt: skip
    assert wanted <= set(last)
    episodes = read_rows(straight.folder.path / "episodes.jsonl")
    finished = sum(row["violations"] for row in episodes) + straight.trainer.accounts.open["violations"].sum()
    assert finished == last["violations"]
    record = json.loads((straight.folder.path / "config.json").read_text())
    assert record["config"]["training"]["frames"] == 1600
    assert record["versions"]["jax"]


def test_worlds_are_the_same_whatever_the_shield_does(runs):
    """Episode by episode each environment draws the same world: the resumed run's own seeds, and those of another method."""
    straight, _ = runs
    other = ambs.make_vector("Grid", 4)
    from ambs.training.trainer import _seed

    other.reset(seed=_seed(CONFIG.seed, "layouts"))
    np.testing.assert_array_equal(other.get_state()["roots"], straight.trainer.envs.get_state()["roots"])


def test_a_finished_run_goes_on_only_for_longer(runs, tmp_path):
    played = runs[0].trainer.accounts.frames
    with pytest.raises(UserError, match=f"is finished: {played} frames are played; --frames with more"):
        reopen(runs[0].folder.path)
    path = shutil.copytree(runs[0].folder.path, tmp_path / "run")
    with pytest.raises(UserError, match=f"is finished: {played} frames"):
        reopen(path, frames=played)
    session, _ = reopen(path, frames=1700)
    assert (session.trainer.accounts.frames, session.trainer.finished) == (played, False)
    session.folder.close()
    session.trainer.close()
    assert RunFolder.open(path).config["training"]["frames"] == 1700


def test_a_poisoned_batch_is_skipped_and_counted(runs):
    trainer = runs[0].trainer
    learn = compiled_learn(CONFIG, None)
    training = CONFIG.training
    place = trainer.replay.draw(np.random.default_rng(0), (training.updates_per_call, training.batch), training.length)
    batches = trainer.replay.windows(*place, training.length)
    batches.reward[0, 1, 2] = np.nan
    before = jax.tree.map(np.array, trainer.learned)
    batches.reward[1] = np.nan
    trainer.learned, metrics = learn(trainer.learned, batches, trainer.root, 0)
    assert (metrics["updates/skipped"], metrics["updates/bad_run"]) == (2, 2)
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(trainer.learned), strict=True):
        np.testing.assert_array_equal(old, new)
    trainer.bad_run = training.max_skipped - 1
    trainer.pending = [metrics]
    with pytest.raises(Diverged, match="non-finite"):
        trainer.gather()
    trainer.bad_run = 0


def test_a_run_without_its_replay_buffer_can_be_loaded_and_not_resumed(small, tmp_path):
    session = start(changed(CONFIG, {"training": {"store_replay": False, "frames": 600}}), tmp_path, command=[])
    stopped_at(session, 133)
    path = session.folder.path
    assert not list((path / "checkpoints" / "replay").iterdir())
    assert ambs.load(path).frames == session.trainer.accounts.frames
    with pytest.raises(UserError, match="its checkpoints hold no replay buffer"):
        reopen(path)
    reopened = checkpoint.load(path / "checkpoints")
    assert reopened.step == session.trainer.accounts.frames  # Nothing was changed.


def test_a_loaded_agent_decides(runs):
    agent = ambs.load(runs[0].folder.path).start(batch=2, seed=1)
    for wrong in ({"batch": 0}, {"batch": 10**9}, {"seed": -1}, {"seed": 10**30}):
        with pytest.raises(UserError, match="must be a whole number"):
            agent.start(**wrong)
    with pytest.raises(UserError, match="restart takes 2 truth values"):
        agent.restart(np.array([0, 1]))
    assert agent.frames == agent.behind(horizon=2).frames == runs[0].trainer.accounts.frames
    cells = np.eye(25, dtype=np.float32)[[0, 6]]
    decision = agent.act(cells)
    assert decision.action.shape == (2,)
    assert set(decision.action.tolist()) <= set(range(5))
    assert agent.explain(decision).split(":")[0] in ("accept", "override")
    # Cell 6 is a hazard, and whoever says so is believed.
    told = agent.start(batch=2).act(cells, labels=[[False, False], [True, False]])
    assert bool(told.overridden[1])
    assert "already violates" in agent.explain(told, 1)
    blind = agent.act(np.zeros((2, 7)))
    assert "must have shape" in agent.refused
    assert blind.overridden.all()
    # Finite is not enough: a cell is 0 or 1, and what is masked is not known. Whoever is sound in the batch decides as before.
    far = cells + np.float32([[0], [1]])
    outside = agent.start(batch=2, seed=1).act(far)
    assert agent.refused == "the vector of observation 1 lies outside the bounds of its space"
    assert outside.reason.tolist() == [decision.reason[0], Reason.NON_FINITE]
    np.testing.assert_array_equal(outside.proposed[0], decision.proposed[0])
    assert agent.act(np.ma.masked_equal(cells, 1)).overridden.all()
    assert "masked" in agent.refused
    with pytest.raises(UserError, match="masked"):
        agent.act(cells, labels=np.ma.masked_all((2, 2), bool))
    np.testing.assert_allclose(agent.behind(label_threshold=0.9).player.thresholds, [0.9, 0.9])
    again = ambs.load(runs[0].folder.path).start(batch=2, seed=1).act(cells)
    np.testing.assert_array_equal(again.proposed, decision.proposed)


def test_an_agent_belongs_to_one_thread(runs):
    """A second one is refused, at once or while the first decides, until it starts episodes of its own."""
    agent = ambs.load(runs[0].folder.path).start(batch=2, seed=1)
    cells, heard = np.eye(25, dtype=np.float32)[[0, 6]], []
    agent.act(cells)

    def elsewhere(begin):
        try:
            heard.append((agent.start(batch=2) if begin else agent).act(cells).action.shape)
        except UserError as error:
            heard.append(str(error))

    for begin in (False, True):
        thread = threading.Thread(target=elsewhere, args=(begin,))
        thread.start()
        thread.join()
    assert "episodes of another thread" in heard[0]
    assert heard[1] == (2,)
    with pytest.raises(UserError, match="episodes of another thread"):
        agent.act(cells)
    with agent._lock:
        for use in (agent.start, lambda: agent.act(cells)):
            with pytest.raises(UserError, match="is deciding in another thread"):
                use()


def test_another_world_is_not_played_in(runs):
    """Its Ψ has changed since: the shield would guard one thing, and another be counted."""
    agent = ambs.load(runs[0].folder.path)
    agent.worlds = lambda count: ambs.make_vector("Grid", count, spec="!goal")
    with pytest.raises(UserError, match="its psi is !goal, and the agent's is !hazard"):
        evaluate(agent, 1)


def test_settings_that_were_changed_are_named_by_whoever_reads_them(runs, tmp_path, capsys):
    """One bit: Δ .3 becomes .7, in a file that is read by `ambs.load`, `ambs eval` and `ambs resume` alike."""
    path = tmp_path / "run"
    shutil.copytree(runs[0].folder.path, path)
    text = (path / "config.json").read_text()
    (path / "config.json").write_text(text.replace('"safety_level": 0.3', '"safety_level": 0.7'))
    named = r"shield.safety_level is 0\.7 in config.json, and was 0\.3"
    with pytest.raises(UserError, match=named):
        ambs.load(path)
    with pytest.raises(UserError, match=named):
        reopen(path)
    with pytest.raises(SystemExit) as stop:
        main(["eval", str(path), "--trust"])
    assert stop.value.code == 2
    assert "and was 0.3" in capsys.readouterr().err


def test_eval_prints_json(runs, capsys, tmp_path, monkeypatch):
    """Five episodes, two at a time, for which the agents above have been compiled."""
    monkeypatch.setattr("ambs.acting.evaluate.TOGETHER", 2)
    path = str(runs[0].folder.path)
    with pytest.raises(SystemExit) as stop:
        main(["eval", path, "--episodes", "5", "--shield", "paired", "--json", "--record", str(tmp_path / "rec")])
    assert stop.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert found["on"]["episodes"] == found["off"]["episodes"] == 5
    assert set(found["difference"]) == {"return", "violations"}
    assert "override_rate" in found["on"]
    assert "override_rate" not in found["off"]
    assert len(found["files"]) == 10
    with np.load(tmp_path / "rec" / "episode-0003-on.npz", allow_pickle=False) as stored:
        steps = stored["action"].shape[0]
        assert stored["first_violation"].shape == (steps, 200)
        assert stored["observation.vector"].shape == (steps, 25)
        # The first state of an episode is the start, in every recorded episode.
        assert stored["observation.vector"][0].argmax() == 0
    facts = json.loads((tmp_path / "rec" / "episode-0003-on.json").read_text())
    assert facts["steps"] == steps


def test_eval_behind_another_shield(runs, capsys):
    path = str(runs[0].folder.path)
    with pytest.raises(SystemExit) as stop:
        main(["eval", path, "--episodes", "1", "--spec", "P>=0.5 [ G<=1 !hazard ]", "--labels", "sample", "--json"])
    assert stop.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert found["changed"] == {"labels": "sample"}
    assert found["spec"] == "P>=0.5 [ G<=1 !hazard ]"
    assert found["asked"] == 0.5
    with pytest.raises(SystemExit) as stop:
        main(["eval", path, "--spec", "P>=0.5 [ G<=1 !lava ]"])
    assert stop.value.code == 2
    assert "known atoms: hazard, goal" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        main(["eval", path, "--labels", "mode", "--shield", "off"])
    assert stop.value.code == 2
    assert "change the shield, and it is off" in capsys.readouterr().err


def test_random_and_backup_policies_can_be_played(runs, capsys):
    path = str(runs[0].folder.path)
    for policy in ("random", "backup"):
        with pytest.raises(SystemExit):
            main(["eval", path, "--episodes", "2", "--shield", "off", "--policy", policy, "--json"])
        assert json.loads(capsys.readouterr().out)["policy"] == policy


def test_the_run_opens_in_tensorboard(runs):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(runs[1].tensorboard))
    events.Reload()
    rows = read_rows(runs[1].path / "metrics.jsonl")
    scalars = events.Scalars("violations")
    assert [(item.step, item.value) for item in scalars] == [(row["frames"], row["violations"]) for row in rows]


def test_rows_go_to_weights_and_biases_if_wanted(runs, monkeypatch):
    calls, ended = [], []
    run = types.SimpleNamespace(log=lambda row, step: calls.append((row, step)), finish=lambda: ended.append(True))
    fake = types.SimpleNamespace(init=lambda **options: calls.append(options) or run)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    sender = weights_and_biases(runs[0].folder)
    assert calls.pop()["id"] == runs[0].folder.path.name
    sender.metrics({"frames": 7})
    sender.episode({"return": 1.0})
    assert (calls, ended) == ([({"frames": 7}, 7)], [])
    sender.close()
    assert ended
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"ambs\[wandb\]"):
        weights_and_biases(runs[0].folder)


def test_only_some_checkpoints_are_kept(runs):
    found = checkpoint.load(runs[0].folder.checkpoints)
    assert found.step == runs[0].trainer.accounts.frames
    kept = [path for path in runs[0].folder.checkpoints.iterdir() if path.name[0].isdigit()]
    assert len(kept) == CONFIG.training.keep


def test_a_damaged_piece_of_the_replay_buffer_costs_its_rows_and_not_the_run(runs, tmp_path):
    """The ring has 300 slots for each of four environments; both checkpoints share the piece of rows 0 … 299."""
    trainer, folder = runs[0].trainer, tmp_path / "checkpoints"
    shutil.copytree(runs[0].folder.checkpoints, folder)
    piece = folder / "replay" / "rows-000000000000.safetensors"
    data = bytearray(piece.read_bytes())
    data[-1] ^= 1
    piece.write_bytes(data)
    found = checkpoint.load(folder)
    assert found.step == trainer.accounts.frames
    reinstate(trainer, found)
    count, updates = trainer.replay.count, trainer.updates
    (sentence,) = _without(found, trainer)
    assert "1 of 1 pieces are damaged (rows-000000000000.safetensors does not match its SHA-256)" in sentence
    assert sentence.endswith(f"going on without {4 * (300 - (count - 300))} steps")
    for _ in range(40):
        trainer.turn()
    assert trainer.updates > updates
    groups, meta, pieces = capture(trainer)
    assert (list(pieces), meta["replay_lost"]) == ([], ["rows-000000000000"])
    meta["positions"] = found.meta["positions"]
    checkpoint.save(folder, trainer.accounts.frames, groups, meta, pieces)
    again = checkpoint.load(folder)
    assert (again.step, again.lost) == (trainer.accounts.frames, {})
    for name in ("refused", "latched"):  # As it was before they were counted.
        del again.groups["memory"][f"carry/{name}"]
    reinstate(trainer, again)
    assert trainer.carry.refused.tolist() == [0] * CONFIG.training.envs
    assert trainer.replay.holes == [(0, 300)]

"""Recorded evaluations of an agent that knows nothing: what the recorder adds is checked against the world's own tables."""

import dataclasses
import functools
import itertools
import json
import operator
from pathlib import Path
from typing import NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binomtest

from ambs.acting.evaluate import evaluate
from ambs.cli.evaluate import Evaluate
from ambs.cli.main import main
from ambs.config.resolve import resolve
from ambs.dynamics import Step
from ambs.envs.snapshot import one_env
from ambs.envs.worlds.grid import Grid, GridEnv
from ambs.envs.worlds.point_world import PointWorldEnv
from ambs.errors import UserError
from ambs.inspector.recording import find, read
from ambs.recording.counterfactuals import Moment, roll_twins
from ambs.recording.examine import (
    MOST_NEAR,
    MOST_OVERRIDES,
    SHARE,
    Budget,
    Details,
    Limits,
    Played,
    _small_world,
    interesting,
)
from ambs.recording.ground_truth import FUTURES, Situation, TrueWorld, safe_futures
from ambs.recording.recorder import Recorder
from ambs.recording.schema import Decided
from tests.inspector.recordings import TRUST
from tests.report.synthetic import add_foresight
from tests.tiny import QUICK, fresh, ignorant_agent

pytestmark = pytest.mark.learns

GRID = Grid()
CONFIG = resolve(
    "quickstart",
    changes={
        "env": "ambs/Grid-v0",
        # One rule for both: an ignorant model gives every label the same, small chance.
        "shield": {"horizon": 3, "traces": 40, "chunk": 20, "labels": "sample", "safety_level": 0.5, "approximation_error": 0.3},
        "model": {"positive_weight": 3.0},
        "training": {"action_repeat": 1},
    },
)  # fmt: skip


@pytest.fixture(scope="module")
def agent():
    with ignorant_agent(CONFIG) as made:
        yield made


@pytest.fixture(scope="module")
def small_batches():
    """Two episodes at a time, so that three are a batch and a half."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ambs.acting.evaluate.TOGETHER", 2)
        yield


@pytest.fixture(scope="module")
def recorded(agent, small_batches, tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    recorder = Recorder(agent, folder, None, foresight=TRUST)
    recorder.budget.begun -= 1000  # No test should depend on how fast the machine is.
    rows = evaluate(agent, 3, watch=recorder)
    files = recorder.close()
    return folder, files, rows


def cell_of(place):
    return int((2 - place[1]) * 5 + place[0] + 2)


def test_futures_are_those_that_decided(recorded):
    """Imagined again, every trace breaks where it broke; the worst come first; twins go where the kernel allows."""
    folder, files, rows = recorded
    assert [path.rpartition("/")[2] for path in files] == [f"episode-000{k}-on.npz" for k in range(3)]
    for path, row in zip(files, rows, strict=True):
        facts = json.loads((folder / path).with_suffix(".json").read_text())
        with np.load(path, allow_pickle=False) as stored:
            part = {name: stored[name] for name in stored.files}
        assert read(Path(path)).facts.foresight == TRUST
        assert part["overridden"].sum() == row["overrides"] > 0
        step = part["futures.step"]
        assert 0 < len(step) <= MOST_OVERRIDES + MOST_NEAR
        again, drawn = part["futures.first_violation"], part["first_violation"][step]
        assert (drawn == again)[drawn >= 0].mean() > 0.99
        assert (again >= 0).all()
        worst = np.take_along_axis(again, part["futures.trace"], axis=1)
        earliest = np.where(drawn > 0, drawn, 99).min(axis=1)
        assert (worst[:, 0] == earliest).mean() > 0.95
        assert part["futures.labels"].shape == (len(step), 4, 3, 1, 2)
        cells = part["observation.vector"].argmax(axis=1)
        np.testing.assert_array_equal([cell_of(place) for place in part["scene.robot"]], cells)
        imagined = [cell_of(place) for place in part["futures.robot"][:, 0, 0]]
        np.testing.assert_array_equal(imagined, part["futures.vector"][:, 0, 0].argmax(axis=-1))
        for at, way in zip(part["twin.step"], part["twin.robot"], strict=True):
            assert part["overridden"][at]
            assert GRID.kernel[cells[at], part["proposed"][at], cell_of(way[0])] > 0
        unseen = facts["left_out"]["twins"]
        with_traces = (part["overridden"] & (part["traces_used"] > 0)).sum()
        assert len(part["twin.step"]) + unseen == with_traces


def test_recording_changes_no_decision(agent, recorded):
    """Bit by bit: every action, proposal and count of futures, and so the sums."""
    _, files, rows = recorded
    decisions = {}

    class Watcher:
        def decided(self, first, seen):
            for env in seen["live"]:
                decisions.setdefault(first + env, []).append((seen["action"][env], seen["decision"], env))

        def stepped(self, first, seen):
            pass

        def played(self, first, envs):
            pass

    assert evaluate(agent, 3, watch=Watcher()) == rows
    assert list(decisions) == [0, 1, 2]
    for episode, path in enumerate(files):
        with np.load(path) as stored:
            np.testing.assert_array_equal(stored["action"], [action for action, *_ in decisions[episode]])
            for name in ("proposed", "p_safe", "traces_used", "first_violation"):
                plain = [
                    getattr(decision.evidence if name == "first_violation" else decision, name)[env]
                    for _, decision, env in decisions[episode]
                ]
                np.testing.assert_array_equal(stored[name], np.array(plain))
            assert np.isnan(stored["milliseconds"][0])


def test_what_goes_wrong_costs_no_more_than_it_must(agent, recorded, monkeypatch, tmp_path, capsys):
    """Maps that fail, a fault in the second episode's third step and a Ctrl-C later on: what was played is on the disk, with
    pictures instead of maps, and every action before the fault is that of a plain evaluation."""
    calls = itertools.count(1)
    step = GridEnv.step

    def troubled(self, action):
        call = next(calls)
        if call == 6:
            raise ValueError("broken on purpose")
        if call == 12:
            raise KeyboardInterrupt
        return step(self, action)

    def no_map(self):
        raise ValueError("no map of this place")

    monkeypatch.setattr(GridEnv, "step", troubled)
    monkeypatch.setattr(GridEnv, "map_scene", no_map)
    monkeypatch.setattr("ambs.acting.agent.load", lambda *_, **__: agent)
    command = Evaluate(tmp_path, episodes=2, record=tmp_path / "here", json=True)
    measured = add_foresight(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        command._play()
    # Calls 1 to 6 are three steps of both; 7 is of the first alone, 8 to 11 are of both again.
    for path, known, count in zip(find(tmp_path / "here"), recorded[1][:2], (6, 3), strict=True):
        found = read(path)
        assert found.facts.steps == count
        assert found.facts.foresight["auroc"] == measured["shield"]["auroc"]
        assert found.scene.robot is None
        assert found.steps.picture.std() > 0
        with np.load(known) as stored:
            np.testing.assert_array_equal(found.steps.action, stored["action"][:count])
            np.testing.assert_array_equal(found.steps.decided.first_violation, stored["first_violation"][:count])
    assert not list((tmp_path / "here").glob(".tmp-*"))
    with pytest.raises(UserError, match="already holds recorded episodes"):
        command._play()
    (tmp_path / "foresight.json").write_text("{")
    assert command._foresight() is None
    assert "note: foresight.json cannot be read" in capsys.readouterr().err


def test_the_recording_can_be_inspected(recorded):
    folder, *_ = recorded
    with pytest.raises(SystemExit) as stop:
        main(["inspect", str(folder)])
    assert stop.value.code == 0
    assert len(list(folder.glob("*.html"))) == 3


def test_truth_and_twins_are_the_worlds_own(agent):
    """One step ahead the truth is the kernel's, whatever the policy; and a twin of an executed action, with the noise that
    the world had in store, arrives where the episode did."""
    near = agent.behind(horizon=1)
    other = near.held_to("P>=0.6 [ X hazard ]")
    exact, moments, arrived = [], [], []

    class Watcher:
        def decided(self, first, seen):
            state, latent = seen["envs"].get_state(), jax.device_get(near.memory.latent)
            for env in seen["live"]:
                mine = jax.tree.map(operator.itemgetter(env), latent)
                proposed, own = np.asarray(near.raw_proposed)[env], one_env(state, env)
                moments.append(Moment(env, near.steps - 1, mine, proposed, own, seen["labels"][env]))
                cell = int(own["0.cell"])
                exact.append(1 - GRID.kernel[cell, int(proposed.argmax()), GRID.labels[:, 0]].sum())

        def stepped(self, first, seen):
            arrived.extend(seen["infos"]["labels"][env] for env in seen["live"])

        def played(self, first, envs):
            for twin, labels in zip(roll_twins(near, envs, moments[:30], 1), arrived, strict=False):
                assert twin.labels[0, 0].tolist() == labels.tolist()
                assert twin.violation == int(labels[0])
            # Of another path formula it is that which is lost, and not Ψ.
            for twin, labels in zip(roll_twins(other, envs, moments[:30], 1), arrived, strict=False):
                assert twin.violation == int(not labels[0])

    evaluate(near, 2, shield=False, watch=Watcher())
    details = Details(near, Budget())
    risky = [index for index, chance in enumerate(exact) if chance < 1][:5]
    assert len(risky) == 5
    for index in [0, *risky]:
        found = details._truth(Played(near.root, moments=moments), index)
        assert binomtest(found, FUTURES, exact[index]).pvalue > 1e-4


def test_the_true_world_is_asked_as_the_agent_acts(agent):
    """In bfloat16 where the agent acts so, and with actions stretched to the environment's own bounds: pushed along the first
    axis, −2 … 2, by all the policy can, a world that breaks above 1.5 breaks; by half, it does not."""

    def dynamics(key, state, action):
        return Step(state, jnp.array([[False, False]]).at[0, 0].set(action[0] > 1.5), jnp.array(True))

    near, size = agent.behind(horizon=1), agent.interface.spec.actions
    bounds = {"low": np.full(size, -2.0), "high": np.full(size, 2.0)}
    stretched = dataclasses.replace(agent.interface, discrete=False, **bounds)
    true = TrueWorld(lambda snapshot: snapshot, dynamics, lambda state: jnp.zeros(25))
    bound = functools.partial(safe_futures, config=near.config, interface=stretched, true=true, dtype=jnp.bfloat16)
    latent = jax.tree.map(operator.itemgetter(0), near.start().memory.latent)
    push = np.zeros(size, np.float32)
    asked = jax.jit(bound, compiler_options=QUICK)
    for strength, safe in ((1.0, 0), (0.5, FUTURES)):
        push[0] = strength
        arguments = (near.player, fresh(), Situation(jnp.zeros(()), latent), push)
        assert asked(*arguments) == safe
    assert "bf16" in asked.lower(*arguments).as_text()


@pytest.mark.parametrize("kind", ["recovery", "critic"])
def test_the_true_world_is_asked_what_the_shield_asks(agent, kind):
    """After an action that does no harm, the task policy breaks the world and the backup policy does not."""

    class Pushes(NamedTuple):
        strength: jax.Array

        def act(self, key, latent):
            return jnp.zeros(agent.interface.spec.actions).at[0].set(self.strength)

    class Actors(NamedTuple):
        task: Pushes = Pushes(jnp.ones(()))
        backup: Pushes = Pushes(jnp.zeros(()))

    def dynamics(key, state, action):
        return Step(state, jnp.array([[False, False]]).at[0, 0].set(action[0] > 0.5), jnp.array(True))

    near, size = agent.behind(kind=kind, horizon=2), agent.interface.spec.actions
    bounds = {"low": np.full(size, -1.0), "high": np.full(size, 1.0), "discrete": False}
    world = TrueWorld(lambda snapshot: snapshot, dynamics, lambda state: jnp.zeros(25))
    plain = dataclasses.replace(agent.interface, **bounds)
    latent = jax.tree.map(operator.itemgetter(0), near.start().memory.latent)
    bound = functools.partial(safe_futures, config=near.config, interface=plain, true=world)
    asked = jax.jit(bound, compiler_options=QUICK)
    player, here = near.player._replace(actors=Actors()), Situation(jnp.zeros(()), latent)
    found = asked(player, fresh(), here, jnp.zeros(size))
    assert found == (FUTURES if kind == "recovery" else 0)


def test_only_our_small_worlds_as_they_are_have_a_truth(monkeypatch):
    closed = []
    monkeypatch.setattr(GridEnv, "close", lambda self: closed.append(self))
    assert _small_world("Grid") is not None
    assert len(closed) == 1
    built = gymnasium.envs.registration.EnvSpec(
        "ambs/Slower-v0", entry_point=lambda: gymnasium.wrappers.RescaleAction(PointWorldEnv(), -0.5, 0.5)
    )
    monkeypatch.setitem(gymnasium.registry, built.id, built)
    assert _small_world("Slower") is None
    assert _small_world("PointGoal1") is None


def test_what_is_worth_a_look():
    """All overrides by futures, up to a number; of the accepted steps those with the most violating futures."""
    made = Decided(**{field.name: np.zeros(200, int) for field in dataclasses.fields(Decided)})
    made = dataclasses.replace(made, overridden=np.zeros(200, bool), traces_used=np.full(200, 20))
    steps = np.arange(0, 100, 2)
    made.overridden[steps], made.reason[steps], made.violating[steps] = True, 1, 15
    made.reason[10], made.traces_used[10] = 4, 0
    made.violating[[151, 171]] = 3, 5
    found = interesting(made)
    assert found.near == [171, 151]
    assert len(found.overrides) == MOST_OVERRIDES
    assert found.overrides[0] == 0
    assert found.overrides[-1] == 98
    every = [step for step in range(0, 100, 2) if step != 10]
    assert sorted(found.overrides + found.passed_over) == every
    assert interesting(made, Limits.asked("all")) == (every, [171, 151], [])
    made.violating[101:150] = 1
    assert len(interesting(made).near) == MOST_NEAR
    assert len(interesting(made, Limits.asked("all")).near) == 51
    few = interesting(made, Limits.asked(1))
    assert (few.near, len(few.overrides), len(few.passed_over)) == ([171], 1, 48)


def test_the_budget_is_a_share_of_the_evaluation():
    now = [0.0]
    budget = Budget(lambda: now[0])

    def work(seconds):
        now[0] += seconds

    work(10)
    assert budget.left()
    budget.timed(work)(10 * SHARE - 0.1)
    assert budget.left()
    budget.timed(work)(0.2)
    assert not budget.left()
    work(1)
    assert budget.left()
    patient = Budget(lambda: now[0], share=Limits.asked("all").share)
    patient.timed(work)(1000)
    assert patient.left()

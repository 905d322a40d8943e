"""Shields that see the world itself, against the kernel of `grid`; and agents that are held to other formulas."""

import importlib.util
from pathlib import Path

import jax
import numpy as np
import pytest

from ambs.acting.prescient import Prescient
from ambs.config.resolve import changed, resolve
from ambs.envs.worlds.grid import Grid
from ambs.errors import UserError
from ambs.shield import Reason, ShieldConfig
from ambs.shield.config import KINDS
from tests.tiny import ignorant_agent

ROOT = Path(__file__).parents[2]
TRACES = 400
SHIELD = {"kind": "prescient", "horizon": 1, "rule": "fixed", "traces": TRACES, "chunk": 64}


@pytest.fixture(scope="module")
def agent():
    settings = resolve("quickstart", changes={"env": "Grid", "training": {"action_repeat": 1}})
    with ignorant_agent(changed(settings, {"shield": SHIELD})) as made:
        yield made


@pytest.fixture
def envs(agent):
    made = agent.worlds(4)
    yield made
    made.close()


def test_one_step_ahead_is_the_kernel(agent, envs):
    """P(no hazard after the proposed action) of some forty decisions; the worlds' own state and chance stay as they are."""
    grid, (raw, infos) = Grid(), envs.reset(seed=3)
    seen = Prescient(agent, envs, seed=1)
    agent.start(4, 0, shield=False)
    errors, overridden = [], 0
    for _ in range(10):
        before, cells = envs.get_state(), np.asarray(raw).argmax(axis=1)
        decision = seen.act(raw, infos["labels"])
        after = envs.get_state()
        assert all(np.array_equal(before[name], after[name]) for name in before)
        arrival = grid.kernel[cells, np.asarray(decision.proposed)]
        exact = 1 - arrival @ grid.labels[:, 0]
        free = ~infos["labels"][:, 0]
        assert (np.asarray(decision.reason)[~free] == Reason.ALREADY_UNSAFE).all()
        errors += (np.abs(decision.p_safe - exact) / np.sqrt(exact * (1 - exact) / TRACES + 1e-6))[free].tolist()
        accepted = agent.config.shield.safety_level - agent.config.shield.approximation_error
        clear = free & (np.abs(1 - exact - accepted) > 0.08)
        assert (decision.overridden == (1 - exact > accepted))[clear].all()
        overridden += int(decision.overridden.sum())
        raw, _, _, _, infos = envs.step(np.asarray(decision.action))
        agent.restart(infos["fresh"])
    seen.close()
    assert max(errors) < 4.5
    assert len(errors) > 20
    assert 0 < overridden < 40


def test_what_is_accepted_keeps_its_promise(agent):
    """Of the actions that were accepted no larger share than Δ came to harm; of the others a larger one did."""
    spec = importlib.util.spec_from_file_location("prescient", ROOT / "benchmarks" / "prescient.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    careful = agent.behind(horizon=2, traces=128, safety_level=0.2, approximation_error=0.15, rule="sequential")
    rows = script.judged(careful, 96, before=4, together=16, seed=5)
    found = script.figures(rows, careful)
    assert found["states"] == 96 == found["accepted"] + found["overridden"] + found["already_unsafe"]
    assert min(found["accepted"], found["overridden"]) > 20
    assert found["p"] < 0.01
    assert found["share_of_overridden"] > 0.2 > found["at_most"]
    # A shield that accepts what it has overridden does not keep it.
    rows["reason"][rows["reason"] != Reason.ALREADY_UNSAFE] = Reason.ACCEPTED
    assert script.figures(rows, careful)["p"] > 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_the_contract_of_every_kind(kind, agent, envs, monkeypatch):
    """The same seed decides the same; whatever is broken, in one world or in all, is overridden by an action that is one."""
    behind = agent.behind(kind=kind, horizon=4, short=3, traces=128)
    raw, infos = envs.reset(seed=3)
    sound = {"raw": raw, "labels": infos["labels"]}
    first, again, other = (decided(behind, envs, **sound, seed=seed) for seed in (1, 1, 2))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert first.traces_used.tolist() == [128] * 4
    assert (first.violating != other.violating).any()
    assert (first.reason != Reason.NON_FINITE).all()
    nowhere, unseen = np.array([2, 2, -1, 2]), np.where(np.arange(4)[:, None] == 2, np.nan, raw)
    for spoiled in ({"proposed": nowhere}, {"raw": unseen}):
        found = decided(behind, envs, **{**sound, **spoiled}, seed=1)
        assert (found.reason == Reason.NON_FINITE).tolist() == [False, False, True, False]
        assert_overridden(found, found.reason == Reason.NON_FINITE)
    for part in ("model", "actors") if kind != "prescient" else ("model", "actors", "simulator"):
        with monkeypatch.context() as patch:
            if part == "simulator":
                patch.setattr("ambs.acting.prescient.failing", broken)
            else:
                patch.setattr(behind, "player", spoilt(behind.player, part))
            found = decided(behind, envs, **sound, seed=1)
        assert (found.reason == Reason.NON_FINITE).all(), part
        assert_overridden(found, np.ones(4, bool))


def decided(agent, envs, raw, labels, seed, proposed=None):
    """What the shield says of the first actions in these worlds."""
    prescient = agent.config.shield.kind == "prescient"
    agent.start(4, seed, shield=not prescient)
    if not prescient:
        return agent.act(raw, labels, proposed)
    seen = Prescient(agent, envs, seed)
    try:
        return seen.act(raw, labels, proposed)
    finally:
        seen.close()


def assert_overridden(decision, where):
    assert decision.overridden[where].all()
    assert np.isin(decision.action, range(5)).all()
    assert (decision.action[where] >= 0).all()


def spoilt(player, part):
    """All numbers of the model, or of both policies, are NaN."""
    broken_part = jax.tree.map(lambda leaf: leaf * np.nan, getattr(player, part))
    return player._replace(**{part: broken_part})


def broken(*_):
    raise UserError("the simulator has raised")


def test_who_has_no_simulator_is_told(agent):
    envs = agent.worlds(1)
    raw, _ = envs.reset(seed=0)
    for alone in (agent.start(1), agent.start(1, shield=True)):  # Nobody acts without the shield that was asked for.
        with pytest.raises(UserError, match="ambs eval"):
            alone.act(raw)
    assert not agent.start(1, shield=False).act(raw).overridden.any()
    with pytest.raises(UserError, match="neither latch nor hold"):
        Prescient(agent.behind(latch=2), envs)
    envs.close()


def test_another_formula_over_the_same_atoms(agent):
    told: list[str] = []
    plain = agent.behind(kind="ambs", critics="max", rolled=1, horizon=2)
    other = plain.held_to("P>=0.6 [ G<=3 (!hazard & !goal) ]", told.append)
    assert other.asked == "P>=0.6 [ G<=3 !hazard & !goal ]"
    assert (other.config.shield.horizon, other.config.shield.critics, other.config.shield.rolled) == (3, None, None)
    assert "left out" in told[0]
    assert told[1:] == ["the backup policy was learned for !hazard: it has not learned to heed goal"]
    envs = other.worlds(1)
    assert str(envs.psi) == str(other.player.model.trace_formula()[0]) == "!hazard & !goal"
    envs.close()
    # Networks are the very same, and the agent itself is held to what it was.
    assert jax.tree.leaves(other.player.model)[0] is jax.tree.leaves(agent.player.model)[0]
    assert str(agent.interface.spec.psi) == "!hazard"
    reaching = plain.held_to("P>=0.6 [ !hazard U<=4 goal ]", told.append)
    assert (reaching.config.shield.path, reaching.config.shield.horizon) == ("(!hazard) U<=4 goal", 4)
    assert str(reaching.interface.spec.psi) == "!hazard | goal"
    assert str(plain.held_to("P>=0.6 [ F<=4 goal ]", told.append).interface.spec.psi) == "!hazard"
    # The critics know !hazard alone, whichever comes first.
    judged, swapped = plain.behind(kind="critic"), "P>=0.6 [ G<=3 !goal ]"
    for swap in (lambda: judged.held_to(swapped), lambda: plain.held_to(swapped, told.append).behind(kind="critic")):
        with pytest.raises(UserError, match="critics were learned for !hazard and cannot judge !goal"):
            swap()
    assert judged.held_to("P>=0.6 [ G<=3 !hazard ]").config.shield.critics_used == "max"
    with pytest.raises(UserError, match="known atoms: hazard, goal"):
        plain.held_to("P>=0.6 [ G<=3 !lava ]", told.append)
    with pytest.raises(UserError, match="must have the form"):
        plain.held_to("P>=0.6 [ F goal ]", told.append)


def test_settings_of_kinds():
    assert ShieldConfig(kind="latent", short=4).steps == 4
    assert ShieldConfig(kind="latent", horizon=3).steps == 3
    assert ShieldConfig(kind="critic").critics_used == "max"
    assert ShieldConfig(kind="recovery", critics="max", rolled=5).steps == 30
    with pytest.raises(UserError, match="kind must be one of"):
        ShieldConfig(kind="ambss")

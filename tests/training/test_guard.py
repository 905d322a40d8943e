"""A shield learned around a policy that is given, in an environment that has no name and cannot be saved."""

import json

import numpy as np
import pytest

import ambs
from ambs.acting.guard import REASONS
from ambs.config.resolve import resolve
from ambs.storage import checkpoint
from ambs.storage.run_folder import RunFolder
from ambs.training.session import start
from tests.tiny import tiny_sizes
from tests.training.worlds import cartpole

SMALL = {
    "training": {
        "envs": 2, "prefill": 60, "batch": 4, "length": 8, "train_ratio": 8.0, "updates_per_call": 1, "capacity": 1000,
        "checkpoint_every": 0, "log_every": 50, "explore": 0.5,
    },
    "shield": {"traces": 64},
    "agent": {"imagination": 2, "backup_imitation": 0.1},
    "model": {"standardise": False},
    "calibration": {"every": 0},
}  # fmt: skip


def balance(observation):
    """Push to where the pole leans."""
    return int(observation[2] > 0)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with tiny_sizes(), pytest.warns(UserWarning, match="^the environment cannot be saved"):
        yield ambs.train_shield(
            lambda: cartpole(),
            policy=balance,
            spec="P>=0.9 [ G<=2 !far ]",
            frames=150,
            out=tmp_path_factory.mktemp("runs"),
            **SMALL,
        )


def test_what_is_remembered_is_what_was_proposed_never_what_was_executed(run):
    """Every row has the policy's own answer to its observation, though half of the time something else was done."""
    config = json.loads((run / "config.json").read_text())["config"]
    assert (config["env"], config["method"], config["training"]["action_repeat"]) == ("given", "guard", 1)
    assert config["shield"]["horizon"] == 2
    rows = checkpoint.load(RunFolder.open(run).checkpoints).groups["replay"]
    seen, proposed, executed = (rows[name] for name in ("observation.vector", "proposed", "action"))
    wanted = np.eye(2)[(seen[..., 2] > 0).astype(int)]
    np.testing.assert_array_equal(proposed, wanted)
    # The action of a row led to it: it answers to the row before.
    played = ~rows["is_first"][1:]
    other = (executed[1:].argmax(-1) != proposed[:-1].argmax(-1))[played]
    assert 0.1 < other.mean() < 0.5


def test_the_run_needs_no_environment_to_guard_the_policy(run):
    guard = ambs.load(run).guard(balance, failsafe=1)
    decision = guard.act(np.array([0.0, 0.0, 0.1, 0.0], np.float32))
    assert decision.proposed == 1
    assert decision.reason in REASONS
    assert decision.action in (0, 1)
    with pytest.raises(ambs.UserError, match="made by a function of the program"):
        ambs.load(run).worlds(1)


def test_an_evaluation_tells_what_the_clone_is_worth(run):
    found = ambs.evaluate(run, cartpole, policy=balance, episodes=2)
    assert found.sides["off"]["return"].mean > 20
    assert found.sides["on"]["override_rate"].mean >= 0
    assert "return per episode" in str(found)
    with pytest.raises(ambs.UserError, match="say which one acts"):
        ambs.evaluate(run, cartpole)


def test_policies_and_methods_must_fit():
    with pytest.raises(ambs.UserError, match="method guard needs the policy"):
        start(resolve("guard"), command=[])
    with pytest.raises(ambs.UserError, match="method copt takes no policy"):
        start(resolve("quickstart"), command=[], policy=balance)
    with pytest.raises(ambs.UserError, match="needs the policy"):
        ambs.train_shield(cartpole, policy=None)


def test_what_only_the_decoder_meets_is_not_shown_to_the_policy():
    """Worlds that are learned from have sensors beside the pictures then, and those that it will be guarded in have none."""
    shown = []

    def policy(observation):
        shown.append(np.shape(observation))
        raise OSError("seen enough")

    changes = {
        "env": "ambs/PointGoal1-v0",
        "obs": "vision",
        "model": {"also_predict": "sensors", "standardise": False},
        "training": {"envs": 1},
    }
    with tiny_sizes(), pytest.raises(ambs.UserError, match="seen enough"):
        start(resolve("guard", changes=changes), command=[], policy=policy)
    assert set(shown) <= {(64, 64, 3), (1, 64, 64, 3)}


def test_a_policy_that_proposes_nothing_is_refused_at_once():
    def policy(observation):
        raise OSError("no weights")

    with pytest.raises(ambs.UserError, match=r"nothing that could be guarded: .*OSError: no weights"):
        start(resolve("guard", changes={"model": {"standardise": False}}), command=[], policy=policy)

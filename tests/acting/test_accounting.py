"""A hand-played episode: what is counted, and when."""

import numpy as np

from ambs.acting.accounting import Accounts, combination
from ambs.envs.vector.vector import Fault
from tests.shield.worlds import accepted


def infos(rewards, violations, valid=None, fresh=(False, False), faults=()):
    violations = np.array(violations, bool)
    valid = np.ones(violations.shape, bool) if valid is None else np.array(valid, bool)
    # Ψ = !hazard; the second environment always stands at the goal.
    goal = np.broadcast_to(np.arange(len(violations))[:, None] % 2 == 1, violations.shape)
    return {
        "frame_labels": np.stack([goal, violations], axis=-1),
        "frame_rewards": np.array(rewards, float),
        "frame_violations": violations,
        "frame_valid": valid,
        "fresh": np.array(fresh),
        "faults": faults,
    }


def decision(overridden, traces=(64, 128)):
    return accepted(np.zeros((2, 1)))._replace(overridden=np.array(overridden), traces_used=np.array(traces))


NEVER = (np.zeros(2, bool), np.zeros(2, bool))


def test_a_run_of_two_environments_by_hand():
    accounts = Accounts(2, ("goal", "hazard"))
    nothing = [[0, 0], [0, 0]]
    # Prefill: nobody decides.
    assert accounts.step(infos([[1, 2], [0, 0]], [[0, 1], [0, 0]]), NEVER, None, False) == []
    # The shield overrides the first, then both, then none: switches 1, then 1, then 2.
    accounts.step(infos(nothing, nothing), NEVER, decision([True, False]), True)
    accounts.step(infos(nothing, [[1, 1], [0, 0]]), NEVER, decision([True, True]), True)
    # The second ends after one of its two frames.
    ended = (np.array([False, True]), np.zeros(2, bool))
    last = infos([[0, 0], [5, 0]], [[0, 0], [1, 0]], valid=[[1, 1], [1, 0]])
    (row,) = accounts.step(last, ended, decision([False, False]), True)
    assert row == {
        "frames": 15, "episode": 0, "env": 1, "start_frame": 0, "length": 7, "steps": 4, "violations": 1, "overrides": 1,
        "switches": 2, "decisions": 3, "traces": 384, "return": 5.0, "cost": 1, "ended": "terminated",
        "labels": {"goal": 6, "goal+hazard": 1},
    }  # fmt: skip
    # The next step starts it anew: no frame, no decision, whatever the shield said.
    accounts.step(
        infos(nothing, nothing, valid=[[1, 1], [0, 0]], fresh=(False, True)), NEVER, decision([True, True]), True
    )
    assert accounts.open["start_frame"][1] == 15
    assert accounts.labels == [{"": 7, "hazard": 3}, {}]
    totals = accounts.totals()
    assert totals == {
        "frames": 17, "agent_steps": 9, "violations": 4, "overrides": 4, "switches": 5, "decisions": 7,
        "traces": 4 * 64 + 3 * 128, "episodes": 1, "faults": 0,
    }  # fmt: skip


def test_a_fault_ends_an_episode_as_such():
    accounts = Accounts(2, ("goal", "hazard"))
    ended = (np.zeros(2, bool), np.array([True, False]))
    broken = infos([[0, 0], [0, 0]], [[0, 0], [0, 0]], faults=(Fault(0, 3, "it fell over"),))
    (row,) = accounts.step(broken, ended, None, False)
    assert (row["env"], row["ended"], accounts.faults) == (0, "fault", 1)


def test_names_of_labels_that_could_be_misread_are_quoted():
    """As a formula writes them, so that `+` stands between names only."""
    assert combination(("wet", "a+b", "off"), b"\1\1\0") == 'wet+"a+b"'
    assert combination(("wet",), b"\0") == ""


def test_abandoned_episodes_leave_nothing_to_those_that_follow():
    accounts = Accounts(2, ("goal", "hazard"))
    accounts.step(infos([[0, 0], [0, 0]], [[0, 0], [0, 0]]), (np.zeros(2, bool), np.zeros(2, bool)), None, False)
    accounts.abandon()
    ended = (np.array([True, True]), np.zeros(2, bool))
    rows = accounts.step(infos([[0, 0], [0, 0]], [[0, 0], [0, 0]]), ended, None, False)
    assert [sum(row["labels"].values()) == row["length"] for row in rows] == [True, True]


def test_an_episode_of_which_not_all_labels_were_counted_has_none():
    """It began in a checkpoint from before they were."""
    accounts = Accounts(2, ("goal", "hazard"))
    accounts.open["length"][0] = 100
    ended = (np.array([True, True]), np.zeros(2, bool))
    rows = accounts.step(infos([[0, 0], [0, 0]], [[0, 0], [0, 0]]), ended, None, False)
    assert [row.get("labels") for row in rows] == [None, {"goal": 2}]

"""Whatever is proposed, seen or foreseen: what reaches the environment is an action of its space, and was checked."""

import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from ambs.dynamics import Step
from ambs.errors import UserError
from ambs.shield import Reason, ShieldConfig, Shielded, ShieldProblem, rollout
from ambs.shield.actions import allowed, last_resort, outside, proposal
from tests.shield.worlds import ATOMS, PSI, Room

BOX = spaces.Box(np.float32([-1, 0]), np.float32([1, 0.5]))
DISCRETE = spaces.Discrete(3)
CONFIG = ShieldConfig(horizon=2, traces=64)


def shielded(space, backup, fallback=None):
    """Behind a shield whose model finds nothing wrong with anything."""

    def dynamics(_key, state, _action):
        return Step(state, jnp.zeros((1, 2), bool), jnp.ones(()))

    still = lambda _key, _state: jnp.asarray(backup)  # noqa: E731
    problem = ShieldProblem(rollout(dynamics, CONFIG.steps), still, still, PSI, ATOMS, CONFIG)
    room = Room(space, fallback)
    wrapped = Shielded(room, problem, read_state=lambda _env, _seen: jnp.zeros(1))
    wrapped.reset()
    return room, wrapped


@pytest.fixture(scope="module")
def box():
    return shielded(BOX, np.float32([0.0, 9.0]), np.float32([0.5, 0.25]))


@pytest.fixture(scope="module")
def discrete():
    return shielded(DISCRETE, 7)


def test_a_proposal_is_cut_before_it_is_judged(box):
    room, wrapped = box
    *_, info = wrapped.step(np.array([5.0, -3.0]))
    assert room.done[-1].tolist() == [1, 0] == info["shield"].proposed[0].tolist()
    assert info["shield"].reason[0] == Reason.ACCEPTED
    assert info["refused"] == ""


@pytest.mark.parametrize(
    ("action", "sentence"),
    [
        (np.zeros(3), "must have shape (2,), got (3,)"), ("ab", "must have shape"), (None, "must have shape"),
        ([1, 2j], "real numbers"), ([True, False], "real numbers"), (["0", "0"], "real numbers"),
        (np.ma.masked_equal([0.0, 1.0], 1), "are masked"), ([[0.0], [0.0, 1.0]], "must be an array"),
    ],
)  # fmt: skip
def test_what_is_no_action_is_refused_and_the_backup_cut(box, action, sentence):
    """The backup wants (0, 9), which is cut to (0, .5)."""
    room, wrapped = box
    *_, info = wrapped.step(action)
    assert sentence in info["refused"]
    assert info["shield"].reason[0] == Reason.NON_FINITE
    assert room.done[-1].tolist() == [0, 0.5] == info["shield"].action[0].tolist()


@pytest.mark.parametrize("action", [[np.nan, 0], [np.inf, 0], [0, -np.inf], [1e300, np.nan]])
def test_infinity_is_not_cut_to_the_bounds(box, action):
    room, wrapped = box
    *_, info = wrapped.step(np.array(action))
    assert info["shield"].reason[0] == Reason.NON_FINITE
    assert room.done[-1].tolist() == [0, 0.5]


@pytest.mark.parametrize("action", [-1, 3, 10**9, 1.0, True, "1", np.array([1])])
def test_a_number_that_is_no_action_is_refused(discrete, action):
    """The backup wants 7, which cannot be cut to anything: the action of last resort, 0, is left."""
    room, wrapped = discrete
    *_, info = wrapped.step(action)
    assert info["refused"]
    assert (int(room.done[-1]), info["shield"].overridden.tolist()) == (0, [True])
    *_, info = wrapped.step(2)
    assert int(room.done[-1]) == 2


@pytest.mark.parametrize("labels", [None, [False, False], np.zeros(2), np.zeros(3, bool), np.ma.masked_all(2, bool)])
def test_labels_that_are_none_override(box, labels):
    room, wrapped = box
    room.labels = labels
    wrapped.reset()
    *_, info = wrapped.step(np.zeros(2))
    room.labels = np.zeros(2, bool)
    wrapped.reset()
    assert "labels" in info["refused"]
    assert info["shield"].reason[0] == Reason.NON_FINITE


def test_an_observation_outside_its_space_overrides(box):
    room, wrapped = box
    for seen, word in ((np.float32([0, 1.5]), "outside"), (np.zeros(3), "shape"), (np.ma.masked_all(2), "masked")):
        room.seen = seen
        wrapped.reset()
        *_, info = wrapped.step(np.zeros(2))
        assert word in info["refused"]
        assert info["shield"].overridden[0]
    room.seen = np.zeros(2, np.float32)
    wrapped.reset()


def test_parts_of_an_observation():
    space = spaces.Dict(image=spaces.Box(0, 255, (2, 2, 3), np.uint8), vector=spaces.Box(-1, 1, (1,)))
    good = {"image": np.zeros((2, 2, 3), np.uint8), "vector": np.zeros(1)}
    assert outside(good, space) == ""
    assert "outside" in outside(good | {"vector": np.array([2.0])}, space)
    assert "must have" in outside({"vector": np.zeros(1)}, space)


def test_fallbacks_must_be_actions():
    for fallback, space in ((np.array([2.0, 0.0]), BOX), (3, DISCRETE), (-1, DISCRETE), (np.array([np.nan, 0]), BOX)):
        with pytest.raises(UserError, match="fallback action must lie in the action space"):
            last_resort(fallback, space)
    assert last_resort(None, BOX).tolist() == [0, 0]
    assert last_resort(None, spaces.Box(2.0, 3.0, (1,))).tolist() == [2]
    assert last_resort(None, spaces.Discrete(3, start=5)) == 5
    with pytest.raises(UserError, match="lie in the action space"):
        shielded(BOX, np.zeros(2, np.float32), np.array([0.0, 9.0]))


def test_whole_numbers_stay_whole():
    whole = spaces.Box(0, 5, (1,), np.int32)
    assert proposal([1.5], whole)[0] is None
    assert proposal([9], whole)[0].tolist() == [5]
    assert allowed(np.array([np.nan]), whole) is None
    switches = spaces.MultiBinary(2)
    assert proposal(np.array([True, False]), switches)[0].tolist() == [True, False]
    assert proposal([0, 2], switches)[0] is None

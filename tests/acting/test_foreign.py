"""Whatever a policy is and does: proposals come, in the action space, and what went wrong is said."""

import threading

import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from ambs.acting.foreign import ForeignPolicy, load_policy
from ambs.errors import UserError

SEEN = spaces.Box(-10, 10, (3,), np.float32)
BOX = spaces.Box(np.float32([-1, 0]), np.float32([1, 0.5]))
OBSERVATIONS = np.float32([[0.5, 0.25, 7], [-3.0, -4.0, 7]])
CUT = [[0.5, 0.25], [-1.0, 0.0]]
"""What `first_two` wants of them, cut to the bounds."""


def first_two(observation):
    return observation[:2]


class Recurrent:
    """Counts the steps of each episode in its memory, and proposes them: Stable-Baselines3's signature and shapes."""

    def __init__(self):
        self.deterministic = []

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        self.deterministic.append(deterministic)
        state = np.zeros((1, len(observation))) if state is None else state[0]
        state = np.where(episode_start, 0.0, state) + 0.1
        return np.stack([state[0], 0 * state[0]], axis=1), (state,)


class Controller:
    """Of one episode: proposes how many observations it has seen since its reset."""

    def __init__(self):
        self.steps = 0

    def reset(self):
        self.steps = 0

    def act(self, observation):
        assert observation.shape == (3,)
        self.steps += 1
        return [self.steps / 10, 0.0]


class Tensor:
    """What PyTorch's look like from outside: no array before gradients are left behind and the accelerator, too."""

    def __init__(self, values, ready=0):
        self.values, self.ready = values, ready

    def detach(self):
        return Tensor(self.values, self.ready + 1)

    def cpu(self):
        return Tensor(self.values, self.ready + 1)

    def __dlpack__(self, **how):
        assert self.ready == 2
        return self.values.__dlpack__(**how)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


def propose(policy, space=BOX, observations=OBSERVATIONS, start=None, **settings):
    asked = ForeignPolicy(policy, SEEN, space, **settings)
    return asked.propose(observations, np.ones(len(observations), bool) if start is None else start)


@pytest.mark.parametrize(
    "policy",
    [
        first_two,
        lambda many: many[:, :2],
        lambda any_number: any_number[..., :2].tolist(),
        lambda one: jnp.asarray(one)[:2],
        lambda one: jnp.asarray(one, jnp.bfloat16)[:2],
        lambda many: Tensor(many[:, :2]),
        lambda one: first_two(one)[None] if one.ndim == 1 else 1 / 0,
    ],
    ids=["one", "batch", "lists", "jax", "bfloat16", "tensor", "batch of one"],
)
@pytest.mark.parametrize("size", [1, 2])
def test_functions_of_one_observation_and_of_many(policy, size):
    proposals = propose(policy, observations=OBSERVATIONS[:size])
    assert proposals.action.tolist() == CUT[:size]
    assert proposals.action.dtype == np.float32
    assert not proposals.failed.any()
    assert proposals.why == [""] * size
    assert proposals.milliseconds > 0


def test_how_it_is_asked_is_found_out_once():
    shapes = []
    asked = ForeignPolicy(lambda many: shapes.append(many.shape) or many[:, :2], SEEN, BOX)
    for size in (1, 1, 2):
        asked.propose(OBSERVATIONS[:size], np.zeros(size, bool))
    assert shapes == [(3,), (1, 3), (1, 3), (2, 3)]


def test_memory_is_kept_for_each_episode_and_forgotten_with_it():
    asked = ForeignPolicy(Recurrent(), SEEN, BOX)
    starts = [[True, True], [False, False], [False, True], [False, False]]
    counted = [asked.propose(OBSERVATIONS, np.array(start)).action[:, 0].tolist() for start in starts]
    np.testing.assert_allclose(counted, [[0.1, 0.1], [0.2, 0.2], [0.3, 0.1], [0.4, 0.2]], atol=1e-6)
    asked.reset()
    np.testing.assert_allclose(asked.propose(OBSERVATIONS, np.zeros(2, bool)).action[:, 0], 0.1, atol=1e-6)
    np.testing.assert_allclose(asked.propose(OBSERVATIONS[:1], np.zeros(1, bool)).action[:, 0], 0.1, atol=1e-6)
    assert asked.policy.deterministic == [True] * 6
    wild = Recurrent()
    propose(wild, deterministic=False)
    assert wild.deterministic == [False]


def test_controllers_of_one_episode_get_copies_and_resets():
    asked = ForeignPolicy(Controller(), SEEN, BOX)
    starts = [[True, True], [False, False], [False, True]]
    counted = [asked.propose(OBSERVATIONS, np.array(start)).action[:, 0].tolist() for start in starts]
    np.testing.assert_allclose(counted, [[0.1, 0.1], [0.2, 0.2], [0.3, 0.1]], atol=1e-6)


def test_choices():
    proposals = propose(lambda one: int(one[0] > 0) * 2, spaces.Discrete(3))
    assert proposals.action.tolist() == [2, 0]
    refused = propose(lambda many: np.array([1, 3]), spaces.Discrete(3))
    assert refused.action.tolist() == [1, 0]
    assert refused.failed.tolist() == [False, True]
    assert "is not one of Discrete(3)" in refused.why[1]


def stop(_observation):
    raise SystemExit(3)


def spoil(observation):
    observation[:] = 0
    raise ArithmeticError("two\nlines")


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        (spoil, "raised ArithmeticError: two lines"),
        (stop, "raised SystemExit: 3"),
        (lambda _: np.zeros(3), "must have shape (2,), got (3,)"),
        (lambda _: None, "must have shape (2,), got ()"),
        (lambda _: ["a", "b"], "real numbers"),
        (lambda _: [np.nan, 0], "is not finite"),
        (lambda _: [np.inf, 0], "is not finite"),
        (lambda _: [[1], [1, 2]], "raised ValueError"),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_told_and_nothing_raised(policy, sentence):
    seen = OBSERVATIONS[:1].copy()
    proposals = propose(policy, observations=seen)
    assert proposals.failed.tolist() == [True]
    assert sentence in proposals.why[0]
    assert proposals.action.tolist() == [[0, 0]]
    assert (seen == OBSERVATIONS[:1]).all()


def test_one_bad_row_is_not_the_others_fault():
    """The second observation is not finite; nor is what a network makes of it, memory included."""
    proposals = propose(lambda many: many[:, :2], observations=np.float32([[0.5, 0.25, 0], [np.nan, 0, 0]]))
    assert proposals.failed.tolist() == [False, True]
    assert proposals.action[0].tolist() == [0.5, 0.25]

    class Poisoned(Recurrent):
        def predict(self, observation, state=None, episode_start=None, deterministic=False):
            action, (state,) = super().predict(observation, state, episode_start, deterministic)
            return action, (state + 0 * observation[:, 0],)

    asked = ForeignPolicy(Poisoned(), SEEN, BOX)
    for seen in (OBSERVATIONS[:1], OBSERVATIONS[:1] * np.nan, OBSERVATIONS[:1]):
        found = asked.propose(seen, np.zeros(1, bool))
    np.testing.assert_allclose(found.action[0, 0], 0.2, atol=1e-6)


def test_observations_that_are_none():
    proposals = propose(first_two, observations=np.zeros((2, 4), np.float32))
    assert proposals.failed.all()
    assert "must have shape (2, 3), got (2, 4)" in proposals.why[0]
    both = ForeignPolicy(lambda seen: seen["a"][:2], spaces.Dict({"a": SEEN, "b": SEEN}), BOX)
    assert not both.propose({"a": OBSERVATIONS, "b": OBSERVATIONS}, np.ones(2, bool)).failed.any()
    assert "the parts a, b" in both.propose({"a": OBSERVATIONS}, np.ones(2, bool)).why[0]


def test_interrupts_pass():
    def interrupted(_observation):
        raise KeyboardInterrupt

    for limit in (None, 1000.0):
        with pytest.raises(KeyboardInterrupt):
            propose(interrupted, limit_ms=limit)


def test_nobody_waits_for_a_policy_that_is_late():
    """The second answer comes only when the third has been asked for."""
    waits = iter((False, True, False))
    back = threading.Event()

    def slow(observation):
        if next(waits):
            back.wait()
        return observation[:2]

    asked = ForeignPolicy(slow, SEEN, BOX, limit_ms=200.0)
    found = [asked.propose(OBSERVATIONS[:1], np.zeros(1, bool)) for _ in range(3)]
    back.set()
    assert [one.failed[0] for one in found] == [False, True, True]
    assert found[1].why == ["the policy took longer than 200 ms"]
    assert found[1].milliseconds >= 200
    assert found[2].why == ["the policy is still busy with an earlier observation"]
    asked._running.join()
    assert not asked.propose(OBSERVATIONS[:1], np.zeros(1, bool)).failed.any()


def test_a_policy_is_loaded_by_its_factory(tmp_path, monkeypatch):
    (tmp_path / "beside.py").write_text("GAIN = 2.0\n")
    text = (
        "from beside import GAIN\n"
        "def make():\n    return lambda o: GAIN * o[:2]\n"
        "class Model:\n    def predict(self, o):\n        return o[..., :2]\n"
        "model = Model()\n"
        "def number():\n    return 3\n"
        "def needs(argument):\n    return argument\n"
    )
    (tmp_path / "mine.py").write_text(text)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    for place in (f"{tmp_path}/mine.py", "mine"):
        assert propose(load_policy(f"{place}:make")).action.tolist() == [[1, 0.5], [-1, 0]]
        assert propose(load_policy(f"{place}:model")).action.tolist() == CUT
    for wrong, sentence in {
        f"{tmp_path}/mine.py:gone": "has no function 'gone'",
        "mine:gone": "has no function 'gone'",
        f"{tmp_path}/mine.py:number": "got int",
        f"{tmp_path}/mine.py:needs": "takes no arguments",
        f"{tmp_path}/broken.py:make": "ZeroDivisionError",
        f"{tmp_path}/gone.py:make": "there is no file",
        "no_such_module:make": "cannot be imported",
        "json:loads": "part of Python",
        "ppo.zip": "loaded by a factory of yours",
    }.items():
        with pytest.raises(UserError, match=sentence):
            load_policy(wrong)


def test_what_is_no_policy_is_refused():
    with pytest.raises(UserError, match="got int"):
        ForeignPolicy(3, SEEN, BOX)
    with pytest.raises(UserError, match="the class Controller"):
        ForeignPolicy(Controller, SEEN, BOX)
    with pytest.raises(UserError, match="above 0"):
        ForeignPolicy(first_two, SEEN, BOX, limit_ms=0.0)

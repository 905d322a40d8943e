"""A guard around policies that are good, bad and broken; the agent itself has learned nothing, and its shield lets all pass."""

import dataclasses
import inspect
import time

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ambs
from ambs.acting.guard import FAILED, REASONS
from ambs.acting.imagined import acting_on_decoded, in_model_terms
from ambs.config.resolve import resolve
from ambs.errors import UserError
from tests.tiny import fresh, ignorant_agent

# No label is ever certain, so that no imagined future violates Ψ.
SHIELD = {"horizon": 2, "traces": 100, "chunk": 50, "labels": "mode", "label_threshold": 1.0}
CONFIG = resolve("guard", changes={"shield": SHIELD, "model": {"standardise": False}})
UNSAFE = np.array([[True, False]])
FAILSAFE = [0.25, -0.5]


@pytest.fixture(scope="module")
def agent():
    with ignorant_agent(CONFIG) as made:
        yield made


@pytest.fixture
def seen():
    env = ambs.make("PointWorld")
    observation, _ = env.reset(seed=3)
    return observation


def steady(observation):
    """A policy that always proposes the same, which no other scale can tell exactly."""
    return np.array([0.1, -1 / 3], np.float32)


def test_what_is_accepted_is_executed_to_the_bit(agent, seen):
    guard = agent.guard(steady)
    decision = guard.act(seen)
    assert not decision.overridden
    assert (decision.reason, decision.why, decision.p_safe) == ("accepted", "", 1.0)
    assert decision.action.tobytes() == decision.proposed.tobytes() == steady(seen).tobytes()
    assert decision.milliseconds > decision.policy_milliseconds > 0
    np.testing.assert_allclose(agent.memory.action, [steady(seen)], rtol=1e-6)


def test_a_jax_policy_acts_in_imagination_itself(agent, seen):
    """On what the model decodes, in the units and bounds of the environment; what is not finite there overrides."""
    latent = jax.tree.map(lambda leaf: leaf[0], agent.start().memory.latent)
    bounds = {"low": np.array([-2.0, 0.0]), "high": np.array([2.0, 4.0])}
    acting = in_model_terms(
        lambda _key, observation: jnp.array([1.0, 1.0]) + 0 * observation[:2],
        dataclasses.replace(agent.interface, **bounds),
    )
    np.testing.assert_allclose(acting_on_decoded(agent.player.model, acting)(fresh(), latent), [0.5, -0.5])
    plain = in_model_terms(lambda _key, observation: observation[:2], agent.interface)
    decoded = agent.player.model.decoder(latent.features)["vector"]
    expected = np.clip(np.sign(decoded) * np.expm1(np.abs(decoded)), -1, 1)[:2]
    np.testing.assert_allclose(acting_on_decoded(agent.player.model, plain)(fresh(), latent), expected, rtol=1e-5)
    assert agent.guard(steady, imagined=lambda _key, observation: observation[:2]).act(seen).reason == "accepted"
    lost = agent.guard(steady, imagined=lambda _key, observation: observation[:2] * jnp.nan).act(seen)
    assert (lost.reason, lost.overridden) == ("non_finite", True)
    for policy, told in (
        (steady, "JAX cannot trace"),
        (lambda _k, o: o, r"shape \(2,\)"),
        (lambda k, o: np.asarray(o), "JAX"),
    ):
        with pytest.raises(UserError, match=told):
            agent.guard(steady, imagined=policy)


def test_what_is_no_choice_in_imagination_is_not_trusted(agent, seen):
    choosing = dataclasses.replace(agent.interface, discrete=True)
    parts = {"vector": jnp.asarray(seen)}
    act = in_model_terms(lambda _key, observation: (observation[0] * 0).astype(int) + 1, choosing)
    assert act(fresh(), parts).tolist() == [0.0, 1.0]
    lost = in_model_terms(lambda _key, observation: (observation[0] * 0).astype(int) + 7, choosing)
    assert np.isnan(lost(fresh(), parts)).all()
    with pytest.raises(UserError, match="a whole one, got float32"):
        in_model_terms(lambda _key, observation: observation[0], choosing)


def test_a_state_that_is_unsafe_is_left_to_the_backup_policy(agent, seen):
    guard = agent.guard(steady)
    decision = guard.act(seen, labels=UNSAFE)
    assert decision.overridden
    assert decision.reason == "already_unsafe"
    np.testing.assert_array_equal(decision.proposed, steady(seen))
    best = agent.player.actors.backup.best(fresh(), jax.tree.map(lambda leaf: leaf[0], agent.memory.latent))
    np.testing.assert_allclose(decision.action, np.clip(best, -1, 1), rtol=1e-5)
    assert guard.counts["already_unsafe"] == 1
    assert sum(guard.counts.values()) == 1
    assert set(guard.counts) == set(REASONS)


def broken(kind):
    def policy(observation):
        if kind == "raises":
            raise RuntimeError("out of order")
        if kind == "sleeps":
            time.sleep(0.5)
        return {"is nan": np.array([0.0, np.nan]), "is too long": np.zeros(3)}.get(kind, np.zeros(2))

    return policy


@pytest.mark.parametrize(
    ("kind", "why"),
    [("raises", "RuntimeError: out of order"), ("is nan", "finite"), ("is too long", "shape"), ("sleeps", "50 ms")],
)
def test_a_policy_that_fails_gets_the_fail_safe_action(agent, seen, kind, why):
    guard = agent.guard(broken(kind), failsafe=FAILSAFE, limit_ms=50)
    decision = guard.act(seen)
    np.testing.assert_array_equal(decision.action, np.float32(FAILSAFE))
    assert decision.overridden
    assert decision.reason == FAILED
    assert why in decision.why
    assert guard.counts[FAILED] == 1
    # The model's memory has what is really executed.
    np.testing.assert_allclose(agent.memory.action, [FAILSAFE], atol=1e-6)


def test_only_the_rows_that_fail_are_replaced(agent, seen):
    def policy(batch):
        return np.where(np.arange(len(batch))[:, None] == 1, np.nan, np.full((len(batch), 2), 0.5))

    decision = agent.guard(policy, failsafe=FAILSAFE).act(np.stack([seen] * 3))
    np.testing.assert_array_equal(decision.action, np.float32([[0.5, 0.5], FAILSAFE, [0.5, 0.5]]))
    assert decision.reason == ["accepted", FAILED, "accepted"]
    np.testing.assert_allclose(agent.memory.action, [[0.5, 0.5], FAILSAFE, [0.5, 0.5]], atol=1e-6)


def test_what_something_else_executed_is_remembered(agent, seen):
    guard = agent.guard(steady)
    with pytest.raises(ambs.UserError, match="there was none"):
        guard.observe([0.0, 0.0])
    guard.act(seen)
    guard.observe([1.0, 0.5])
    np.testing.assert_allclose(agent.memory.action, [[1.0, 0.5]])
    with pytest.raises(ambs.UserError, match="some of these are none"):
        guard.observe([np.nan, 0.5])


def test_predict_is_that_of_stable_baselines(agent, seen):
    """The names, order and defaults of BaseAlgorithm.predict; single observations, batches, and episodes that begin."""
    guard = agent.guard(steady)
    parameters = inspect.signature(guard.predict).parameters.values()
    assert [(one.name, one.default) for one in parameters][1:] == [
        ("state", None), ("episode_start", None), ("deterministic", False),
    ]  # fmt: skip
    action, state = guard.predict(seen, state=("s",), episode_start=np.array([True]), deterministic=True)
    assert (action.shape, state) == ((2,), ("s",))
    batch = np.stack([seen, seen])
    actions, _ = guard.predict(batch)
    assert actions.shape == (2, 2)
    before = np.asarray(agent.memory.latent.deter)
    guard.predict(batch, episode_start=np.array([False, True]))
    after = np.asarray(agent.memory.latent.deter)
    # The second goes on, the first of a new episode is what it was.
    assert not np.allclose(after[0], before[0])
    np.testing.assert_allclose(after[1], before[1], atol=1e-6)


def test_bad_input_gets_a_sentence(agent, seen):
    with pytest.raises(ambs.UserError, match="failsafe action must lie in"):
        agent.guard(steady, failsafe=[2.0, 0.0])
    with pytest.raises(ambs.UserError, match="a policy is an object with predict"):
        agent.guard(3)
    for options, sentence in (
        ({"limit_ms": float("nan")}, "limit_ms must be above 0, or None for no limit, got nan"),
        ({"seed": -1}, "seed must be a whole number from 0 to"),
    ):
        with pytest.raises(ambs.UserError, match=sentence):
            agent.guard(steady, **options)
    guard = agent.guard(steady)
    for start in (np.zeros(2, bool), "x", 2):
        with pytest.raises(ambs.UserError, match="episode_start must be 1 truth values"):
            guard.act(seen, episode_start=start)
    for wrong in (None, "left", [], np.zeros((0, 9))):
        with pytest.raises(ambs.UserError, match="an observation must be an array of numbers, or a dictionary of such"):
            guard.act(wrong)
    for wrong in ({}, {"a": seen, "b": np.stack([seen, seen])}):
        with pytest.raises(ambs.UserError, match="an observation must have parts, all of one environment"):
            guard.act(wrong)
    for which in (np.array([True, True]), np.zeros(1)):
        with pytest.raises(ambs.UserError, match="which takes 1 truth values"):
            agent.start().observe(np.zeros(2), which=which)


def test_a_masked_observation_is_refused_behind_a_guard_too(agent, seen):
    guard = agent.guard(steady)
    guard.act(seen)
    decision = guard.act(np.ma.masked_array(seen, mask=[True, *8 * [False]]))
    assert decision.overridden
    assert "masked" in decision.why


@pytest.mark.parametrize(
    ("proposed", "why"),
    [
        ([[1], [1, 2]], "must be an array"), (np.zeros(3), "shape"), (None, "shape"),
        (np.ma.masked_array([0.1, 0.2], mask=[True, False]), "masked"),
    ],
)  # fmt: skip
def test_what_is_no_action_gets_the_fail_safe_one_whoever_proposes_it(agent, seen, proposed, why):
    decision = agent.guard(steady, failsafe=FAILSAFE).check(seen, proposed)
    np.testing.assert_array_equal(decision.action, np.float32(FAILSAFE))
    assert decision.reason == FAILED
    assert why in decision.why


def test_proposals_that_are_not_one_for_each_environment_are_none(agent, seen):
    decision = agent.guard(steady, failsafe=FAILSAFE).check(np.stack([seen] * 3), np.zeros((2, 2)))
    np.testing.assert_array_equal(decision.action, np.float32([FAILSAFE] * 3))
    assert decision.reason == [FAILED] * 3
    assert "3 proposed actions" in decision.why[0]


def test_a_guard_of_another_world_is_refused(agent):
    guard, other = agent.guard(steady), r"the guard was made for actions in Box.* and the environment's are in Discrete"
    for make in (lambda: ambs.make("Grid"), lambda: gym.make("CartPole-v1")):
        with pytest.raises(ambs.UserError, match=other):
            ambs.Shielded(make(), guard)
    with pytest.raises(ambs.UserError, match=other):
        ambs.ShieldedVector(ambs.make_vector("Grid", 1), guard)
    wet = ambs.with_labels(ambs.make("PointWorld"), labels=lambda *_: set(), spec="!wet")
    with pytest.raises(
        ambs.UserError, match="the guard knows the labels hazard, outside, and the environment's are wet"
    ):
        ambs.Shielded(wet, guard)
    with pytest.raises(
        ambs.UserError, match="around a guard Shielded takes nothing but environment and guard, got seed"
    ):
        ambs.Shielded(ambs.make("PointWorld"), guard, seed=3)


def test_an_environment_behind_a_guard(agent):
    """What is proposed there is checked and executed; nobody asks the guard's own policy."""
    env = ambs.Shielded(ambs.make("PointWorld"), agent.guard(broken("raises")))
    with pytest.raises(gym.error.ResetNeeded):
        env.step(np.zeros(2))
    env.reset(seed=1)
    alone = ambs.make("PointWorld")
    alone.reset(seed=1)
    observation, _, _, _, info = env.step(np.float32([0.3, 0.7]))
    np.testing.assert_array_equal(observation, alone.step(np.float32([0.3, 0.7]))[0])
    assert info["shield"].reason == "accepted"
    _, _, _, _, info = env.step([np.nan, 0.0])
    assert info["shield"].reason == FAILED
    np.testing.assert_array_equal(info["action"], [0.0, 0.0])
    assert "finite" in info["refused"]


class Tensor:
    """Of a library that shares its memory, and that nobody has imported."""

    def __init__(self, values):
        self.values = np.asarray(values, np.float32)

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


class Learned(Tensor):
    """One that hands nothing out before it is detached from what it was computed by."""

    def __dlpack__(self, **options):
        raise BufferError("call detach first")

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("call detach first")

    def detach(self):
        return Tensor(self.values)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_many_environments_behind_a_guard(agent, mode):
    """Episodes of three steps: memory is that of a new episode where one begins, in either mode of Gymnasium."""
    from ambs.envs.worlds.point_world import PointWorld, PointWorldEnv

    worlds = [lambda: PointWorldEnv(PointWorld(episode_steps=3)), lambda: PointWorldEnv(PointWorld(episode_steps=9))]
    vector = gym.vector.SyncVectorEnv(worlds, autoreset_mode=gym.vector.AutoresetMode(mode))
    envs, starts = ambs.ShieldedVector(vector, agent.guard(steady)), []
    asked = envs.guard.check
    envs.guard.check = lambda *given, episode_start, **rest: (
        starts.append(episode_start.tolist()) or asked(*given, episode_start=episode_start, **rest)
    )
    envs.reset(seed=0)
    for _ in range(6):
        _, _, _, _, infos = envs.step(Learned([[0.5, 0.5], [-0.25, 1.0]]))
        np.testing.assert_array_equal(infos["action"], [[0.5, 0.5], [-0.25, 1.0]])
        assert infos["shield"].reason == ["accepted"] * 2
    again = 3 if mode == "SameStep" else 4
    assert [first for first, _ in starts] == [step in (0, again) for step in range(6)]
    assert [second for _, second in starts] == [True] + [False] * 5

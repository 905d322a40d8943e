"""Bounded prescience: the shield on the environment's own simulator, and the wrapper around one's own policy."""

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ambs.envs import with_labels
from ambs.envs.snapshot import generator_from_array, generator_to_array
from ambs.envs.worlds.grid import Grid, GridEnv
from ambs.envs.worlds.point_world import PointWorldEnv, keep_clear, seek_goal
from ambs.errors import UserError
from ambs.shield import Reason, ShieldConfig, ShieldProblem, rollout, shield
from ambs.shield.simulator import simulator_dynamics, simulator_state
from ambs.shield.wrapper import Shielded
from ambs.spec import parse_property
from ambs.streams import stream

GRID = Grid(map="S.H\n...\n..G", slip=0.3)
RIGHT = 1


def grid_problem(config: ShieldConfig) -> tuple[GridEnv, ShieldProblem]:
    env, model = GridEnv(GRID), GridEnv(GRID)
    model.reset(seed=1)

    def always_right(_key, _state):
        return jnp.array(RIGHT)

    dynamics = simulator_dynamics(model)
    return env, ShieldProblem(
        rollout(dynamics, config.steps), always_right, lambda _k, _s: jnp.array(4), env.psi, env.atoms, config
    )


def test_simulator_as_model_gives_the_exact_value():
    config = ShieldConfig(rule="fixed", horizon=3, traces=1500)
    env, problem = grid_problem(config)
    observation, _ = env.reset(seed=0)
    before = env.get_state()
    state = jax.tree.map(lambda part: part[None], simulator_state(env, observation))
    decision = shield(stream(0, "shield"), state, jnp.array([RIGHT]), problem, jnp.zeros((1, 2), bool))
    policy = np.eye(5)[np.full(9, RIGHT)]
    exact = GRID.chain(policy).check(parse_property("P=? [ G<=3 !hazard ]"))[0]
    assert 0.1 < exact < 0.9
    assert abs(float(decision.p_safe[0]) - exact) < 4 * np.sqrt(exact * (1 - exact) / config.traces)
    # Imagining leaves the environment itself alone.
    assert all((env.get_state()[name] == before[name]).all() for name in before)


def test_wrapper_executes_what_the_shield_lets_through():
    config = ShieldConfig(horizon=2, traces=64)
    env, problem = grid_problem(config)
    wrapped = Shielded(env, problem)
    with pytest.raises(gym.error.ResetNeeded):
        wrapped.step(RIGHT)
    wrapped.reset(seed=0)
    overrides = []
    for _ in range(12):
        _, _, _, _, info = wrapped.step(RIGHT)
        overrides.append(bool(info["shield"].overridden[0]))
        assert info["action"] == (4 if overrides[-1] else RIGHT)
        assert info["cost"] == 0
    assert overrides[-1]
    assert info["shield"].reason[0] == Reason.TOO_RISKY


def test_wrapper_with_a_fast_model_of_your_own():
    """The shield saves a reckless driver in the very worlds in which it fails without one."""
    config, drive = ShieldConfig(), jax.jit(seek_goal)
    violations = {}
    for shielded in (False, True):
        env = PointWorldEnv()
        problem = ShieldProblem(
            rollout(env.world.dynamics(), config.steps), seek_goal, keep_clear, env.psi, env.atoms, config
        )
        driven = Shielded(env, problem, read_state=lambda base, _obs: base.unwrapped.state) if shielded else env
        costs = 0.0
        driven.reset(seed=2)
        for _ in range(250):
            action = np.asarray(drive(stream(0, "policy"), env.state))
            costs += driven.step(action)[4]["cost"]
        violations[shielded] = costs
    assert violations[False] > 5
    assert violations[True] == 0


class Blind(PointWorldEnv):
    """Its observation does not show where the robot is."""

    def _observe(self):
        return super()._observe() * 0


def test_nan_inside_a_snapshot_is_noticed():
    env, twin = Blind(), Blind()
    twin.reset(seed=0)
    config = ShieldConfig(horizon=2, traces=64)
    still = lambda _key, _state: jnp.zeros(2)  # noqa: E731
    problem = ShieldProblem(rollout(simulator_dynamics(twin), 2), still, still, env.psi, env.atoms, config)
    observation, _ = env.reset(seed=0)

    def decide():
        state = jax.tree.map(lambda part: part[None], simulator_state(env, observation * 0))
        return shield(stream(0, "shield"), state, jnp.zeros((1, 2)), problem, jnp.zeros((1, 2), bool))

    assert not decide().overridden[0]
    env.state = env.state._replace(robot=np.full(4, np.nan, np.float32))
    assert decide().reason[0] == Reason.NON_FINITE


def test_a_model_that_raises_overrides():
    """The policy answers NaN, and point_world takes no such action: that must not come out of `step`."""
    env, twin = PointWorldEnv(), PointWorldEnv()
    twin.reset(seed=0)
    problem = ShieldProblem(
        rollout(simulator_dynamics(twin), 2),
        lambda _key, _state: jnp.full(2, jnp.nan),
        lambda _key, _state: jnp.zeros(2),
        env.psi,
        env.atoms,
        ShieldConfig(horizon=2, traces=64),
    )
    wrapped = Shielded(env, problem)
    wrapped.reset(seed=0)
    *_, info = wrapped.step(np.ones(2))
    assert info["shield"].reason[0] == Reason.NON_FINITE
    assert info["action"].tolist() == [0, 0]


def test_the_environment_declares_its_fallback():
    env, problem = grid_problem(ShieldConfig(horizon=2, traces=64))
    assert Shielded(env, problem).problem.fallback == 4


class Corridor(gym.Env):
    """A place on a line, with noise; its labels come from outside."""

    observation_space = gym.spaces.Box(-2, 2, (1,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = 0.0
        return np.array([self.x], np.float32), {}

    def step(self, action):
        self.x += 0.1 * float(action[0]) + self.np_random.normal(scale=0.1)
        return np.array([self.x], np.float32), 0.0, False, False, {}

    def get_state(self):
        return {"x": np.array(self.x), "rng": generator_to_array(self.np_random)}

    def set_state(self, state):
        self.x, self.np_random = float(state["x"]), generator_from_array(state["rng"])


def test_a_labelled_environment_serves_as_its_own_model():
    """One step of mean 0.1 and deviation 0.1 ends beyond 0.2 with the chance Φ(−1) = .1587."""
    env = with_labels(Corridor(), labels=lambda seen, _: {"wall": seen[0] > 0.2}, spec="!wall")
    observation, _ = env.reset(seed=0)
    dynamics, state = simulator_dynamics(env), simulator_state(env, observation)
    keys = jax.random.split(stream(0, "futures"), 600)
    steps = jax.vmap(lambda key: dynamics(key, state, jnp.ones(1)))(keys)
    assert steps.labels.shape == (600, 1, 1)
    assert abs(float(steps.labels.mean()) - 0.1587) < 4 * np.sqrt(0.1587 * 0.8413 / 600)
    np.testing.assert_array_equal(steps.labels[:, 0, 0], steps.state.observation[:, 0] > 0.2)


def test_an_environment_without_snapshots_is_named():
    env = gym.make("CartPole-v1")
    env.reset(seed=0)
    with pytest.raises(UserError, match="CartPoleEnv cannot serve as a model: it lacks atoms, get_state, set_state"):
        simulator_dynamics(env)

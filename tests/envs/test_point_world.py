"""`point_world` against plain NumPy paths, quadrature and hand-worked steps."""

import copy
import dataclasses
import itertools

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import ambs.envs  # noqa: F401  (registers the environments)
from ambs.envs.worlds.point_world import CROWDED, PointWorld, PointWorldEnv, State, keep_clear, seek_goal
from ambs.errors import UserError
from ambs.shield import ShieldConfig, ShieldProblem, rollout, shield
from ambs.streams import at, stream
from tests.tiny import SWIFT


def state_of(robot, hazards, goal=(1.0, 0.0)) -> State:
    return State(
        np.array(robot, np.float32), np.array([goal], np.float32), np.array(0, np.int32), np.array(hazards, np.float32)
    )


def test_one_step_by_hand():
    world = dataclasses.replace(CROWDED, hazards=1)
    state = state_of([0, 0, 1, 0], [[0.2, 0.2]])
    following, reward, labels = world.advance(state, np.array([0.5, -2.0], np.float32), np.array([1, 0], np.float32))
    # v = .9·(1, 0) + .05·2·(.5, −1) + .03·(1, 0), the push clipped to −1.
    np.testing.assert_allclose(following.robot, [0.05 * 0.98, -0.05 * 0.1, 0.98, -0.1], rtol=1e-5)
    assert reward == pytest.approx(1 - np.hypot(1 - 0.049, 0.005), abs=1e-6)
    # The hazard's centre is .2544 m away; its radius is .25.
    assert labels.tolist() == [False, False]
    assert world.labels(state_of([0.049, 0.005, 0, 0], [[0.2, 0.2]])).tolist() == [True, False]
    assert world.labels(state_of([1.51, 0, 0, 0], [[0.2, 0.2]])).tolist() == [False, True]


def test_reaching_a_goal_pays_and_moves_on():
    world = dataclasses.replace(CROWDED, hazards=0, goals=2)
    state = State(
        np.array([0.75, 0, 1, 0], np.float32),
        np.array([[1, 0], [-1, 0]], np.float32),
        np.array(0, np.int32),
        np.zeros((0, 2), np.float32),
    )
    still = np.zeros(2, np.float32)
    following, reward, _ = world.advance(state, still, still)
    assert int(following.reached) == 0
    following, reward, _ = world.advance(following, still, still)
    assert int(following.reached) == 1
    assert reward == pytest.approx(1 + 0.05 * 0.81, abs=1e-5)
    assert following.goal.tolist() == [-1, 0]


def test_the_environment_and_the_model_step_alike():
    env, rng = PointWorldEnv(), np.random.default_rng(0)
    advance = jax.jit(env.world.advance)
    violations = goals = 0
    for seed in range(30):
        env.reset(seed=seed)
        # Onto a hazard, onto the goal, or beyond the wall, so that all that can happen does.
        place = [env.state.hazards[0], env.state.goal, np.array([1.6, 0])][seed % 3]
        robot = np.concatenate([place - 0.12, rng.normal(size=2)]).astype(np.float32)
        env.state = env.state._replace(robot=robot)
        for _ in range(5):
            state, action = env.state, rng.normal(size=2).astype(np.float32)
            noise = copy.deepcopy(env.np_random).standard_normal(2).astype(np.float32)
            following, reward, labels = advance(state, action, noise)
            seen, ours, _, _, info = env.step(action)
            for mine, theirs in zip(env.state, following, strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
                assert mine.dtype == theirs.dtype
            assert ours == pytest.approx(float(reward), abs=1e-5)
            assert info["labels"].tolist() == labels.tolist()
            position = env.state.robot[:2]
            offsets = sorted(env.state.hazards - position[None], key=lambda offset: float(np.hypot(*offset)))[:1]
            near = [max(0.0, (0.5 + 0.2 - np.hypot(*offset)) / 0.5) for offset in offsets]
            sensed = [[*(n * offset / np.hypot(*offset)), n] for n, offset in zip(near, offsets, strict=True)]
            walls = np.sign(position) * np.maximum(0, (0.5 - 1.5 + np.abs(position)) / 0.5)
            expected = np.concatenate([env.state.robot[2:], env.state.goal - position, walls, *sensed])
            np.testing.assert_allclose(seen, expected, atol=1e-5)
            violations += info["labels"]
        goals += int(env.state.reached)
    assert (violations > 5).all()
    assert goals > 5


def test_layouts_keep_their_distances():
    world = CROWDED
    for seed in range(200):
        state = world.sample(np.random.default_rng(seed))
        gaps = np.linalg.norm(state.hazards[:, None] - state.hazards[None], axis=-1)[np.triu_indices(6, 1)]
        assert gaps.min() > 2 * world.hazard_radius
        start = np.linalg.norm(state.hazards - state.robot[None, :2], axis=-1)
        assert start.min() > 2 * world.hazard_radius * 0.999
        clear = np.linalg.norm(state.goals[:, None] - state.hazards[None], axis=-1)
        assert clear.min() > world.hazard_radius + world.goal_radius - 1e-6


def test_environment_is_a_gymnasium_environment():
    check_env(gym.make("ambs/PointWorld-v0").unwrapped, skip_render_check=True)


def test_seeds_and_restored_states_repeat_bit_by_bit():
    def run(env, steps=60):
        return np.array([env.step(np.array([np.sin(i), np.cos(i)], np.float32))[0] for i in range(steps)])

    first, second = PointWorldEnv(), PointWorldEnv()
    first.reset(seed=5)
    second.reset(seed=5)
    run(first)
    run(second)
    saved = first.get_state()
    ahead = run(first)
    assert (ahead == run(second)).all()
    third = PointWorldEnv()
    third.reset(seed=99)
    third.set_state(saved)
    assert (run(third) == ahead).all()


@pytest.mark.parametrize("action", [[np.nan, 0], [1, 2, 3], 1.0])
def test_bad_actions_are_refused(action):
    env = PointWorldEnv()
    env.reset(seed=0)
    with pytest.raises(UserError, match="two finite numbers"):
        env.step(action)


def test_impossible_worlds_are_refused():
    with pytest.raises(UserError, match="do not fit"):
        PointWorld(hazards=60).sample(np.random.default_rng(0))
    with pytest.raises(UserError, match="dt"):
        PointWorld(dt=0.0)


def estimate(world: PointWorld, state: State, policy, horizon: int, traces: int) -> tuple[float, int]:
    """Share of safe futures over many shield calls on the JAX model; the first action is the policy's own."""
    config = ShieldConfig(rule="fixed", horizon=horizon, traces=traces)
    env = PointWorldEnv(world)
    problem = ShieldProblem(rollout(world.dynamics(), horizon), policy, keep_clear, env.psi, env.atoms, config)
    states = jax.tree.map(lambda part: jnp.asarray(part)[None], state)
    proposed = policy(stream(4, "policy"), jax.tree.map(jnp.asarray, state))[None]
    labels = jnp.zeros((1, 2), bool)
    decide = jax.jit(lambda key: shield(key, states, proposed, problem, labels).p_safe[0], compiler_options=SWIFT)
    calls = 20
    return float(np.mean([decide(at(stream(4, "shield"), call)) for call in range(calls)])), calls * traces


def plain_paths(state: State, paths: int, horizon: int, seed: int) -> float:
    """The documented physics under the goal-seeking policy, simulated without any code of the package."""
    rng = np.random.default_rng(seed)
    position = np.tile(state.robot[:2].astype(np.float32), (paths, 1))
    velocity = np.tile(state.robot[2:].astype(np.float32), (paths, 1))
    goal, alive = state.goal.astype(np.float32), np.ones(paths, bool)
    for _ in range(horizon):
        action = np.clip(4 * (goal - position) - velocity, -1, 1)
        velocity *= np.float32(0.9)
        velocity += np.float32(0.05 * 2.0) * action
        velocity += np.float32(0.03) * rng.standard_normal((paths, 2), dtype=np.float32)
        position += np.float32(0.05) * velocity
        for hazard in state.hazards:
            alive &= (position[:, 0] - hazard[0]) ** 2 + (position[:, 1] - hazard[1]) ** 2 > np.float32(0.0625)
    return float(alive.mean())


def test_safety_probability_against_four_million_plain_paths():
    """From rest, two hazards beside the straight way to the goal; about a fifth of the futures touch one."""
    world = dataclasses.replace(CROWDED, hazards=2)
    state = state_of([-0.6, 0, 0, 0], [[0.1, 0.265], [0.1, -0.285]])
    paths, horizon = 4_000_000, 30
    truth = np.mean([plain_paths(state, paths // 20, horizon, seed) for seed in range(20)])
    assert 0.6 < truth < 0.95
    found, traces = estimate(world, state, seek_goal, horizon, 8192)
    spread = np.sqrt(truth * (1 - truth) * (1 / traces + 1 / paths))
    assert abs(found - truth) < 4 * spread


def survival_by_quadrature(start, drift, spread, hazard, radius, horizon, nodes) -> float:
    """P(no visit to [hazard − radius, hazard + radius] in `horizon` steps) of a Gaussian random walk: the density on both
    sides, stepped on composite Gauss–Legendre nodes."""
    reach = abs(drift) * horizon + 9 * spread * np.sqrt(horizon)
    x, w = np.polynomial.legendre.leggauss(nodes)
    left = (start - reach, hazard - radius)
    right = (hazard + radius, max(start + reach, hazard + radius + 1))
    points, weights = [], []
    for low, high in (left, right):
        panels = np.linspace(low, high, 25)
        for a, b in itertools.pairwise(panels):
            points.append((b - a) / 2 * x + (a + b) / 2)
            weights.append((b - a) / 2 * w)
    grid, weight = np.concatenate(points), np.concatenate(weights)

    def density(step):
        return np.exp(-0.5 * (step / spread) ** 2) / (spread * np.sqrt(2 * np.pi))

    alive = density(grid - start - drift)
    kernel = density(grid[:, None] - grid[None] - drift) * weight[None]
    for _ in range(horizon - 1):
        alive = kernel @ alive
    return float(weight @ alive)


def test_one_dimension_against_quadrature():
    """Without memory of velocity and with noise along x only, the world is a random walk on a line with a hazard in it."""
    noise, push, horizon = 2.0, 0.4, 12
    world = dataclasses.replace(CROWDED, hazards=1, damping=0.0, noise=(noise, 0.0), half_size=50.0)
    drift, spread = 0.05 * 0.05 * 2.0 * push, 0.05 * noise
    start, hazard, radius = 0.0, 0.6, 0.25
    coarse = survival_by_quadrature(start, drift, spread, hazard, radius, horizon, 12)
    fine = survival_by_quadrature(start, drift, spread, hazard, radius, horizon, 16)
    assert abs(coarse - fine) < 1e-6
    assert 0.5 < fine < 0.95
    state = state_of([start, 0, 0, 0], [[hazard, 0]], goal=(40.0, 0.0))
    found, traces = estimate(world, state, lambda _key, _state: jnp.array([push, 0.0]), horizon, 16384)
    assert abs(found - fine) < 4 * np.sqrt(fine * (1 - fine) / traces)


def test_backup_policy_keeps_clear():
    """From 200 layouts the backup alone stays out of hazards; the reckless policy alone does not."""
    world = CROWDED
    dynamics = world.dynamics()

    def visits(policy, key, state):
        def advance(state, step):
            arrival = dynamics(jax.random.fold_in(key, step), state, policy(key, state))
            return arrival.state, arrival.labels[0, 0]

        return jax.lax.scan(advance, state, jnp.arange(200))[1].sum()

    states = [world.sample(np.random.default_rng(seed)) for seed in range(200)]
    stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *states)
    keys = jax.random.split(stream(0, "test"), 200)
    reckless = jax.jit(jax.vmap(lambda key, state: visits(seek_goal, key, state)))(keys, stacked)
    careful = jax.jit(jax.vmap(lambda key, state: visits(keep_clear, key, state)))(keys, stacked)
    assert (reckless > 0).mean() > 0.6
    assert (careful > 0).mean() < 0.02

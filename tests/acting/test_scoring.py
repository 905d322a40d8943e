"""Scores against exact probabilities where the true dynamics is the model, and models that are wrong in known ways."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from ambs.acting.scoring import Imagination, foresee, replayed
from ambs.dynamics import SplitDynamics, Step
from ambs.envs.worlds.grid import ATOMS as GRID_ATOMS
from ambs.envs.worlds.grid import Grid
from ambs.envs.worlds.point_world import ATOMS, CROWDED, State, seek_goal
from ambs.foresight.collect import Record
from ambs.foresight.figures import agreement, auroc_of_counts
from ambs.foresight.measure import foresight_figures
from ambs.shield import ShieldConfig, ShieldProblem, rollout
from ambs.spec import parse_formula
from ambs.spec.parser import parse_property
from ambs.spec.risk import step_risk
from tests.shield.worlds import ATOMS as TWO
from tests.shield.worlds import PSI as NEITHER
from tests.shield.worlds import coin, constant
from tests.tiny import fresh, quick_jit

N, TRACES = 5, 400
GRID, SAFE = Grid(), parse_formula("!hazard", GRID_ATOMS)
POLICY = np.random.default_rng(0).dirichlet(np.ones(5), GRID.cells.size)
"""Some policy of the grid, `[cells, actions]`."""


def record_of(episode, violated, unsafe_now, risk, over=None):
    rows = len(episode)
    nothing, nan = np.zeros(rows, bool), np.full(rows, np.nan)
    over = nothing if over is None else over
    action = np.zeros((rows, 1))
    return Record(episode, unsafe_now, violated, over, nothing, action, risk, risk, nan, nan, nan, nan)


def grid_risks() -> np.ndarray:
    """P(Ψ fails in steps 1 … N) of every cell and first action, `[cells, actions]`: the kernel, then the chain's value."""
    held = GRID.chain(POLICY).check(parse_property(f"P=? [ G<={N - 1} !hazard ]"))
    return GRID.kernel @ (1 - held)


def act_on_grid(key, cell):
    return jax.random.categorical(key, jnp.log(jnp.asarray(POLICY, jnp.float32))[cell])


def imagination(dynamics, policy=act_on_grid, steps=N, psi=SAFE, atoms=GRID_ATOMS, **more):
    return Imagination(
        dynamics, policy, steps, lambda labels: step_risk(psi, atoms, labels.astype(jnp.float32)), **more
    )


@functools.cache
def scored_grid(kind: str) -> np.ndarray:
    """Risk of every cell and first action by a model of this kind, `[cells, actions]`."""
    true, labels = GRID.dynamics(), jnp.asarray(GRID.labels)

    def frozen(_key, cell, _action):
        return Step(cell, labels[cell][None], jnp.array(True))

    def mislabelled(key, cell, action):
        arrival = true(key, cell, action)
        return arrival._replace(labels=~arrival.labels)

    model = imagination({"true": true, "frozen": frozen, "mislabelled": mislabelled}[kind])
    cells, actions = (axis.ravel() for axis in np.indices((GRID.cells.size, 5)))
    found = quick_jit(lambda key: foresee(model, key, jnp.asarray(cells), jnp.asarray(actions), TRACES))(fresh())
    return np.asarray(found.risk).reshape(-1, 5)


@functools.cache
def played_grid() -> tuple[np.ndarray, ...]:
    """200 episodes of 30 steps or up to the goal, by the tables alone: episode, cell, action, violated, over."""
    rng, rows = np.random.default_rng(1), []
    for episode in range(200):
        cell = int(rng.choice(np.flatnonzero(~GRID.labels.any(axis=1))))
        for _ in range(30):
            action = rng.choice(5, p=POLICY[cell])
            there = int(rng.choice(GRID.cells.size, p=GRID.kernel[cell, action]))
            rows.append((episode, cell, action, GRID.labels[there, 0], GRID.labels[there, 1]))
            cell = there
            if GRID.labels[there, 1]:
                break
    episode, cell, action, violated, over = np.array(rows).T
    return episode, cell, action, violated.astype(bool), over.astype(bool)


def grid_figures(risks: np.ndarray) -> dict:
    episode, cell, action, violated, over = played_grid()
    return foresight_figures(record_of(episode, violated, GRID.labels[cell, 0], risks[cell, action], over), N)["drawn"]


def test_true_dynamics_has_the_exact_risks():
    exact, found = grid_risks(), scored_grid("true")
    ends = GRID.labels[:, 1]
    assert np.abs(found - exact)[~ends].max() < 4.5 * np.sqrt(0.25 / TRACES)
    off = agreement(exact[~ends].ravel(), found[~ends].ravel(), TRACES)
    assert off["error"] == pytest.approx(off["chance_error"], rel=0.25)
    assert off["correlation"] > 0.99


def test_figures_of_the_true_dynamics_are_those_of_exact_probabilities():
    """AUROC expected from the exact risks of the states played; calibrated up to chance."""
    exact = grid_risks()
    _, cell, action, *_ = played_grid()
    risks = exact[cell, action][~GRID.labels[cell, 0]]
    values, counts = np.unique(risks, return_counts=True)
    expected = auroc_of_counts(counts * (1 - values), counts * values)
    found = grid_figures(scored_grid("true"))
    assert found["auroc"]["mean"] == pytest.approx(expected, abs=0.03)
    assert found["auroc"]["low"] < expected < found["auroc"]["high"]
    assert found["ece"]["mean"] < 0.05
    assert found["predicted"] == pytest.approx(found["observed"], abs=0.03)
    assert found["detection"]["1"]["0.1"]["mean"] > 0.25


def test_a_frozen_and_a_mislabelled_model_show():
    """Where nothing ever moves, nothing is foreseen: chance at every figure. Labels inverted: worse than chance."""
    frozen, wrong = grid_figures(scored_grid("frozen")), grid_figures(scored_grid("mislabelled"))
    assert frozen["auroc"]["mean"] == 0.5
    assert frozen["detection"]["1"]["0.05"]["mean"] == pytest.approx(0.05)
    assert frozen["predicted"] == 0 < frozen["observed"]
    assert frozen["ece"]["mean"] == pytest.approx(frozen["observed"])
    assert wrong["auroc"]["mean"] < 0.5
    assert wrong["ece"]["mean"] > 0.2


def test_replayed_actions_have_the_exact_chances():
    """The distribution over cells after given actions, by products of kernels."""
    actions = np.array([1, 2, 2, 1, 0])
    chances, spread = [], np.eye(GRID.cells.size)[0]
    for action in actions:
        spread = spread @ GRID.kernel[:, action]
        chances.append(spread @ GRID.labels[:, 0])
    model = imagination(GRID.dynamics())
    found = quick_jit(lambda key: replayed(model, key, jnp.zeros(1, int), jnp.asarray(actions)[None], 4000))(fresh())
    np.testing.assert_allclose(np.asarray(found)[0], chances, atol=4.5 * np.sqrt(0.25 / 4000))


def test_labels_drawn_need_not_be_drawn():
    """Probabilities .1, .2 and .3 of one atom in three steps: 1 − .9·.8·.7, whatever the number of traces; after an end only
    what came before it counts; and the shield's own scoring goes by its thresholds."""

    def script(state, _action, _chance):
        return state + 1

    def read(state):
        return jnp.stack([0.1 * state, 0.0 * state])[None], jnp.where(state == ends, 0.0, 1.0)

    moves = SplitDynamics(lambda key: jax.random.uniform(key), script, lambda state: state, read)
    settings = ShieldConfig(horizon=3, labels="mode", label_threshold=0.25)
    problem = ShieldProblem(rollout(moves, 3), constant([0.0]), constant([0.0]), NEITHER, TWO, settings)
    for ends, risk, cost in (
        (9, 1 - 0.9 * 0.8 * 0.7, 0.1 + 0.5 * 0.2 + 0.25 * 0.3),
        (2, 1 - 0.9 * 0.8, 0.1 + 0.5 * 0.2),
    ):
        model = imagination(moves, constant([0.0]), 3, NEITHER, TWO, shield=problem, discount=0.5, cost=2.0)
        found = quick_jit(lambda key, model=model: foresee(model, key, jnp.zeros(2), jnp.zeros((2, 1)), 2))(fresh())
        np.testing.assert_allclose(found.risk, risk, rtol=1e-5)
        np.testing.assert_allclose(found.cost, 2 * cost, rtol=1e-5)
        np.testing.assert_allclose(found.shield, float(ends == 9))


def test_small_risks_are_kept_apart_and_what_is_not_finite_is_danger():
    """10⁻⁹ in each of ten steps is 10⁻⁸, not 0."""

    def faint(_key, state, action):
        return Step(state, jnp.stack([action, action], axis=1), jnp.ones(()))

    model = imagination(faint, lambda _key, _state: jnp.array([5e-10]), 10, NEITHER, TWO)
    found = foresee(model, fresh(), jnp.zeros((2, 1)), jnp.array([[5e-10], [jnp.nan]]), 1)
    np.testing.assert_allclose(found.risk, [1e-8, 1.0], rtol=1e-3)


def test_a_shield_with_futures_of_its_own_length():
    """A coin of risk .5 in each step: within one step, which the shield looks ahead by itself, .5; within 3, 7/8."""
    settings = ShieldConfig(horizon=3, rolled=1, critics="max")
    critics = lambda _state: jnp.zeros(2)  # noqa: E731
    problem = ShieldProblem(
        rollout(coin, 1), constant([0.5, 0.0]), constant([0.0, 0.0]), NEITHER, TWO, settings, critics
    )
    model = imagination(coin, constant([0.5, 0.0]), 3, NEITHER, TWO, shield=problem)
    found = quick_jit(lambda key: foresee(model, key, jnp.zeros((1, 1)), jnp.array([[0.5, 0.0]]), 4000))(fresh())
    assert float(found.shield[0]) == pytest.approx(0.5, abs=0.04)
    assert float(found.risk[0]) == pytest.approx(7 / 8, abs=0.03)


# --- point_world ---

PLANE = parse_formula("!hazard", ATOMS)


def layouts(count: int, seed: int) -> State:
    """States of fresh layouts, leaves `[count, …]`."""
    states = [CROWDED.sample(np.random.default_rng([seed, index])) for index in range(count)]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


def test_one_step_of_point_world_in_closed_form():
    """The next place is normally distributed about a known point: its chance to lie in a disc is a non-central χ²."""
    rng, world = np.random.default_rng(0), CROWDED
    spread = world.dt * world.noise[0]
    state, angle, off = layouts(60, 1), rng.uniform(0, 2 * np.pi, 60), rng.normal(size=60)
    velocity, actions = rng.normal(size=(60, 2)) * 0.3, rng.uniform(-1, 1, (60, 2)).astype(np.float32)
    course = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    centre = np.asarray(state.hazards[:, 0]) + (world.hazard_radius + spread * off)[:, None] * course
    before = centre - world.dt * (world.damping * velocity + world.dt * world.acceleration * actions)
    state = state._replace(robot=jnp.asarray(np.concatenate([before, velocity], axis=1), jnp.float32))
    away = ((centre[:, None] - np.asarray(state.hazards)) ** 2).sum(axis=-1) / spread**2
    exact = stats.ncx2.cdf((world.hazard_radius / spread) ** 2, 2, away).sum(axis=1)
    model = imagination(world.dynamics(), seek_goal, 1, PLANE, ATOMS)
    found = quick_jit(lambda key: foresee(model, key, state, jnp.asarray(actions), 2000))(fresh())
    assert ((exact > 0.02) & (exact < 0.98)).sum() > 30
    np.testing.assert_allclose(found.risk, exact, atol=4.5 * np.sqrt(0.25 / 2000))


def test_an_overfitted_model_shows_on_layouts_it_has_not_seen():
    """It knows the hazards of the layouts it has seen, and has a vague idea of the others: as good as the truth on the first,
    worse at every figure on the second."""
    world, steps, seen = CROWDED, 80, 40
    true = world.dynamics()
    start = layouts(2 * seen, 2)
    wrong = start.hazards + jnp.asarray(np.random.default_rng(3).normal(size=start.hazards.shape) * 0.3, jnp.float32)
    known = jnp.arange(2 * seen) < seen
    believed = jnp.where(known[:, None, None], start.hazards, wrong)
    model = imagination(true, seek_goal, N, PLANE, ATOMS)

    def step(carry, key):
        moving, scoring = jax.random.split(key)
        actions = jax.vmap(lambda state: seek_goal(key, state))(carry)
        scores = [
            foresee(model, scoring, carry._replace(hazards=spots), actions, 16).risk
            for spots in (start.hazards, believed)
        ]
        arrival = jax.vmap(true)(jax.random.split(moving, 2 * seen), carry, actions)
        now = jax.vmap(world.labels)(carry)[:, 0]
        return arrival.state, (now, arrival.labels[:, 0, 0], *scores)

    _, rows = jax.jit(lambda keys: jax.lax.scan(step, start, keys))(jax.random.split(fresh(), steps))
    now, violated, right, overfitted = (np.asarray(part) for part in rows)

    def figures(risk, layouts):
        flat = [part[:, layouts].T.ravel() for part in (violated, now, risk)]
        return foresight_figures(record_of(np.arange(seen).repeat(steps), *flat), N)["drawn"]

    old, new = slice(0, seen), slice(seen, None)
    truth, at_home, abroad = figures(right, new), figures(overfitted, old), figures(overfitted, new)
    assert truth["auroc"]["mean"] > 0.97
    assert truth["ece"]["mean"] < 0.02
    assert at_home["auroc"]["mean"] > 0.97
    assert abroad["auroc"]["high"] < truth["auroc"]["low"]
    assert abroad["detection"]["1"]["0.05"]["high"] < truth["detection"]["1"]["0.05"]["low"]
    assert abroad["ece"]["low"] > truth["ece"]["high"]

"""Truth on `grid`: a world model learned from random play, and the shield's estimates under it against exact values."""

import functools
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ambs.config import ModelConfig, Size
from ambs.data import Experience
from ambs.envs.worlds.grid import ATOMS, Grid, GridEnv
from ambs.shield import ShieldConfig, ShieldProblem, rollout, shield
from ambs.spec import parse_formula, parse_property
from ambs.streams import at, stream
from ambs.world_model.loss import world_model_loss
from ambs.world_model.model import WorldModel, WorldSpec
from ambs.world_model.vision import ObservationSpec
from tests.tiny import SWIFT, filter_one, quick_jit

pytestmark = pytest.mark.learns


@dataclass(frozen=True)
class Small(ModelConfig):
    """Widths for a world of 25 cells."""

    @property
    def widths(self) -> Size:
        return Size(48, 48, 1, 1, latents=8, classes=8, vector_layers=1, vector_units=48, bins=21)


GRID = Grid()
PSI = parse_formula("!hazard", ATOMS)
ODDS = np.array([0.2, 0.3, 0.3, 0.1, 0.1])
"""The fixed policy, at play and in imagination."""
BATCH, LENGTH, UPDATES, STATES, HORIZON = 16, 16, 2500, 50, 10
# A world of 25 cells carries less than a nat per step: with free nats its prior would not be taught.
CONFIG = Small(learning_rate=5e-3, free_nats=0.0)
SPEC = WorldSpec(ObservationSpec(vector=25), 5, ATOMS, PSI)


def play(steps: int, seed: int, flip_labels: bool = False) -> tuple[Experience, np.ndarray]:
    """Random play as one long sequence, and the cells visited."""
    env, rng = GridEnv(GRID), np.random.default_rng(seed)
    observation, info = env.reset(seed=seed)
    rows = [(observation, np.zeros(5), 0.0, info["labels"], 1.0, True, env.cell)]
    while len(rows) < steps:
        action = rng.choice(5, p=ODDS)
        observation, reward, terminated, truncated, info = env.step(np.int64(action))
        rows.append((observation, np.eye(5)[action], reward, info["labels"], float(not terminated), False, env.cell))
        if terminated or truncated:
            observation, info = env.reset()
            rows.append((observation, np.zeros(5), 0.0, info["labels"], 1.0, True, env.cell))
    seen, action, reward, labels, proceed, first, cells = (np.array(column) for column in zip(*rows, strict=True))
    if flip_labels:
        labels = labels ^ np.array([True, False])
    arrays = (jnp.asarray(part, jnp.float32) for part in (action, reward))
    sequence = Experience(
        {"vector": jnp.asarray(seen)},
        *arrays,
        jnp.asarray(labels)[:, None],
        jnp.asarray(proceed, jnp.float32),
        jnp.asarray(first),
    )
    return sequence, cells


@functools.lru_cache
def trainer(spec: WorldSpec, config: ModelConfig, most: int) -> Any:
    """(data, updates) -> WorldModel, on random windows of one long sequence; compiled once however often it is called.

    The learning rate falls to 0 over `most` updates, so that what is judged has settled.
    """
    model = quick_jit(lambda key: WorldModel(spec, config, key=key))(jax.random.key(0))
    parameters, static = eqx.partition(model, eqx.is_inexact_array)
    rate = optax.linear_schedule(config.learning_rate, 0.0, most)
    tx = optax.chain(optax.clip_by_global_norm(config.clip), optax.adam(rate, eps=config.adam_eps))

    def loss(parameters, batch, key):
        model = eqx.combine(parameters, static)
        start = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[None], (BATCH, *leaf.shape)), model.rssm.initial())
        return world_model_loss(model, batch, start, key)[0].total

    @functools.partial(jax.jit, compiler_options=SWIFT)
    def run(data, updates):
        def update(step, carry):
            parameters, opt = carry
            key = at(stream(1, "train"), step)
            first = jax.random.randint(stream(key, "place"), (BATCH,), 0, data.reward.shape[0] - LENGTH)
            window = first[:, None] + jnp.arange(LENGTH)[None]
            batch = jax.tree.map(lambda leaf: leaf[window], data)
            batch = batch._replace(is_first=batch.is_first.at[:, 0].set(True))
            grads = jax.grad(loss)(parameters, batch, stream(key, "model"))
            changes, opt = tx.update(grads, opt)
            return optax.apply_updates(parameters, changes), opt

        return jax.lax.fori_loop(0, updates, update, (parameters, tx.init(parameters)))[0]

    return lambda data, updates: eqx.combine(run(data, updates), static)


filtered = quick_jit(filter_one)


def mean_error(model: WorldModel) -> float:
    """Of the shield's μ̃ under the model, from filtered latents of unseen play, against exact PCTL values."""
    data, cells = play(800, seed=7)
    observed = filtered(model, data, stream(2, "filter"))
    usable = np.flatnonzero((np.asarray(data.proceed) > 0) & ~GRID.labels[cells, 0])[20:]
    rng = np.random.default_rng(1)
    chosen, actions = rng.choice(usable, STATES, replace=False), rng.integers(0, 5, STATES)
    later = GRID.chain(np.tile(ODDS, (25, 1))).check(parse_property(f"P=? [ G<={HORIZON - 1} !hazard ]"))
    truth = np.array([GRID.kernel[cell, action] @ later for cell, action in zip(cells[chosen], actions, strict=True)])
    states = jax.tree.map(lambda leaf: leaf[chosen], observed.latent)
    assert truth.std() > 0.1
    return float(np.abs(np.asarray(estimates(model, states, jax.nn.one_hot(actions, 5))) - truth).mean())


@functools.partial(eqx.filter_jit, compiler_options=SWIFT)
def estimates(model: WorldModel, states: Any, actions: Any) -> Any:
    """The shield's μ̃ in each state, first action given."""
    problem = ShieldProblem(
        rollout(model.moves(), HORIZON),
        lambda key, _latent: jax.nn.one_hot(jax.random.categorical(key, jnp.log(jnp.asarray(ODDS))), 5),
        lambda _key, _latent: jnp.eye(5)[4],
        PSI,
        ATOMS,
        ShieldConfig(rule="fixed", horizon=HORIZON, traces=1024),
    )
    return shield(stream(3, "shield"), states, actions, problem, jnp.zeros((STATES, 2), bool)).p_safe


def test_learned_model_tells_the_true_safety_probability():
    """One that was not trained does not."""
    train = trainer(SPEC, CONFIG, UPDATES)
    data, _ = play(30_000, seed=0)
    assert mean_error(train(data, UPDATES)) <= 0.03
    assert mean_error(train(data, 0)) > 0.1


@pytest.mark.slow
def test_a_model_of_wrong_labels_does_not():
    """Trained as long as the sound one."""
    wrong, _ = play(30_000, seed=0, flip_labels=True)
    assert mean_error(trainer(SPEC, CONFIG, UPDATES)(wrong, UPDATES)) > 0.1

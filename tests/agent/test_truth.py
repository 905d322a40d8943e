"""Truth of policies and critics: on tables of `grid`, where every value is the solution of linear equations."""

from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

from ambs.agent.update import Learned, improve, init
from ambs.config import AgentConfig, Config, ModelConfig, Size
from ambs.envs.grid import ATOMS, Grid
from ambs.shield import ShieldConfig
from ambs.spec import parse_formula
from ambs.streams import at, stream
from ambs.world_model.model import Spec, WorldModel
from ambs.world_model.rssm import RSSM, Latent
from ambs.world_model.vision import ObservationSpec

GRID = Grid()
CELLS, HAZARD, GOAL = 25, GRID.labels[:, 0], GRID.labels[:, 1]
ON, SAFE = ~GOAL, ~GOAL & ~HAZARD
"""Where an episode goes on, and where it goes on unharmed."""
DISCOUNT, COST, HORIZON = 0.9, 10.0, 10
"""γ below the paper's .997, whose values take some thousand steps to arrive; then 10 = 1/(1 − γ) steps are what counts."""


@dataclass(frozen=True)
class Small(ModelConfig):
    """Networks of the size of the problem; features are the cell, one-hot, and a stochastic part of one zero."""

    @property
    def widths(self) -> Size:
        return Size(deter=CELLS, hidden=32, layers=1, cnn_depth=1, latents=1, classes=1, bins=31)


CONFIG = Config(
    Small(), AgentConfig(penalty="penl", learning_rate=1e-3, discount=DISCOUNT), ShieldConfig(discount=DISCOUNT)
)
SPEC = Spec(ObservationSpec(vector=CELLS), 5, ATOMS, parse_formula("!hazard", ATOMS), cost=COST)


class Table(RSSM):
    """A kernel `[cells, actions, cells]` in the place of the learned dynamics."""

    kernel: Float[Array, "cells actions cells"]

    def __init__(self, kernel: np.ndarray):
        self.kernel = jnp.asarray(kernel, jnp.float32)
        self.input = self.gru = self.prior = self.posterior = self.initial_deter = None
        self.latents = self.classes = 1

    def imagine(self, latent, action, key):
        odds = jnp.einsum("s,a,sat->t", latent.deter, action, self.kernel)
        return at_cell(jax.random.categorical(key, jnp.log(odds)))


class Exact(WorldModel):
    """The true world where the learned one would be."""

    def __init__(self, kernel: np.ndarray):
        self.encoder = self.decoder = self.heads = None
        self.rssm, self.spec, self.config = Table(kernel), SPEC, CONFIG.model

    def reward(self, latent):
        return jnp.where(self.proceed(latent) > 0, -0.01, 1.0)

    def proceed(self, latent):
        return latent.deter @ jnp.asarray(ON, jnp.float32)

    def cost(self, latent):
        return COST * latent.deter @ jnp.asarray(HAZARD, jnp.float32)


def at_cell(cell) -> Latent:
    return Latent(jax.nn.one_hot(cell, CELLS), jnp.zeros((1, 1)))


class Found(NamedTuple):
    """What was learned, per cell."""

    task: np.ndarray
    backup: np.ndarray
    values: np.ndarray


def learner():
    """(kernel, updates, whether policies learn, seed) -> Found; compiled once for all."""
    static = eqx.partition(fresh_state(GRID.kernel, 0), eqx.is_array)[1]
    every = jax.vmap(at_cell)(jnp.arange(CELLS))

    @jax.jit
    def run(arrays, updates, policies_learn, key):
        def step(index, arrays):
            state = eqx.combine(arrays, static)
            after, _ = improve(state, every, jnp.asarray(ON, jnp.float32), at(key, index), config=CONFIG)
            actors = jax.tree.map(
                lambda old, new: jnp.where(policies_learn, new, old), state.behaviour.actors, after.behaviour.actors
            )
            return eqx.filter(after._replace(behaviour=after.behaviour._replace(actors=actors)), eqx.is_array)

        behaviour = eqx.combine(jax.lax.fori_loop(0, updates, step, arrays), static).behaviour
        policies = (jnp.exp(jax.vmap(actor)(every.features).log_probs) for actor in behaviour.actors)
        return Found(*policies, jax.vmap(behaviour.critics.values)(every.features))

    def learn(kernel, updates, policies_learn=True, seed=0) -> Found:
        arrays = eqx.filter(fresh_state(kernel, seed), eqx.is_array)
        found = run(arrays, updates, policies_learn, stream(seed, "learn"))
        return Found(*(np.asarray(part) for part in found))

    return learn


def fresh_state(kernel: np.ndarray, seed: int) -> Learned:
    state = init(SPEC, CONFIG, discrete=True, key=stream(seed, "parameters"))
    return state._replace(model=Exact(kernel), model_opt=None)


def exact_cost(kernel: np.ndarray, policy: np.ndarray, terminal: bool) -> np.ndarray:
    """Discounted cost to come, (I − γP)V = P·c; with `terminal` the first violation ends the count, and so lets V ≤ C."""
    chances = np.einsum("sa,sat->st", policy, kernel)
    onward = chances * (ON & ~HAZARD if terminal else ON)[None]
    return np.linalg.solve(np.eye(CELLS) - DISCOUNT * onward, chances @ (COST * HAZARD))


def violation(kernel: np.ndarray, policy: np.ndarray | None) -> float:
    """Mean probability over safe cells of meeting a hazard within the horizon; without a policy the least possible."""
    chance = HAZARD.astype(float)
    for _ in range(HORIZON):
        ahead = kernel @ chance
        ahead = ahead.min(axis=1) if policy is None else (policy * ahead).sum(axis=1)
        chance = np.where(HAZARD, 1.0, ahead * ON)
    return float(chance[SAFE].mean())


def windy(kernel: np.ndarray, share: float) -> np.ndarray:
    """Instead of what was chosen, with this probability a step in any direction: now staying is not safe."""
    blown = (1 - share) * kernel + share * kernel[:, :4].mean(axis=1, keepdims=True)
    return np.where(GOAL[:, None, None], kernel, blown)


@pytest.mark.parametrize(
    ("wind", "updates"), [pytest.param(0.0, 1500, marks=pytest.mark.slow), (0.3, 2500)], ids=["still", "windy"]
)
def test_critics_and_backup_policy_come_near_the_exact_values(wind, updates):
    """Mean errors of the critics within .05·C of the values of the very policies that were learned.

    The backup policy minimises discounted cost, not the chance of a first violation; yet that chance comes within 10 points
    of the least possible. Measured: still air .03 (least 0, a random policy .75), wind .30 (least .24, random .77).
    """
    kernel = windy(GRID.kernel, wind)
    found = learner()(kernel, updates)
    safety = exact_cost(kernel, found.task, terminal=True)
    backup = exact_cost(kernel, found.backup, terminal=False)
    for twin in (3, 4):
        assert np.abs(found.values[:, twin] - safety)[SAFE].mean() <= 0.05 * COST
    assert np.abs(found.values[:, 2] - backup)[ON].mean() <= 0.05 * COST
    least, random = violation(kernel, None), violation(kernel, np.full((CELLS, 5), 0.2))
    assert violation(kernel, found.backup) <= least + 0.1 < random - 0.2

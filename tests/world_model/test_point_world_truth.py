"""Truth on `point_world`: how far ahead a learned model sees, and whether it knows a hazard."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ambs.config import ModelConfig
from ambs.data import Experience
from ambs.envs.worlds.point_world import ATOMS, PointWorldEnv
from ambs.spec import parse_formula
from ambs.streams import at, stream
from ambs.world_model.model import WorldModel, WorldSpec
from ambs.world_model.vision import ObservationSpec
from tests.tiny import filter_one

from .test_truth import trainer

pytestmark = pytest.mark.learns

CONFIG = ModelConfig(size="xxs", learning_rate=2e-3, vector_scale=50.0)
SPEC = WorldSpec(ObservationSpec(vector=9), 2, ATOMS, parse_formula("!hazard", ATOMS))
UPDATES, CONTEXT, AHEAD = 1500, 10, (1, 5, 15, 30)
GOAL = slice(2, 4)
"""Goal − position (m): where the robot is, as far as the observation tells."""


def play(steps: int, seed: int) -> Experience:
    """Drives in random directions, each held for ten steps or so, and back inside from beyond the walls."""
    env, rng = PointWorldEnv(), np.random.default_rng(seed)
    seen, info = env.reset(seed=seed)
    rows = [(seen, np.zeros(2), 0.0, info["labels"], True)]
    action = rng.uniform(-1, 1, 2)
    while len(rows) < steps:
        if rng.uniform() < 0.1:
            action = np.clip(rng.uniform(-2, 2, 2), -1, 1)
        place = env.state.robot[:2]
        action = np.where(np.abs(place) > 1.2, -np.sign(place), action)
        seen, reward, _, truncated, info = env.step(action)
        rows.append((seen, action, reward, info["labels"], False))
        if truncated:
            seen, info = env.reset()
            rows.append((seen, np.zeros(2), 0.0, info["labels"], True))
    seen, actions, rewards, labels, first = (np.array(column) for column in zip(*rows, strict=True))
    floats = (jnp.asarray(part, jnp.float32) for part in (actions, rewards))
    ones = jnp.ones(len(rows))
    return Experience({"vector": jnp.asarray(seen)}, *floats, jnp.asarray(labels)[:, None], ones, jnp.asarray(first))


@eqx.filter_jit
def predict(model: WorldModel, windows: Experience, keys: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Where the goal is dreamt to be after the context, and how likely hazards are as they are met, in every window."""

    def one(window: Experience, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        seen = filter_one(model, window, stream(key, "filter")).latent
        latent = jax.tree.map(lambda leaf: leaf[CONTEXT - 1], seen)

        def advance(latent, item):
            action, step = item
            after = model.rssm.imagine(latent, action, model.rssm.draw(at(stream(key, "imagine"), step)))
            return after, SPEC.observation.natural(model.decoder(after.features)["vector"])[GOAL]

        _, dreamt = jax.lax.scan(advance, latent, (window.action[CONTEXT:], jnp.arange(AHEAD[-1])))
        return dreamt, jax.vmap(model.label_probs)(seen.features)[:, 0, 0]

    return jax.vmap(one)(windows, keys)


def figures(model: WorldModel, data: Experience) -> dict[str, float]:
    """Mean error (m) so many steps ahead with the true actions; precision and recall of hazards as they are met."""
    length = CONTEXT + AHEAD[-1]
    first = np.arange(0, data.reward.shape[0] - length, length)
    windows = jax.tree.map(lambda leaf: np.asarray(leaf)[first[:, None] + np.arange(length)], data)
    keys = jax.vmap(functools.partial(at, stream(4, "windows")))(jnp.arange(len(first)))
    dreamt, probs = jax.device_get(predict(model, windows, keys))
    flagged, true = probs[:, CONTEXT:] >= 0.5, windows.labels[:, CONTEXT:, 0, 0]
    goal = windows.observation["vector"][..., GOAL]
    # A goal that is reached, or a new episode, moves the goal; nobody can foresee where to.
    still = np.abs(np.diff(goal, axis=1)).max(axis=(1, 2)) < 0.2
    errors = np.linalg.norm(dreamt - goal[:, CONTEXT:], axis=-1)[still]
    assert len(errors) > 50
    assert true.sum() > 50
    found = {f"error after {steps}": float(np.mean(errors, axis=0)[steps - 1]) for steps in AHEAD}
    both = (flagged & true).sum()
    return found | {"precision": float(both / max(flagged.sum(), 1)), "recall": float(both / true.sum())}


def within_bounds(found: dict[str, float]) -> dict[str, bool]:
    bounds = {"error after 1": 0.3, "error after 5": 0.4, "error after 15": 0.65, "error after 30": 0.85}
    good = {name: found[name] <= bound for name, bound in bounds.items()}
    return good | {"precision": found["precision"] >= 0.7, "recall": found["recall"] >= 0.6}


def test_a_learned_model_sees_ahead_and_knows_hazards(record_property):
    """Bounds: .3, .4, .65 and .85 m after 1, 5, 15 and 30 steps (a robot at full speed goes 1.5 m in 30), precision .7 and
    recall .6 of hazards, which hold in 5 % of the steps.

    Measured: .19, .31, .49 and .65 m, .85 and .83. A model that was not trained is off by 2 m, and one in twenty of its
    hazards is one.
    """
    train = trainer(SPEC, CONFIG, UPDATES)
    data, unseen = play(20_000, 0), play(6_000, 1)
    found = figures(train(data, UPDATES), unseen)
    for name, value in found.items():
        record_property(name, value)
    assert all(within_bounds(found).values()), found
    untrained = within_bounds(figures(train(data, 0), unseen))
    assert not any(good for name, good in untrained.items() if name != "recall")

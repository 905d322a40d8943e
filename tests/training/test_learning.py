"""The quickstart's claim, on a smaller run: the agent learns its task, and the shield spares most violations.

Three ways of breaking it are kept behind the slow marker; each must fail what the sound one passes.
"""

from typing import Any

import jax.numpy as jnp
import pytest

from ambs.acting import act
from ambs.acting.agent import Agent
from ambs.acting.evaluate import evaluate, paired, summary
from ambs.agent import behaviour
from ambs.config.resolve import changed, resolve
from ambs.training import compiled
from ambs.training import trainer as training
from tests.tiny import swift

pytestmark = pytest.mark.learns

CONFIG = resolve(
    "quickstart",
    method="ambs",
    changes={
        "shield": {"safety_level": 0.2, "approximation_error": 0.1, "horizon": 4, "labels": "sample"},
        "training": {"frames": 20_000, "train_ratio": 128.0},
    },
)
"""Without a penalty the task policy is reckless, so that all safety is the shield's. Its labels are drawn, since a model that
has seen so little is unsure."""
EPISODES = 24


def figures(config: Any = CONFIG) -> dict[str, float]:
    """Train and evaluate: return of the shielded agent and of random play, violating frames per 1000 with and without."""
    caches = (act.compiled_act, compiled.compiled_learn, compiled.compiled_calibration)
    for cache in caches:
        cache.cache_clear()
    with swift():
        trainer = training.Trainer(config)
        trainer.run()
        trainer.close()
        agent = Agent(trainer.player, trainer.interface, config)
        found = paired(agent, EPISODES, seed=1)
        chance = summary(evaluate(agent, EPISODES, seed=1, policy="random"))
    for cache in caches:
        cache.cache_clear()
    return {
        "return": found["on"]["return"].mean,
        "random": chance["return"].mean,
        "off": found["off"]["violations_per_1000"].mean,
        "on": found["on"]["violations_per_1000"].mean,
    }


def holds(found: dict[str, float]) -> dict[str, bool]:
    """What is wanted of a sound agent."""
    return {
        "it learns its task": found["return"] >= found["random"] + 8,
        "it is reckless by itself": found["off"] >= 8,
        "the shield spares two violations in three": found["on"] <= found["off"] / 3,
    }


def test_it_learns_and_the_shield_spares_violations(record_property):
    found = figures()
    for name, value in found.items():
        record_property(name, float(value))
    assert all(holds(found).values()), found


@pytest.mark.slow
def test_a_frozen_world_model_fails():
    frozen = changed(CONFIG, {"model": {"learning_rate": 0.0}})
    found = figures(frozen)
    assert not holds(found)["it learns its task"], found


@pytest.mark.slow
def test_a_shield_that_accepts_everything_fails(monkeypatch):
    sound = act.shield

    def blind(key, state, proposed, *rest, **masks):
        decision = sound(key, state, proposed, *rest, **masks)
        return decision._replace(action=proposed, overridden=jnp.zeros_like(decision.overridden))

    monkeypatch.setattr(act, "shield", blind)
    found = figures()
    assert not holds(found)["the shield spares two violations in three"], found


@pytest.mark.slow
def test_a_backup_policy_that_seeks_cost_fails(monkeypatch):
    sound = behaviour._backup_gain
    monkeypatch.setattr(behaviour, "_backup_gain", lambda *parts: -sound(*parts))
    found = figures()
    assert not holds(found)["the shield spares two violations in three"], found

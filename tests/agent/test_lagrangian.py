"""The augmented Lagrangian on a problem whose constrained optimum is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ambs.agent.penalties import Imagined, penalty
from ambs.config import AgentConfig
from ambs.nn.distributions import OneHotCategorical
from ambs.streams import at, stream

DISCOUNT, ENTROPY, RATE, TRACES, UPDATES = 0.9, 0.01, 0.03, 16, 200_000
SPEED = jnp.linspace(0, 1, 5)
GAIN = jnp.sqrt(SPEED)
"""One state, five speeds: a step at speed v earns √v and costs v."""


def learn(config: AgentConfig) -> tuple[np.ndarray, np.ndarray]:
    """REINFORCE with exact values and sampled actions; returns the exact cost and reward returns after each update."""
    rule = penalty(config, 30, 1.0)

    def step(carry, index):
        logits, multiplier = carry
        odds = jnp.exp(OneHotCategorical.from_outputs(logits).log_probs)
        reward_value, cost_value = odds @ GAIN / (1 - DISCOUNT), odds @ SPEED / (1 - DISCOUNT)
        action = jax.random.categorical(at(stream(0, "lag"), index), jnp.log(odds), shape=(1, TRACES))
        reward_return = GAIN[action] + DISCOUNT * reward_value
        cost_return = SPEED[action] + DISCOUNT * cost_value
        seen = Imagined(SPEED[action], cost_return, jnp.zeros((2, TRACES)), jnp.zeros(TRACES))
        weights = rule.apply(seen, multiplier)
        gain = weights.reward * (reward_return - reward_value) - weights.cost * (cost_return - cost_value)

        def objective(logits):
            policy = OneHotCategorical.from_outputs(logits)
            return (gain * policy.log_probs[action]).mean() + ENTROPY * policy.entropy()

        moved = logits + RATE * jax.grad(objective)(logits)
        return (moved, rule.step(multiplier, cost_return.mean())), (cost_value, reward_value)

    start = (jnp.zeros(5), rule.init())
    _, (costs, rewards) = jax.jit(lambda: jax.lax.scan(step, start, jnp.arange(UPDATES)))()
    return np.asarray(costs), np.asarray(rewards)


def test_the_corrected_rule_meets_its_limit():
    """Most reward at a mean cost of d = 1, a mean speed of .1, is .4 of the time at speed .25: a return of .4·.5·10 = 2.

    Without the constraint the best is full speed, cost 10. σ takes 127 000 updates to bring μ to 1.
    """
    costs, rewards = learn(AgentConfig(penalty="lag"))
    assert costs[-10_000:].mean() == pytest.approx(1.0, rel=0.2)
    assert rewards[-10_000:].mean() == pytest.approx(2.0, rel=0.1)
    free, _ = learn(AgentConfig(penalty="none"))
    assert free[-10_000:].mean() > 9

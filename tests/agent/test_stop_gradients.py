"""Which input of each piece of the policies' and critics' losses lets a gradient through, and which does not.

Several stop-gradients guard one another in the whole loss; here each piece has to do without the others.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ambs.agent import behaviour as training
from ambs.agent.imagine import Dream
from ambs.agent.networks import Actor, Critics
from ambs.config import AgentConfig, Config, ModelConfig
from tests.tiny import TINY, fresh, quick_jit, touched

STEPS, TRACES = 2, 3


def uniform(*shape: int, seed: int = 0) -> Any:
    return jnp.asarray(np.random.default_rng(seed).uniform(0.1, 0.9, shape), jnp.float32)


def dream() -> Dream:
    """Traces of one policy."""
    state = (STEPS + 1, TRACES)
    return Dream(uniform(*state, 8), uniform(STEPS, TRACES, 2), *(uniform(*state, seed=seed) for seed in range(4)))


def receivers(function: Any, **inputs: Any) -> set[str]:
    """Names of the inputs that get a gradient from the sum of what the function returns."""
    gradients = quick_jit(jax.grad(lambda inputs: function(**inputs).sum()))(inputs)
    return {name for name, gradient in gradients.items() if touched(gradient)}


def noisy(network: Any) -> Any:
    """Fresh critics have zero outputs, behind which every gradient is zero."""
    return jax.tree.map(lambda leaf: leaf + uniform(*leaf.shape), network)


@pytest.mark.parametrize(("grad", "expected"), [("reinforce", {"actor"}), ("dynamics", {"actor", "gain"})])
def test_actor_loss(grad, expected):
    """REINFORCE: traces and advantages are numbers. Dynamics: the advantage alone leads back into the trace."""
    config = Config(ModelConfig("xxs"), AgentConfig(actor_grad=grad))
    weight = uniform(STEPS, TRACES)
    found = receivers(
        lambda actor, dream, gain: training._actor_loss(actor, dream, gain, weight, config)[0],
        actor=Actor(8, 2, TINY, discrete=False, key=fresh()),
        dream=dream(),
        gain=uniform(STEPS, TRACES),
    )
    assert found == expected


def test_critic_loss():
    """Targets, features, weights and what the slow copies say are given."""
    found = receivers(
        lambda critics, said, dream, targets, weight: training._critic_loss(critics, said, dream, targets, weight, 1.0),
        critics=noisy(Critics(8, TINY, key=fresh())),
        said=uniform(STEPS + 1, TRACES, 5),
        dream=dream(),
        targets=uniform(STEPS, TRACES, 5),
        weight=uniform(STEPS, TRACES, 5),
    )
    assert found == {"critics"}


def test_weights_and_safety_targets():
    config = Config(ModelConfig("xxs"))
    assert not receivers(
        lambda proceed, goes_on: training._reach(proceed, goes_on, 0.9),
        proceed=uniform(STEPS + 1, TRACES),
        goes_on=uniform(TRACES),
    )
    assert not receivers(
        lambda task, slow: training._safety_returns(task, slow, config, 10.0),
        task=dream(),
        slow=uniform(STEPS + 1, TRACES, 2),
    )

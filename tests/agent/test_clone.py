"""The clone of a policy that is given, and a backup policy that stays close to it: by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ambs.agent.behaviour import ByCritic, Lesson, _clone_loss, _returns, _strayed
from ambs.agent.imagine import Dream, Dreams
from ambs.agent.networks import Actor
from ambs.config import AgentConfig, Config, ModelConfig, SafetyConfig
from ambs.nn.distributions import BoundedNormal, OneHotCategorical
from tests.tiny import TINY, fresh, random_like


def actor_of(discrete, features=3):
    """An actor whose parameters are drawn anew: a fresh one proposes the same everywhere."""
    shapes = jax.eval_shape(lambda key: Actor(features, 2, TINY, discrete=discrete, key=key), fresh())
    return random_like(shapes)


def test_it_learns_what_was_proposed_and_nothing_where_nothing_was():
    """−ln of the normal density, by NumPy, over the two rows of three that have a proposal; no gradient from the third."""
    with jax.enable_x64(True):
        actor = actor_of(discrete=False)
        features = jnp.asarray(np.random.default_rng(0).normal(size=(3, 3)))
        proposed = np.array([[0.5, -1.0], [np.nan, 0.2], [0.1, 0.9]])

        def loss(one, seen):
            return _clone_loss(one, Lesson(seen, jnp.asarray(proposed)))[0]

        found, slopes = jax.value_and_grad(loss, argnums=(0, 1))(actor, features)
        said = [actor(row) for row in features]
        density = [
            -0.5 * ((p - np.asarray(one.mean)) / np.asarray(one.deviation)) ** 2
            - np.log(np.asarray(one.deviation) * np.sqrt(2 * np.pi))
            for p, one in zip(proposed, said, strict=True)
        ]
        assert float(found) == pytest.approx(-(density[0].sum() + density[2].sum()) / 2)
        assert all(np.isfinite(leaf).all() and leaf.any() for leaf in jax.tree.leaves(slopes[0]))
        # What it sees is given: the world model learns nothing from what a policy proposes.
        assert not slopes[1].any()


def test_discrete_proposals_are_learned_by_cross_entropy():
    with jax.enable_x64(True):
        actor = actor_of(discrete=True)
        features = jnp.asarray(np.random.default_rng(1).normal(size=(2, 3)))
        found, _ = _clone_loss(actor, Lesson(features, jnp.eye(2)))
        probs = [np.exp(np.asarray(actor(row).log_probs)) for row in features]
        assert float(found) == pytest.approx(-(np.log(probs[0][0]) + np.log(probs[1][1])) / 2)


def test_how_far_an_action_lies_from_a_policy():
    """From one end of the range to the other is 1; beyond the bounds counts as at them. Of discrete ones the others' chance."""
    normal = BoundedNormal(jnp.array([-1.0, 0.0]), jnp.ones(2))
    assert float(normal.distance(jnp.array([1.5, 0.0]))) == pytest.approx(0.5)
    assert float(normal.distance(jnp.array([-1.0, 0.5]))) == pytest.approx((0.25**2) / 2)
    one_hot = OneHotCategorical(jnp.log(jnp.array([0.75, 0.25])))
    assert float(one_hot.distance(jnp.array([0.0, 1.0]))) == pytest.approx(0.75)


def test_straying_costs_the_backup_policy_and_nobody_else():
    """Two steps, γ = ½, λ = 1: the cost of each step and β·C·distance of its action, discounted; the tail is the critic's."""
    with jax.enable_x64(True):
        actor = actor_of(discrete=False)
        config = Config(
            ModelConfig(size="xxs"), AgentConfig(backup_imitation=0.5, lam=1.0), safety=SafetyConfig(2.0, 0.5)
        )
        rng = np.random.default_rng(2)
        features, action = jnp.asarray(rng.normal(size=(3, 1, 3))), jnp.asarray(rng.uniform(-1, 1, (2, 1, 2)))
        cost = jnp.array([[0.0], [0.3], [1.1]])
        dream = Dream(features, action, cost, cost, cost / 2, jnp.ones((3, 1)))
        values = jnp.full((3, 1), 7.0)
        table = ByCritic(values, values, jnp.zeros((3, 1, 2)), values)
        plain, strayed = (
            _returns(Dreams(dream, dream), table, table, config, 2.0, away)
            for away in (None, _strayed(actor, dream, config))
        )
        modes = np.stack([np.tanh(np.asarray(actor.mlp(row)))[:2] for row in features[:2, 0]])
        apart = (((np.asarray(action)[:, 0] - modes) / 2) ** 2).mean(axis=1)
        charged = np.array([0.3, 1.1]) + 0.5 * 2.0 * apart
        last = charged[1] + 0.5 * 7.0
        np.testing.assert_allclose(strayed.backup[:, 0], [charged[0] + 0.5 * last, last])
        for name in ("task", "penalty", "safety"):
            np.testing.assert_array_equal(getattr(strayed, name), getattr(plain, name))
        assert _strayed(actor, dream, Config(ModelConfig(size="xxs"))) is None

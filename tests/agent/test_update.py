"""One training step: everything moves that should, nothing else does, and it compiles once."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ambs.agent.imagine import imagine
from ambs.agent.networks import CRITICS, Critics, safety_value
from ambs.agent.update import init, update
from ambs.config import SIZES, AgentConfig, Config, ModelConfig
from ambs.shield import ShieldConfig, paper_semantics
from ambs.spec import Atoms, parse_formula
from ambs.streams import at, stream
from ambs.world_model.loss import Sequence
from ambs.world_model.model import Spec
from ambs.world_model.vision import ObservationSpec

ATOMS = Atoms(("hazard",))


def fresh(seed=0):
    """A key that has not been used."""
    return jax.random.key(seed)


def setup(agent=None, observation=None, discrete=False, shield=None, **model):
    config = Config(ModelConfig(size="xxs", **model), agent or AgentConfig(imagination=3), shield or ShieldConfig())
    spec = Spec(observation or ObservationSpec(vector=4), 2, ATOMS, parse_formula("!hazard"), frames=2)
    return config, init(spec, config, discrete=discrete, key=fresh())


def batch_for(spec: Spec, seed=0) -> Sequence:
    rng = np.random.default_rng(seed)
    observation = {}
    if spec.observation.image:
        observation["image"] = jnp.asarray(rng.integers(0, 256, (2, 4, 16, 16, 3)), jnp.uint8)
    if spec.observation.vector:
        observation["vector"] = jnp.asarray(rng.normal(size=(2, 4, 4)), jnp.float32)
    return Sequence(
        observation,
        jnp.asarray(np.eye(2)[rng.integers(0, 2, (2, 4))], jnp.float32),
        jnp.asarray(rng.normal(size=(2, 4)), jnp.float32),
        jnp.asarray(rng.uniform(size=(2, 4, 2, 1)) < 0.3),
        jnp.ones((2, 4)),
        jnp.zeros((2, 4), bool).at[:, 0].set(True),
    )


@pytest.mark.parametrize(
    ("penalty", "actor_grad", "discrete", "observation", "semantics"),
    [
        ("copt", "reinforce", False, ObservationSpec(vector=4), "corrected"),
        pytest.param("plpg", "dynamics", False, ObservationSpec(16), "paper", marks=pytest.mark.slow),
        ("penl", "reinforce", True, ObservationSpec(vector=4), "paper"),
        pytest.param("lag", "dynamics", False, ObservationSpec(16, 4), "corrected", marks=pytest.mark.slow),
        pytest.param("none", "dynamics", True, ObservationSpec(vector=4), "corrected", marks=pytest.mark.slow),
    ],
)
def test_contract(penalty, actor_grad, discrete, observation, semantics):
    """Finite, repeatable, compiled once; all parameters of model, actors and critics have moved after two steps."""
    paper = semantics == "paper"
    config, state = setup(
        AgentConfig(penalty=penalty, actor_grad=actor_grad, imagination=3),
        observation,
        discrete,
        paper_semantics() if paper else None,
        cost_head="two_hot" if paper else "labels",
    )
    batch = batch_for(state.model.spec)
    step = eqx.filter_jit(lambda state, key: update(state, batch, key, config=config))
    first, metrics = step(state, at(stream(0, "update"), 0))
    second, metrics = step(first, at(stream(0, "update"), 1))
    third, metrics = step(second, at(stream(0, "update"), 2))
    assert all(np.isfinite(value) for value in metrics.values()), metrics
    before, after = (eqx.filter((s.model, s.behaviour), eqx.is_array) for s in (state, third))
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), before, after)
    still = [jax.tree_util.keystr(path) for path, leaf in jax.tree.leaves_with_path(moved) if not leaf]
    assert not still, still
    again, _ = step(state, at(stream(0, "update"), 0))
    same = jax.tree.map(
        lambda a, b: bool((a == b).all()), eqx.filter(first, eqx.is_array), eqx.filter(again, eqx.is_array)
    )
    assert jax.tree.all(same)


@pytest.mark.slow
def test_losses_stay_with_their_own_parameters():
    """The world model is untouched by policies and critics: another penalty leaves it bit by bit the same."""
    outcomes = []
    for penalty in ("none", "penl"):
        config, state = setup(AgentConfig(penalty=penalty, imagination=3))
        batch = batch_for(state.model.spec)
        after, _ = eqx.filter_jit(lambda s, c=config, b=batch: update(s, b, fresh(), config=c))(state)
        outcomes.append(after)
    same = jax.tree.map(lambda a, b: bool((a == b).all()), *(eqx.filter(o.model, eqx.is_array) for o in outcomes))
    assert jax.tree.all(same)
    backups = [eqx.filter(o.behaviour.actors.backup, eqx.is_array) for o in outcomes]
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), *backups))


def test_slow_critics_follow():
    config, state = setup()
    after, _ = eqx.filter_jit(lambda s: update(s, batch_for(state.model.spec), fresh(), config=config))(state)
    old, new, slow = (jax.tree.leaves(c)[0] for c in (state.slow, after.behaviour.critics, after.slow))
    np.testing.assert_allclose(slow, 0.98 * old + 0.02 * new, rtol=1e-5, atol=1e-7)


def test_imagination_equals_manual_stepping():
    _, state = setup()
    model, actors = state.model, state.behaviour.actors
    start = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), model.rssm.initial())
    dream = eqx.filter_jit(imagine)(model, actors, start, 4, fresh())
    assert dream.action.shape == (4, 2, 3, 2)
    fold = jax.random.fold_in
    root = fresh()
    for index, actor in enumerate((actors.task, actors.backup)):
        latent = model.rssm.initial()
        for step in range(4):
            key = fold(root, step)
            action = actor.act(fold(fold(fold(key, 0), index), 1), latent)
            latent = model.rssm.imagine(latent, action, fold(fold(fold(key, 1), index), 1))
            np.testing.assert_allclose(dream.action[step, index, 1], action, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(dream.latent.deter[step + 1, index, 1], latent.deter, rtol=1e-4, atol=1e-5)
            assert dream.cost[step + 1, index, 1] == pytest.approx(float(model.cost(latent)), rel=1e-3)


def test_stacked_critics_are_five_separate_ones():
    critics = Critics(6, SIZES["xxs"], key=fresh())
    noisy = eqx.tree_at(lambda c: c.mlp.out.weight, critics, jax.random.normal(fresh(), critics.mlp.out.weight.shape))
    features = jnp.arange(6.0)
    together = noisy.values(features)
    assert together.shape == (5,)
    for index, name in enumerate(CRITICS):
        assert noisy.only(name).values(features)[0] == pytest.approx(float(together[index]), rel=1e-5)
    assert len(set(np.round(np.asarray(together), 4))) == 5


def test_safety_value_is_clipped_and_selectable():
    twins = jnp.array([[3.0, 5.0], [-2.0, -1.0], [4.0, 99.0]])
    assert safety_value(twins, "max", 10.0).tolist() == [5, 0, 10]
    assert safety_value(twins, "min", 10.0).tolist() == [3, 0, 4]

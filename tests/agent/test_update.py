"""One training step: its shapes for every size, observation, penalty and cost head; a tiny agent really takes some."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ambs.agent.imagine import imagine
from ambs.agent.networks import CRITICS, Critics, safety_value
from ambs.agent.penalties import penalty as penalty_of
from ambs.agent.update import init, update
from ambs.config import SIZES, AgentConfig, Config, ModelConfig
from ambs.shield import ShieldConfig, paper_semantics
from ambs.streams import at, stream
from ambs.training.learn import learn
from ambs.world_model.loss import world_model_loss
from ambs.world_model.model import WorldModel
from ambs.world_model.vision import ObservationSpec
from tests.tiny import QUICK, TINY, batch_for, filled, fresh, method_with, quick_jit, spec_of, tiny_sizes

pytestmark = pytest.mark.learns

SEEN = {"vector": ObservationSpec(vector=60), "image": ObservationSpec(64), "both": ObservationSpec(64, 60)}


# Every two of penalty, cost head, actor gradient and type meet, and each of them both kinds of observation; every size meets
# both, together and one of them alone, both cost heads, both gradients and both types.
CASES = [
    ("xxs", "both", "lag", "two_hot", "dynamics", "float32"),
    ("xxs", "image", "copt", "labels", "reinforce", "bfloat16"),
    ("xs", "both", "copt", "two_hot", "dynamics", "float32"),
    ("xs", "vector", "lag", "labels", "reinforce", "bfloat16"),
    ("s", "both", "penl", "labels", "dynamics", "bfloat16"),
    ("s", "image", "penl", "two_hot", "reinforce", "float32"),
    ("m", "both", "plpg", "two_hot", "reinforce", "bfloat16"),
    ("m", "vector", "plpg", "labels", "dynamics", "float32"),
    ("l", "both", "none", "labels", "reinforce", "float32"),
    ("l", "image", "none", "two_hot", "dynamics", "bfloat16"),
]
OTHERS = sorted(set(itertools.product(SIZES, SEEN)) - {case[:2] for case in CASES})


@pytest.mark.parametrize(("size", "seen", "penalty", "head", "grad", "dtype"), CASES)
def test_shapes_and_types(size, seen, penalty, head, grad, dtype):
    """A step returns a state of the shapes and types it was given, float32 whatever the arithmetic, and scalar metrics."""
    config = Config(ModelConfig(size, head), AgentConfig(penalty=penalty, actor_grad=grad), method=method_with(penalty))
    spec = spec_of(SEEN[seen])
    state = eqx.filter_eval_shape(lambda key: init(spec, config, discrete=False, key=key), fresh())
    batch = eqx.filter_eval_shape(lambda: batch_for(spec))
    after, metrics = eqx.filter_eval_shape(
        lambda *args: update(*args, config=config, dtype=jnp.dtype(dtype)), state, batch, fresh()
    )
    assert jax.tree.structure(after) == jax.tree.structure(state)
    # Weak types count here: with one, the second step would be compiled anew.
    assert jax.tree.leaves(after) == jax.tree.leaves(state)
    assert {leaf.dtype.name for leaf in jax.tree.leaves((after.model, after.behaviour, after.slow))} == {"float32"}
    assert {(value.shape, value.dtype.name) for value in metrics.values()} == {((), "float32")}


@pytest.mark.parametrize(("size", "seen"), OTHERS)
def test_shapes_of_the_world_models_loss(size, seen):
    """The sizes with the observations that no case above has: policies and critics see neither but by the latent state."""
    spec, settings = spec_of(SEEN[seen]), ModelConfig(size, "two_hot")

    def loss(key):
        model = WorldModel(spec, settings, key=key)
        start = jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), model.rssm.initial())
        losses, latent = world_model_loss(model, batch_for(spec), start, fresh(1))
        return losses.total, latent.features

    total, features = eqx.filter_eval_shape(loss, fresh())
    widths = settings.widths
    assert (total.shape, total.dtype.name) == ((), "float32")
    assert features.shape == (2, 4, widths.deter + widths.latents * widths.classes)


def tiny_agent(penalty="none", grad="reinforce", *, steps=3, discrete=False, seen=None, paper=False):
    """Settings and state of an agent with the tiny model."""
    with tiny_sizes():
        config = Config(
            # Without free nats, since the prior of so small a model would not leave them.
            ModelConfig("xxs", "two_hot" if paper else "labels", free_nats=0.0),
            AgentConfig(penalty=penalty, actor_grad=grad, imagination=steps, plpg_stop_gradient=not paper),
            paper_semantics() if paper else ShieldConfig(),
            method=method_with(penalty),
        )
        shapes = eqx.filter_eval_shape(lambda key: init(spec_of(seen), config, discrete=discrete, key=key), fresh())
    model, behaviour = filled((shapes.model, shapes.behaviour))
    multiplier = penalty_of(config.agent, config.shield.horizon, 10.0, 0.997).init()
    learned = {"model": model, "behaviour": behaviour, "slow": behaviour.critics, "multiplier": multiplier}
    return config, filled(shapes, scale=0)._replace(**learned)


def split_step(config, state):
    """The state's arrays, and the training step on arrays alone, as `jax.jit` wants it."""
    arrays, rest = eqx.partition(state, eqx.is_array)

    def step(arrays, batch, key):
        after, metrics = update(eqx.combine(arrays, rest), batch, key, config=config)
        return eqx.filter(after, eqx.is_array), metrics

    return arrays, step


@functools.cache
def learner(*case):
    """An agent's arrays, a batch for it, and `learn` on arrays alone, as it is and compiled, for one update a call."""
    penalty, grad, discrete, seen, paper = case
    config, state = tiny_agent(penalty, grad, discrete=discrete, seen=seen, paper=paper)
    arrays, rest = eqx.partition(state, eqx.is_array)

    def several(arrays, batches, first):
        after, metrics = learn(eqx.combine(arrays, rest), batches, fresh(), first, config=config, dtype=jnp.float32)
        return eqx.filter(after, eqx.is_array), metrics

    return arrays, batch_for(state.model.spec), several, jax.jit(several, compiler_options=QUICK)


def alone(batch):
    """A batch as the only one of a call."""
    return jax.tree.map(lambda leaf: leaf[None], batch)


def key_of(step):
    return at(stream(0, "update"), step)


def equal(one, other):
    return jax.tree.all(jax.tree.map(np.array_equal, one, other))


COPT = ("copt", "reinforce", False, ObservationSpec(vector=4), False)


@pytest.mark.parametrize(
    "case",
    [
        COPT,
        ("plpg", "dynamics", False, ObservationSpec(16), True),
        ("penl", "reinforce", True, ObservationSpec(16, 4), True),
        ("lag", "dynamics", True, ObservationSpec(vector=4), False),
    ],
    ids=lambda case: case[0],
)
def test_three_steps(case):
    """Finite, compiled once, repeatable; all of model, actors and critics moves; slow critics follow."""
    start, batch, _, compiled = learner(*case)
    batch = alone(batch)
    states = [start]
    for index in range(3):
        after, metrics = compiled(states[-1], batch, index)
        assert all(np.isfinite(value) for value in metrics.values()), metrics
        assert metrics["updates/skipped"] == 0
        states.append(after)
    assert compiled._cache_size() == 1
    first, last = states[1], states[3]
    trained = lambda state: (state.model, state.behaviour)  # noqa: E731
    same = jax.tree.map(np.array_equal, trained(start), trained(last))
    still = [jax.tree_util.keystr(path) for path, leaf in jax.tree.leaves_with_path(same) if leaf]
    assert not still, still
    for old, new, slow in zip(*map(jax.tree.leaves, (start.slow, first.behaviour.critics, first.slow)), strict=True):
        np.testing.assert_allclose(slow, 0.98 * np.asarray(old) + 0.02 * np.asarray(new), rtol=1e-5, atol=1e-7)
    again, _ = compiled(start, batch, 0)
    assert equal(again, first)
    # Whatever policies and critics are, the world model learns the same.
    behaviour, slow = jax.tree.map(lambda leaf: np.asarray(leaf) + 1, (start.behaviour, start.slow))
    apart, _ = compiled(start._replace(behaviour=behaviour, slow=slow), batch, 0)
    assert equal(apart.model, first.model)


@pytest.mark.slow
def test_compilation_changes_nothing():
    config, state = tiny_agent("copt", steps=1)
    start, step = split_step(config, state)
    batch = batch_for(state.model.spec, time=2)
    compiled, metrics = jax.jit(step)(start, batch, key_of(0))
    with jax.disable_jit():
        plain, plain_metrics = step(start, batch, key_of(0))
    for name, value in plain_metrics.items():
        assert float(metrics[name]) == pytest.approx(float(value), rel=1e-4, abs=1e-5), name
    for one, other in zip(jax.tree.leaves(compiled), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_several_updates_in_one_call_are_single_ones():
    """Two updates in a loop, and the same two as calls without one."""
    state, batch, several, single = learner(*COPT)
    both = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), batch)
    together, means = jax.jit(several, compiler_options=QUICK)(state, both, 0)
    found = []
    for index in range(2):
        state, metrics = single(state, alone(batch), index)
        found.append(metrics)
    for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(state), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    average = (found[0]["model/total"] + found[1]["model/total"]) / 2
    assert float(means["model/total"]) == pytest.approx(float(average), rel=1e-5)
    # Broken critics: policies and critics stay as they are, the model, whose figures are finite, goes on.
    broken = eqx.tree_at(
        lambda s: s.behaviour.critics.mlp.out.bias, state, replace_fn=lambda bias: bias.at[0, 0].set(jnp.nan)
    )
    after, metrics = single(broken, alone(batch), 2)
    assert float(metrics["updates/skipped"]) == 1
    for a, b in zip(jax.tree.leaves(after.behaviour), jax.tree.leaves(broken.behaviour), strict=True):
        np.testing.assert_array_equal(a, b)
    assert any((a != b).any() for a, b in zip(jax.tree.leaves(after.model), jax.tree.leaves(state.model), strict=True))
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(after.model))


def test_imagination_equals_manual_stepping():
    _, state = tiny_agent()
    model, actors = state.model, state.behaviour.actors
    initial = quick_jit(model.rssm.initial)()
    start = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), initial)
    dreams = quick_jit(imagine)(model, actors, start, 4, fresh())
    assert dreams.task.action.shape == (4, 3, 2)
    fold = jax.random.fold_in

    @quick_jit
    def manual(actor, latent, act_key, move_key):
        action = actor.act(act_key, latent)
        arrival = model.rssm.imagine(latent, action, model.rssm.draw(move_key))
        return action, arrival, model.cost(arrival.features)

    for index, (actor, dream) in enumerate(zip(actors, dreams, strict=True)):
        latent = initial
        for step in range(4):
            keys = jax.random.split(fold(fresh(), step), (2, 2, 3))
            action, latent, cost = manual(actor, latent, keys[0, index, 1], keys[1, index, 1])
            np.testing.assert_allclose(dream.action[step, 1], action, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(dream.features[step + 1, 1], latent.features, rtol=1e-4, atol=1e-5)
            assert dream.cost[step + 1, 1] == pytest.approx(float(cost), rel=1e-3)


def test_stacked_critics_are_five_separate_ones():
    @quick_jit
    def values(weight):
        critics = eqx.tree_at(lambda c: c.mlp.out.weight, Critics(6, TINY, key=fresh()), weight)
        features = jnp.arange(6.0)
        return critics.values(features), [critics.only(name).values(features) for name in CRITICS]

    together, apart = values(np.random.default_rng(0).normal(size=(5, TINY.hidden, TINY.bins)).astype(np.float32))
    assert together.shape == (5,)
    np.testing.assert_allclose(np.concatenate(apart), together, rtol=1e-5)
    assert len(set(np.round(np.asarray(together), 4))) == 5


def test_safety_value_is_clipped_and_selectable():
    twins = jnp.array([[3.0, 5.0], [-2.0, -1.0], [4.0, 99.0]])
    assert safety_value(twins, "max", 10.0).tolist() == [5, 0, 10]
    assert safety_value(twins, "min", 10.0).tolist() == [3, 0, 4]

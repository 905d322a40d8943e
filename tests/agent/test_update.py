"""One training step: its shapes for every size, observation, penalty and cost head; a tiny agent really takes some."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ambs.agent.imagine import imagine
from ambs.agent.networks import CRITICS, Critics, safety_value
from ambs.agent.penalties import PENALTIES
from ambs.agent.update import init, update
from ambs.config import SIZES, AgentConfig, Config, ModelConfig
from ambs.shield import ShieldConfig, paper_semantics
from ambs.streams import at, stream
from ambs.training.learn import learn
from ambs.world_model.vision import ObservationSpec
from tests.tiny import QUICK, TINY, batch_for, fresh, method_with, quick_jit, spec_of, tiny_sizes

pytestmark = pytest.mark.learns

SEEN = {"vector": ObservationSpec(vector=60), "image": ObservationSpec(64), "both": ObservationSpec(64, 60)}


def _cases():
    """Every size with every observation; on the way every penalty meets both cost heads, gradients and types."""
    for index, (size, seen) in enumerate(itertools.product(SIZES, SEEN)):
        head = ("labels", "two_hot")[index % 2]
        grad = ("reinforce", "dynamics")[index // 5 % 2]
        yield size, seen, tuple(PENALTIES)[index % len(PENALTIES)], head, grad, ("float32", "bfloat16")[index // 2 % 2]


CASES = list(_cases())


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
        return config, quick_jit(lambda key: init(spec_of(seen), config, discrete=discrete, key=key))(fresh())


def split_step(config, state):
    """The state's arrays, and the training step on arrays alone, as `jax.jit` wants it."""
    arrays, rest = eqx.partition(state, eqx.is_array)

    def step(arrays, batch, key):
        after, metrics = update(eqx.combine(arrays, rest), batch, key, config=config)
        return eqx.filter(after, eqx.is_array), metrics

    return arrays, step


def key_of(step):
    return at(stream(0, "update"), step)


def equal(one, other):
    return jax.tree.all(jax.tree.map(np.array_equal, one, other))


@pytest.mark.parametrize(
    ("penalty", "grad", "discrete", "seen", "paper"),
    [
        ("copt", "reinforce", False, ObservationSpec(vector=4), False),
        ("plpg", "dynamics", False, ObservationSpec(16), True),
        ("penl", "reinforce", True, ObservationSpec(vector=4), True),
        ("lag", "dynamics", False, ObservationSpec(16, 4), False),
        ("none", "dynamics", True, ObservationSpec(vector=4), False),
    ],
)
def test_three_steps(penalty, grad, discrete, seen, paper):
    """Finite, compiled once, repeatable; all of model, actors and critics moves; slow critics follow."""
    config, state = tiny_agent(penalty, grad, discrete=discrete, seen=seen, paper=paper)
    start, step = split_step(config, state)
    batch = batch_for(state.model.spec)
    compiled = jax.jit(step, compiler_options=QUICK)
    states = [start]
    for index in range(3):
        after, metrics = compiled(states[-1], batch, key_of(index))
        assert all(np.isfinite(value) for value in metrics.values()), metrics
        states.append(after)
    assert compiled._cache_size() == 1
    first, last = states[1], states[3]
    trained = lambda state: (state.model, state.behaviour)  # noqa: E731
    same = jax.tree.map(np.array_equal, trained(start), trained(last))
    still = [jax.tree_util.keystr(path) for path, leaf in jax.tree.leaves_with_path(same) if leaf]
    assert not still, still
    for old, new, slow in zip(*map(jax.tree.leaves, (start.slow, first.behaviour.critics, first.slow)), strict=True):
        np.testing.assert_allclose(slow, 0.98 * np.asarray(old) + 0.02 * np.asarray(new), rtol=1e-5, atol=1e-7)
    again, _ = compiled(start, batch, key_of(0))
    assert equal(again, first)
    # Whatever policies and critics are, the world model learns the same.
    behaviour, slow = jax.tree.map(lambda leaf: np.asarray(leaf) + 1, (start.behaviour, start.slow))
    apart, _ = compiled(start._replace(behaviour=behaviour, slow=slow), batch, key_of(0))
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
    config, state = tiny_agent("copt", steps=1)
    batches = jax.tree.map(lambda *both: jnp.stack(both), *(batch_for(state.model.spec, time=2) for _ in range(2)))
    several = quick_jit(lambda state, some, first: learn(state, some, fresh(), first, config=config, dtype=jnp.float32))
    together, means = several(state, batches, jnp.array(0))
    found = []
    for index in range(2):
        one = jax.tree.map(lambda leaf, index=index: leaf[index : index + 1], batches)
        state, metrics = several(state, one, jnp.array(index))
        found.append(metrics)
    for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(state), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    average = (found[0]["model/total"] + found[1]["model/total"]) / 2
    assert float(means["model/total"]) == pytest.approx(float(average), rel=1e-5)
    # Broken critics: policies and critics stay as they are, the model, whose figures are finite, goes on.
    broken = eqx.tree_at(
        lambda s: s.behaviour.critics.mlp.out.bias, state, replace_fn=lambda bias: bias.at[0, 0].set(jnp.nan)
    )
    after, metrics = several(broken, one, jnp.array(2))
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

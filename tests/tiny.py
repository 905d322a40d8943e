"""A model so small that its gradients can be checked number by number, and compilation that takes seconds."""

import contextlib
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ambs import config
from ambs.data import Experience
from ambs.nn.distributions import bins
from ambs.spec import Atoms, parse_formula
from ambs.world_model.model import WorldSpec
from ambs.world_model.vision import ObservationSpec

TINY = config.Size(4, 4, 1, 2, latents=2, classes=2, vector_layers=1, vector_units=4, bins=21)
ATOMS = Atoms(("hazard",))
# For loops of thousands of updates: what conftest.py leaves out for all other tests.
SWIFT = {"xla_backend_optimization_level": 1, "xla_cpu_use_fusion_emitters": True}
# On arrays of a few numbers optimised machine code saves nothing, and making it costs most of the time.
QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}


def method_with(penalty: str) -> Any:
    """A method that has this penalty: settings say both, and they must agree."""
    return next(name for name, method in config.METHODS.items() if method.penalty == penalty)


def fresh(seed: int = 0) -> Any:
    """A key that has not been used."""
    return jax.random.key(seed)


def quick_jit(function: Any) -> Any:
    """`eqx.filter_jit` without the optimisations."""
    return eqx.filter_jit(function, compiler_options=QUICK)


@contextlib.contextmanager
def swift() -> Any:
    """Within, whatever is handed to `jax.jit` is compiled with the optimisations."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "jit", functools.partial(jax.jit, compiler_options=SWIFT))
        yield


@contextlib.contextmanager
def tiny_sizes() -> Any:
    """Within, the size called `xxs` is `TINY`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(config.SIZES, "xxs", TINY)
        yield patch


@contextlib.contextmanager
def ignorant_agent(settings: Any) -> Any:
    """An agent of size `TINY` that has learned nothing; quick to compile."""
    from ambs.acting.act import Player, act, default_thresholds
    from ambs.acting.adapter import interface
    from ambs.acting.agent import Agent
    from ambs.acting.worlds import make_envs
    from ambs.agent.update import init

    @functools.cache
    def quick_act(config: Any, shielded: bool, policy: str = "task", imagined: Any = None) -> Any:
        bound = functools.partial(act, config=config, shielded=shielded, policy=policy, imagined=imagined)
        return jax.jit(bound, donate_argnums=1, compiler_options=QUICK)

    with tiny_sizes() as patch:
        patch.setattr("ambs.acting.agent.compiled_act", quick_act)
        envs = make_envs(settings, 1)
        known = interface(envs, settings)
        envs.close()
        shapes = jax.eval_shape(lambda key: init(known.spec, settings, discrete=known.discrete, key=key), fresh())
        learned = filled(shapes)
        behaviour = learned.behaviour
        thresholds = default_thresholds(settings, len(known.spec.atoms))
        yield Agent(Player(learned.model, behaviour.actors, behaviour.critics, thresholds), known, settings)


def filled(shapes: Any, scale: float = 0.25) -> Any:
    """Float32 parameters of these shapes, drawn without anything to compile; a scale of 0 gives zeros of all types."""
    rng = np.random.default_rng(0)

    def fill(leaf: Any) -> Any:
        made = isinstance(leaf, jax.ShapeDtypeStruct)
        return jnp.asarray((scale * rng.normal(size=leaf.shape)).astype(leaf.dtype)) if made else leaf

    return jax.tree.map(fill, shapes)


def spec_of(observation: ObservationSpec | None = None, cost: float = 10.0) -> WorldSpec:
    """Two actions, one atom, two frames per step."""
    return WorldSpec(observation or ObservationSpec(vector=3), 2, ATOMS, parse_formula("!hazard"), 2, cost)


def batch_for(spec: WorldSpec, batch: int = 2, time: int = 4, seed: int = 0) -> Experience:
    """Made-up sequences `[batch, time]` of one-hot actions, one of them with an end inside."""
    rng = np.random.default_rng(seed)
    lead = (batch, time)
    observation = {}
    if spec.observation.image:
        side = spec.observation.image
        observation["image"] = jnp.asarray(
            rng.integers(0, 256, (*lead, side, side, spec.observation.channels)), jnp.uint8
        )
    if spec.observation.vector:
        observation["vector"] = jnp.asarray(rng.normal(size=(*lead, spec.observation.vector)), float)
    return Experience(
        observation,
        jnp.asarray(np.eye(spec.actions)[rng.integers(0, spec.actions, lead)], float),
        jnp.asarray(rng.normal(size=lead), float),
        jnp.asarray(rng.uniform(size=(*lead, spec.frames, len(spec.atoms))) < 0.3),
        jnp.ones(lead).at[0, 1].set(0.0),
        jnp.zeros(lead, bool).at[:, 0].set(True).at[0, 2].set(True),
    )


def random_like(shapes: Any, seed: int = 0) -> Any:
    """Float64 parameters of these shapes, none of them zero, whose two-hot outputs have their mass on small values.

    Fresh networks have zero outputs, at which many gradients vanish for no reason worth testing.
    """
    rng = np.random.default_rng(seed)
    small = -(np.asarray(bins(TINY.bins)) ** 2) / 8

    def fill(path: Any, leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        values = rng.normal(size=leaf.shape) * 0.5
        if path[-1] == jax.tree_util.GetAttrKey("bias") and leaf.shape[-1] == TINY.bins:
            values += small
        return jnp.asarray(values, jnp.float64)

    return jax.tree.map_with_path(fill, shapes)


# --- finite differences ---

WIDTH = 1e-5
"""Half the distance between the two points of a central difference."""


def random_directions(tree: Any, count: int = 3, seed: int = 2) -> Any:
    """Directions in the space of all parameters, stacked on a leading axis."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: rng.normal(size=(count, *leaf.shape)), tree)


def moved_both_ways(tree: Any, directions: Any) -> Any:
    """The tree itself, then moved by +`WIDTH` along every direction, then by −`WIDTH`, on a leading axis."""
    return jax.tree.map(lambda leaf, d: leaf[None] + WIDTH * jnp.concatenate([0 * d[:1], d, -d]), tree, directions)


def along(gradient: Any, directions: Any) -> Any:
    """Slopes in these directions."""
    products = jax.tree.map(
        lambda g, d: (np.asarray(g)[None] * d).reshape(len(d), -1).sum(axis=1), gradient, directions
    )
    return sum(jax.tree.leaves(products))


def touched(gradient: Any) -> bool:
    """Whether any number of it is not exactly 0."""
    return any(bool(np.asarray(leaf).any()) for leaf in jax.tree.leaves(gradient))


def filter_one(model: Any, data: Any, key: Any) -> Any:
    """The world model's filter along one sequence, from the start of an episode."""
    embeddings = jax.vmap(model.encoder)(data.observation)
    given = (model.rssm.initial(), data.action, embeddings, data.is_first, key)
    alone = jax.tree.map(lambda leaf: leaf[None], given)
    return jax.tree.map(lambda leaf: leaf[0], model.rssm.filter(*alone))

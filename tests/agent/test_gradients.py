"""Losses and gradients of policies and critics, in float64, against finite differences of the equations written out.

The equations below say by themselves what stays fixed: it is taken from `base`, computed once before any parameter is
moved. A stop-gradient too few or too many in the code under test therefore shows.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ambs.agent import behaviour as training
from ambs.agent.imagine import Actors, Dream, imagine
from ambs.agent.networks import CRITICS, Actor, Critics
from ambs.agent.penalties import Multiplier
from ambs.agent.returns import Normaliser
from ambs.config import AgentConfig, Config, ModelConfig
from ambs.nn import distributions
from ambs.nn.distributions import value_two_hot
from ambs.shield import SafetyConfig, ShieldConfig
from ambs.world_model import rssm
from ambs.world_model.model import WorldModel
from tests.tiny import (
    TINY,
    WIDTH,
    along,
    fresh,
    method_with,
    moved_both_ways,
    quick_jit,
    random_directions,
    random_like,
    spec_of,
    tiny_sizes,
    touched,
)

pytestmark = pytest.mark.learns

STEPS, TRACES, HORIZON, COST = 3, 4, 5, 2.0
GAMMA, LAM, ENTROPY, LIMIT, DECAY, REGULARISER = 0.9, 0.8, 0.1, 0.01, 0.5, 0.7
BACKUP_LIMIT, LEAVING = 0.4, 1.7
KAPPA, LAG_LAM, LAG_MU, LAG_LIMIT = 0.3, 0.4, 0.6, 0.3
METHODS = {
    "none": {"penalty": "none"},
    "penl": {"penalty": "penl", "alpha": 1.3},
    "plpg": {"penalty": "plpg"},
    "plpg through": {"penalty": "plpg", "plpg_stop_gradient": False},
    "copt": {"penalty": "copt", "kappa": KAPPA},
    "lag": {"penalty": "lag", "lag_limit": LAG_LIMIT},
    "lag per state": {"penalty": "lag", "lag_limit": LAG_LIMIT, "lag_rule": "max"},
}
# By REINFORCE weights are mere numbers: there is nothing for a variant of their gradient to change.
VARIANTS = [("reinforce", method) for method in METHODS if " " not in method]
VARIANTS += [("dynamics", method) for method in METHODS]
GRADS = ("reinforce", "dynamics")


class World(NamedTuple):
    """What is not trained here."""

    model: WorldModel
    slow: Critics
    starts: training.Starts
    old: training.Normalisers


def setup() -> tuple[World, training.Behaviour]:
    """Random parameters; a continuous task policy and a discrete backup policy, so that both kinds occur."""
    features = TINY.deter + TINY.latents * TINY.classes
    config = ModelConfig(size="xxs")

    def networks(key: Any) -> Any:
        keys = jax.random.split(key, 4)
        task = Actor(features, 2, TINY, discrete=False, key=keys[0])
        actors = Actors(task, Actor(features, 2, TINY, discrete=True, key=keys[1]))
        critics = Critics(features, TINY, key=keys[2])
        return WorldModel(spec_of(cost=COST), config, key=keys[3]), critics, training.Behaviour(actors, critics)

    model, slow, behaviour = random_like(eqx.filter_eval_shape(networks, fresh()))
    rng = np.random.default_rng(1)
    start = rssm.Latent(jnp.asarray(rng.normal(size=(TRACES, 4))), jnp.asarray(rng.dirichlet([1, 1], (TRACES, 2))))
    old = training.Normalisers(*(Normaliser(jnp.asarray(-x), jnp.asarray(x)) for x in (0.1, 0.2, 0.3)))
    starts = training.Starts(start, jnp.array([1.0, 1.0, 1.0, 0.0]), jnp.array([False, True, False, True]))
    return World(model, slow, starts, old), behaviour


# --- the equations, written out ---


def rolled(world: World, actors: Actors, shown: Any) -> Any:
    """What `imagine` does, step by step, but the policies see the features `shown` `[H, policies, traces]`: these stay fixed
    when a parameter is moved."""
    model, both = world.model, []
    for index, actor in enumerate(actors):
        latent, states, actions = world.starts.latent, [world.starts.latent.features], []
        for step in range(STEPS):
            keys = jax.random.split(jax.random.fold_in(fresh(7), step), (2, 2, TRACES))
            drawn = jax.vmap(actor.draw)(keys[0, index])
            action = jax.vmap(lambda seen, chance, actor=actor: actor(seen).sample(chance))(shown[step, index], drawn)
            latent = jax.vmap(model.rssm.imagine)(latent, action, jax.vmap(model.rssm.draw)(keys[1, index]))
            states.append(latent.features)
            actions.append(action)
        features = jnp.stack(states)
        reward, cost, proceed = (jax.vmap(jax.vmap(f))(features) for f in (model.reward, model.cost, model.proceed))
        both.append(Dream(features, jnp.stack(actions), reward, cost, cost / COST, proceed))
    return both


def imagined(world: World, actors: Actors, critics: Critics, shown: Any = None) -> dict[str, Any]:
    """All that depends on the actors by way of imagination; time first, then traces (and policies: task, backup)."""
    if shown is None:
        dreams: Any = imagine(world.model, actors, world.starts.latent, STEPS, fresh(7))
    else:
        dreams = rolled(world, actors, shown)
    dream = jax.tree.map(lambda *both: jnp.stack(both, axis=1), *dreams)
    over = lambda f: jax.vmap(jax.vmap(jax.vmap(f)))(dream.features)  # noqa: E731
    value, slow = over(critics.values), jnp.clip(over(world.slow.values), 0, COST)
    cost, proceed = dream.cost, GAMMA * dream.proceed
    safe = 1 - cost[:, 0] / COST
    remaining = [jnp.clip(value[-1, 0, :, 2:4].max(axis=-1), 0, COST)]
    for t in reversed(range(STEPS)):
        remaining.append(cost[t + 1, 0] + GAMMA * remaining[-1])
    safe_value = value[:, 0, :, 4]
    goes_on = world.starts.goes_on
    reach, alive = [jnp.stack([goes_on, goes_on])], [safe[0]]
    for t in range(1, STEPS):
        reach.append(reach[-1] * proceed[t])
        alive.append(alive[-1] * safe[t])
    twin = lambda i: jnp.clip(lambda_return(cost[:, 0], slow[:, 0, :, i], proceed[:, 0] * safe), 0, COST)  # noqa: E731
    returns = {
        "task": lambda_return(dream.reward[:, 0], value[:, 0, :, 0], proceed[:, 0]),
        "penalty": lambda_return(cost[:, 0], value[:, 0, :, 1], proceed[:, 0]),
        "backup": lambda_return(cost[:, 1], value[:, 1, :, 4], proceed[:, 1]),
        "safety_a": twin(2),
        "safety_b": twin(3),
    }
    return {
        "features": dream.features[:-1],
        "action": dream.action,
        "returns": returns,
        "values": {"task": value[:-1, 0, :, 0], "penalty": value[:-1, 0, :, 1], "backup": value[:-1, 1, :, 4]},
        "anchors": over(world.slow.values)[:-1],
        "delta": -10 / COST * (cost[1:, 0] + safe_value[1:] - safe_value[:-1]),
        "remaining": jnp.stack(remaining[:0:-1]),
        "reach": jnp.stack(reach),
        "alive": jnp.stack(alive),
    }


def lambda_return(reward: Any, value: Any, discount: Any) -> Any:
    """R_t for t < H; all arguments over s_0 … s_H."""
    found = [value[-1]]
    for t in reversed(range(STEPS)):
        found.append(reward[t + 1] + discount[t + 1] * ((1 - LAM) * value[t + 1] + LAM * found[-1]))
    return jnp.stack(found[:0:-1])


def weights(method: str, base: Any, now: Any) -> tuple[Any, Any]:
    """Factors of reward and cost advantage."""
    one = jnp.ones((STEPS, TRACES))
    excess = base["returns"]["penalty"] - LAG_LIMIT
    excess = excess if method == "lag per state" else excess.mean() * one
    trust = jnp.clip(jnp.exp(jnp.minimum((now if method == "plpg through" else base)["delta"], 0.0)), 1e-6, 1)
    counter_example = jax.nn.sigmoid((base["remaining"] - GAMMA ** (HORIZON - 1) * COST) / (KAPPA * COST))
    match method.split()[0]:
        case "none":
            return one, 0 * one
        case "penl":
            return one, 1.3 * one
        case "plpg":
            return trust, 0.8 * one
        case "copt":
            return 1 - counter_example, one
    return one, jnp.maximum(0.0, LAG_LAM + LAG_MU * excess)


def scales(world: World, base: Any) -> dict[str, Any]:
    """max(limit, moving average of Per95 − Per5)."""
    names = ("task", "penalty", "backup")
    spread = {
        name: jnp.percentile(base["returns"][name], 95) - jnp.percentile(base["returns"][name], 5) for name in names
    }
    mixed = (DECAY * (n.high - n.low) + (1 - DECAY) * spread[name] for n, name in zip(world.old, names, strict=True))
    limits = (LIMIT, LIMIT, BACKUP_LIMIT * COST)
    return {name: jnp.maximum(limit, mix) for name, mix, limit in zip(names, mixed, limits, strict=True)}


def written_out(world: World, behaviour: training.Behaviour, critics: Critics, base: Any) -> dict[str, Any]:
    """Every loss; `critics` and all in `base` are what the equations hold fixed."""
    now = imagined(world, behaviour.actors, critics, base["features"])
    scale = scales(world, base)

    def advantage(seen: Any, name: str, scale: Any) -> Any:
        return (seen["returns"][name] - base["values"][name]) / scale

    def actor_loss(actor: Actor, which: int, gain: Any, grad: str) -> Any:
        def score(feature: Any, action: Any) -> tuple[Any, Any]:
            policy = actor(feature)
            return policy.log_prob(action), policy.entropy()

        log_prob, entropy = jax.vmap(jax.vmap(score))(base["features"][:, which], base["action"][:, which])
        aim = gain(base) * log_prob if grad == "reinforce" else gain(now)
        leaving = jnp.where(world.starts.unsafe, LEAVING, 1.0) if which else jnp.ones(TRACES)
        return -(base["reach"][:, which] * leaving[None] * (aim + ENTROPY * entropy)).mean()

    losses = {}
    for grad, method in VARIANTS:
        of_reward, of_cost = weights(method, base, now)
        cost_scale = 1.0 if method.startswith("lag") else scale["penalty"]

        def gain(seen: Any, of_reward: Any = of_reward, of_cost: Any = of_cost, cost_scale: Any = cost_scale) -> Any:
            reward, cost = advantage(seen, "task", scale["task"]), advantage(seen, "penalty", cost_scale)
            return of_reward * reward - of_cost * cost

        losses[grad, method] = actor_loss(behaviour.actors.task, 0, gain, grad)
    for grad in GRADS:
        losses[grad, "backup policy"] = actor_loss(
            behaviour.actors.backup, 1, lambda seen: -advantage(seen, "backup", scale["backup"]), grad
        )
        losses |= {(grad, f"critic {name}"): critic_loss(behaviour.critics, i, base) for i, name in enumerate(CRITICS)}
    return losses


def critic_loss(critics: Critics, index: int, base: Any) -> Any:
    """Cross-entropy to the λ-return and to the slow copy's value."""
    which = int(CRITICS[index] == "backup")

    def one(feature: Any, target: Any, anchor: Any) -> Any:
        log_probs = jax.nn.log_softmax(critics.logits(feature)[index])
        return -((value_two_hot(target, TINY.bins) + REGULARISER * value_two_hot(anchor, TINY.bins)) * log_probs).sum()

    anchors = base["anchors"][:, which, :, index]
    losses = jax.vmap(jax.vmap(one))(base["features"][:, which], base["returns"][CRITICS[index]], anchors)
    weight = base["reach"][:, which] * (base["alive"] if CRITICS[index].startswith("safety") else 1.0)
    return (weight * losses).mean()


# --- the code under test ---


def coded(world: World, behaviour: training.Behaviour, slow: Critics, patch: Any) -> dict[Any, Any]:
    """The same losses as the training step computes them, from one imagination for all; and what must teach nobody."""
    dreams = imagine(world.model, behaviour.actors, world.starts.latent, STEPS, fresh(7))
    sg = jax.lax.stop_gradient

    def imagined_once(_: Any, actors: Actors, *__: Any) -> Any:
        if actors is behaviour.actors:
            return dreams
        # Nothing in value; in gradient whatever the actors that were passed let through.
        leak = sum(leaf.sum() - sg(leaf.sum()) for leaf in jax.tree.leaves(actors))
        return jax.tree.map(lambda leaf: sg(leaf) + leak, dreams)

    patch.setattr(training, "imagine", imagined_once)
    losses = {}
    for grad, method in VARIANTS:
        agent = AgentConfig(
            actor_grad=grad, imagination=STEPS, lam=LAM, entropy=ENTROPY, norm_limit=LIMIT,
            backup_norm_limit=BACKUP_LIMIT, unsafe_weight=LEAVING, norm_decay=DECAY, ema_regulariser=REGULARISER,
            **METHODS[method],
        )  # fmt: skip
        config = Config(
            ModelConfig(size="xxs"), agent, ShieldConfig(horizon=HORIZON), safety=SafetyConfig(discount=GAMMA),
            method=method_with(agent.penalty),
        )  # fmt: skip
        multiplier = Multiplier(jnp.asarray(LAG_LAM), jnp.asarray(LAG_MU))
        _, (norms, multiplier, metrics) = training.behaviour_loss(
            behaviour, slow, world.model, world.starts, world.old, multiplier, config, fresh()
        )
        losses[grad, method] = metrics["actor/task_loss"]
        losses[grad, "backup policy"] = metrics["actor/backup_loss"]
        losses |= {(grad, f"critic {name}"): metrics[f"critic/{name}"] for name in CRITICS}
        losses[grad, "scales and multiplier"] = sum(jax.tree.leaves((norms, multiplier)))
        if grad == "reinforce":
            losses[grad, "imagination"] = metrics["actor/return"]
    return losses


def test_losses_and_gradients():
    """One test, since one compilation serves it all: values, slopes in random directions, and who gets a gradient."""
    with jax.enable_x64(True), tiny_sizes() as patch:
        for module in (rssm, distributions):
            patch.setattr(module, "sample_straight_through", lambda _key, log_probs: jnp.exp(log_probs))
        world, behaviour = setup()
        code = jax.jacrev(lambda trained: (coded(world, *trained, patch),) * 2, has_aux=True)
        jacobian, values = quick_jit(code)((behaviour, world.slow))
        base = quick_jit(lambda: imagined(world, behaviour.actors, behaviour.critics))()
        directions = random_directions(behaviour)
        moved = moved_both_ways(behaviour, directions)
        lanes = jax.vmap(lambda moved: written_out(world, moved, behaviour.critics, base))
        expected = quick_jit(lanes)(moved)
        for name, found in expected.items():
            middle, up, down = found[0], *np.split(np.asarray(found[1:]), 2)
            assert float(values[name]) == pytest.approx(float(middle), rel=1e-10), name
            slopes = along(jacobian[name][0], directions)
            np.testing.assert_allclose(slopes, (up - down) / (2 * WIDTH), rtol=1e-6, atol=1e-9, err_msg=str(name))
        for (grad, name), (trained, slow) in jacobian.items():
            assert not touched(slow), (grad, name)
            check_receivers(name, trained)


def check_receivers(name: str, gradient: training.Behaviour) -> None:
    """A policy's loss teaches that policy, all of it, and a critic's loss that critic; nothing else gets anything."""
    parts = {"task policy": gradient.actors.task, "backup policy": gradient.actors.backup}
    for index, critic in enumerate(CRITICS):
        parts[f"critic {critic}"] = jax.tree.map(lambda leaf, index=index: leaf[index], gradient.critics)
    owner = "task policy" if name in METHODS else name
    for part, leaves in parts.items():
        if part == owner:
            assert all(leaf.any() for leaf in jax.tree.leaves(leaves)), (name, part)
        else:
            assert not touched(leaves), (name, part)

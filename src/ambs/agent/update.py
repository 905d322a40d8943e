"""One training step of everything that learns (Alg. 1): world model, both policies, all critics.

`update(state, batch, key) -> (state, metrics)` is pure. Policies and critics share one imagination and one gradient pass;
stop-gradients keep every loss to its own parameters. The world model's step is left out where one of its figures is not finite,
that of policies and critics where one of either's is not.
"""

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Key, PyTree

from ambs.agent.imagine import Actors, Dream, imagine
from ambs.agent.networks import CRITICS, Actor, Critics, safety_value
from ambs.agent.penalties import Imagined, Multiplier, Penalty, penalty
from ambs.agent.returns import Normaliser, lambda_returns
from ambs.config import Config
from ambs.data import Experience
from ambs.nn.precision import at_least_float32, cast
from ambs.spec.risk import violates
from ambs.world_model.loss import world_model_loss
from ambs.world_model.model import WorldModel, WorldSpec
from ambs.world_model.rssm import Latent

sg = jax.lax.stop_gradient
Metrics = dict[str, Float[Array, ""]]
ON_TASK = ("task", "penalty", "safety_a", "safety_b")
"""Critics that learn from the task policy's traces, in this order."""
TASK, PENALTY, SAFETY = 0, 1, slice(2, 4)


class Behaviour(NamedTuple):
    """What the second gradient pass trains."""

    actors: Actors
    critics: Critics


class Normalisers(NamedTuple):
    """Return scales: reward and cost of the task policy, cost of the backup policy."""

    reward: Normaliser
    cost: Normaliser
    backup: Normaliser


class Starts(NamedTuple):
    """States of a batch from which futures are imagined."""

    latent: Latent
    goes_on: Float[Array, "*traces"]
    """Whether the episode goes on after it; a trace from its end teaches nothing."""
    unsafe: Bool[Array, "*traces"]
    """Whether it violates Ψ."""


class Learned(NamedTuple):
    """Everything that learning carries from step to step."""

    model: WorldModel
    behaviour: Behaviour
    slow: Critics
    """Moving average of the critics."""
    model_opt: Any
    behaviour_opt: Any
    normalisers: Normalisers
    multiplier: Multiplier


def init(spec: WorldSpec, config: Config, *, discrete: bool, key: Key[Array, ""]) -> Learned:
    """Fresh parameters and optimiser states."""
    size = config.model.widths
    features = size.deter + size.latents * size.classes
    keys = jax.random.split(key, 4)
    model = WorldModel(spec, config.model, key=keys[0])
    actors = Actors(*(Actor(features, spec.actions, size, discrete=discrete, key=k) for k in keys[1:3]))
    critics = Critics(features, size, key=keys[3], mean=config.agent.critic_mean)
    behaviour = Behaviour(actors, critics)
    model_tx, behaviour_tx = optimisers(config)
    start = Normaliser.initial()
    return Learned(
        model=model,
        behaviour=behaviour,
        slow=critics,
        model_opt=model_tx.init(_arrays(model)),
        behaviour_opt=_behaviour_init(behaviour_tx, behaviour),
        normalisers=Normalisers(start, start, start),
        multiplier=_penalty(spec, config).init(),
    )


def update(
    state: Learned, batch: Experience, key: Key[Array, ""], *, config: Config, dtype: Any = jnp.float32
) -> tuple[Learned, Metrics]:
    """One step on a batch `[batch, time]`; returns the new state and scalar metrics."""
    model_key, dream_key, start_key = jax.random.split(key, 3)
    start = jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf[None], (batch.reward.shape[0], *leaf.shape)),
        cast(state.model.rssm.initial(), dtype),
    )

    def model_loss(model: WorldModel) -> tuple[Array, Any]:
        with jax.named_scope("model"):
            losses, latent = world_model_loss(cast(model, dtype), batch, start, model_key)
        return losses.total, (losses, latent)

    model_tx, _ = optimisers(config)
    (_, (losses, latent)), model_grads = eqx.filter_value_and_grad(model_loss, has_aux=True)(state.model)
    changes, model_opt = model_tx.update(model_grads, state.model_opt)
    metrics = {f"model/{name}": value for name, value in losses.terms.items()}
    metrics |= {"model/total": losses.total, "model/kl": losses.kl, "model/grad_norm": _norm(model_grads)}
    stepped = (eqx.apply_updates(state.model, changes), model_opt)
    sound = finite(metrics)
    model, model_opt = _if(sound, stepped, (state.model, state.model_opt))

    unsafe = violates(model.spec.psi, model.spec.atoms, batch.labels[..., -1:, :])
    starts = Starts(latent, at_least_float32(batch.proceed), unsafe)
    starts = jax.tree.map(lambda leaf: sg(leaf).reshape(-1, *leaf.shape[2:]), starts)
    count = starts.goes_on.shape[0]
    if config.agent.imagine_from is not None and config.agent.imagine_from < count:
        chosen = jax.random.permutation(start_key, count)[: config.agent.imagine_from]
        starts = jax.tree.map(lambda leaf: leaf[chosen], starts)
    learned, more = improve(
        state._replace(model=model, model_opt=model_opt), starts, dream_key, sound, config=config, dtype=dtype
    )
    return learned, metrics | more


def improve(
    state: Learned,
    starts: Starts,
    key: Key[Array, ""],
    sound: Bool[Array, ""],
    *,
    config: Config,
    dtype: Any = jnp.float32,
) -> tuple[Learned, Metrics]:
    """One step of policies and critics on traces imagined from these states; the model stays as it is.

    `sound`: whether what led here was finite; if not, nothing is learned here either.
    """
    world = cast(state.model, dtype)

    def behaviour_loss(behaviour: Behaviour) -> tuple[Array, Any]:
        return _behaviour_loss(cast(behaviour, dtype), cast(state.slow, dtype), world, starts, state, config, key)

    (_, (normalisers, multiplier, metrics)), grads = eqx.filter_value_and_grad(behaviour_loss, has_aux=True)(
        state.behaviour
    )
    _, behaviour_tx = optimisers(config)
    behaviour, behaviour_opt = _behaviour_step(behaviour_tx, state.behaviour, grads, state.behaviour_opt)
    decay = config.agent.ema_decay
    slow = jax.tree.map(lambda old, new: decay * old + (1 - decay) * new, state.slow, behaviour.critics)
    metrics["behaviour/grad_norm"] = _norm(grads)
    new = {
        "behaviour": behaviour,
        "slow": slow,
        "behaviour_opt": behaviour_opt,
        "normalisers": normalisers,
        "multiplier": multiplier,
    }
    old = {name: getattr(state, name) for name in new}
    return state._replace(**_if(sound & finite(metrics), new, old)), metrics


def _behaviour_loss(
    behaviour: Behaviour,
    slow: Critics,
    model: WorldModel,
    starts: Starts,
    state: Learned,
    config: Config,
    key: Key[Array, ""],
) -> tuple[Float[Array, ""], Any]:
    agent, gamma = config.agent, config.safety.discount
    players = jax.tree.map(sg, behaviour.actors) if agent.actor_grad == "reinforce" else behaviour.actors
    with jax.named_scope("imagine"):
        task, backup = imagine(model, players, starts.latent, agent.imagination, key)
    frozen = jax.tree.map(sg, behaviour.critics)

    def values(critics: Critics, part: Dream) -> Float[Array, "time_and_one traces critics"]:
        return jax.vmap(jax.vmap(critics.values))(part.features)

    task_values = values(frozen.only(*ON_TASK), task)
    safe_values = values(frozen.only("backup"), task)[..., 0]
    backup_values = values(frozen.only("backup"), backup)[..., 0]
    slow_task = sg(values(slow.only(*ON_TASK), task))
    slow_backup = sg(values(slow.only("backup"), backup))
    discount = gamma * task.proceed[1:]

    returns = lambda_returns(task.reward[1:], discount, task_values[1:, :, TASK], agent.lam)
    cost_returns = lambda_returns(task.cost[1:], discount, task_values[1:, :, PENALTY], agent.lam)
    backup_returns = lambda_returns(backup.cost[1:], gamma * backup.proceed[1:], backup_values[1:], agent.lam)
    safety_returns = _safety_returns(task, slow_task[..., SAFETY], config, model.spec.cost)

    normalisers = _normalise(state.normalisers, (returns, cost_returns, backup_returns), agent.norm_decay)
    limits = (agent.norm_limit, agent.norm_limit, agent.backup_norm_limit * model.spec.cost)
    scale = [norm.scale(limit) for norm, limit in zip(normalisers, limits, strict=True)]
    rule = _penalty(model.spec, config)
    joint = safety_value(task_values[-1, :, SAFETY], config.shield.critics or "max", model.spec.cost)
    weights = rule.apply(Imagined(task.cost[1:], cost_returns, safe_values, joint), state.multiplier)
    reward_advantage = (returns - sg(task_values[:-1, :, TASK])) / scale[0]
    cost_advantage = (cost_returns - sg(task_values[:-1, :, PENALTY])) / (1.0 if weights.raw_cost else scale[1])
    task_gain = weights.reward * reward_advantage - weights.cost * cost_advantage
    backup_gain = _backup_gain(backup_returns, sg(backup_values[:-1]), scale[2])

    task_weight = _reach(task.proceed, starts.goes_on, gamma)
    backup_weight = _reach(backup.proceed, starts.goes_on, gamma)
    leaving = jnp.where(starts.unsafe, agent.unsafe_weight, 1.0)[None]
    task_loss, task_entropy = _actor_loss(behaviour.actors.task, task, task_gain, task_weight, config)
    backup_loss, backup_entropy = _actor_loss(
        behaviour.actors.backup, backup, backup_gain, backup_weight * leaving, config
    )

    alive = jnp.cumprod(1 - sg(task.violated[:-1]), axis=0)
    targets = jnp.stack([returns, cost_returns], axis=-1)
    on_task = jnp.concatenate([targets, safety_returns], axis=-1)
    critic_weight = jnp.stack([task_weight, task_weight, task_weight * alive, task_weight * alive], axis=-1)
    critic_losses = _critic_loss(
        behaviour.critics.only(*ON_TASK), slow_task, task, on_task, critic_weight, agent.ema_regulariser
    )
    backup_critic = _critic_loss(
        behaviour.critics.only("backup"), slow_backup, backup, backup_returns[..., None], backup_weight[..., None],
        agent.ema_regulariser,
    )  # fmt: skip
    total = task_loss + backup_loss + critic_losses.sum() + backup_critic.sum()
    mean_cost = sg(cost_returns).mean()
    metrics = {
        "actor/task_loss": task_loss,
        "actor/backup_loss": backup_loss,
        "actor/task_entropy": task_entropy,
        "actor/backup_entropy": backup_entropy,
        "actor/return": returns.mean(),
        "actor/cost_return": mean_cost,
        "actor/backup_cost_return": backup_returns.mean(),
        "actor/return_scale": scale[0],
        "actor/cost_scale": scale[1],
        "actor/backup_scale": scale[2],
        "actor/reward_weight": weights.reward.mean(),
        "actor/cost_weight": weights.cost.mean(),
        "penalty/lambda": state.multiplier.lam,
        "penalty/mu": state.multiplier.mu,
        **{f"critic/{name}": loss for name, loss in zip(ON_TASK, critic_losses, strict=True)},
        "critic/backup": backup_critic[0],
        "critic/safety_value": joint.mean(),
    }  # fmt: skip
    return total, (normalisers, rule.step(state.multiplier, mean_cost), metrics)


def _normalise(old: Normalisers, returns: tuple[Float[Array, "time traces"], ...], decay: float) -> Normalisers:
    """All normalisers at once: one sort instead of three."""
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *old)
    new = jax.vmap(lambda one, values: one.update(values, decay))(stacked, sg(jnp.stack(returns)))
    return Normalisers(*(jax.tree.map(lambda leaf, index=index: leaf[index], new) for index in range(len(old))))


def _backup_gain(
    returns: Float[Array, "time traces"], values: Float[Array, "time traces"], scale: Float[Array, ""]
) -> Float[Array, "time traces"]:
    """The backup policy's advantage: it minimises cost (Alg. 1; as printed, its sign would have it maximise)."""
    return -(returns - values) / scale


def _safety_returns(
    task: Dream, slow: Float[Array, "time_and_one traces 2"], config: Config, cost: float
) -> Float[Array, "time traces 2"]:
    """λ-returns of the twins: the first violation ends the count, so values lie in [0, C].

    Each twin follows its own slow copy; with `min`, the paper's choice, both follow the smaller one.
    """
    if config.shield.critics == "min":
        slow = jnp.broadcast_to(slow.min(axis=-1, keepdims=True), slow.shape)
    discount = config.safety.discount * task.proceed[1:] * (1 - task.violated[1:])
    one = jax.vmap(
        lambda value: lambda_returns(task.cost[1:], discount, jnp.clip(value, 0, cost), config.agent.lam),
        in_axes=-1,
        out_axes=-1,
    )
    return sg(jnp.clip(one(slow[1:]), 0, cost))


def _reach(
    proceed: Float[Array, "time_and_one traces"], goes_on: Float[Array, "traces"], discount: float
) -> Float[Array, "time traces"]:
    """How much the action in s_t counts: γ^t times the chance that the episode has got there."""
    steps = jnp.concatenate([goes_on[None], discount * proceed[1:-1]])
    return sg(jnp.cumprod(steps, axis=0))


def _actor_loss(
    actor: Actor, dream: Dream, gain: Float[Array, "time traces"], weight: Float[Array, "time traces"], config: Config
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """−Σ w·(advantage·ln π + η·H[π]) (Eq. 6) or, by dynamics gradients, −Σ w·(advantage + η·H[π])."""
    features = sg(dream.features[:-1])
    policy = jax.vmap(jax.vmap(actor))(features)
    entropy = jax.vmap(jax.vmap(lambda p: p.entropy()))(policy)
    if config.agent.actor_grad == "reinforce":
        log_prob = jax.vmap(jax.vmap(lambda p, a: p.log_prob(a)))(policy, sg(dream.action))
        objective = sg(gain) * log_prob
    else:
        objective = gain
    return -(weight * (objective + config.agent.entropy * entropy)).mean(), entropy.mean()


def _critic_loss(
    critics: Critics,
    anchors: Float[Array, "time_and_one traces critics"],
    dream: Dream,
    targets: Float[Array, "time traces critics"],
    weight: Float[Array, "time traces critics"],
    regulariser: float,
) -> Float[Array, "critics"]:
    """Two-hot cross-entropy to the λ-returns, and to what the slow copy says.

    Logits are taken of all states, the last one too, though it has no return: so they are the very ones that gave the values,
    and are computed once.
    """
    logits = jax.vmap(jax.vmap(critics.logits))(sg(dream.features))[:-1]

    loss = jax.vmap(jax.vmap(partial(critics.losses, weight=regulariser)))
    losses = loss(logits, targets, anchors[:-1])
    return (sg(weight) * losses).mean(axis=(0, 1))


def _penalty(spec: WorldSpec, config: Config) -> Penalty:
    return penalty(config.agent, config.shield.horizon, spec.cost, config.safety.discount)


def optimisers(config: Config) -> tuple[optax.GradientTransformation, optax.GradientTransformation]:
    """Adam with global-norm clipping: for the world model, and for one actor or critic; all parameters as one vector."""

    def adam(rate: float, eps: float, clip: float) -> optax.GradientTransformation:
        return optax.flatten(optax.chain(optax.clip_by_global_norm(clip), optax.adam(rate, eps=eps)))

    model, agent = config.model, config.agent
    return (
        adam(model.learning_rate, model.adam_eps, model.clip),
        adam(agent.learning_rate, agent.adam_eps, agent.clip),
    )


def finite(metrics: Metrics) -> Bool[Array, ""]:
    """Whether losses, gradient norms and all else an update reports are finite."""
    return jnp.isfinite(jnp.stack(list(metrics.values()))).all()


def _if(sound: Bool[Array, ""], new: Any, old: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(sound, a, b), new, old)


def _arrays(tree: PyTree) -> PyTree:
    return eqx.filter(tree, eqx.is_inexact_array)


def _norm(grads: PyTree) -> Float[Array, ""]:
    return jnp.linalg.norm(ravel_pytree(_arrays(grads))[0])


def _behaviour_init(tx: optax.GradientTransformation, behaviour: Behaviour) -> Any:
    parts = _arrays(behaviour)
    return (tx.init(parts.actors.task), tx.init(parts.actors.backup), jax.vmap(tx.init)(parts.critics))


def _behaviour_step(
    tx: optax.GradientTransformation, behaviour: Behaviour, grads: Any, opt: Any
) -> tuple[Behaviour, Any]:
    """Each actor and each critic is clipped and stepped on its own."""
    task, task_opt = tx.update(grads.actors.task, opt[0])
    backup, backup_opt = tx.update(grads.actors.backup, opt[1])
    critics, critic_opt = jax.vmap(tx.update)(grads.critics, opt[2])
    changes = Behaviour(Actors(task, backup), critics)
    return eqx.apply_updates(behaviour, changes), (task_opt, backup_opt, critic_opt)


assert len(CRITICS) == 5

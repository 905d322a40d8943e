"""What policies and critics learn from (Alg. 1): one imagination, and a loss that stop-gradients keep to their own parameters.

What belongs to a critic goes by its name: `values.penalty` is compared with `returns.penalty`, and learns from it.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from ambs.agent.imagine import Actors, Dream, Dreams, imagine
from ambs.agent.networks import CRITICS, Actor, Critics, safety_value
from ambs.agent.penalties import Imagined, Multiplier, Penalty, Weights, penalty
from ambs.agent.returns import Normaliser, lambda_returns
from ambs.config import AgentConfig, Config
from ambs.world_model.model import WorldModel, WorldSpec
from ambs.world_model.rssm import Latent

sg = jax.lax.stop_gradient
Metrics = dict[str, Float[Array, ""]]
ON_TASK = ("task", "penalty", "safety_a", "safety_b")
"""Critics that learn from the task policy's traces; they run as one stack, in this order."""


class Behaviour(NamedTuple):
    """What the second gradient pass trains."""

    actors: Actors
    critics: Critics


class Starts(NamedTuple):
    """States of a batch from which futures are imagined."""

    latent: Latent
    goes_on: Float[Array, "*traces"]
    """Whether the episode goes on after it; a trace from its end teaches nothing."""
    unsafe: Bool[Array, "*traces"]
    """Whether it violates Ψ."""


class Lesson(NamedTuple):
    """What a policy that is given proposed in the states of a batch; the task policy learns to propose the same."""

    features: Float[Array, "rows features"]
    proposed: Float[Array, "rows actions"]
    """NaN where it proposed nothing."""


class Normalisers(NamedTuple):
    """Return scales: reward and cost of the task policy, cost of the backup policy."""

    reward: Normaliser
    cost: Normaliser
    backup: Normaliser


class Scales(NamedTuple):
    """What advantages of reward and cost of the task policy, and of cost of the backup policy, are divided by."""

    reward: Float[Array, ""]
    cost: Float[Array, ""]
    backup: Float[Array, ""]


class ByPolicy(NamedTuple):
    """A number per action of both policies' traces."""

    task: Float[Array, "time traces"]
    backup: Float[Array, "time traces"]


class ByCritic(NamedTuple):
    """A number per state of the traces that a critic learns from: the task policy's, or for `backup` the backup policy's."""

    task: Float[Array, "states traces"]
    penalty: Float[Array, "states traces"]
    safety: Float[Array, "states traces 2"]
    """Of both twins."""
    backup: Float[Array, "states traces"]


class Stacks(NamedTuple):
    """The same as the networks have it, with an axis of critics at the end: of `ON_TASK`, and of `backup` alone."""

    on_task: Float[Array, "states traces critics"]
    backup: Float[Array, "states traces 1"]

    def by_critic(self) -> ByCritic:
        """By name."""
        task, penalty = (self.on_task[..., ON_TASK.index(name)] for name in ("task", "penalty"))
        return ByCritic(task, penalty, self.on_task[..., ON_TASK.index("safety_a") :], self.backup.squeeze(axis=-1))


def behaviour_loss(
    behaviour: Behaviour,
    slow: Critics,
    model: WorldModel,
    starts: Starts,
    normalisers: Normalisers,
    multiplier: Multiplier,
    config: Config,
    key: Key[Array, ""],
    lesson: Lesson | None = None,
) -> tuple[Float[Array, ""], tuple[Normalisers, Multiplier, Metrics]]:
    """The loss of both policies and all critics on one imagination; and what the next step goes on with, and metrics.

    With a `lesson` the task policy is a clone: it learns from that, and nothing from what is imagined.
    """
    agent, actors, cost = config.agent, behaviour.actors, model.spec.cost
    players = jax.tree.map(sg, actors) if agent.actor_grad == "reinforce" else actors
    with jax.named_scope("imagine"):
        dreams = imagine(model, players, starts.latent, agent.imagination, key)
    frozen = jax.tree.map(sg, behaviour.critics)
    values, anchors = _say(frozen, dreams).by_critic(), sg(_say(slow, dreams))
    returns = _returns(dreams, values, anchors.by_critic(), config, cost, _strayed(actors.task, dreams.backup, config))
    normalisers = _normalise(normalisers, returns, agent.norm_decay)
    scales = _scales(normalisers, agent, cost)

    rule = penalty_of(model.spec, config)
    joint = safety_value(values.safety[-1], config.shield.critics or "max", cost)
    safe_value = _values(frozen.only("backup"), dreams.task).squeeze(axis=-1)
    weights = rule.apply(Imagined(dreams.task.cost[1:], returns.penalty, safe_value, joint), multiplier)
    gains = _gains(returns, values, scales, weights)
    reach = ByPolicy(*(_reach(part.proceed, starts.goes_on, config.safety.discount) for part in dreams))
    policy_loss, of_policies = _policy_losses(actors, dreams, gains, reach, starts, config, lesson)
    critic_loss, of_critics = _critic_losses(behaviour.critics, anchors, dreams, returns, reach, agent)
    mean_cost = sg(returns.penalty).mean()
    metrics = of_policies | of_critics | {
        "actor/return": returns.task.mean(), "actor/cost_return": mean_cost, "actor/backup_cost_return": returns.backup.mean(),
        "actor/return_scale": scales.reward, "actor/cost_scale": scales.cost, "actor/backup_scale": scales.backup,
        "actor/reward_weight": weights.reward.mean(), "actor/cost_weight": weights.cost.mean(),
        "penalty/lambda": multiplier.lam, "penalty/mu": multiplier.mu, "critic/safety_value": joint.mean(),
    }  # fmt: skip
    return policy_loss + critic_loss, (normalisers, rule.step(multiplier, mean_cost), metrics)


def penalty_of(spec: WorldSpec, config: Config) -> Penalty:
    """What the task policy is taught about cost."""
    return penalty(config.agent, config.shield.horizon, spec.cost, config.safety.discount)


def _say(critics: Critics, dreams: Dreams) -> Stacks:
    return Stacks(_values(critics.only(*ON_TASK), dreams.task), _values(critics.only("backup"), dreams.backup))


def _values(critics: Critics, dream: Dream) -> Float[Array, "time_and_one traces critics"]:
    return jax.vmap(jax.vmap(critics.values))(dream.features)


def _strayed(task: Actor, backup: Dream, config: Config) -> Float[Array, "time traces"] | None:
    """How far the backup policy's actions lie from the task policy's, in [0, 1]; None where that costs nothing."""
    if not config.agent.backup_imitation:
        return None
    others = jax.vmap(jax.vmap(jax.tree.map(sg, task)))(sg(backup.features[:-1]))
    return jax.vmap(jax.vmap(lambda policy, action: policy.distance(action)))(others, backup.action)


def _returns(
    dreams: Dreams,
    values: ByCritic,
    slow: ByCritic,
    config: Config,
    cost: float,
    strayed: Float[Array, "time traces"] | None = None,
) -> ByCritic:
    """λ-returns, `[H, traces]`; what it costs the backup policy to have `strayed` is part of its own."""
    task, backup = dreams
    gamma, lam = config.safety.discount, config.agent.lam
    discount = gamma * task.proceed[1:]
    charged = backup.cost[1:]
    charged = charged if strayed is None else charged + config.agent.backup_imitation * cost * strayed
    return ByCritic(
        task=lambda_returns(task.reward[1:], discount, values.task[1:], lam),
        penalty=lambda_returns(task.cost[1:], discount, values.penalty[1:], lam),
        safety=_safety_returns(task, slow.safety, config, cost),
        backup=lambda_returns(charged, gamma * backup.proceed[1:], values.backup[1:], lam),
    )


def _normalise(old: Normalisers, returns: ByCritic, decay: float) -> Normalisers:
    """All normalisers at once: one sort instead of three."""
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *old)
    new = jax.vmap(lambda one, values: one.update(values, decay))(
        stacked, sg(jnp.stack([returns.task, returns.penalty, returns.backup]))
    )
    return Normalisers(*(jax.tree.map(lambda leaf, index=index: leaf[index], new) for index in range(len(old))))


def _scales(normalisers: Normalisers, agent: AgentConfig, cost: float) -> Scales:
    return Scales(
        reward=normalisers.reward.scale(agent.norm_limit),
        cost=normalisers.cost.scale(agent.norm_limit),
        backup=normalisers.backup.scale(agent.backup_norm_limit * cost),
    )


def _gains(returns: ByCritic, values: ByCritic, scales: Scales, weights: Weights) -> ByPolicy:
    """Advantages: the task policy's of reward less its penalty, and the backup policy's."""
    reward = (returns.task - sg(values.task[:-1])) / scales.reward
    cost = (returns.penalty - sg(values.penalty[:-1])) / (1.0 if weights.raw_cost else scales.cost)
    backup = _backup_gain(returns.backup, sg(values.backup[:-1]), scales.backup)
    return ByPolicy(weights.reward * reward - weights.cost * cost, backup)


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


def _policy_losses(
    actors: Actors,
    dreams: Dreams,
    gains: ByPolicy,
    reach: ByPolicy,
    starts: Starts,
    config: Config,
    lesson: Lesson | None,
) -> tuple[Float[Array, ""], Metrics]:
    leaving = jnp.where(starts.unsafe, config.agent.unsafe_weight, 1.0)[None]
    if lesson is None:
        task, task_entropy = _actor_loss(actors.task, dreams.task, gains.task, reach.task, config)
    else:
        task, task_entropy = _clone_loss(actors.task, lesson)
    backup, backup_entropy = _actor_loss(actors.backup, dreams.backup, gains.backup, reach.backup * leaving, config)
    return task + backup, {
        "actor/task_loss": task,
        "actor/backup_loss": backup,
        "actor/task_entropy": task_entropy,
        "actor/backup_entropy": backup_entropy,
    }


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


def _clone_loss(actor: Actor, lesson: Lesson) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """−mean ln π(proposed | ŝ) over the rows that have a proposal; the deviation's floor bounds it for policies without noise."""
    given = jnp.isfinite(lesson.proposed).all(axis=-1)
    policy = jax.vmap(actor)(sg(lesson.features))
    log_prob = jax.vmap(lambda p, a: p.log_prob(a))(policy, jnp.where(given[:, None], lesson.proposed, 0.0))
    entropy = jax.vmap(lambda p: p.entropy())(policy)
    return -jnp.where(given, log_prob, 0.0).sum() / jnp.maximum(given.sum(), 1), entropy.mean()


def _critic_losses(
    critics: Critics, anchors: Stacks, dreams: Dreams, returns: ByCritic, reach: ByPolicy, agent: AgentConfig
) -> tuple[Float[Array, ""], Metrics]:
    """A violation ends what the safety critics count, so states beyond one do not count in their loss."""
    alive = jnp.cumprod(1 - sg(dreams.task.violated[:-1]), axis=0)
    targets = jnp.concatenate([jnp.stack([returns.task, returns.penalty], axis=-1), returns.safety], axis=-1)
    weight = jnp.stack([reach.task, reach.task, reach.task * alive, reach.task * alive], axis=-1)
    on_task = _critic_loss(critics.only(*ON_TASK), anchors.on_task, dreams.task, targets, weight, agent.ema_regulariser)
    backup = _critic_loss(
        critics.only("backup"), anchors.backup, dreams.backup, returns.backup[..., None], reach.backup[..., None],
        agent.ema_regulariser,
    )  # fmt: skip
    metrics = {f"critic/{name}": loss for name, loss in zip(CRITICS, (*on_task, *backup), strict=True)}
    return on_task.sum() + backup.sum(), metrics


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

"""One training step of everything that learns (Alg. 1): world model, both policies, all critics.

`update(state, batch, key) -> (state, metrics)` is pure. Policies and critics share one imagination and one gradient pass;
stop-gradients keep every loss to its own parameters. The world model's step is left out where one of its figures is not finite,
that of policies and critics where one of either's is not.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Key, PyTree

from ambs.agent.behaviour import Behaviour, Lesson, Metrics, Normalisers, Starts, behaviour_loss, penalty_of
from ambs.agent.imagine import Actors
from ambs.agent.networks import Actor, Critics
from ambs.agent.penalties import Multiplier
from ambs.agent.returns import Normaliser
from ambs.config import Config
from ambs.data import Experience
from ambs.nn.precision import at_least_float32, cast
from ambs.spec.risk import violates
from ambs.streams import stream
from ambs.world_model.loss import world_model_loss
from ambs.world_model.model import WorldModel, WorldSpec

sg = jax.lax.stop_gradient


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
    model = WorldModel(spec, config.model, key=stream(key, "model"))
    task, backup = (
        Actor(features, spec.actions, size, discrete=discrete, key=stream(key, name)) for name in Actors._fields
    )
    actors = Actors(task, backup)
    critics = Critics(features, size, key=stream(key, "critics"), mean=config.agent.critic_mean)
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
        multiplier=penalty_of(spec, config).init(),
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
    lesson = None
    if batch.proposed is not None:
        rows = Lesson(latent.features, batch.proposed)
        lesson = jax.tree.map(lambda leaf: sg(leaf).reshape(-1, leaf.shape[-1]), rows)
    stepped_on = state._replace(model=model, model_opt=model_opt)
    learned, more = improve(stepped_on, starts, dream_key, sound, lesson, config=config, dtype=dtype)
    return learned, metrics | more


def improve(
    state: Learned,
    starts: Starts,
    key: Key[Array, ""],
    sound: Bool[Array, ""],
    lesson: Lesson | None = None,
    *,
    config: Config,
    dtype: Any = jnp.float32,
) -> tuple[Learned, Metrics]:
    """One step of policies and critics on traces imagined from these states; the model stays as it is.

    `sound`: whether what led here was finite; if not, nothing is learned here either. `lesson`: what a policy that is given
    proposed, where the task policy is its clone.
    """
    world = cast(state.model, dtype)

    def loss(behaviour: Behaviour) -> tuple[Array, Any]:
        slow = cast(state.slow, dtype)
        return behaviour_loss(
            cast(behaviour, dtype), slow, world, starts, state.normalisers, state.multiplier, config, key, lesson
        )

    (_, (normalisers, multiplier, metrics)), grads = eqx.filter_value_and_grad(loss, has_aux=True)(state.behaviour)
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
    # A plain tuple, as `_behaviour_init` makes it: checkpoints name its parts by their place.
    task_opt, backup_opt, critic_opt = opt
    task, task_opt = tx.update(grads.actors.task, task_opt)
    backup, backup_opt = tx.update(grads.actors.backup, backup_opt)
    critics, critic_opt = jax.vmap(tx.update)(grads.critics, critic_opt)
    changes = Behaviour(Actors(task, backup), critics)
    return eqx.apply_updates(behaviour, changes), (task_opt, backup_opt, critic_opt)

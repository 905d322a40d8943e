"""The world model's loss: prediction terms and a balanced KL with free nats (DreamerV3; the paper's β of Table 2)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from ambs.data import Experience
from ambs.nn.distributions import bernoulli_loss, categorical_kl, two_hot_loss
from ambs.nn.precision import at_least_float32
from ambs.spec.risk import violates
from ambs.world_model.heads import HEADS
from ambs.world_model.model import WorldModel
from ambs.world_model.rssm import Latent, Observed
from ambs.world_model.vision import reconstruction_loss


class Losses(NamedTuple):
    """Mean loss terms, before scaling, and what the KL really is."""

    total: Float[Array, ""]
    terms: dict[str, Float[Array, ""]]
    kl: Float[Array, ""]
    """Posterior–prior KL, nats per step, without free nats."""


def world_model_loss(model: WorldModel, batch: Experience, start: Latent, key: Key[Array, ""]) -> tuple[Losses, Latent]:
    """Loss of a batch `[batch, time]`, and its posterior latents `[batch, time]` for imagination."""
    count = batch.reward.shape[0]
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(count))
    embeddings = jax.vmap(jax.vmap(model.encoder))(batch.observation)
    observed = model.rssm.filter(start, batch.action, embeddings, batch.is_first, keys)
    terms, kl = jax.vmap(jax.vmap(lambda seen, item: _step_terms(model, seen, item)))(observed, batch)
    means = {name: term.mean() for name, term in terms.items()}
    config = model.config
    if config.open_loop:
        means["open_loop"] = _open_loop_loss(model, batch, observed.latent, jax.random.fold_in(key, count))
    scales = dict.fromkeys(("image", "reward", "proceed"), 1.0) | {
        "dyn": config.dyn_scale,
        "rep": config.rep_scale,
        "vector": config.vector_scale,
        "labels": config.label_scale,
        "cost": config.label_scale,
        "open_loop": config.label_scale,
    }
    scales |= {name: HEADS[name].weight(config) for name in model.heads.more}
    total = sum((scales[name] * mean for name, mean in means.items()), jnp.zeros(()))
    return Losses(total, means, kl.mean()), observed.latent


def _step_terms(
    model: WorldModel, seen: Observed, item: Experience
) -> tuple[dict[str, Float[Array, ""]], Float[Array, ""]]:
    features = seen.latent.features
    terms = reconstruction_loss(model.decoder(features), item.observation, model.spec.observation)
    limit = model.config.widths.bin_limit
    terms["reward"] = two_hot_loss(model.heads.reward(features), item.reward, limit)
    terms["proceed"] = bernoulli_loss(model.heads.proceed(features)[0], at_least_float32(item.proceed))
    terms |= label_terms(model, features, item.labels)
    terms |= {name: HEADS[name].loss(head(features), item) for name, head in model.heads.more.items()}
    return terms | kl_terms(seen.posterior, seen.prior, model.config.free_nats), categorical_kl(
        seen.posterior, seen.prior
    )


def label_terms(
    model: WorldModel, features: Float[Array, "features"], labels: Bool[Array, "frames atoms"]
) -> dict[str, Float[Array, ""]]:
    """Losses of the heads of labels and cost, as far as there are any, at one step.

    Atoms that Ψ does not speak of are learned, for other formulas, from stopped features: they do not shape the latents.
    """
    spec, heads, terms = model.spec, model.heads, {}
    if heads.labels is not None:
        logits = heads.labels(features).reshape(labels.shape)
        matters = [name in spec.psi.atoms() for name in spec.atoms.names]
        if not all(matters):
            aside = heads.labels(jax.lax.stop_gradient(features)).reshape(labels.shape)
            logits = jnp.where(jnp.array(matters)[None], logits, aside)
        terms["labels"] = bernoulli_loss(logits, at_least_float32(labels), model.config.positive_weight).sum()
    if heads.cost is not None:
        cost = spec.cost * at_least_float32(violates(spec.psi, spec.atoms, labels))
        terms["cost"] = two_hot_loss(heads.cost(features), cost, model.config.widths.bin_limit)
    return terms


def _open_loop_loss(model: WorldModel, batch: Experience, latent: Latent, key: Key[Array, ""]) -> Float[Array, ""]:
    """The labels' loss on latents that are imagined without observations, as the shield and the policies meet them.

    From some steps of every sequence the model goes on for `open_loop` steps with the actions that were really taken; steps
    after the end of an episode do not count. Gradients reach the prior, the recurrent model and the posterior they start from.
    """
    steps = min(model.config.open_loop, batch.reward.shape[1] - 1)

    def one(latent: Latent, item: Experience, key: Key[Array, ""]) -> tuple[Array, Array]:
        place_key, move_key = jax.random.split(key)
        start = jax.random.randint(place_key, (), 0, item.reward.shape[0] - steps)
        ahead = jax.tree.map(
            lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start + 1, steps), (item.action, item.labels, item.is_first)
        )
        action, labels, is_first = ahead
        imagined = model.rssm.imagine_along(jax.tree.map(lambda leaf: leaf[start], latent), action, move_key)
        terms = jax.vmap(lambda features, labels: label_terms(model, features, labels))(imagined.features, labels)
        return sum(terms.values(), jnp.zeros(())), jnp.cumprod(1.0 - is_first)

    keys = jax.random.split(key, (batch.reward.shape[0], model.config.open_loop_starts))
    many = jax.vmap(jax.vmap(one, in_axes=(None, None, 0)))
    losses, counts = many(latent, batch, keys)
    return (losses * counts).sum() / jnp.maximum(counts.sum(), 1)


def kl_terms(
    posterior: Float[Array, "latents classes"], prior: Float[Array, "latents classes"], free_nats: float
) -> dict[str, Float[Array, ""]]:
    """dyn: max(free, KL(sg(post) ‖ prior)) teaches the prior; rep: max(free, KL(post ‖ sg(prior))) the posterior."""
    sg = jax.lax.stop_gradient
    return {
        "dyn": jnp.maximum(categorical_kl(sg(posterior), prior), free_nats),
        "rep": jnp.maximum(categorical_kl(posterior, sg(prior)), free_nats),
    }

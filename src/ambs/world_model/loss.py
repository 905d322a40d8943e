"""The world model's loss: prediction terms and a balanced KL with free nats (DreamerV3; the paper's β of Table 2)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, Shaped

from ambs.envs.labels import violates
from ambs.nn.distributions import bernoulli_loss, categorical_kl, two_hot_loss
from ambs.nn.precision import at_least_float32
from ambs.world_model.model import WorldModel
from ambs.world_model.rssm import Latent, Observed
from ambs.world_model.vision import Observation, reconstruction_loss


class Sequence(NamedTuple):
    """Consecutive agent steps, time first (a batch of them: batch, then time).

    Entry t holds the observation o_t, the action that led to it, the reward received and the labels of the frames passed
    on the way, whether the episode goes on after it (time limits are no end), and whether it is an episode's first.
    """

    observation: Observation
    action: Float[Array, "*batch time actions"]
    reward: Float[Array, "*batch time"]
    labels: Bool[Array, "*batch time frames atoms"]
    proceed: Shaped[Array, "*batch time"]
    is_first: Bool[Array, "*batch time"]


class Losses(NamedTuple):
    """Mean loss terms, before scaling, and what the KL really is."""

    total: Float[Array, ""]
    terms: dict[str, Float[Array, ""]]
    kl: Float[Array, ""]
    """Posterior–prior KL, nats per step, without free nats."""


def world_model_loss(model: WorldModel, batch: Sequence, start: Latent, key: Key[Array, ""]) -> tuple[Losses, Latent]:
    """Loss of a batch `[batch, time]`, and its posterior latents `[batch, time]` for imagination."""
    count = batch.reward.shape[0]
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(count))
    embeddings = jax.vmap(jax.vmap(model.encoder))(batch.observation)
    observed = model.rssm.filter(start, batch.action, embeddings, batch.is_first, keys)
    terms, kl = jax.vmap(jax.vmap(lambda seen, item: _step_terms(model, seen, item)))(observed, batch)
    means = {name: term.mean() for name, term in terms.items()}
    config = model.config
    scales = dict.fromkeys(("image", "reward", "proceed"), 1.0) | {
        "dyn": config.dyn_scale,
        "rep": config.rep_scale,
        "vector": config.vector_scale,
        "labels": config.label_scale,
        "cost": config.label_scale,
    }
    total = sum((scales[name] * mean for name, mean in means.items()), jnp.zeros(()))
    return Losses(total, means, kl.mean()), observed.latent


def _step_terms(
    model: WorldModel, seen: Observed, item: Sequence
) -> tuple[dict[str, Float[Array, ""]], Float[Array, ""]]:
    features = seen.latent.features
    terms = reconstruction_loss(model.decoder(features), item.observation, model.spec.observation)
    limit = model.config.widths.bin_limit
    terms["reward"] = two_hot_loss(model.heads.reward(features), item.reward, limit)
    terms["proceed"] = bernoulli_loss(model.heads.proceed(features)[0], at_least_float32(item.proceed))
    if model.heads.labels is not None:
        logits = model.heads.labels(features).reshape(item.labels.shape)
        weight = model.config.positive_weight
        terms["labels"] = bernoulli_loss(logits, at_least_float32(item.labels), weight).sum()
    if model.heads.cost is not None:
        violated = violates(model.spec.psi, model.spec.atoms, item.labels)
        cost = model.spec.cost * at_least_float32(violated)
        terms["cost"] = two_hot_loss(model.heads.cost(features), cost, limit)
    return terms | kl_terms(seen.posterior, seen.prior, model.config.free_nats), categorical_kl(
        seen.posterior, seen.prior
    )


def kl_terms(
    posterior: Float[Array, "latents classes"], prior: Float[Array, "latents classes"], free_nats: float
) -> dict[str, Float[Array, ""]]:
    """dyn: max(free, KL(sg(post) ‖ prior)) teaches the prior; rep: max(free, KL(post ‖ sg(prior))) the posterior."""
    sg = jax.lax.stop_gradient
    return {
        "dyn": jnp.maximum(categorical_kl(sg(posterior), prior), free_nats),
        "rep": jnp.maximum(categorical_kl(posterior, sg(prior)), free_nats),
    }

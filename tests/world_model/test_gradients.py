"""Each term of the world model's loss and its gradient, in float64, against finite differences of the terms written out.

What the KL terms hold fixed is taken from `base`, computed once before any parameter is moved.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ambs.config import ModelConfig
from ambs.nn.distributions import symlog, two_hot
from ambs.world_model import rssm
from ambs.world_model.loss import Sequence, world_model_loss
from ambs.world_model.model import WorldModel
from ambs.world_model.vision import ObservationSpec
from tests.tiny import (
    TINY,
    WIDTH,
    along,
    batch_for,
    fresh,
    moved_both_ways,
    quick_jit,
    random_directions,
    random_like,
    spec_of,
    tiny_sizes,
)

POSITIVE, FREE, VECTOR, LABELS = 3.0, 0.01, 7.0, 5.0


def make() -> WorldModel:
    """A model with both kinds of cost head, seeing image and vector, so that every term occurs."""
    spec = spec_of(ObservationSpec(16, 3))

    def models(key: Any) -> Any:
        keys = jax.random.split(key)
        settings = {"positive_weight": POSITIVE, "free_nats": FREE, "vector_scale": VECTOR, "label_scale": LABELS}
        settings |= {"size": "xxs"}
        model = WorldModel(spec, ModelConfig(**settings), key=keys[0])
        other = WorldModel(spec, ModelConfig(cost_head="two_hot", **settings), key=keys[1])
        return eqx.tree_at(lambda m: m.heads.cost, model, other.heads.cost, is_leaf=lambda node: node is None)

    return random_like(eqx.filter_eval_shape(models, fresh()))


def filtered(model: WorldModel, batch: Sequence, start: rssm.Latent) -> rssm.Observed:
    embeddings = jax.vmap(jax.vmap(model.encoder))(batch.observation)
    keys = jax.random.split(fresh(), batch.reward.shape[0])
    return model.rssm.filter(start, batch.action, embeddings, batch.is_first, keys)


def written_out(model: WorldModel, batch: Sequence, start: rssm.Latent, base: rssm.Observed) -> dict[str, Any]:
    now = filtered(model, batch, start)

    def terms(seen: rssm.Observed, item: Sequence, fixed: rssm.Observed) -> dict[str, Any]:
        features = seen.latent.features
        outputs = model.decoder(features)
        reward, cost = (jax.nn.log_softmax(head(features)) for head in (model.heads.reward, model.heads.cost))
        proceed = jax.nn.sigmoid(model.heads.proceed(features)[0])
        holds = jax.nn.sigmoid(model.heads.labels(features).reshape(2, 1))
        kl = lambda p, q: (jnp.exp(p) * (p - q)).sum()  # noqa: E731
        return {
            "image": ((outputs["image"] - item.observation["image"] / 255.0) ** 2).sum(),
            "vector": ((outputs["vector"] - symlog(item.observation["vector"])) ** 2).sum(),
            "reward": -(two_hot(item.reward, TINY.bins) * reward).sum(),
            "cost": -(two_hot(10.0 * item.labels.any(), TINY.bins) * cost).sum(),
            "proceed": -jnp.log(jnp.where(item.proceed, proceed, 1 - proceed)),
            "labels": -jnp.where(item.labels, POSITIVE * jnp.log(holds), jnp.log(1 - holds)).sum(),
            "dyn": jnp.maximum(kl(fixed.posterior, seen.prior), FREE),
            "rep": jnp.maximum(kl(seen.posterior, fixed.prior), FREE),
        }

    means = {name: term.mean() for name, term in jax.vmap(jax.vmap(terms))(now, batch, base).items()}
    scales = {"dyn": 0.5, "rep": 0.1, "vector": VECTOR, "labels": LABELS, "cost": LABELS}
    return means | {"total": sum(scales.get(name, 1.0) * mean for name, mean in means.items())}


def test_terms_and_gradients():
    """One test, since one compilation serves it all."""
    with jax.enable_x64(True), tiny_sizes() as patch:
        patch.setattr(rssm, "sample_straight_through", lambda _key, log_probs: jnp.exp(log_probs))
        model = make()
        batch = batch_for(model.spec, time=3)
        rng = np.random.default_rng(1)
        start = rssm.Latent(jnp.asarray(rng.normal(size=(2, 4))), jnp.asarray(rng.dirichlet([1, 1], (2, 2))))
        # The second sequence goes on from where another has ended.
        batch = batch._replace(is_first=batch.is_first.at[1, 0].set(False))

        def code(model: WorldModel) -> Any:
            losses, _ = world_model_loss(model, batch, start, fresh())
            found = losses.terms | {"total": losses.total}
            return found, found

        jacobian, values = quick_jit(jax.jacrev(code, has_aux=True))(model)
        base = quick_jit(filtered)(model, batch, start)
        directions = random_directions(model)
        expected = quick_jit(jax.vmap(lambda moved: written_out(moved, batch, start, base)))(
            moved_both_ways(model, directions)
        )
        assert set(expected) == set(values)
        for name, found in expected.items():
            middle, up, down = found[0], *np.split(np.asarray(found[1:]), 2)
            assert float(values[name]) == pytest.approx(float(middle), rel=1e-6), name
            # Images and labels become float32 numbers, in float64 too: values agree to that precision only.
            slopes = along(jacobian[name], directions)
            np.testing.assert_allclose(slopes, (up - down) / (2 * WIDTH), rtol=1e-4, atol=1e-9, err_msg=name)
        assert values["dyn"] > 2 * FREE
        silent = [path for path, leaf in jax.tree.leaves_with_path(jacobian["total"]) if not leaf.any()]
        assert not silent, silent

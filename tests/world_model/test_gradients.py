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
from ambs.data import Experience
from ambs.nn.distributions import symlog, two_hot
from ambs.spec import Atoms
from ambs.world_model import rssm
from ambs.world_model.loss import world_model_loss
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

pytestmark = pytest.mark.learns

POSITIVE, FREE, VECTOR, LABELS, AHEAD = 3.0, 0.01, 7.0, 5.0, 2


def make() -> WorldModel:
    """A model with both kinds of cost head, seeing image and vector, so that every term occurs."""
    spec = spec_of(ObservationSpec(16, 3))._replace(atoms=Atoms(("vase", "hazard")))

    def models(key: Any) -> Any:
        keys = jax.random.split(key)
        settings = {"positive_weight": POSITIVE, "free_nats": FREE, "vector_scale": VECTOR, "label_scale": LABELS}
        settings |= {"size": "xxs", "open_loop": AHEAD, "open_loop_starts": 3}
        model = WorldModel(spec, ModelConfig(**settings), key=keys[0])
        other = WorldModel(spec, ModelConfig(cost_head="two_hot", **settings), key=keys[1])
        return eqx.tree_at(lambda m: m.heads.cost, model, other.heads.cost, is_leaf=lambda node: node is None)

    return random_like(eqx.filter_eval_shape(models, fresh()))


def filtered(model: WorldModel, batch: Experience, start: rssm.Latent) -> rssm.Observed:
    embeddings = jax.vmap(jax.vmap(model.encoder))(batch.observation)
    keys = jax.random.split(fresh(), batch.reward.shape[0])
    return model.rssm.filter(start, batch.action, embeddings, batch.is_first, keys)


def labels_loss(model: WorldModel, features: Any, fixed: Any, labels: Any) -> Any:
    """Ψ speaks of hazards; what is learned of vases leaves the features as they are."""
    read = lambda features: jax.nn.sigmoid(model.heads.labels(features).reshape(2, 2))  # noqa: E731
    holds = jnp.stack([read(fixed)[:, 0], read(features)[:, 1]], axis=1)
    return -jnp.where(labels, POSITIVE * jnp.log(holds), jnp.log(1 - holds)).sum()


def dreams(model: WorldModel, batch: Experience, latent: rssm.Latent) -> list[tuple[int, int, list[Any]]]:
    """(sequence, start, features of the steps imagined from there with the actions taken), by the loss's own keys."""
    count, time = batch.reward.shape
    keys = jax.random.split(jax.random.fold_in(fresh(), count), (count, 3))
    found = []
    for sequence in range(count):
        for key in keys[sequence]:
            place, move = jax.random.split(key)
            start = jax.random.randint(place, (), 0, time - AHEAD)
            state = jax.tree.map(lambda leaf, at=(sequence, start): leaf[at], latent)
            features = []
            for step in range(AHEAD):
                drawn = model.rssm.draw(jax.random.fold_in(move, step))
                state = model.rssm.imagine(state, batch.action[sequence, start + 1 + step], drawn)
                features.append(state.features)
            found.append((sequence, start, features))
    return found


def open_loop(model: WorldModel, batch: Experience, latent: rssm.Latent, fixed: Any) -> Any:
    """Mean over the imagined steps that lie within the episode they began in."""
    total, count = 0.0, 0.0
    for (sequence, start, features), (*_, still) in zip(dreams(model, batch, latent), fixed, strict=True):
        alive = 1.0
        for step in range(AHEAD):
            at = start + 1 + step
            alive = alive * (1.0 - batch.is_first[sequence, at])
            labels = batch.labels[sequence, at]
            cost = jax.nn.log_softmax(model.heads.cost(features[step]))
            loss = labels_loss(model, features[step], still[step], labels)
            loss -= (two_hot(10.0 * labels[:, 1].any(), TINY.bins) * cost).sum()
            total, count = total + alive * loss, count + alive
    return total / count


def written_out(
    model: WorldModel, batch: Experience, start: rssm.Latent, base: rssm.Observed, fixed_dreams: Any
) -> dict[str, Any]:
    now = filtered(model, batch, start)

    def terms(seen: rssm.Observed, item: Experience, fixed: rssm.Observed) -> dict[str, Any]:
        features = seen.latent.features
        outputs = model.decoder(features)
        reward, cost = (jax.nn.log_softmax(head(features)) for head in (model.heads.reward, model.heads.cost))
        proceed = jax.nn.sigmoid(model.heads.proceed(features)[0])
        kl = lambda p, q: (jnp.exp(p) * (p - q)).sum()  # noqa: E731
        return {
            "image": ((outputs["image"] - item.observation["image"] / 255.0) ** 2).sum(),
            "vector": ((outputs["vector"] - symlog(item.observation["vector"])) ** 2).sum(),
            "reward": -(two_hot(item.reward, TINY.bins) * reward).sum(),
            "cost": -(two_hot(10.0 * item.labels[:, 1].any(), TINY.bins) * cost).sum(),
            "proceed": -jnp.log(jnp.where(item.proceed, proceed, 1 - proceed)),
            "labels": labels_loss(model, features, fixed.latent.features, item.labels),
            "dyn": jnp.maximum(kl(fixed.posterior, seen.prior), FREE),
            "rep": jnp.maximum(kl(seen.posterior, fixed.prior), FREE),
        }

    means = {name: term.mean() for name, term in jax.vmap(jax.vmap(terms))(now, batch, base).items()}
    means["open_loop"] = open_loop(model, batch, now.latent, fixed_dreams)
    scales = {"dyn": 0.5, "rep": 0.1, "vector": VECTOR, "labels": LABELS, "cost": LABELS, "open_loop": LABELS}
    return means | {"total": sum(scales.get(name, 1.0) * mean for name, mean in means.items())}


def test_terms_and_gradients():
    """One test, since one compilation serves it all."""
    with jax.enable_x64(True), tiny_sizes() as patch:
        patch.setattr(rssm, "sample_straight_through", lambda _key, log_probs: jnp.exp(log_probs))
        model = make()
        batch = batch_for(model.spec)
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
        fixed = quick_jit(lambda: dreams(model, batch, base.latent))()
        expected = quick_jit(jax.vmap(lambda moved: written_out(moved, batch, start, base, fixed)))(
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

"""Several updates as one compiled call; one that is not finite, or its part that is not, is skipped, and counted."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from ambs.agent.behaviour import Metrics
from ambs.agent.update import Learned, finite, update
from ambs.config import Config
from ambs.data import Experience
from ambs.envs.mirror import Mirror
from ambs.shield.traces import select
from ambs.streams import at, stream

SKIPPED = "updates/skipped"


def learn(
    state: Learned,
    batches: Experience,
    root: Key[Array, ""],
    first: Int[Array, ""],
    *,
    config: Config,
    dtype: Any,
    mirror: Mirror | None = None,
) -> tuple[Learned, Metrics]:
    """One update per batch of `batches` `[updates, batch, time, …]`, numbered from `first`; metrics are means over the
    finite ones, `updates/skipped` is the number of the others, `updates/bad_run` how many in a row were skipped last.

    With a `mirror` every sequence is, by the toss of a coin, replaced by its mirror image.
    """

    def one(carry: tuple[Learned, Array], item: tuple[Experience, Array]) -> tuple[tuple[Learned, Array], Any]:
        old, bad = carry
        batch, number = item
        if mirror is not None:
            heads = jax.random.bernoulli(at(stream(root, "mirror"), number), 0.5, batch.reward.shape[:1])
            batch = select(heads, mirrored(batch, mirror), batch)
        new, metrics = update(old, batch, at(stream(root, "update"), number), config=config, dtype=dtype)
        sound = finite(metrics)
        return (new, jnp.where(sound, 0, bad + 1)), (metrics, sound)

    count = batches.reward.shape[0]
    if count == 1:  # Without a loop: within one, XLA's convolutions take eight times as long on a CPU.
        alone = jax.tree.map(lambda leaf: leaf[0], batches)
        (state, bad), single = one((state, jnp.array(0)), (alone, first))
        metrics, sound = jax.tree.map(lambda leaf: leaf[None], single)
    else:
        (state, bad), (metrics, sound) = jax.lax.scan(one, (state, jnp.array(0)), (batches, first + jnp.arange(count)))
    kept = jnp.maximum(sound.sum(), 1)
    means = {name: jnp.where(sound, value, 0.0).sum() / kept for name, value in metrics.items()}
    means[SKIPPED] = (~sound).sum().astype(jnp.float32)
    means["updates/bad_run"] = bad.astype(jnp.float32)
    return state, means


def mirrored(batch: Experience, mirror: Mirror) -> Experience:
    """The sequences with left and right exchanged."""
    images = {"image": mirror.picture, "vector": mirror.vector}
    seen = {name: images[name](part) for name, part in batch.observation.items()}
    proposed = None if batch.proposed is None else mirror.action(batch.proposed)
    return batch._replace(observation=seen, action=mirror.action(batch.action), proposed=proposed)


def updates_per_call(config: Config, *, images: bool) -> int:
    """As configured; on a CPU one where there are images (`learn`)."""
    return 1 if images and jax.default_backend() == "cpu" else config.training.updates_per_call

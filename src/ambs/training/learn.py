"""Several updates as one compiled call; an update that is not finite is skipped and counted."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from ambs.agent.update import Learned, update
from ambs.config import Config
from ambs.streams import at, stream
from ambs.world_model.loss import Sequence

Metrics = dict[str, Float[Array, ""]]
SKIPPED = "updates/skipped"


def learn(
    state: Learned, batches: Sequence, root: Key[Array, ""], first: Int[Array, ""], *, config: Config, dtype: Any
) -> tuple[Learned, Metrics]:
    """One update per batch of `batches` `[updates, batch, time, …]`, numbered from `first`; metrics are means over the
    finite ones, `updates/skipped` is their number less all, `updates/bad_run` how many in a row were skipped last."""

    def one(carry: tuple[Learned, Array], item: tuple[Sequence, Array]) -> tuple[tuple[Learned, Array], Any]:
        old, bad = carry
        batch, number = item
        new, metrics = update(old, batch, at(stream(root, "update"), number), config=config, dtype=dtype)
        sound = finite(metrics)
        kept: Learned = jax.tree.map(lambda a, b: jnp.where(sound, a, b), new, old)
        return (kept, jnp.where(sound, 0, bad + 1)), (metrics, sound)

    numbers = first + jnp.arange(batches.reward.shape[0])
    (state, bad), (metrics, sound) = jax.lax.scan(one, (state, jnp.array(0)), (batches, numbers))
    count = jnp.maximum(sound.sum(), 1)
    means = {name: jnp.where(sound, value, 0.0).sum() / count for name, value in metrics.items()}
    means[SKIPPED] = (~sound).sum().astype(jnp.float32)
    means["updates/bad_run"] = bad.astype(jnp.float32)
    return state, means


def finite(metrics: Metrics) -> Bool[Array, ""]:
    """Whether losses, gradient norms and all else an update reports are finite."""
    return jnp.isfinite(jnp.stack(list(metrics.values()))).all()

"""When the shield takes a label for true: thresholds set on recent play, and how good the labels are.

A label that is flagged falsely once in a safe window of T steps costs an override, so thresholds are set from windows: as
low as can be while at most a given share of safe windows is flagged, by what the model filters and by what it imagines.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from ambs.envs.labels import violates
from ambs.streams import stream
from ambs.world_model.loss import Sequence
from ambs.world_model.model import WorldModel
from ambs.world_model.rssm import Latent

LOWEST, HIGHEST = 0.5, 0.95
"""A label that is less likely than not is never flagged: lower thresholds were tried, and made the shield override most of
what a policy does where hazards are merely possible (docs/experiments.md)."""
AT_ONCE = 64
"""Windows whose pictures are encoded at once on a GPU."""
ENOUGH = 200
"""Safe windows below which thresholds stay at .5."""


class LabelProbs(NamedTuple):
    """Probabilities `[windows, T, frames, atoms]` of the T steps after the context, filtered and imagined, and the truth."""

    filtered: Float[Array, "windows time frames atoms"]
    imagined: Float[Array, "windows time frames atoms"]
    truth: Bool[Array, "windows time frames atoms"]


def predict(model: WorldModel, windows: Sequence, context: int, key: Key[Array, ""]) -> LabelProbs:
    """Label probabilities along windows `[windows, context + T]`: with every observation, and from the context alone with
    the actions that were really taken."""

    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(windows.reward.shape[0]))
    initial = jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf[None], (keys.shape[0], *leaf.shape)), model.rssm.initial()
    )
    embeddings = _embed(model, windows)
    streams = jax.vmap(lambda key: stream(key, "filter"))(keys)
    seen = model.rssm.filter(initial, windows.action, embeddings, windows.is_first, streams).latent

    def imagine(start: Latent, actions: Float[Array, "time actions"], key: Key[Array, ""]) -> Latent:
        def advance(latent: Latent, item: tuple[Array, Int[Array, ""]]) -> tuple[Latent, Latent]:
            action, step = item
            drawn = model.rssm.draw(jax.random.fold_in(stream(key, "imagine"), step))
            after = model.rssm.imagine(latent, action, drawn)
            return after, after

        return jax.lax.scan(advance, start, (actions, jnp.arange(actions.shape[0])))[1]

    start = jax.tree.map(lambda leaf: leaf[:, context - 1], seen)
    later = jax.vmap(imagine)(start, windows.action[:, context:], keys)
    rest = jax.tree.map(lambda leaf: leaf[:, context:], seen)
    filtered, imagined = (jax.vmap(jax.vmap(model.trace_labels))(latent.features) for latent in (rest, later))
    return LabelProbs(filtered, imagined, model.true_trace_labels(windows.labels[:, context:]))


def _embed(model: WorldModel, windows: Sequence) -> Float[Array, "windows time embedding"]:
    """Some windows at a time, for their pictures would fill gigabytes; on CPUs, whose convolutions are slow in loops and
    which have the memory, all at once."""
    one = jax.vmap(model.encoder)
    if jax.default_backend() == "cpu":
        return jax.vmap(one)(windows.observation)
    return jax.lax.map(one, windows.observation, batch_size=AT_ONCE)


def calibrate(
    probs: LabelProbs, whole: Bool[Array, "windows"], share: float, default: Float[Array, "atoms"]
) -> Float[Array, "atoms"]:
    """Per atom the lowest threshold that flags at most `share` of the `whole` windows in which the atom never holds."""
    peak = jnp.maximum(probs.filtered, probs.imagined).max(axis=(1, 2))
    safe = ~probs.truth.any(axis=(1, 2)) & whole[:, None]

    def one(peaks: Float[Array, "windows"], safe: Bool[Array, "windows"], start: Array) -> Float[Array, ""]:
        count = safe.sum()
        order = jnp.sort(jnp.where(safe, peaks, -1.0))[::-1]
        allowed = jnp.floor(share * count).astype(int)
        # Flagged means at or above the threshold: it must lie above the first peak that may not be flagged.
        limit = jnp.nextafter(order[allowed], jnp.inf)
        return jnp.where(count >= ENOUGH, jnp.clip(limit, LOWEST, HIGHEST), start)

    return jax.vmap(one, in_axes=(1, 1, 0))(peak, safe, default)


def quality(
    model: WorldModel, probs: LabelProbs, whole: Bool[Array, "windows"], thresholds: Float[Array, "atoms"]
) -> dict[str, Float[Array, ""]]:
    """How labels do at these thresholds, on windows that lie within one episode.

    precision, recall: of violating steps, filtered. false_flags, imagined_false_flags: share of safe windows in which any
    step is flagged. missed_onsets: share of the windows that become unsafe in which the imagination flags nothing.
    """
    psi, atoms = model.trace_formula()
    cut = thresholds[None, None, None]
    truth = violates(psi, atoms, probs.truth) & whole[:, None]
    seen = violates(psi, atoms, probs.filtered >= cut) & whole[:, None]
    dreamt = violates(psi, atoms, probs.imagined >= cut) & whole[:, None]
    unsafe = truth.any(axis=1)
    safe = ~unsafe & whole
    begins_safe = unsafe & ~truth[:, 0]

    def share(hits: Array, of: Array) -> Float[Array, ""]:
        return jnp.where(of.sum() > 0, (hits & of).sum() / jnp.maximum(of.sum(), 1), jnp.nan)

    return {
        "labels/precision": share(truth, seen),
        "labels/recall": share(seen, truth),
        "labels/false_flags": share(seen.any(axis=1), safe),
        "labels/imagined_false_flags": share(dreamt.any(axis=1), safe),
        "labels/missed_onsets": share(~dreamt.any(axis=1), begins_safe),
        "labels/unsafe_windows": unsafe.sum() / jnp.maximum(whole.sum(), 1),
    }


def within_one_episode(windows: Sequence) -> Bool[Array, "windows"]:
    """Windows in which no episode begins after the first step."""
    return ~windows.is_first[:, 1:].any(axis=1)

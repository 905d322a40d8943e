"""From when on the shield believes its model: thresholds set on worlds that are held out, and how good labels and foresight are.

A label that is flagged falsely once in a safe window of T steps costs an override, so thresholds are set from windows: as
low as can be while at most a given share of safe windows is flagged, by what the model filters and by what it imagines.

Where labels are drawn, nothing is thresholded on the way, and the decision itself is calibrated: the level from which on a
state counts as risky is the lowest, but not below the Δ that is asked for, at which at most a given share of safe windows is
flagged. A blurred model intervenes rarely, a sharp one early.

What the shield said of each proposal is written down when it decides, before anything is learned from that step, in all worlds
but those that are judged; what happened in the steps after tells whether an alarm would have been false. Those are many more
layouts than worlds that are held out have. Where no shield acts (an agent without one, logs), and before it has decided often
enough, windows of such worlds are scored instead, exactly as the shield scores: by what the task policy proposes and would do
next. By the actions that were really taken, which are certain, risks are far more extreme.

Where the backup policy acted in between, nobody knows what the task policy would have come to: such a window counts as safe by
the chance that the model gives it, 1 − risk. Counted as safe, what a shield prevents would be held against it, and the more it
prevented the more lenient it would get.

How good labels and foresight are is judged by the actions that were really taken.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from ambs.acting.act import Player, in_precision
from ambs.acting.scoring import filtered, foresee, of_shield
from ambs.config import Config
from ambs.data import Experience
from ambs.nn.precision import cast, compute_dtype
from ambs.spec.risk import step_risk, violates
from ambs.streams import stream
from ambs.training.replay import Told
from ambs.world_model.model import WorldModel
from ambs.world_model.rssm import Latent

LOWEST, HIGHEST = 0.5, 0.95
"""A label that is less likely than not is never flagged: lower thresholds were tried, and made the shield override most of
what a policy does where hazards are merely possible (docs/experiments.md)."""
ENOUGH = 200
"""Safe windows below which thresholds and level stay as they are."""


IMAGINED = 16
"""Futures imagined per window by the actions that were really taken."""
SCORED = 32
"""Futures imagined per window by those of the task policy."""


class LabelProbs(NamedTuple):
    """Probabilities `[windows, T, frames, atoms]` of the T steps after the context, filtered and imagined, and the truth."""

    filtered: Float[Array, "windows time frames atoms"]
    imagined: Float[Array, "windows time frames atoms"]
    truth: Bool[Array, "windows time frames atoms"]
    risk: Float[Array, "windows"]
    """P(Ψ fails within T steps) by the actions that were really taken, mean over some imagined futures."""
    holds_now: Bool[Array, "windows"]
    """Whether Ψ holds where the context ends."""
    start: Latent
    """Where the context ends."""


def predict(model: WorldModel, windows: Experience, context: int, key: Key[Array, ""]) -> LabelProbs:
    """Label probabilities along windows `[windows, context + T]`: with every observation, and from the context alone with
    the actions that were really taken."""

    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(windows.reward.shape[0]))
    seen = filtered(model, windows, jax.vmap(lambda key: stream(key, "filter"))(keys))

    psi, atoms = model.trace_formula()

    def imagine(start: Latent, actions: Float[Array, "time actions"], key: Key[Array, ""]) -> Float[Array, "..."]:
        later = model.rssm.imagine_along(start, actions, key)
        return jax.vmap(model.trace_labels)(later.features)

    start = jax.tree.map(lambda leaf: leaf[:, context - 1], seen)
    dreams = jax.vmap(lambda key: jax.random.split(stream(key, "imagine"), IMAGINED))(keys)
    several = jax.vmap(jax.vmap(imagine, in_axes=(None, None, 0)))(start, windows.action[:, context:], dreams)
    rest = jax.tree.map(lambda leaf: leaf[:, context:], seen)
    safe = (1 - step_risk(psi, atoms, several)).prod(axis=-1).mean(axis=-1)
    truth = model.true_trace_labels(windows.labels)
    return LabelProbs(
        filtered=jax.vmap(jax.vmap(model.trace_labels))(rest.features),
        imagined=several[:, 0],
        truth=truth[:, context:],
        risk=1 - safe,
        holds_now=psi.holds(truth[:, context - 1, -1], atoms),
        start=start,
    )


def proposed_risk(
    player: Player,
    start: Latent,
    key: Key[Array, ""],
    config: Config,
    given: Float[Array, "windows actions"] | None = None,
) -> Float[Array, "windows"]:
    """1 − p̃ of states `[windows]` as the shield scores them: the task policy proposes, or a policy that is `given` did, and
    whoever the shield's kind imagines goes on, in the type in which the shield computes. NaN where a future is not finite:
    nothing is to be concluded from it."""
    dtype = compute_dtype()
    imagination = of_shield(player, config, dtype)
    latent = cast(start, dtype)
    keys = jax.random.split(stream(key, "policy"), latent.features.shape[0])
    proposed = jax.vmap(in_precision(player, dtype).actors.task.act)(keys, latent)
    if given is not None:
        proposed = jnp.where(jnp.isfinite(given), given, proposed)
    found = foresee(imagination, stream(key, "score"), latent, proposed, SCORED)
    return jnp.where(found.sound == 1, found.risk, jnp.nan)


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


def calibrate_level(risk: np.ndarray, safe: np.ndarray, share: float, accepted: tuple[float, ...], level: int) -> int:
    """The number of the lowest level that flags at most `share` of what is safe.

    `safe`: by how much each window counts (`unaided`). `accepted`: the risk up to which each level accepts, ascending. `level`:
    the one so far, kept if there are too few windows or a risk is not finite.
    """
    if not np.isfinite(safe).all() or safe.sum() < ENOUGH or not np.isfinite(risk[safe > 0]).all():
        return level
    order = np.argsort(np.where(safe > 0, risk, -1.0))[::-1]
    beyond = np.cumsum(safe[order]) > share * safe.sum() + 1e-3
    # The riskiest window that may not be flagged any more, if there is one.
    limit = risk[order][np.argmax(beyond)] if beyond.any() else -1.0
    return min(int(np.searchsorted(accepted, limit)), len(accepted) - 1)


def of_decisions(told: Told, counted: np.ndarray, violates: np.ndarray, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """What the shield said when it decided, and by how much each decision counts as safe, for all whose next `horizon` steps
    lie within their episode. Bool `[rows, envs]`: `counted`, whether a row's decision does; `violates`, whether Ψ fails in it."""
    if told.risk.shape[0] <= horizon:
        return np.zeros(0), np.zeros(0)

    def ahead(what: np.ndarray) -> np.ndarray:
        total = np.cumsum(what, axis=0)
        return total[horizon:] - total[:-horizon] > 0

    said = told.risk[:-horizon].astype(np.float64)
    known = np.isfinite(said) & counted[:-horizon] & ~ahead(told.is_first)
    return said[known], unaided(~ahead(violates)[known], ahead(told.backup)[known], said[known])


def stays_safe(model: WorldModel, probs: LabelProbs, whole: Bool[Array, "windows"]) -> Bool[Array, "windows"]:
    """Windows within one episode in which Ψ holds where the context ends and for all T steps after."""
    psi, atoms = model.trace_formula()
    return whole & probs.holds_now & ~violates(psi, atoms, probs.truth).any(axis=1)


def unaided(safe: np.ndarray, saved: np.ndarray, risk: np.ndarray) -> np.ndarray:
    """By how much each window counts as one that the task policy keeps safe by itself: 1 or 0 where it acted all along, and the
    model's own 1 − risk where the backup policy `saved` it."""
    return np.where(safe, np.where(saved, 1 - risk, 1.0), 0.0)


def quality(
    model: WorldModel, probs: LabelProbs, whole: Bool[Array, "windows"], thresholds: Float[Array, "atoms"]
) -> dict[str, Float[Array, ""]]:
    """How labels do at these thresholds, on windows that lie within one episode, and how well the imagination foresees.

    precision, recall: of violating steps, filtered. false_flags, imagined_false_flags: share of safe windows in which any
    step is flagged. missed_onsets: share of the windows that become unsafe in which the imagination flags nothing. loss,
    imagined_loss: of the labels, nats per step. auroc: of the imagined risk for "Ψ fails within T steps", where it holds now;
    detected: share of those that fail which are flagged where 5 % of the others are. imagined_per_real: imagined number of
    violating steps over the real one.
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
        "labels/loss": _log_loss(probs.filtered, probs.truth, whole),
        "labels/imagined_loss": _log_loss(probs.imagined, probs.truth, whole),
        "labels/auroc": _auroc(probs.risk, unsafe & probs.holds_now, safe & probs.holds_now),
        "labels/detected": _detected(probs.risk, unsafe & probs.holds_now, safe & probs.holds_now),
        "labels/imagined_per_real": _expected(step_risk(psi, atoms, probs.imagined), truth, whole),
    }


def _log_loss(probs: Float[Array, "windows time frames atoms"], truth: Array, whole: Array) -> Float[Array, ""]:
    likely = jnp.clip(jnp.where(truth, probs, 1 - probs), 1e-6, 1)
    each = -jnp.log(likely).sum(axis=(2, 3)).mean(axis=1)
    return jnp.where(whole, each, 0.0).sum() / jnp.maximum(whole.sum(), 1)


def _auroc(score: Float[Array, "windows"], bad: Array, good: Array) -> Float[Array, ""]:
    """P(a bad one has the higher score than a good one), ties half (Mann–Whitney)."""
    order = jnp.sort(jnp.where(good, score, jnp.inf))
    below = jnp.searchsorted(order, score, side="left") + jnp.searchsorted(order, score, side="right")
    pairs = good.sum() * bad.sum()
    return jnp.where(pairs > 0, jnp.where(bad, below, 0).sum() / 2 / jnp.maximum(pairs, 1), jnp.nan)


def _detected(score: Float[Array, "windows"], bad: Array, good: Array, false_alarms: float = 0.05) -> Float[Array, ""]:
    order = jnp.sort(jnp.where(good, score, -jnp.inf))[::-1]
    limit = order[jnp.floor(false_alarms * good.sum()).astype(int)]
    return jnp.where(
        (bad.sum() > 0) & (good.sum() > 0), ((score > limit) & bad).sum() / jnp.maximum(bad.sum(), 1), jnp.nan
    )


def _expected(risk: Float[Array, "windows time"], truth: Array, whole: Array) -> Float[Array, ""]:
    real = truth.sum()
    return jnp.where(real > 0, jnp.where(whole[:, None], risk, 0.0).sum() / jnp.maximum(real, 1), jnp.nan)


def memorised(held_out: dict[str, float], trained: dict[str, float]) -> dict[str, float]:
    """The figures of trained rows beside those of worlds that are held out, and what of them is memory."""
    beside = {name.replace("labels/", "trained/"): value for name, value in trained.items()}
    gaps = {"loss": 1, "imagined_loss": 1, "recall": -1, "auroc": -1}
    return beside | {
        f"memorised/{name}": sign * (held_out[f"labels/{name}"] - trained[f"labels/{name}"])
        for name, sign in gaps.items()
    }


def within_one_episode(windows: Experience) -> Bool[Array, "windows"]:
    """Windows in which no episode begins after the first step."""
    return ~windows.is_first[:, 1:].any(axis=1)

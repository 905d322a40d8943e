"""How like a policy its clone is, in episodes that nobody learned from: by what each proposes, and by what that does to p̃.

The clone acts for the policy in imagination, so p̃ is worth what the clone is worth. It cannot be compared with a policy that is
no function of latents in imagined states; but it can be in real ones (`error`), in states imagined along the actions that were
really taken, beside what the policy then proposed (`imagined_error`), and in the first step of the shield's own futures, which
begins once with the policy's proposal and once with the clone's (`risk_difference`).
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from ambs.acting.act import Player
from ambs.acting.scoring import filtered, foresee, of_model
from ambs.config import Config
from ambs.data import Experience
from ambs.nn.precision import cast, compute_dtype
from ambs.streams import stream
from ambs.world_model.rssm import Latent

SCORED = 32
"""Futures imagined per window."""
MOST = 128
"""Windows of which futures are imagined."""


def fidelity(
    player: Player, windows: Experience, key: Key[Array, ""], *, config: Config
) -> dict[str, Float[Array, ""]]:
    """Of windows `[windows, context + n]` that lie within an episode, with what the policy proposed in them.

    clone/error: mean distance of the clone's best action from the policy's proposal, as a share of the action's range (discrete
    actions: share of the proposals that it misses). clone/blind_error: the same for the one action that fits all best, which
    knows nothing of the state. clone/imagined_error: as `error`, in imagined states, 1 … n steps ahead. clone/risk_difference:
    mean |Δp̃| between futures that begin with the policy's proposal and with the clone's.
    """
    dtype, context = compute_dtype(), config.calibration.context
    assert windows.proposed is not None
    whole = ~windows.is_first[:, 1:].any(axis=1)
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(windows.reward.shape[0]))
    seen = filtered(player.model, windows, jax.vmap(lambda one: stream(one, "filter"))(keys))
    given = jnp.isfinite(windows.proposed).all(axis=-1) & whole[:, None]
    start = jax.tree.map(lambda leaf: leaf[:, context - 1], seen)
    ahead = jax.vmap(player.model.rssm.imagine_along)(
        start, windows.action[:, context:], jax.vmap(lambda one: stream(one, "imagine"))(keys)
    )
    here = jax.tree.map(lambda leaf: leaf[:MOST], start)
    now = windows.proposed[:MOST, context - 1], given[:MOST, context - 1]
    return {
        "clone/error": _error(player, seen.features, windows.proposed, given),
        "clone/blind_error": _blind_error(player, windows.proposed, given),
        "clone/imagined_error": _error(player, ahead.features, windows.proposed[:, context:], given[:, context:]),
        "clone/risk_difference": _risk_difference(player, cast(here, dtype), *now, key, config, dtype),
    }


def verdict(found: dict[str, float]) -> str:
    """What somebody who trusts p̃ should know of the clone, in a sentence; empty: nothing."""
    error, blind = found["clone/error"], found["clone/blind_error"]
    if not error <= 0.5 * blind + 0.01:
        return (
            f"the clone is not like the policy: it misses its proposals by {error:.2f} of the range, and one that knows nothing "
            f"of the state by {blind:.2f}; p̃ speaks of another policy, or of one that acts at random"
        )
    return ""


def _error(player: Player, features: Array, proposed: Array, given: Bool[Array, "windows time"]) -> Float[Array, ""]:
    best = jax.vmap(jax.vmap(lambda one: player.actors.task(one).mode()))(features)
    return _mean(_apart(player, best, proposed), given)


def _blind_error(player: Player, proposed: Array, given: Bool[Array, "windows time"]) -> Float[Array, ""]:
    """Of the median proposal, or of the commonest one."""
    if player.actors.task.discrete:
        best = jax.nn.one_hot(
            jnp.argmax(jnp.where(given[..., None], proposed, 0.0).sum(axis=(0, 1))), proposed.shape[-1]
        )
    else:
        best = jnp.nanmedian(jnp.where(given[..., None], proposed, jnp.nan), axis=(0, 1))
    return _mean(_apart(player, jnp.broadcast_to(best[None, None], proposed.shape), proposed), given)


def _apart(player: Player, action: Array, proposed: Array) -> Float[Array, "windows time"]:
    """Distance as a share of the range, mean over the entries; of discrete actions 1 where they differ."""
    if player.actors.task.discrete:
        return (action.argmax(axis=-1) != proposed.argmax(axis=-1)).astype(jnp.float32)
    return (jnp.abs(jnp.clip(action, -1, 1) - proposed) / 2).mean(axis=-1)


def _mean(values: Array, where: Bool[Array, "*axes"]) -> Float[Array, ""]:
    return jnp.where(where, values, 0.0).sum() / jnp.where(where.any(), where.sum(), jnp.nan)


def _risk_difference(
    player: Player, start: Latent, proposed: Array, given: Array, key: Key[Array, ""], config: Config, dtype: Any
) -> Float[Array, ""]:
    imagination = replace(of_model(player, config, dtype=dtype), shield=None)
    keys = jax.random.split(stream(key, "policy"), proposed.shape[0])
    own = jax.vmap(imagination.policy)(keys, start)
    firsts = (jnp.where(given[:, None], proposed, own), own)
    # The same chance in both.
    risks = [foresee(imagination, stream(key, "score"), start, first, SCORED).risk for first in firsts]
    return _mean(jnp.abs(risks[0] - risks[1]), given)

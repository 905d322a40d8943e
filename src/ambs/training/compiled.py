"""What a run compiles; kept per settings, so that a second run of the same settings in a process compiles nothing.

Seeds are told at run time and are none of these settings: all seeds of one configuration share what is compiled.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ambs.acting.act import Player
from ambs.acting.fidelity import fidelity
from ambs.agent.update import Learned, init
from ambs.config import Config, Size
from ambs.data import Experience
from ambs.envs.mirror import Mirror
from ambs.nn.precision import compute_dtype
from ambs.streams import at, stream
from ambs.training.calibrate import (
    calibrate,
    predict,
    proposed_risk,
    quality,
    stays_safe,
    within_one_episode,
)
from ambs.training.learn import learn
from ambs.training.parallel import Devices
from ambs.world_model.model import WorldSpec


def without_seed(config: Config) -> Config:
    """The settings that all seeds have in common, by which what is compiled is kept."""
    return dataclasses.replace(config, seed=0)


@functools.lru_cache(maxsize=8)
def compiled_init(spec: WorldSpec, config: Config, widths: Size, discrete: bool) -> Callable[[jax.Array], Learned]:
    """`init` as a function of the key alone, `widths` being those that the settings' size stands for.

    Compiled: one call instead of hundreds, and no two leaves share a buffer, so that all can be donated.
    """
    del widths
    return jax.jit(lambda key: init(spec, config, discrete=discrete, key=key))


@functools.lru_cache(maxsize=8)
def compiled_learn(config: Config, mirror: Mirror | None = None) -> Any:
    """`learn`, compiled; donates the state."""
    bound = functools.partial(learn, config=config, dtype=compute_dtype(), mirror=mirror)
    devices = config.training.devices
    return jax.jit(bound, donate_argnums=0) if devices == 1 else Devices(devices).compiled(bound)


@functools.lru_cache(maxsize=8)
def compiled_calibration(config: Config) -> tuple[Any, Any, Any]:
    """Setting thresholds, scoring windows, and judging labels and foresight, compiled."""
    set_thresholds, score, judge = (
        jax.jit(functools.partial(function, config=config)) for function in (_set_thresholds, _score, _judge)
    )
    return set_thresholds, score, judge


@functools.lru_cache(maxsize=8)
def compiled_fidelity(config: Config) -> Any:
    """`fidelity`, compiled."""
    return jax.jit(functools.partial(fidelity, config=config))


def first_level(config: Config) -> jax.Array | None:
    """The number of the level that is in force before the first calibration: the most lenient. None: Δ alone is ever in force."""
    shield = config.shield
    if shield.labels != "sample" or shield.judged_by_cost or not config.calibration.every:
        return None
    return jnp.asarray(len(config.shield.levels()) - 1, jnp.int32)


def _set_thresholds(
    player: Player, windows: Experience, root: jax.Array, number: jax.Array, *, config: Config
) -> tuple[jax.Array, jax.Array]:
    """The thresholds of the labels, and how many of the windows are safe."""
    key, model = at(stream(root, "calibration"), number), player.model
    probs = predict(model, windows, config.calibration.context, key)
    whole = within_one_episode(windows)
    thresholds = calibrate(probs, whole, config.calibration.false_flags, player.thresholds)
    return thresholds, stays_safe(model, probs, whole).sum()


def _score(
    player: Player, windows: Experience, root: jax.Array, number: jax.Array, *, config: Config
) -> tuple[jax.Array, jax.Array]:
    """The risk of every window as the shield scores it, and whether it stays safe."""
    key, context = at(stream(root, "calibration"), number), config.calibration.context
    probs = predict(player.model, windows, context, key)
    given = None if windows.proposed is None else windows.proposed[:, context - 1]
    risk = proposed_risk(player, probs.start, key, config, given)
    return risk, stays_safe(player.model, probs, within_one_episode(windows))


def _judge(
    model: Any, windows: Experience, thresholds: jax.Array, root: jax.Array, number: jax.Array, *, config: Config
) -> dict[str, jax.Array]:
    context = config.calibration.context
    probs = predict(model, windows, context, jax.random.fold_in(stream(root, "judging"), number))
    return quality(model, probs, within_one_episode(windows), thresholds)

"""What a world model foresees in worlds it has not learned from, trained alone on random driving: one JSON line per setting.

    python benchmarks/held_out.py --frames 48000 --updates 3000 --set '{}' --set '{"model": {"open_loop": 15}}'

All settings learn from the same play and are judged on the same windows, by the actions that were really taken, of as many
environments as they learn from: `held_out` in worlds of their own, `trained` in those that were replayed.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ambs.acting.adapter import interface, survey
from ambs.acting.worlds import make_envs
from ambs.agent.update import optimisers
from ambs.config import Config
from ambs.config.resolve import changed, resolve
from ambs.training.calibrate import memorised, predict, quality, within_one_episode
from ambs.training.learn import mirrored
from ambs.training.replay import Replay
from ambs.world_model.loss import world_model_loss
from ambs.world_model.model import WorldModel

CONTEXT = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="ambs/PointGoal1-v0")
    parser.add_argument("--frames", type=int, default=48_000)
    parser.add_argument("--updates", type=int, default=3000)
    parser.add_argument("--horizon", type=int, default=15)
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--set", action="append", default=[], help="changes of the settings as JSON; may be repeated")
    options = parser.parse_args()
    base = resolve("quickstart", changes={"env": options.env, "seed": options.seed})
    base = changed(base, {"training": {"envs": 32, "capacity": options.frames}, "shield": {"horizon": options.horizon}})
    if "PointWorld" not in options.env:
        base = changed(base, {"model": {"standardise": True, "vector_scale": 1.0}})
        base = changed(base, {"training": {"action_repeat": 2, "length": 32}})
    plain, replay, mirror = drive(base, options.frames)
    for text in options.set or ["{}"]:
        begun = time.perf_counter()
        config = changed(base, json.loads(text))
        model = train(config, plain, replay, mirror, options.updates)
        figures = judge(config, model, replay)
        row = {"set": text, "frames": options.frames, "updates": options.updates, "seed": options.seed}
        print(json.dumps({**row, "seconds": round(time.perf_counter() - begun), **figures}), flush=True)


def drive(config: Config, frames: int) -> tuple[Any, Replay, Any]:
    """Random driving, mostly forwards, each action held for a while; half of the environments are held out."""
    envs = make_envs(config, learning=True)
    plain = survey(envs, interface(envs, config), config.seed)
    rng = np.random.default_rng(config.seed)
    raw, infos = envs.reset(seed=config.seed)
    row = plain.first_rows(raw, infos, config)
    replay = Replay(row, config.training.capacity)
    action = np.zeros((envs.num_envs, plain.spec.actions), np.float32)
    while replay.count * envs.num_envs * config.training.action_repeat < frames:
        replay.add(row)
        change = rng.uniform(size=envs.num_envs) < 0.1
        fresh = np.clip(rng.normal([0.5, 0.0], [0.6, 0.5], action.shape), -1, 1)
        action = np.where(change[:, None], fresh, action).astype(np.float32)
        raw, _, terminated, truncated, infos = envs.step(plain.to_env(action))
        row = plain.rows(raw, action, infos, (terminated, truncated), config)
    envs.close()
    return plain, replay, envs.mirror


def train(config: Config, plain: Any, replay: Replay, mirror: Any, updates: int) -> WorldModel:
    """The world model after so many updates on the first half of the environments."""
    training, tx = config.training, optimisers(config)[0]
    model = WorldModel(plain.spec, config.model, key=jax.random.key(config.seed))
    start = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[None], (training.batch, *leaf.shape)), model.rssm.initial())

    arrays, static = eqx.partition(model, eqx.is_array)

    @functools.partial(jax.jit, donate_argnums=0)
    def several(carry: Any, batches: Any) -> Any:
        def one(carry: Any, batch: Any) -> Any:
            (arrays, opt, key), model = carry, eqx.combine(carry[0], static)
            now, key = jax.random.split(key)
            grads = eqx.filter_grad(lambda m: world_model_loss(m, batch, start, now)[0].total)(model)
            changes, opt = tx.update(grads, opt)
            return (eqx.apply_updates(arrays, changes), opt, key), None

        return jax.lax.scan(one, carry, batches)[0]

    carry = (arrays, tx.init(eqx.filter(model, eqx.is_inexact_array)), jax.random.key(config.seed + 1))
    rng = np.random.default_rng(config.seed + 2)
    for _ in range(updates // 20):
        shape = (20, training.batch)
        first = rng.integers(0, replay.count - training.length, shape)
        batches = replay.windows(first, rng.integers(0, replay.envs // 2, shape), training.length)
        if config.training.mirror:
            heads, other = rng.uniform(size=shape) < 0.5, mirrored(batches, mirror)
            batches = jax.tree.map(
                lambda a, b, heads=heads: np.where(heads.reshape(heads.shape + (1,) * (a.ndim - 2)), a, b),
                other,
                batches,
            )
        carry = several(carry, batches)
    return eqx.combine(carry[0], static)


def judge(config: Config, model: WorldModel, replay: Replay) -> dict[str, float]:
    """The figures of `ambs.training.calibrate.quality` in both halves of the environments."""
    length, half = CONTEXT + config.shield.horizon, replay.envs // 2
    rng = np.random.default_rng(7)

    @eqx.filter_jit
    def figures(model: WorldModel, windows: Any, key: Any) -> Any:
        probs = predict(model, windows, CONTEXT, key)
        atoms = len(model.trace_formula()[1])
        return quality(model, probs, within_one_episode(windows), jnp.full(atoms, 0.5))

    found = []
    for side in (0, 1):
        first = rng.integers(0, replay.count - length, 4000)
        windows = replay.windows(first, side * half + rng.integers(0, half, 4000), length)
        found.append({name: float(value) for name, value in figures(model, windows, jax.random.key(3)).items()})
    trained, held_out = found
    return {name: round(value, 4) for name, value in (held_out | memorised(held_out, trained)).items()}


if __name__ == "__main__":
    main()

"""What a world model foresees in worlds it has not learned from, trained alone on given driving: one JSON line per setting.

    python benchmarks/held_out.py --frames 48000 --updates 3000 --set '{}' --set '{"model": {"open_loop": 15}}'
    python benchmarks/held_out.py --preset default --driver goals --play play --frames 256000 --updates 12000 --every 3000

All settings learn from the same play and are judged on the same windows, by the actions that were really taken: `labels/…` in
worlds that are held out, `trained/…` in those that were replayed. `--driver random` drives about; `goals` heads for the goal
half of the time, forwards or backwards, with noise. With `--play` the play is kept in a folder, or taken from it: a setting
is shown of it what it asks for, so that all of them can learn from one play with both cameras and all sensors.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from pathlib import Path
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
from ambs.data import Experience
from ambs.envs.safety_gym import lidar
from ambs.envs.safety_gym.worlds import SENSORS
from ambs.nn.precision import cast, compute_dtype
from ambs.shield.shield import select
from ambs.spec.risk import violates
from ambs.training.calibrate import memorised, predict, quality, stays_safe, within_one_episode
from ambs.training.learn import mirrored, updates_per_call
from ambs.training.replay import Replay, choose_place
from ambs.world_model.loss import world_model_loss
from ambs.world_model.model import WorldModel

PART = 500
"""Windows that are judged at once."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="ambs/PointGoal1-v0")
    parser.add_argument("--preset", default="quickstart", help="settings to begin with; `default`: pixels")
    parser.add_argument("--driver", default="random", choices=("random", "goals"))
    parser.add_argument("--play", type=Path, help="folder in which the play is kept")
    parser.add_argument("--frames", type=int, default=48_000)
    parser.add_argument("--learn-from", type=int, default=16, help="of 32 environments")
    parser.add_argument("--updates", type=int, default=3000)
    parser.add_argument("--every", type=int, help="updates between two judgements; default: only at the end")
    parser.add_argument("--horizon", type=int, default=15)
    parser.add_argument("--context", type=int, default=16)
    parser.add_argument("--windows", type=int, default=4000, help="judged, of either kind")
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--set", action="append", default=[], help="changes of the settings as JSON; may be repeated")
    options = parser.parse_args()
    base = beginning(options)
    play = drive(base, options)
    for text in options.set or (["{}"] if options.updates else []):
        config, begun = changed(base, json.loads(text)), time.perf_counter()
        plain, replay, mirror = shown(config, play)
        for updates, model in train(config, plain, replay, mirror, options):
            row = {"set": text, "frames": options.frames, "updates": updates, "seed": options.seed}
            row |= {"env": options.env, "horizon": options.horizon, "driver": options.driver}
            row["seconds"] = round(time.perf_counter() - begun)
            print(json.dumps({**row, **judge(model, replay, options)}), flush=True)


def beginning(options: argparse.Namespace) -> Config:
    """The settings that others are changes of."""
    base = resolve(options.preset, changes={"env": options.env, "seed": options.seed})
    base = changed(base, {"training": {"envs": 32, "capacity": options.frames}, "shield": {"horizon": options.horizon}})
    if options.preset == "quickstart" and "PointWorld" not in options.env:
        base = changed(base, {"model": {"standardise": True, "vector_scale": 1.0}})
        base = changed(base, {"training": {"action_repeat": 2, "length": 32}})
    return base


def drive(config: Config, options: argparse.Namespace) -> Any:
    """Rows `[steps, envs, …]` of the play, with all that any setting may ask for."""
    file = options.play and options.play / "rows.npz"
    if file is not None and file.exists():
        with np.load(file) as stored:
            return {name: stored[name] for name in stored.files}
    if config.obs == "vision":
        config = changed(config, {"obs": "both", "cameras": "front+back"})
    envs = make_envs(config)
    plain, rng = interface(envs, config), np.random.default_rng(config.seed)
    raw, infos = envs.reset(seed=config.seed)
    row, rows = plain.first_rows(raw, infos, config), []
    driver = Driver(rng, envs.num_envs, goals=options.driver == "goals")
    while len(rows) * envs.num_envs * config.training.action_repeat < options.frames:
        rows.append(row)
        action = driver.act(row.observation.get("vector"))
        raw, _, terminated, truncated, infos = envs.step(plain.to_env(action))
        row = plain.rows(raw, action, infos, (terminated, truncated), config)
    envs.close()
    data = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
    play = {name: part for name, part in data._asdict().items() if name != "observation" and part is not None}
    play |= {f"observation.{name}": part for name, part in data.observation.items()}
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez(file.with_name("partial.npz"), **play)
        file.with_name("partial.npz").rename(file)
    return play


class Driver:
    """Actions that are held for a while; half of the time, with `goals`, they head for the goal."""

    def __init__(self, rng: np.random.Generator, envs: int, *, goals: bool) -> None:
        self.rng, self.envs, self.goals = rng, envs, goals
        self.noise = np.zeros((envs, 2), np.float32)
        self.mode = np.zeros(envs, int)
        """0: about; 1: to the goal; 2: to the goal, backwards."""

    def act(self, vector: np.ndarray | None) -> np.ndarray:
        change = self.rng.uniform(size=self.envs) < 0.1
        fresh = np.clip(self.rng.normal([0.5, 0.0], [0.6, 0.5], self.noise.shape), -1, 1)
        self.noise = np.where(change[:, None], fresh, self.noise).astype(np.float32)
        if not self.goals or vector is None:
            return self.noise
        turn = self.rng.uniform(size=self.envs) < 0.02
        self.mode = np.where(turn, self.rng.choice(3, self.envs, p=[0.4, 0.4, 0.2]), self.mode)
        reading = vector[:, SENSORS : SENSORS + lidar.BINS]
        angles = (np.arange(lidar.BINS) + 0.5) * 2 * np.pi / lidar.BINS
        towards = np.arctan2((reading**4 * np.sin(angles)).sum(1), (reading**4 * np.cos(angles)).sum(1))
        back = self.mode == 2
        towards = np.where(back, (towards + 2 * np.pi) % (2 * np.pi) - np.pi, towards)
        speed = np.cos(towards).clip(0.1, 1) * np.where(back, -1, 1)
        wanted = np.stack([speed, np.clip(2 * towards, -1, 1)], axis=1) + 0.3 * self.noise
        return np.where((self.mode == 0)[:, None], self.noise, np.clip(wanted, -1, 1)).astype(np.float32)


def shown(config: Config, play: dict[str, np.ndarray]) -> tuple[Any, Replay, Any]:
    """What the settings let the model see of the play: interface, replay and mirror."""
    envs = make_envs(config, learning=True)
    plain = interface(envs, config)
    plain = survey(envs, plain, config.seed) if config.model.standardise else plain
    mirror = envs.mirror
    envs.close()
    seen = plain.spec.observation
    parts = {"image": seen.image, "vector": seen.vector}
    observation = {name: play[f"observation.{name}"] for name, wanted in parts.items() if wanted}
    if "image" in observation:
        observation["image"] = observation["image"][..., : seen.channels]
    fields = {name: play[name] for name in Experience._fields if name in play}
    rows = Experience(observation=observation, **fields)
    first = jax.tree.map(lambda leaf: leaf[0], rows)
    count = rows.reward.shape[0]
    capacity = count * rows.reward.shape[1]
    replay = Replay(first, capacity, choose_place("auto", first, capacity))
    replay.data = rows if replay.place == "host" else jax.tree.map(jnp.asarray, rows)
    replay.count = count
    return plain, replay, mirror


def train(config: Config, plain: Any, replay: Replay, mirror: Any, options: argparse.Namespace) -> Any:
    """Yields the world model, and after how many updates, each time that it is to be judged."""
    training, tx, dtype = config.training, optimisers(config)[0], compute_dtype()
    model = WorldModel(plain.spec, config.model, key=jax.random.key(config.seed))
    begin = cast(model.rssm.initial(), dtype)
    start = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[None], (training.batch, *leaf.shape)), begin)
    arrays, static = eqx.partition(model, eqx.is_array)

    @functools.partial(jax.jit, donate_argnums=0)
    def several(carry: Any, batches: Any) -> Any:
        def one(carry: Any, batch: Any) -> Any:
            (arrays, opt, key), model = carry, eqx.combine(carry[0], static)
            now, toss, key = jax.random.split(key, 3)
            if training.mirror:
                heads = jax.random.bernoulli(toss, 0.5, batch.reward.shape[:1])
                batch = select(heads, mirrored(batch, mirror), batch)
            grads = eqx.filter_grad(lambda m: world_model_loss(cast(m, dtype), batch, start, now)[0].total)(model)
            changes, opt = tx.update(grads, opt)
            return (eqx.apply_updates(arrays, changes), opt, key), None

        if batches.reward.shape[0] == 1:  # As in training: a loop makes convolutions slow on a CPU.
            return one(carry, jax.tree.map(lambda leaf: leaf[0], batches))[0]
        return jax.lax.scan(one, carry, batches)[0]

    carry = (arrays, tx.init(eqx.filter(model, eqx.is_inexact_array)), jax.random.key(config.seed + 1))
    rng, at_once = (
        np.random.default_rng(config.seed + 2),
        updates_per_call(config, images=plain.spec.observation.image > 0),
    )
    for done in range(at_once, options.updates + 1, at_once):
        shape = (at_once, training.batch)
        first = rng.integers(0, replay.count - training.length, shape)
        carry = several(carry, replay.windows(first, rng.integers(0, options.learn_from, shape), training.length))
        if done % (options.every or options.updates) < at_once:
            yield done, eqx.combine(jax.tree.map(jnp.copy, carry[0]), static)


def judge(model: WorldModel, replay: Replay, options: argparse.Namespace) -> dict[str, float]:
    """The figures of `ambs.training.calibrate.quality` in worlds that were learned from, and in those that were not."""
    length, count, rng = options.context + options.horizon, options.windows, np.random.default_rng(7)

    found = []
    for low, high in ((0, options.learn_from), (options.learn_from, replay.envs)):
        first, env = rng.integers(0, replay.count - length, count), rng.integers(low, high, count)
        parts = [
            foreseen(
                model,
                replay.windows(first[at : at + PART], env[at : at + PART], length),
                jax.random.key(at),
                options.context,
            )
            for at in range(0, count, PART)
        ]
        probs, whole = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)
        found.append({name: float(value) for name, value in figures(model, probs, whole).items()})
    trained, held_out = found
    return {name: round(value, 4) for name, value in (held_out | memorised(held_out, trained)).items()}


@eqx.filter_jit
def foreseen(model: WorldModel, windows: Any, key: Any, context: int) -> Any:
    """What is predicted of these windows, and which of them lie within one episode."""
    return predict(model, windows, context, key), within_one_episode(windows)


@eqx.filter_jit
def figures(model: WorldModel, probs: Any, whole: Any) -> dict[str, Any]:
    """How good that is."""
    found = quality(model, probs, whole, jnp.full(len(model.trace_formula()[1]), 0.5))
    return found | {"labels/detected_5_before": _five_before(model, probs, whole)}


def _five_before(model: WorldModel, probs: Any, whole: Any) -> Any:
    """Share of the states five steps before an entry that are flagged where 5 % of the safe ones are."""
    safe = stays_safe(model, probs, whole)
    violating = violates(*model.trace_formula(), probs.truth)
    entry = whole & probs.holds_now & violating[:, 4] & ~violating[:, :4].any(axis=1)
    limit = jnp.sort(jnp.where(safe, probs.risk, -jnp.inf))[::-1][jnp.floor(0.05 * safe.sum()).astype(int)]
    return jnp.where(entry.any(), (entry & (probs.risk > limit)).sum() / jnp.maximum(entry.sum(), 1), jnp.nan)


if __name__ == "__main__":
    main()

"""Frames per second of a whole run, playing and learning, after warm-up; prints one JSON line.

    python benchmarks/end_to_end.py [--size s] [--ratio 128] [--envs 8] [--env ambs/PointGoal1-v0] [--obs vision]

`play_only` is the same without learning, `act_ms` one decision for all environments, `update_ms` one update: what the parts
would allow if nothing else ran.
"""

import argparse
import json
import time
from typing import Any


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="ambs/PointGoal1-v0")
    parser.add_argument("--obs", default="vision", choices=("vision", "vector", "both"))
    parser.add_argument("--preset", default="default", choices=("default", "quickstart", "paper-scale"))
    parser.add_argument("--method", default="copt")
    parser.add_argument("--size", help="by default the preset's")
    parser.add_argument("--ratio", type=float, help="replayed steps per agent step; by default the preset's")
    parser.add_argument("--envs", type=int, help="by default the preset's")
    parser.add_argument("--batch", type=int, help="by default the preset's")
    parser.add_argument("--length", type=int, help="by default the preset's")
    parser.add_argument("--seconds", type=float, default=30.0, help="for how long to measure")
    print(json.dumps(measure(parser.parse_args())))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Warm up, then count."""
    import jax
    import jax.numpy as jnp

    from ambs.config.resolve import resolve
    from ambs.nn.precision import compute_dtype
    from ambs.training.asking import Clock
    from ambs.training.trainer import Trainer

    training: dict[str, Any] = {
        "train_ratio": options.ratio,
        "envs": options.envs,
        "batch": options.batch,
        "length": options.length,
    }
    training = {name: value for name, value in training.items() if value is not None}
    changes = {"env": options.env, "obs": options.obs, "training": training | {"frames": 10**9, "log_every": 10**9}}
    config = resolve(options.preset, method=options.method, size=options.size, changes=changes)
    begun = time.perf_counter()
    trainer = Trainer(config)
    try:
        trainer.run(until=lambda: trainer.updates >= 3 * trainer.per_call)
        jax.block_until_ready(trainer.learned)
        warm_up = time.perf_counter() - begun
        played, learned = _rate(trainer, options.seconds)
        clock = Clock(trainer._question(None, config.shielded))
        act_ms = min(trainer.answer(clock) for _ in range(5))
        due, trainer._learn_what_is_due = trainer._learn_what_is_due, lambda: iter(())  # type: ignore
        alone, _ = _rate(trainer, options.seconds / 3)
        trainer._learn_what_is_due = due  # type: ignore[method-assign]
        update_ms = _update_ms(trainer)
    finally:
        trainer.close()
    device = jax.devices()[0]
    return {
        "benchmark": "end_to_end",
        "device": device.device_kind,
        "dtype": jnp.dtype(compute_dtype()).name,
        "env": config.env,
        "obs": config.obs,
        "method": config.method,
        "size": config.model.size,
        "train_ratio": config.training.train_ratio,
        "envs": config.training.envs,
        "batch": config.training.batch,
        "length": config.training.length,
        "frames_per_second": round(played, 1),
        "updates_per_second": round(learned, 2),
        "play_only": round(alone, 1),
        "act_ms": round(act_ms, 3),
        "update_ms": round(update_ms, 3),
        "warm_up_s": round(warm_up, 1),
        "peak_memory_gb": round((device.memory_stats() or {}).get("peak_bytes_in_use", 0) / 1e9, 3),
    }


def _rate(trainer: Any, seconds: float) -> tuple[float, float]:
    """Frames and updates per second."""
    import jax

    begun, frames, updates = time.perf_counter(), trainer.accounts.frames, trainer.updates
    trainer.run(until=lambda: time.perf_counter() - begun >= seconds)
    jax.block_until_ready(trainer.learned)
    elapsed = time.perf_counter() - begun
    return (trainer.accounts.frames - frames) / elapsed, (trainer.updates - updates) / elapsed


def _update_ms(trainer: Any, calls: int = 5) -> float:
    import jax
    import numpy as np

    training = trainer.config.training
    times = []
    for call in range(calls):
        rng = np.random.default_rng(call)
        place = trainer.replay.draw(rng, (trainer.per_call, training.batch), training.length)
        batches = jax.block_until_ready(trainer.replay.windows(*place, training.length))
        begun = time.perf_counter()
        trainer.learned, _ = trainer._learn(trainer.learned, batches, trainer.root, trainer.updates)
        jax.block_until_ready(trainer.learned)
        times.append(1e3 * (time.perf_counter() - begun) / trainer.per_call)
    return min(times)


if __name__ == "__main__":
    main()

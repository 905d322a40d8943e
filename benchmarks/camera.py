"""Frames per second of the ray-caster: prints one JSON line.

python benchmarks/camera.py --batch 1024 --hazards 8 --vases 1
"""

from __future__ import annotations

import argparse
import json
import time

import jax
import jax.numpy as jnp
import numpy as np

from ambs.envs.safety_gym.camera import Camera


def main() -> None:
    args = _arguments()
    camera = Camera(args.robot, size=args.size, samples=args.samples, mirror=not args.no_mirror)
    scene = [jnp.asarray(array) for array in layouts(args.batch, args.hazards, args.vases)]
    jax.block_until_ready(camera.render(*scene))
    frames, start = 0, time.perf_counter()
    while time.perf_counter() - start < args.seconds:
        jax.block_until_ready([camera.render(*scene) for _ in range(args.calls)])
        frames += args.calls * args.batch
    rate = frames / (time.perf_counter() - start)
    print(
        json.dumps(
            {
                "frames_per_s": round(rate, 1),
                "batch": args.batch,
                "device": jax.devices()[0].device_kind,
                "robot": args.robot,
                "hazards": args.hazards,
                "vases": args.vases,
                "size": args.size,
                "samples": args.samples,
                "mirror": not args.no_mirror,
            }
        )
    )


def layouts(batch: int, hazards: int, vases: int) -> tuple[np.ndarray, ...]:
    """Random poses and objects on a 4 m square."""
    rng = np.random.default_rng(0)
    place = lambda *shape: rng.uniform(-2, 2, (batch, *shape, 2)).astype(np.float32)  # noqa: E731
    robot = np.concatenate([place(), np.full((batch, 1), 0.1, np.float32)], -1)
    vase = np.concatenate([place(vases), np.full((batch, vases, 1), 0.1, np.float32)], -1)
    return robot, _turns(rng, batch), place(), place(hazards), vase, _turns(rng, batch, vases)


def _turns(rng: np.random.Generator, *shape: int) -> np.ndarray:
    angle = rng.uniform(0, 2 * np.pi, shape)
    turns = np.zeros((*shape, 3, 3), np.float32)
    turns[..., 0, 0] = turns[..., 1, 1] = np.cos(angle)
    turns[..., 1, 0] = np.sin(angle)
    turns[..., 0, 1] = -turns[..., 1, 0]
    turns[..., 2, 2] = 1
    return turns


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--robot", choices=("point", "car"), default="point")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--hazards", type=int, default=8)
    parser.add_argument("--vases", type=int, default=1)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--samples", type=int, choices=(1, 4), default=4)
    parser.add_argument("--no-mirror", action="store_true")
    parser.add_argument("--calls", type=int, default=1, help="calls in flight before waiting for the device")
    parser.add_argument("--seconds", type=float, default=2.0)
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""Time of one full update: world model, both policies, all critics; prints one JSON line.

    python benchmarks/update.py [--preset default] [--size l] [--batch 64] [--length 16] [--obs vision] [--method copt]
    python benchmarks/update.py --scaling     # how it grows with size, batch and length

`ms` is the median per update after warm-up, several updates to a compiled call as in training. `share_of_floor` compares it
with the time that its operations alone would take (`benchmarks/floor.py`).
"""

import argparse
import json
import statistics
import time
from typing import Any

from floor import floor, operations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="default", choices=("default", "quickstart", "paper-scale"))
    parser.add_argument("--size", help="by default the preset's")
    parser.add_argument("--batch", type=int, help="by default the preset's")
    parser.add_argument("--length", type=int, help="by default the preset's")
    parser.add_argument("--obs", default="vision", choices=("vision", "vector", "both"))
    parser.add_argument("--vector", type=int, default=60, help="numbers in a vector observation")
    parser.add_argument("--method", default="copt")
    parser.add_argument("--updates", type=int, help="updates per compiled call; by default as in training")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--scaling", action="store_true", help="one row per size, batch and length instead")
    options = parser.parse_args()
    if not options.scaling:
        print(json.dumps(measure(options)))
        return
    grid = [{"size": size} for size in ("xxs", "xs", "s", "m", "l")]
    grid += [{"batch": batch, "length": length} for batch, length in ((16, 16), (64, 16), (16, 64), (64, 64))]
    rows = []
    for changes in grid:
        found = measure(argparse.Namespace(**{**vars(options), **changes}))
        rows.append({name: found[name] for name in ("size", "batch", "length", "ms", "share_of_floor")})
    print(json.dumps({"benchmark": "update", "device": found["device"], "scaling": rows}))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp

    from ambs.agent.update import init
    from ambs.config.resolve import resolve
    from ambs.nn.precision import compute_dtype
    from ambs.training.learn import learn, updates_per_call

    training = {"batch": options.batch, "length": options.length}
    training = {name: value for name, value in training.items() if value is not None}
    config = resolve(options.preset, method=options.method, size=options.size, changes={"training": training})
    spec = world(options, config)
    updates = options.updates or updates_per_call(config, images=spec.observation.image > 0)
    batches = jax.device_put(made_up(spec, (updates, config.training.batch, config.training.length)))
    state = jax.jit(lambda key: init(spec, config, discrete=False, key=key))(jax.random.key(0))
    dtype = compute_dtype()
    root, number = jax.random.key(1), jnp.array(0)
    step = jax.jit(lambda s, b, k, n: learn(s, b, k, n, config=config, dtype=dtype), donate_argnums=0)
    work = operations(step, state, batches, root, number) / updates
    begun = time.perf_counter()
    compiled = step.lower(state, batches, root, number).compile()
    compile_s = time.perf_counter() - begun
    times = []
    for _ in range(options.repeats + 2):
        begun = time.perf_counter()
        state, metrics = compiled(state, batches, root, number)
        jax.block_until_ready((state, metrics))
        times.append(1e3 * (time.perf_counter() - begun) / updates)
    best, median = min(times[2:]), statistics.median(times[2:])
    device = jax.devices()[0]
    return {
        "benchmark": "update",
        "device": device.device_kind,
        "dtype": jnp.dtype(dtype).name,
        "preset": options.preset,
        "size": config.model.size,
        "batch": config.training.batch,
        "length": config.training.length,
        "obs": options.obs,
        "method": options.method,
        "updates_per_call": updates,
        "ms": round(median, 3),
        "best_ms": round(best, 3),
        **floor(work, dtype, median),
        "parameters": sum(one.size for one in jax.tree.leaves((state.model, state.behaviour)) if hasattr(one, "size")),
        "peak_memory_gb": round((device.memory_stats() or {}).get("peak_bytes_in_use", 0) / 1e9, 3),
        "compile_s": round(compile_s, 1),
        "finite": bool(metrics["updates/skipped"] == 0),
    }


def world(options: argparse.Namespace, config: Any) -> Any:
    """A world with these observations, two actions and two atoms."""
    from ambs.spec import Atoms, parse_formula
    from ambs.world_model.model import WorldSpec
    from ambs.world_model.vision import ObservationSpec

    vector = 0 if options.obs == "vision" else options.vector
    seen = ObservationSpec(image=0 if options.obs == "vector" else 64, vector=vector)
    psi, repeat = parse_formula("!hazard & !vase"), config.training.action_repeat
    return WorldSpec(seen, 2, Atoms(("hazard", "vase")), psi, repeat, config.safety.cost)


def made_up(spec: Any, lead: tuple[int, ...]) -> Any:
    """Random experience of such a world, with these leading axes."""
    import numpy as np

    from ambs.data import Experience

    rng = np.random.default_rng(0)
    observation: dict[str, Any] = {}
    if spec.observation.image:
        observation["image"] = rng.integers(0, 256, (*lead, 64, 64, 3), dtype=np.uint8)
    if spec.observation.vector:
        observation["vector"] = rng.normal(size=(*lead, spec.observation.vector)).astype(np.float32)
    first = np.zeros(lead, bool)
    first[..., 0] = True
    return Experience(
        observation,
        rng.uniform(-1, 1, (*lead, 2)).astype(np.float32),
        rng.normal(size=lead).astype(np.float32),
        rng.uniform(size=(*lead, spec.frames, 2)) < 0.1,
        np.ones(lead, np.float32),
        first,
    )


if __name__ == "__main__":
    main()

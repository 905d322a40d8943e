"""Time of one shield decision in point_world; prints one JSON line.

    python benchmarks/shield.py [--envs 8] [--traces 512] [--horizon 30] [--cores 1]

Both rules on the same states, after warm-up, and the dispatch of an empty jitted function beside them, so that machines
can be compared by ratio.
"""

import argparse
import json
import os
import platform
import statistics
import time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--traces", type=int, default=512)
    parser.add_argument("--horizon", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--cores", type=int, default=1, help="cores the process may use")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    print(json.dumps(measure(options)))


def measure(options: argparse.Namespace) -> dict:
    # Imported after the affinity is set: the runtime sizes its thread pool at start.
    import jax
    import jax.numpy as jnp
    import numpy as np

    from ambs.envs.point_world import CROWDED, PointWorldEnv, keep_clear, seek_goal
    from ambs.shield import Parts, ShieldConfig, rollout, shield
    from ambs.streams import at, stream

    world = CROWDED
    env = PointWorldEnv(world)
    layouts = [world.sample(np.random.default_rng(seed)) for seed in range(options.envs)]
    state = jax.tree.map(lambda *parts: jnp.stack(parts), *layouts)
    keys = stream(0, "shield")
    proposed = jax.vmap(seek_goal)(jax.random.split(stream(0, "policy"), options.envs), state)
    empty = jax.jit(lambda key, x: (key, x))
    result = {
        "benchmark": "shield",
        "device": str(jax.devices()[0]),
        "machine": platform.machine(),
        "cores": options.cores,
        "envs": options.envs,
        "traces": options.traces,
        "horizon": options.horizon,
        "empty_call_ms": timed(lambda step: empty(at(keys, step), proposed), options.repeats),
    }
    for rule in ("fixed", "sequential"):
        config = ShieldConfig(rule=rule, traces=options.traces, horizon=options.horizon)
        parts = Parts(rollout(world.dynamics(), config.steps), seek_goal, keep_clear, env.psi, env.atoms, config)
        labels = jnp.zeros((options.envs, len(env.atoms)), bool)
        decide = jax.jit(lambda key, s, a, parts=parts, labels=labels: shield(key, s, a, parts, labels))
        result[f"{rule}_ms"] = timed(lambda step, f=decide: f(at(keys, step), state, proposed), options.repeats)
        result[f"{rule}_traces_used"] = float(decide(at(keys, 0), state, proposed).traces_used.mean())
        result[f"{rule}_compilations"] = decide._cache_size()
    return result


def timed(call, repeats: int) -> dict:
    import jax

    for step in range(3):
        jax.block_until_ready(call(step))
    times = []
    for step in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(call(step))
        times.append(1e3 * (time.perf_counter() - start))
    return {"median": round(statistics.median(times), 3), "best": round(min(times), 3)}


if __name__ == "__main__":
    main()

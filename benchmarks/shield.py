"""Time of one shield decision, in point_world's true model or in a world model; prints one JSON line.

    python benchmarks/shield.py [--model l] [--envs 8] [--traces 512] [--horizon 30] [--cores 1]
    python benchmarks/shield.py --scaling     # how it grows with environments, traces, horizon and the model's size

With `--model` the networks are untrained, but their labels are rare, as they are where a trained agent plays. Both rules on
the same states, after warm-up, and the dispatch of an empty jitted function beside them, so that machines can be compared
by ratio.
"""

import argparse
import json
import os
import platform
import statistics
import time

from floor import floor, operations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="size of a world model (xxs, xs, s, m, l); by default point_world itself")
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--traces", type=int, default=512)
    parser.add_argument("--horizon", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--cores", type=int, default=1, help="cores the process may use; 0: all")
    parser.add_argument("--scaling", action="store_true", help="one row per setting instead")
    options = parser.parse_args()
    if options.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    if not options.scaling:
        print(json.dumps(measure(options)))
        return
    grid = [{"envs": envs} for envs in (1, 8, 32)] + [{"traces": traces} for traces in (64, 512, 2048)]
    grid += [{"horizon": horizon} for horizon in (5, 15, 30)] + [
        {"model": size} for size in ("xxs", "xs", "s", "m", "l")
    ]
    rows = []
    for changes in grid:
        found = measure(argparse.Namespace(**{**vars(options), **changes}))
        kept = ("model", "envs", "traces", "horizon", "fixed_ms", "sequential_ms", "sequential_traces_used")
        rows.append({name: found[name] for name in kept})
    print(json.dumps({"benchmark": "shield", "device": found["device"], "cores": options.cores, "scaling": rows}))


def measure(options: argparse.Namespace) -> dict:
    # Imported after the affinity is set: the runtime sizes its thread pool at start.
    import jax
    import jax.numpy as jnp

    from ambs.nn.precision import compute_dtype
    from ambs.shield import ShieldConfig, ShieldProblem, rollout, shield
    from ambs.streams import at, stream

    dynamics, policy, backup, psi, atoms, state = (imagined if options.model else simulated)(options)
    keys = stream(0, "shield")
    proposed = jax.vmap(policy)(jax.random.split(stream(0, "policy"), options.envs), state)
    empty = jax.jit(lambda key, x: (key, x))
    result = {
        "benchmark": "shield",
        "model": options.model or "point_world",
        "device": jax.devices()[0].device_kind,
        "machine": platform.machine(),
        "cores": options.cores,
        "envs": options.envs,
        "traces": options.traces,
        "horizon": options.horizon,
        "empty_call_ms": timed(lambda step: empty(at(keys, step), proposed), options.repeats),
    }
    for rule in ("fixed", "sequential"):
        config = ShieldConfig(rule=rule, traces=options.traces, horizon=options.horizon)
        problem = ShieldProblem(rollout(dynamics, config.steps), policy, backup, psi, atoms, config)
        labels = jnp.zeros((options.envs, len(atoms)), bool)
        decide = jax.jit(lambda key, s, a, problem=problem, labels=labels: shield(key, s, a, problem, labels))
        result[f"{rule}_ms"] = timed(lambda step, f=decide: f(at(keys, step), state, proposed), options.repeats)
        if rule == "fixed":
            work = operations(decide, at(keys, 0), state, proposed)
            dtype = compute_dtype() if options.model else jnp.float32
            result |= floor(work, dtype, result["fixed_ms"]["median"])
        result[f"{rule}_traces_used"] = float(decide(at(keys, 0), state, proposed).traces_used.mean())
        result[f"{rule}_compilations"] = decide._cache_size()
    result["peak_memory_gb"] = round((jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0) / 1e9, 3)
    return result


def simulated(options: argparse.Namespace) -> tuple:
    """point_world: dynamics, both policies, formula, atoms, states."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from ambs.envs.worlds.point_world import CROWDED, PointWorldEnv, keep_clear, seek_goal

    env = PointWorldEnv(CROWDED)
    layouts = [CROWDED.sample(np.random.default_rng(seed)) for seed in range(options.envs)]
    state = jax.tree.map(lambda *parts: jnp.stack(parts), *layouts)
    return CROWDED.dynamics(), seek_goal, keep_clear, env.psi, env.atoms, state


def imagined(options: argparse.Namespace) -> tuple:
    """The same of a world model that sees pixels."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    from ambs.agent.update import init
    from ambs.config.resolve import resolve
    from ambs.nn.precision import cast, compute_dtype
    from ambs.spec import Atoms, parse_formula
    from ambs.world_model.model import WorldSpec
    from ambs.world_model.vision import ObservationSpec

    config = resolve(size=options.model)
    atoms, psi = Atoms(("hazard", "vase")), parse_formula("!hazard & !vase")
    spec = WorldSpec(ObservationSpec(image=64), 2, atoms, psi, config.training.action_repeat, config.safety.cost)
    fresh = jax.jit(lambda key: init(spec, config, discrete=False, key=key))(jax.random.key(0))
    rare = eqx.tree_at(lambda model: model.heads.labels.out.bias, fresh.model, replace_fn=lambda bias: bias - 8.0)
    model, actors = cast(rare, compute_dtype()), cast(fresh.behaviour.actors, compute_dtype())
    start = model.rssm.initial()
    state = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[None], (options.envs, *leaf.shape)), start)
    return model.moves(), actors.task.act, actors.backup.act, psi, atoms, state


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

"""Several seeds computed together against as many on their own: update, decision, whole runs; prints one JSON line.

    python benchmarks/fleet.py [--seeds 5] [--preset default] [--size xs] [--batch 8] [--length 64] [--obs vision]
    python benchmarks/fleet.py --preset quickstart --seeds 3 --parts update act run
    python benchmarks/fleet.py --parts equivalence --seeds 8 --out FOLDER     # an hour or two on two cores

`update` and `act` are milliseconds of one update of all seeds, and of one decision in all environments of all seeds: `mapped` by
one call, `apart` by as many calls as there are seeds, one after the other; `ratio` is the first over the second. `run` are frames
per second of all seeds together, playing and learning, after warm-up. `equivalence` trains all seeds to their end in both ways
and tells whether returns and violations of the last quarter agree: the interval, over seeds, of how much they change must lie
within ±10 and ±25 %.
"""

import argparse
import dataclasses
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from update import made_up, world

PARTS = ("update", "act", "run", "equivalence")
LIMITS = {"return": 0.1, "violations_per_1000": 0.25}
"""By how much, as a share, fleets may differ from runs by themselves."""


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=("update", "act"), choices=PARTS)
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--preset", default="default", choices=("default", "quickstart", "paper-scale"))
    parser.add_argument("--method", default="copt")
    parser.add_argument("--size", help="by default the preset's")
    parser.add_argument("--batch", type=int, help="by default the preset's")
    parser.add_argument("--length", type=int, help="by default the preset's")
    parser.add_argument("--envs", type=int, help="by default the preset's")
    parser.add_argument("--frames", type=int, help="of a whole run (equivalence); by default the preset's")
    parser.add_argument("--env", help="by default the preset's")
    parser.add_argument("--obs", choices=("vision", "vector", "both"), help="by default the preset's")
    parser.add_argument("--vector", type=int, default=60, help="numbers in a vector observation (update, act)")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=30.0, help="for how long to measure whole runs")
    parser.add_argument(
        "--apart-too", action="store_true", help="whole runs also with each seed computed for by itself"
    )
    parser.add_argument(
        "--grouped", action="store_true", help="mapped convolutions as such, not as products (update, act)"
    )
    parser.add_argument("--out", type=Path, help="where to leave run folders; by default nowhere")
    print(json.dumps(measure(parser.parse_args())))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """What was asked for."""
    import jax
    import jax.numpy as jnp

    from ambs.config.resolve import resolve
    from ambs.nn.precision import compute_dtype

    training = {name: getattr(options, name) for name in ("batch", "length", "envs", "frames")}
    changes = {"training": {name: value for name, value in training.items() if value is not None}}
    changes |= {name: getattr(options, name) for name in ("env", "obs") if getattr(options, name) is not None}
    config = resolve(options.preset, method=options.method, size=options.size, changes=changes)
    options.obs = config.obs
    device = jax.devices()[0]
    found: dict[str, Any] = {
        "benchmark": "fleet", "device": device.device_kind, "dtype": jnp.dtype(compute_dtype()).name,
        "preset": options.preset, "env": config.env, "obs": config.obs, "method": config.method,
        "size": config.model.size, "batch": config.training.batch, "length": config.training.length,
        "envs": config.training.envs, "seeds": options.seeds, "grouped": options.grouped,
    }  # fmt: skip
    parts = {"update": update, "act": act, "run": run, "equivalence": equivalence}
    for name in options.parts:
        found[name] = parts[name](options, config)
    found["peak_memory_gb"] = round((device.memory_stats() or {}).get("peak_bytes_in_use", 0) / 1e9, 3)
    return found


def update(options: argparse.Namespace, config: Any) -> dict[str, float]:
    """One update of all seeds."""
    import jax

    from ambs.training import together
    from ambs.training.asking import Learn
    from ambs.training.compiled import compiled_learn
    from ambs.training.learn import updates_per_call

    spec, states, roots = _states(options, config)
    count = updates_per_call(config, images=spec.observation.image > 0)
    batches = jax.device_put(made_up(spec, (count, config.training.batch, config.training.length)))
    asked = tuple(Learn(batches, 0) for _ in states)
    held, wanted = _stacked(states), _all(states)
    mapped, alone = together.compiled_learn(config, None, not options.grouped), compiled_learn(config, None)

    def together_once() -> Any:
        nonlocal held
        held, metrics = mapped(held, asked, _stacked(roots), wanted)
        return metrics

    def apart_once() -> Any:
        told = []
        for index, root in enumerate(roots):
            states[index], metrics = alone(states[index], batches, root, 0)
            told.append(metrics)
        return told

    return _compared(together_once, apart_once, options.repeats, count)


def act(options: argparse.Namespace, config: Any) -> dict[str, float]:
    """One decision in all environments of all seeds."""
    import jax
    import numpy as np

    from ambs.acting.act import compiled_act, default_thresholds, initial_actor_state
    from ambs.training import together
    from ambs.training.asking import Act
    from ambs.training.compiled import first_level
    from ambs.training.trainer import player_of

    spec, states, roots = _states(options, config)
    in_force = [default_thresholds(config, len(spec.atoms)), first_level(config)]
    envs = config.training.envs
    seen = jax.tree.map(lambda leaf: leaf[0], made_up(spec, (1, envs)).observation)
    question = Act(seen, np.ones(envs, bool), np.zeros((envs, len(spec.atoms)), bool), np.array(True), 0, None)
    players = [player_of(state, *in_force) for state in states]
    carries = [initial_actor_state(player, envs) for player in players]
    held, carry, forces = _stacked(states), _stacked(carries), _stacked([in_force for _ in states])
    mapped = together.compiled_act(config, config.shielded, not options.grouped)
    alone = compiled_act(config, config.shielded)

    def together_once() -> Any:
        nonlocal carry
        carry, decision = mapped(held, forces, carry, (question,) * len(states), _stacked(roots), _all(states))
        return decision

    def apart_once() -> Any:
        told = []
        for index, (player, root) in enumerate(zip(players, roots, strict=True)):
            carries[index], decision = alone(player, carries[index], *question.arguments(root))
            told.append(decision)
        return told

    return _compared(together_once, apart_once, options.repeats, 1)


def run(options: argparse.Namespace, config: Any) -> dict[str, Any]:
    """Frames per second of all seeds together."""
    ways = (True, False) if options.apart_too else (True,)
    endless = {"frames": 10**9, "log_every": 10**9, "checkpoint_every": 0}
    endless_config = dataclasses.replace(config, training=dataclasses.replace(config.training, **endless))
    return {"mapped" if mapped else "apart": _rate(options, endless_config, mapped) for mapped in ways}


def _rate(options: argparse.Namespace, config: Any, mapped: bool) -> dict[str, float]:
    from ambs.training.fleet import start_fleet

    with tempfile.TemporaryDirectory() as folder:
        begun, stop = time.perf_counter(), threading.Event()
        fleet = start_fleet(config, range(options.seeds), Path(folder), command=[], stop=stop, mapped=mapped)
        trainers: list[Any] = [session.trainer for session in fleet.sessions]
        # What is stored at the end is no part of it.
        for session in fleet.sessions:
            session.checkpoints.save = lambda *_: Path(folder)  # type: ignore[method-assign]
        thread = threading.Thread(target=fleet.run)
        thread.start()
        while thread.is_alive() and min(trainer.updates for trainer in trainers) < 3 * trainers[0].per_call:
            time.sleep(0.05)
        warm = time.perf_counter()
        frames, updates = _totals(trainers)
        thread.join(options.seconds)
        elapsed, (more, learned) = time.perf_counter() - warm, _totals(trainers)
        stop.set()
        thread.join()
    return {
        "frames_per_second": round((more - frames) / elapsed, 1),
        "updates_per_second": round((learned - updates) / elapsed, 2),
        "warm_up_s": round(warm - begun, 1),
    }


def _totals(trainers: list[Any]) -> tuple[int, int]:
    return sum(one.accounts.frames for one in trainers), sum(one.updates for one in trainers)


def equivalence(options: argparse.Namespace, config: Any) -> dict[str, Any]:
    """Whether seeds that are trained together are as good and as safe as on their own, in the last quarter of the frames."""
    import numpy as np

    from ambs.apps.quickstart import last_quarter
    from ambs.statistics import mean_interval
    from ambs.training.fleet import start_fleet

    figures: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for way in ("mapped", "apart"):
            home = (options.out or Path(temporary)) / way
            fleet = start_fleet(config, range(options.seeds), home, command=[], mapped=way == "mapped")
            for session, ending in zip(fleet.sessions, fleet.run(), strict=True):
                if ending != "finished":
                    raise SystemExit(f"{session.folder.path} did not finish: {ending}")
            figures[way] = [last_quarter(session.folder.path) for session in fleet.sessions]
    found: dict[str, Any] = {}
    for name, limit in LIMITS.items():
        mapped, apart = (np.array([one[name] for one in figures[way]]) for way in ("mapped", "apart"))
        # Seed by seed: they have met the same worlds.
        change = mean_interval((mapped - apart) / apart.mean())
        exact = bool((mapped == apart).all())
        sure = change.low is not None and change.high is not None and -limit < change.low and change.high < limit
        found[name] = {
            "mapped": mapped.round(4).tolist(), "apart": apart.round(4).tolist(), "change": str(change), "equal": exact,
            "within": exact or sure,
        }  # fmt: skip
    return found


def _states(options: argparse.Namespace, config: Any) -> tuple[Any, list[Any], list[Any]]:
    """A world, and for each seed what it has learned before the first update, and its key."""
    import jax

    from ambs.training.compiled import compiled_init

    spec = world(options, config)
    roots = [jax.random.key(seed) for seed in range(options.seeds)]
    fresh = compiled_init(spec, config, config.model.widths, False)
    return spec, [fresh(root) for root in roots], roots


def _stacked(trees: list[Any]) -> Any:
    from ambs.training.together import stacked

    return stacked(trees)


def _all(states: list[Any]) -> Any:
    import numpy as np

    return np.ones(len(states), bool)


def _compared(mapped: Callable[[], Any], apart: Callable[[], Any], repeats: int, updates: int) -> dict[str, float]:
    """Medians in milliseconds of both ways, one by turns with the other, so that a machine that slows down slows both."""
    import jax

    compile_s = []
    for way in (mapped, apart):
        begun = time.perf_counter()
        jax.block_until_ready(way())
        compile_s.append(round(time.perf_counter() - begun, 1))
    times: list[list[float]] = [[], []]
    for _ in range(repeats + 1):
        for way, its in zip((mapped, apart), times, strict=True):
            begun = time.perf_counter()
            jax.block_until_ready(way())
            its.append(1e3 * (time.perf_counter() - begun) / updates)
    together_ms, apart_ms = (statistics.median(its[1:]) for its in times)
    return {
        "mapped_ms": round(together_ms, 3),
        "apart_ms": round(apart_ms, 3),
        "ratio": round(together_ms / apart_ms, 3),
        "best_mapped_ms": round(min(times[0][1:]), 3),
        "best_apart_ms": round(min(times[1][1:]), 3),
        "first_mapped_s": compile_s[0],
        "first_apart_s": compile_s[1],
    }


if __name__ == "__main__":
    main()

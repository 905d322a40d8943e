"""The shield at work without any learning: a reckless driver in `point_world`, shield off and on, same worlds.

The model is the true one, so this is bounded-prescience shielding: every override is justified by futures that the simulator
itself would have produced.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ambs.envs.point_world import PointWorld, PointWorldEnv, State, keep_clear, seek_goal
from ambs.report.statistics import mean_interval
from ambs.shield import Parts, ShieldConfig, rollout, shield
from ambs.streams import at, stream

BATCH = 8


class Episodes(NamedTuple):
    """What was recorded, episodes first: positions `[e, steps + 1, 2]`, the rest `[e, steps]` or `[e]`."""

    positions: np.ndarray
    violated: np.ndarray
    overridden: np.ndarray
    traces: np.ndarray
    returns: np.ndarray
    goals: np.ndarray
    worst: list[tuple[float, State, int]]
    """Per episode: lowest p_safe at an override, the state there and its step."""


def run(
    episodes: int, seed: int, out: Path, config: ShieldConfig, on_step: Callable[[str, int, int], None]
) -> dict[str, Any]:
    """Drive `episodes` episodes without and with shield; write `demo.png` and `demo.json` to `out`; return the figures.

    `on_step(name, done, total)` is told after every control step.
    """
    out.mkdir(parents=True, exist_ok=True)
    world = PointWorld()
    recorded = {
        name: drive(world, episodes, seed, config if name == "on" else None, lambda *a, n=name: on_step(n, *a))
        for name in ("off", "on")
    }
    figures = {name: _figures(part) for name, part in recorded.items()}
    saved = recorded["off"].violated.sum(axis=1) - recorded["on"].violated.sum(axis=1)
    result = {
        "episodes": episodes,
        "steps_per_episode": world.episode_steps,
        "seed": seed,
        "shield_off": figures["off"],
        "shield_on": figures["on"],
        "violations_saved_per_episode": mean_interval(saved)._asdict(),
        "files": [str(out / "demo.png"), str(out / "demo.json")],
    }
    from ambs.report.demo_plot import draw

    draw(world, recorded["off"], recorded["on"], imagined(world, recorded["on"], config, seed), out / "demo.png")
    (out / "demo.json").write_text(json.dumps(result, indent=1))
    return result


def _figures(part: Episodes) -> dict[str, Any]:
    return {
        "violating_steps_per_episode": mean_interval(part.violated.sum(axis=1))._asdict(),
        "return_per_episode": mean_interval(part.returns)._asdict(),
        "goals_per_episode": mean_interval(part.goals)._asdict(),
        "override_rate": mean_interval(part.overridden.mean(axis=1))._asdict(),
        "traces_per_decision": float(part.traces.mean()),
        "violating_steps": int(part.violated.sum()),
        "steps": int(part.violated.size),
    }


def drive(
    world: PointWorld, episodes: int, seed: int, config: ShieldConfig | None, on_step: Callable[[int, int], None]
) -> Episodes:
    """Episodes of the reckless policy, `BATCH` at a time; with a config, behind the shield."""
    batches = [
        _drive_batch(world, seed + first, min(BATCH, episodes - first), config, on_step, first // BATCH, episodes)
        for first in range(0, episodes, BATCH)
    ]
    return Episodes(
        **{name: np.concatenate([getattr(part, name) for part in batches]) for name in Episodes._fields[:-1]},
        worst=[row for part in batches for row in part.worst],
    )


def _drive_batch(
    world: PointWorld,
    seed: int,
    count: int,
    config: ShieldConfig | None,
    on_step: Callable[[int, int], None],
    batch: int,
    episodes: int,
) -> Episodes:
    envs = [PointWorldEnv(world) for _ in range(count)]
    for index, env in enumerate(envs):
        env.reset(seed=seed + index)
    decide = _decider(world, envs[0], config)
    total = -(-episodes // BATCH) * world.episode_steps
    keys = stream(seed, "shield")
    positions = [np.stack([env.state.robot[:2] for env in envs])]
    rows: dict[str, list[np.ndarray]] = {"violated": [], "overridden": [], "traces": [], "reward": []}
    worst: list[tuple[float, State, int]] = [(np.inf, env.state, 0) for env in envs]
    for step in range(world.episode_steps):
        state = jax.tree.map(lambda *parts: jnp.stack(parts), *(env.state for env in envs))
        labels = np.stack([world.labels(env.state) for env in envs])
        action, overridden, p_safe, traces = jax.device_get(decide(at(keys, step), state, labels))
        for index in map(int, np.flatnonzero(overridden & (traces > 0))):
            if p_safe[index] < worst[index][0]:
                worst[index] = (float(p_safe[index]), envs[index].state, step)
        results = [env.step(chosen) for env, chosen in zip(envs, action, strict=True)]
        rows["violated"].append(np.array([result[4]["cost"] > 0 for result in results]))
        rows["reward"].append(np.array([result[1] for result in results]))
        rows["overridden"].append(overridden)
        rows["traces"].append(traces)
        positions.append(np.stack([env.state.robot[:2] for env in envs]))
        on_step(batch * world.episode_steps + step + 1, total)
    table = {name: np.stack(column, axis=1) for name, column in rows.items()}
    return Episodes(
        positions=np.stack(positions, axis=1),
        violated=table["violated"],
        overridden=table["overridden"],
        traces=table["traces"],
        returns=table["reward"].sum(axis=1),
        goals=np.array([int(env.state.reached) for env in envs]),
        worst=worst,
    )


def _decider(world: PointWorld, env: PointWorldEnv, config: ShieldConfig | None) -> Callable[..., Any]:
    """(key, states, labels) -> executed actions, overridden, p_safe, traces used; compiled."""

    def propose(key: jax.Array, state: State) -> jax.Array:
        return jax.vmap(seek_goal)(jax.random.split(key, state.robot.shape[0]), state)

    def unshielded(key: jax.Array, state: State, _labels: jax.Array) -> Any:
        action = propose(key, state)
        none = jnp.zeros(action.shape[0], int)
        return action, none > 0, jnp.ones(none.shape), none

    def shielded(key: jax.Array, state: State, labels: jax.Array) -> Any:
        policy_key, shield_key = jax.random.split(key)
        decision = shield(shield_key, state, propose(policy_key, state), parts, labels)
        return decision.action, decision.overridden, decision.p_safe, decision.traces_used

    if config is None:
        return jax.jit(unshielded)
    parts = Parts(rollout(world.dynamics(), config.steps), seek_goal, keep_clear, env.psi, env.atoms, config)
    return jax.jit(shielded)


def imagined(world: PointWorld, on: Episodes, config: ShieldConfig, seed: int, traces: int = 40) -> np.ndarray:
    """Futures the shield saw where it was surest to override, for every episode: positions `[e, traces, steps + 1, 2]`."""
    dynamics = world.dynamics()

    def play(key: jax.Array, state: State) -> jax.Array:
        def advance(state: State, step: jax.Array) -> tuple[State, jax.Array]:
            arrival = dynamics(jax.random.fold_in(key, step), state, seek_goal(key, state)).state
            return arrival, arrival.robot[:2]

        _, path = jax.lax.scan(advance, state, jnp.arange(config.steps))
        return jnp.concatenate([state.robot[None, :2], path])

    keys = jax.random.split(stream(seed, "picture"), traces)
    many = jax.jit(jax.vmap(play, in_axes=(0, None)))
    return np.stack([many(keys, jax.tree.map(jnp.asarray, state)) for _, state, _ in on.worst])

"""The shield at work without any learning: a reckless driver in `point_world`, shield off and on, same worlds.

The model is the true one, so this is bounded-prescience shielding: every override is justified by futures that the simulator
itself would have produced.
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ambs.dynamics import Step
from ambs.envs.worlds.point_world import CROWDED, PointWorld, PointWorldEnv, State, keep_clear, seek_goal
from ambs.shield import ShieldConfig, ShieldProblem, rollout, shield
from ambs.shield.traces import trace_keys
from ambs.statistics import mean_interval, share_interval
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
    worst: list["Moment"]
    """Per episode the override the shield was surest of."""


class Moment(NamedTuple):
    """A decision, with what is needed to play its futures again."""

    p_safe: float
    state: State
    key: jax.Array | None
    env: int


def run(
    episodes: int, seed: int, out: Path, config: ShieldConfig, on_step: Callable[[str, int, int], None]
) -> dict[str, Any]:
    """Drive `episodes` episodes without and with shield; write `demo.png` and `demo.json` to `out`; return the figures.

    `on_step(name, done, total)` is told after every control step.
    """
    from ambs.report.demo_plot import draw  # Before the drive: it may be missing.

    out.mkdir(parents=True, exist_ok=True)
    world = CROWDED
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
        "shield": dataclasses.asdict(config),
        "shield_off": figures["off"],
        "shield_on": figures["on"],
        "violations_saved_per_episode": mean_interval(saved)._asdict(),
        "files": [str(out / "demo.png"), str(out / "demo.json")],
    }
    draw(world, recorded["off"], recorded["on"], imagined(world, recorded["on"], config), out / "demo.png")
    (out / "demo.json").write_text(json.dumps(result, indent=1, allow_nan=False))
    return result


def _figures(part: Episodes) -> dict[str, Any]:
    failed = part.violated.any(axis=1)
    return {
        "episodes_with_violation": share_interval(int(failed.sum()), failed.size)._asdict(),
        "violating_steps_per_episode": mean_interval(part.violated.sum(axis=1), least=0.0)._asdict(),
        "return_per_episode": mean_interval(part.returns)._asdict(),
        "goals_per_episode": mean_interval(part.goals, least=0.0)._asdict(),
        "override_rate": mean_interval(part.overridden.mean(axis=1), least=0.0, most=1.0)._asdict(),
        "traces_per_decision": float(part.traces.mean()),
        "violating_steps": int(part.violated.sum()),
        "steps": int(part.violated.size),
    }


def drive(
    world: PointWorld, episodes: int, seed: int, config: ShieldConfig | None, on_step: Callable[[int, int], None]
) -> Episodes:
    """Episodes of the reckless policy, `BATCH` at a time; with a config, behind the shield."""
    batches = [
        _drive_batch(world, seed, range(first, min(first + BATCH, episodes)), config, on_step, episodes)
        for first in range(0, episodes, BATCH)
    ]
    return Episodes(
        **{name: np.concatenate([getattr(part, name) for part in batches]) for name in Episodes._fields[:-1]},
        worst=[row for part in batches for row in part.worst],
    )


def _drive_batch(
    world: PointWorld,
    seed: int,
    numbers: range,
    config: ShieldConfig | None,
    on_step: Callable[[int, int], None],
    episodes: int,
) -> Episodes:
    """The episodes with these numbers, side by side; each has a seed of its own."""
    envs = [PointWorldEnv(world) for _ in numbers]
    seeds = [int(np.random.SeedSequence([seed, number]).generate_state(1)[0]) for number in numbers]
    infos = [env.reset(seed=one)[1] for env, one in zip(envs, seeds, strict=True)]
    decide = _decider(world, envs[0], config)
    done = numbers.start // BATCH * world.episode_steps
    total = -(-episodes // BATCH) * world.episode_steps
    batch_key = at(stream(seed, "drive"), numbers.start)
    policy_keys, shield_keys = stream(batch_key, "policy"), stream(batch_key, "shield")
    positions = [np.stack([env.state.robot[:2] for env in envs])]
    rows: dict[str, list[np.ndarray]] = {"violated": [], "overridden": [], "traces": [], "reward": []}
    worst = [Moment(np.inf, env.state, None, index) for index, env in enumerate(envs)]
    for step in range(world.episode_steps):
        state = jax.tree.map(lambda *parts: jnp.stack(parts), *(env.state for env in envs))
        labels = np.stack([info["labels"] for info in infos])
        key = at(shield_keys, step)
        outcome = jax.device_get(decide(at(policy_keys, step), key, state, labels))
        action, overridden, p_safe, traces = outcome
        for index in map(int, np.flatnonzero(overridden & (traces > 0))):
            if p_safe[index] < worst[index].p_safe:
                worst[index] = Moment(float(p_safe[index]), envs[index].state, key, index)
        results = [env.step(chosen) for env, chosen in zip(envs, action, strict=True)]
        infos = [result[4] for result in results]
        rows["violated"].append(np.array([info["cost"] > 0 for info in infos]))
        rows["reward"].append(np.array([result[1] for result in results]))
        rows["overridden"].append(overridden)
        rows["traces"].append(traces)
        positions.append(np.stack([env.state.robot[:2] for env in envs]))
        on_step(done + step + 1, total)
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
    """(policy key, shield key, states, labels) -> executed actions, overridden, p_safe, traces used; compiled."""

    def propose(key: jax.Array, state: State) -> jax.Array:
        return jax.vmap(seek_goal)(jax.random.split(key, state.robot.shape[0]), state)

    def unshielded(policy_key: jax.Array, _shield_key: jax.Array, state: State, _labels: jax.Array) -> Any:
        action = propose(policy_key, state)
        none = jnp.zeros(action.shape[0], int)
        return action, none > 0, jnp.ones(none.shape), none

    def shielded(policy_key: jax.Array, shield_key: jax.Array, state: State, labels: jax.Array) -> Any:
        decision = shield(shield_key, state, propose(policy_key, state), problem, labels)
        return decision.action, decision.overridden, decision.p_safe, decision.traces_used

    if config is None:
        return jax.jit(unshielded)
    problem = ShieldProblem(rollout(world.dynamics(), config.steps), seek_goal, keep_clear, env.psi, env.atoms, config)
    return jax.jit(shielded)


def imagined(world: PointWorld, on: Episodes, config: ShieldConfig, traces: int = 40) -> np.ndarray:
    """The futures behind the override the shield was surest of, in every episode: positions `[e, traces, steps + 1, 2]`.

    They are played again from the keys of that decision, so these are the ones the shield saw.
    """
    dynamics = world.dynamics()

    def positions(key: jax.Array, state: State, action: jax.Array) -> Step:
        arrival = dynamics(key, state, action)
        return arrival._replace(labels=arrival.state.robot[None, :2])

    play = rollout(positions, config.steps)

    def futures(keys: jax.Array, state: State) -> jax.Array:
        proposed = seek_goal(keys[0], state)
        paths = jax.vmap(lambda key: play(stream(key, "roll"), state, proposed, seek_goal).labels[:, 0])(keys)
        start = jnp.broadcast_to(state.robot[None, None, :2], (traces, 1, 2))
        return jnp.concatenate([start, paths], axis=1)

    many = jax.jit(futures)
    result = []
    for moment in on.worst:
        key = stream(0, "unused") if moment.key is None else moment.key
        keys = trace_keys(key, moment.env, jnp.arange(traces))
        result.append(many(keys, jax.tree.map(jnp.asarray, moment.state)))
    return np.stack(result)

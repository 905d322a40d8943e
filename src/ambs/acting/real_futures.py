"""Real futures: go back to a state in the simulator itself and let the task policy try it many times."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from ambs.acting.act import actor_state
from ambs.acting.agent import Agent
from ambs.envs.snapshot import Snapshot, generator_to_array, together
from ambs.spec.parser import parse_path
from ambs.spec.pctl import Verdict


def failing(
    agent: Agent,
    envs: Any,
    own: Snapshot,
    latent: Any,
    proposed: np.ndarray,
    seeds: list[list[int]],
    root: Key[Array, ""],
    labels: np.ndarray | None = None,
) -> np.ndarray:
    """Whether the shield's property fails in real futures of one state, bool `[futures]`, one for each of `envs` and `seeds`.

    `own` is the state of the environment, `latent` what the agent remembers there, both of one environment; `labels` `[atoms]`
    its labels, of which only path formulas other than G≤T Ψ ask. The `proposed` action comes first, then the task policy
    without shield; every future has chance of its own. `agent` must have been started, without shield, for so many.
    """
    futures = envs.num_envs
    envs.reset(seed=0)
    envs.set_state(together([_other_chance(own, seed) for seed in seeds]))
    many = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[None], (futures, *leaf.shape)), latent)
    action = np.broadcast_to(proposed, (futures, *proposed.shape))
    memory = actor_state(many, jnp.asarray(action))
    failed, over = np.zeros(futures, bool), np.zeros(futures, bool)
    path = agent.config.shield.path
    states = [] if labels is None else [np.broadcast_to(labels, (futures, *labels.shape))]
    for step in range(1, agent.config.shield.horizon + 1):
        raw, _, terminated, truncated, infos = envs.step(agent.interface.to_env(action))
        failed |= infos["frame_violations"].any(axis=1) & ~over
        # An episode that has ended stays where it ended.
        states.append(np.where(over[:, None], states[-1], last_labels(infos)) if states else last_labels(infos))
        over |= terminated | truncated
        if (failed | over).all() and path is None:
            break
        memory, chosen = agent.follow(memory, raw, infos["labels"], root, step)
        action = np.asarray(chosen)
    if path is None:
        return failed
    known = agent.interface.spec.atoms
    return np.asarray(parse_path(path, known).on_traces(np.stack(states, axis=1), known)) != Verdict.TRUE


def can_branch(own: Snapshot) -> bool:
    """Whether a state can be restored with other chance than it had."""
    return any(map(_is_chance, own))


def last_labels(infos: dict[str, Any]) -> np.ndarray:
    """Of the last frame that took place in the step, bool `[envs, atoms]`: where an episode ended, not where the next begins."""
    last = np.maximum(infos["frame_valid"].sum(axis=1) - 1, 0)
    return infos["frame_labels"][np.arange(len(last)), last]


def _other_chance(snapshot: Snapshot, seed: list[int]) -> Snapshot:
    """The same state of one environment with random numbers of its own."""
    words = generator_to_array(np.random.default_rng(seed))
    return {name: words.reshape(array.shape) if _is_chance(name) else array for name, array in snapshot.items()}


def _is_chance(name: str) -> bool:
    return name.rpartition(".")[2] == "rng"

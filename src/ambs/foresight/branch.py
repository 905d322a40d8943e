"""Truth from real futures: go back to a state in the real environment and let the task policy try it many times."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ambs.acting.act import actor_state
from ambs.acting.agent import Agent
from ambs.envs.snapshot import Snapshot, generator_to_array, together
from ambs.foresight.collect import Kept
from ambs.streams import stream

FUTURES = 64


def branched(
    agent: Agent,
    kept: Kept,
    which: np.ndarray,
    *,
    futures: int = FUTURES,
    seed: int = 0,
    on_state: Callable[[int], None] | None = None,
) -> np.ndarray:
    """Share of real futures of the kept states `which` in which Ψ fails within the shield's horizon, `[states]`.

    The proposed action comes first, then the task policy without shield; every future has chance of its own.
    """
    failed = np.zeros(len(which))
    envs = agent.worlds(futures)
    try:
        agent.start(futures, seed, shield=False)
        for index, place in enumerate(which.tolist()):
            failed[index] = _failing(agent, envs, kept, place, seed)
            if on_state is not None:
                on_state(index + 1)
    finally:
        envs.close()
    return failed


def can_branch(kept: Kept | None) -> bool:
    """Whether the states can be restored with other chance than they had."""
    return kept is not None and all(own is not None and any(map(_is_chance, own)) for own in kept.snapshot)


def _failing(agent: Agent, envs: Any, kept: Kept, place: int, seed: int) -> float:
    own, futures = kept.snapshot[place], envs.num_envs
    assert own is not None
    envs.reset(seed=0)
    envs.set_state(together([_other_chance(own, [seed, place, number]) for number in range(futures)]))
    latent = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[place][None], (futures, *leaf.shape[1:])), kept.latent)
    action = np.broadcast_to(kept.proposed[place], (futures, kept.proposed.shape[1]))
    memory = actor_state(latent, jnp.asarray(action))
    root = jax.random.fold_in(stream(agent.root, "branched"), place)
    failed, over = np.zeros(futures, bool), np.zeros(futures, bool)
    for step in range(1, agent.config.shield.horizon + 1):
        raw, _, terminated, truncated, infos = envs.step(agent.interface.to_env(action))
        failed |= infos["frame_violations"].any(axis=1) & ~over
        over |= terminated | truncated
        if (failed | over).all():
            break
        memory, chosen = agent.follow(memory, raw, infos["labels"], root, step)
        action = np.asarray(chosen)
    return float(failed.mean())


def _other_chance(snapshot: Snapshot, seed: list[int]) -> Snapshot:
    """The same state of one environment with random numbers of its own."""
    words = generator_to_array(np.random.default_rng(seed))
    return {name: words.reshape(array.shape) if _is_chance(name) else array for name, array in snapshot.items()}


def _is_chance(name: str) -> bool:
    return name.rpartition(".")[2] == "rng"

"""Truth from real futures: go back to a state in the real environment and let the task policy try it many times."""

from collections.abc import Callable

import jax
import numpy as np

from ambs.acting import real_futures
from ambs.acting.agent import Agent
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
            own = kept.snapshot[place]
            assert own is not None
            latent = jax.tree.map(lambda leaf: leaf[place], kept.latent)  # noqa: B023 (used at once)
            root = jax.random.fold_in(stream(agent.root, "branched"), place)
            seeds = [[seed, place, number] for number in range(futures)]
            failed[index] = real_futures.failing(agent, envs, own, latent, kept.proposed[place], seeds, root).mean()
            if on_state is not None:
                on_state(index + 1)
    finally:
        envs.close()
    return failed


def can_branch(kept: Kept | None) -> bool:
    """Whether the states can be restored with other chance than they had."""
    return kept is not None and all(own is not None and real_futures.can_branch(own) for own in kept.snapshot)

"""Non-finite numbers and nonsense, put into a trained agent wherever it takes numbers from."""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from ambs.acting.agent import Agent, load
from ambs.agent.networks import CRITICS
from tests.faults.counts import FULL

BAD = (np.nan, np.inf, -np.inf)
PLACES = ("observation", "latent", "labels", "continues", "critics")


def job_numbers(folder: Path, count: int) -> dict[str, Any]:
    """NaN and ±∞ in observations, memory, label heads, continue heads and critics; how many were overridden soundly."""
    from tests.faults.host import straight

    agent, rng = load(straight(folder)), np.random.default_rng(0)
    if not FULL:
        agent = agent.behind(
            labels="mode", label_threshold=0.99
        )  # Trained so briefly, it would believe no action to be safe.
    healthy, accepted = agent.player, 0
    found = dict.fromkeys(PLACES, 0)
    overridden = 0
    for trial in range(count):
        agent.player = healthy
        agent.start(batch=1, seed=trial)
        accepted += not agent.act(cell(rng), labels=[[False, False]]).overridden[0]
        place = PLACES[trial % len(PLACES)]
        found[place] += 1
        observation = poison(agent, place, BAD[int(rng.integers(3))], rng)
        decision = agent.act(observation, labels=[[False, False]])
        overridden += bool(decision.overridden[0]) and sound(agent, decision)
        agent.player = healthy
        # Memory is sound again: what follows is as finite as what was before.
        agent.act(cell(rng), labels=[[False, False]])
        overridden -= not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(agent._carry))
    return {"injected": count, "overridden": overridden, "places": found, "accepted_before": accepted}


def poison(agent: Agent, place: str, value: float, rng: np.random.Generator) -> np.ndarray:
    """Put one bad number somewhere; returns the next observation."""
    observation = cell(rng)
    if place == "observation":
        observation[0, rng.integers(observation.shape[1])] = value
    elif place == "latent":
        leaf = "deter" if rng.random() < 0.5 else "stoch"
        spoilt = put(getattr(agent._carry.latent, leaf), value, rng)
        agent._carry = agent._carry._replace(latent=agent._carry.latent._replace(**{leaf: spoilt}))
    elif place == "critics":
        # Only the twins that the shield asks.
        where = lambda player: player.critics.mlp  # noqa: E731
        agent.player = eqx.tree_at(where, agent.player, spoil(where(agent.player), value, rng, critics=True))
    else:
        where = (lambda p: p.model.heads.labels) if place == "labels" else (lambda p: p.model.heads.proceed)
        agent.player = eqx.tree_at(where, agent.player, spoil(where(agent.player), value, rng))
    return observation


def spoil(network: Any, value: float, rng: np.random.Generator, *, critics: bool = False) -> Any:
    """A copy of a network with one bad number in one of its arrays."""
    leaves, structure = jax.tree.flatten(network)
    chosen = int(rng.integers(len(leaves)))
    leaf = np.array(leaves[chosen])
    lead = (CRITICS.index(str(rng.choice(["safety_a", "safety_b"]))),) if critics else ()
    leaf[lead] = put(leaf[lead], value, rng)
    leaves[chosen] = jax.numpy.asarray(leaf)
    return jax.tree.unflatten(structure, leaves)


def put(array: Any, value: float, rng: np.random.Generator) -> Any:
    """A copy with one number replaced."""
    copy = np.array(array)
    copy.reshape(-1)[rng.integers(copy.size)] = value
    return jax.numpy.asarray(copy)


def cell(rng: np.random.Generator) -> np.ndarray:
    """An observation of the grid, `[1, 25]`."""
    return np.eye(25, dtype=np.float32)[[int(rng.integers(25))]]


def sound(agent: Agent, decision: Any) -> bool:
    """Whether the action is one of the environment's, and the numbers beside it are finite."""
    numbers = (decision.p_safe, decision.interval, agent.raw_action)
    in_range = decision.action.dtype.kind == "i" and 0 <= decision.action[0] < agent.interface.spec.actions
    return bool(in_range and all(np.isfinite(np.asarray(part)).all() for part in numbers))


def job_observations(folder: Path, count: int) -> dict[str, Any]:
    """Things that are no observation; how many of them were refused, overridden, and left the memory as it was."""
    from tests.faults.host import straight

    rng = np.random.default_rng(1)
    agent = load(straight(folder)).start(batch=1, seed=0)
    agent.act(cell(rng))
    refused = tracebacks = good = 0
    for _ in range(count):
        observation, bad = nonsense(rng)
        before = jax.tree.map(np.array, agent._carry.latent)
        try:
            decision = agent.act(observation)
        except Exception:
            tracebacks += 1
            continue
        same = all(np.array_equal(a, b) for a, b in zip(before, agent._carry.latent, strict=True))
        wrong = bad and not (agent.refused and decision.overridden[0] and same)
        refused += bad and not wrong
        good += not bad
        tracebacks += int(wrong or not sound(agent, decision))
    return {"tried": count, "refused": refused, "harmless": good, "wrong": tracebacks}


def nonsense(rng: np.random.Generator) -> tuple[Any, bool]:
    """A fuzzed observation, and whether it must be refused."""
    kind = int(rng.integers(12))
    base = cell(rng)
    shape = tuple(int(n) for n in rng.integers(0, 30, rng.integers(0, 5)))
    if kind == 0:
        return np.zeros(shape, np.float32), shape not in ((25,), (1, 25))
    if kind == 1:
        base[0, rng.integers(25)] = rng.choice(BAD)
        return base, True
    if kind == 2:
        return base.astype(rng.choice(["complex64", "S4", "datetime64[s]", "object", "U3"])), True
    if kind == 3:
        return rng.choice(np.array([None, "text", b"bytes", object(), {}, set(), 3, 2.5, True], object)), True
    if kind == 4:
        return {"image": base, "vector": base}, True
    if kind == 5:
        return {"image": np.zeros((1, 64, 64, 3), np.uint8)}, True
    if kind == 6:
        return [[1.0], [2.0, 3.0]], True
    if kind == 7:
        return np.full((1, 25), 1e300), True
    if kind == 8:
        return rng.integers(0, 2, (1, 25)), False
    if kind == 9:
        return base[0].tolist(), False
    if kind == 10:
        return {"anything": rng.uniform(size=(1, 25))}, False
    if rng.random() < 0.3:
        return np.ma.masked_equal(base, 1), True
    values = rng.normal(size=(1, 25)) * 10.0 ** rng.integers(-30, 30)
    shown = values.astype(np.float32)
    return values, bool(((shown < 0) | (shown > 1)).any())

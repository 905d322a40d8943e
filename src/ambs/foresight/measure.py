"""The whole measurement of a trained agent: play, score, and put the figures together."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ambs.acting.agent import Agent
from ambs.acting.scoring import of_model, replayed
from ambs.acting.worlds import is_small
from ambs.config import Config
from ambs.errors import UserError
from ambs.foresight.branch import FUTURES, branched, can_branch
from ambs.foresight.collect import Kept, Record, play
from ambs.foresight.entries import entry_figures, stay_figures
from ambs.foresight.figures import (
    Truth,
    agreement,
    calibration_figures,
    cost_figures,
    score_figures,
    step_figures,
    truth,
)
from ambs.nn.precision import cast, compute_dtype
from ambs.streams import stream

ENOUGH, ENOUGH_SMALL = 20_000, 10_000
"""Agent steps played unless told otherwise; in worlds that serve to try things out, the second."""
KEEP_EVERY = 10
STARTS, REPLAYS, AT_ONCE = 2000, 16, 100
"""States from which played actions are imagined again, futures of each, and states at once."""

Progress = Callable[[str, int, int | None], None]
"""(what is going on, how much of it is done, how much there is to do if that is known)."""


def measure(
    trained: Agent,
    *,
    horizon: int | None = None,
    episodes: int | None = None,
    traces: int = 64,
    branches: int | None = None,
    seed: int = 0,
    progress: Progress = lambda *_: None,
    policy: Any = None,
) -> dict[str, Any]:
    """Everything that `ambs foresight` reports; `branches` is the number of states to try in real futures, `policy` the one
    that the run guards (None: its clone plays)."""
    agent = with_horizon(trained, horizon)
    small = is_small(trained.config.env)
    steps = ENOUGH_SMALL if small else ENOUGH
    few = None if episodes is None else max(1, episodes // 4)

    def watched(what: str, share: int = 1) -> dict[str, Any]:
        whole = steps // share if episodes is None else None
        return {"seed": seed, "steps": steps // share, "on_step": lambda done: progress(what, done, whole)}

    asked = watched("the task policy plays")
    record = play(agent, episodes=episodes, traces=traces, keep_every=KEEP_EVERY, given=policy, **asked)
    found = {**_facts(agent, trained, record, traces, seed), **foresight_figures(record, agent.config.shield.horizon)}
    found["by_step"] = by_step(agent, record, seed, progress)
    backup = play(agent, episodes=few, traces=traces, policy="backup", **watched("the backup policy plays", 4))
    found["costs"] = {name: _costs(agent, one) for name, one in {"task": record, "backup": backup}.items()}
    guarded = play(trained, episodes=few, shield=True, given=policy, **watched("the shield is on", 4))
    found["entries"] = {"off": entry_figures(record), "on": entry_figures(guarded)}
    found["stays"] = {"off": stay_figures(record), "on": stay_figures(guarded)}
    wanted = (200 if small else 0) if branches is None else branches
    found["branched"] = real_futures(agent, record, wanted, seed, progress) if wanted else None
    return found


def with_horizon(agent: Agent, horizon: int | None) -> Agent:
    """The agent behind a shield that looks `horizon` steps ahead; None: as trained."""
    if horizon is None:
        return agent
    if horizon < 1:
        raise UserError(f"--horizon must be at least 1, got {horizon}")
    rolled = agent.config.shield.rolled
    return agent.behind(horizon=horizon, rolled=None if rolled is None else min(rolled, horizon))


def foresight_figures(record: Record, horizon: int) -> dict[str, Any]:
    """How well the scores of a record foresee what it says happened."""
    known = _truth(record, horizon)
    both = {"drawn": record.risk, "shield": record.shield}
    return {
        "states": {
            "counted": int(known.counts.sum()),
            "fail": int(known.fails.sum()),
            "safe": int(known.safe.sum()),
            "violating_now": int(record.unsafe_now.sum()),
        },
        **{
            name: {
                **score_figures(score, known, record.episode, horizon),
                **calibration_figures(score, known, record.episode),
            }
            for name, score in both.items()
        },
    }


def by_step(agent: Agent, record: Record, seed: int, progress: Progress) -> list[dict[str, Any]]:
    """The label head by steps ahead: imagined with the actions really taken, against what happened."""
    horizon, kept = agent.config.shield.horizon, record.kept
    assert kept is not None
    last = np.minimum(kept.row + horizon, len(record.episode)) - 1
    inside = (last == kept.row + horizon - 1) & (record.episode[last] == record.episode[kept.row])
    usable = np.flatnonzero(inside & ~record.unsafe_now[kept.row])
    if not usable.size:
        return []
    chosen = np.sort(np.random.default_rng(seed).permutation(usable)[:STARTS])
    later = kept.row[chosen][:, None] + np.arange(horizon)
    imagine = _compiled_replay(agent.config)
    chances = []
    for first in range(0, len(chosen), AT_ONCE):
        progress("played actions are imagined", first, len(chosen))
        # The last ones make up a whole batch with some of the others, so that nothing is compiled twice.
        some = np.resize(np.arange(first, min(first + AT_ONCE, len(chosen))), AT_ONCE)
        latent = jax.tree.map(lambda leaf: leaf[chosen[some]], kept.latent)  # noqa: B023 (used at once)
        key = jax.random.fold_in(stream(seed, "replay"), first)
        chances.append(np.asarray(imagine(agent.player, key, latent, record.action[later[some]])))
    chance = np.concatenate(chances)[: len(chosen)]
    return step_figures(chance, record.violated[later], record.episode[kept.row[chosen]])


def real_futures(agent: Agent, record: Record, states: int, seed: int, progress: Progress) -> dict[str, Any] | None:
    """Predicted risk against the share of real futures that fail, in states spread evenly over the risk."""
    kept = record.kept
    if kept is None or not can_branch(kept):
        return None
    which = _spread(record, kept, _truth(record, agent.config.shield.horizon), states, seed)
    real = branched(
        agent, kept, which, seed=seed, on_state=lambda done: progress("real futures are played", done, len(which))
    )
    return {"states": len(which), "futures": FUTURES, **agreement(record.risk[kept.row[which]], real, FUTURES)}


def _facts(agent: Agent, trained: Agent, record: Record, traces: int, seed: int) -> dict[str, Any]:
    shield = agent.config.shield
    return {
        "env": agent.config.env,
        "psi": str(agent.interface.spec.psi),
        "horizon": shield.horizon,
        "checkpoint": agent.frames,
        "shield_labels": shield.labels,
        "level": trained.config.shield.safety_level,
        "asked": trained.config.shield.as_asked().safety_level,
        "traces": traces,
        "seed": seed,
        "episodes": int(record.episode.max()) + 1,
        "steps": len(record.episode),
    }


def _truth(record: Record, horizon: int) -> Truth:
    return truth(record.episode, record.unsafe_now, record.violated, record.over, horizon)


def _costs(agent: Agent, record: Record) -> dict[str, Any]:
    horizon, discount = agent.config.shield.horizon, agent.config.safety.discount
    cost = agent.interface.spec.cost
    return cost_figures(
        record.episode, cost * record.violated, record.cost, record.critic, _truth(record, horizon), horizon, discount
    )


def _spread(record: Record, kept: Kept, known: Truth, states: int, seed: int) -> np.ndarray:
    """Kept states in which Ψ holds and after which there is time for all steps, in turn from ten equal bins of the risk."""
    usable = np.flatnonzero((known.counts & known.whole)[kept.row])
    order = np.random.default_rng(seed).permutation(usable)
    bins = np.clip((record.risk[kept.row[order]] * 10).astype(int), 0, 9)
    turn = np.zeros(len(order), int)
    for number in range(10):
        own = bins == number
        turn[own] = np.arange(own.sum())
    return order[np.argsort(turn, kind="stable")[:states]]


@functools.lru_cache(maxsize=8)
def _compiled_replay(config: Config) -> Any:
    def imagine(player: Any, key: Any, latent: Any, actions: Any) -> Any:
        dtype = compute_dtype()
        return replayed(
            of_model(player, config, "task", dtype), key, cast(latent, dtype), cast(actions, dtype), REPLAYS
        )

    return jax.jit(imagine)

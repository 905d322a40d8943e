"""The whole measurement of a trained agent: play, score, and put the figures together."""

from collections.abc import Callable
from typing import Any

from ambs.errors import UserError
from ambs.foresight.collect import Record, play
from ambs.foresight.figures import calibration_figures, score_figures, truth
from ambs.training.agent import Agent

ENOUGH = 20_000
"""Agent steps played unless told otherwise."""


def with_horizon(agent: Agent, horizon: int | None) -> Agent:
    """The agent behind a shield that looks `horizon` steps ahead; None: as trained."""
    if horizon is None:
        return agent
    if horizon < 1:
        raise UserError(f"--horizon must be at least 1, got {horizon}")
    settings = agent.config.shield
    rolled = settings.rolled if settings.critics is None or settings.rolled is None else min(settings.rolled, horizon)
    return agent.behind(horizon=horizon, rolled=rolled)


def measure(
    agent: Agent,
    *,
    episodes: int | None = None,
    traces: int = 64,
    seed: int = 0,
    on_step: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Everything that `ambs foresight` reports."""
    record = play(agent, episodes=episodes, steps=ENOUGH, seed=seed, traces=traces, on_step=on_step)
    return {**_facts(agent, record, traces, seed), **foresight_figures(record, agent.config.shield.horizon)}


def _facts(agent: Agent, record: Record, traces: int, seed: int) -> dict[str, Any]:
    shield = agent.config.shield
    return {
        "env": agent.config.env,
        "horizon": shield.horizon,
        "psi": str(agent.interface.spec.psi),
        "traces": traces,
        "seed": seed,
        "episodes": int(record.episode.max()) + 1,
        "steps": len(record.episode),
        "shield_labels": shield.labels,
    }


def foresight_figures(record: Record, horizon: int) -> dict[str, Any]:
    """How well the scores of a record foresee what it says happened."""
    known = truth(record.episode, record.unsafe_now, record.violated, record.over, horizon)
    return {
        "states": {
            "counted": int(known.counts.sum()),
            "fail": int(known.fails.sum()),
            "safe": int(known.safe.sum()),
            "violating_now": int(record.unsafe_now.sum()),
            "entries": int((record.violated & ~record.unsafe_now).sum()),
        },
        "drawn": {
            **score_figures(record.risk, known, record.episode, horizon),
            **calibration_figures(record.risk, known, record.episode),
        },
        "shield": {
            **score_figures(record.shield, known, record.episode, horizon),
            **calibration_figures(record.shield, known, record.episode),
        },
    }

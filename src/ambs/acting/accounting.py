"""Counting what happened, frame by frame and episode by episode.

*Violations* are simulator frames in which Ψ fails, in training episodes of all environments. *Return* is the undiscounted
sum of frame rewards. *Overrides* and *switches* count agent steps: a switch is a step at which control passes between task
and backup policy, the fight of the paper's Fig. 1.

Beside the violations of its own Ψ an episode's row has the frames per combination of labels, from which the violations of any
other Ψ over the same atoms can be counted.
"""

import functools
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from ambs.shield.rules import Decision
from ambs.spec.formula import Atom

_PER_EPISODE = ("start_frame", "length", "steps", "violations", "overrides", "switches", "decisions", "traces")


@dataclass
class Accounts:
    """Running totals of a run, and of each environment's present episode."""

    envs: int
    atoms: tuple[str, ...]
    """Names of the labels, in the order of the last axis of `frame_labels`."""
    frames: int = 0
    agent_steps: int = 0
    violations: int = 0
    overrides: int = 0
    switches: int = 0
    decisions: int = 0
    """Agent steps at which the shield decided."""
    traces: int = 0
    episodes: int = 0
    faults: int = 0
    open: dict[str, np.ndarray] = field(default_factory=dict)
    labels: list[dict[str, int]] = field(default_factory=list)
    """Of each environment's present episode: frames per `combination` of labels."""

    def __post_init__(self) -> None:
        self.labels = self.labels or [{} for _ in range(self.envs)]
        if not self.open:
            self.open = {name: np.zeros(self.envs, np.int64) for name in _PER_EPISODE}
            self.open |= {"return": np.zeros(self.envs), "backup": np.zeros(self.envs, bool)}

    def step(
        self,
        infos: dict[str, Any],
        ended: tuple[np.ndarray, np.ndarray],
        decision: Decision | None,
        shielded: bool,
    ) -> list[dict[str, Any]]:
        """Take in one step of all environments; returns a row for each episode that ended.

        In a row `frames` are those of the whole run so far, `length` those of the episode.
        """
        took = ~infos["fresh"]
        frames = infos["frame_valid"].sum(axis=1)
        violations = infos["frame_violations"].sum(axis=1)
        overridden, traces = np.zeros(self.envs, bool), np.zeros(self.envs, np.int64)
        decided = np.zeros(self.envs, bool)
        if decision is not None and shielded:
            overridden = np.asarray(decision.overridden) & took
            traces = np.where(took, np.asarray(decision.traces_used), 0)
            decided = took
        # An episode begins in the task policy's hands.
        switched = took & (overridden != self.open["backup"]) if decision is not None else np.zeros(self.envs, bool)
        now = self.open
        now["return"] += infos["frame_rewards"].sum(axis=1)
        counts = {"length": frames, "steps": took, "violations": violations, "overrides": overridden}
        counts |= {"switches": switched, "decisions": decided, "traces": traces}
        for name, value in counts.items():
            now[name] += value
        now["backup"] = np.where(took, overridden, now["backup"])
        self._count_labels(infos["frame_labels"], infos["frame_valid"])
        self.frames += int(frames.sum())
        self.agent_steps += int(took.sum())
        self.violations += int(violations.sum())
        self.overrides += int(overridden.sum())
        self.switches += int(switched.sum())
        self.decisions += int(decided.sum())
        self.traces += int(traces.sum())
        self.faults += len(infos["faults"])
        faulty = {fault.env for fault in infos["faults"]}
        terminated, truncated = ended
        return [
            self._close(env, "fault" if env in faulty else "terminated" if terminated[env] else "truncated")
            for env in np.flatnonzero(terminated | truncated).tolist()
        ]

    def _count_labels(self, labels: np.ndarray, valid: np.ndarray) -> None:
        """Labels bool `[envs, frames, atoms]` of the frames `[envs, frames]` that took place."""
        for env, frame in zip(*np.nonzero(valid), strict=True):
            name = combination(self.atoms, labels[env, frame].tobytes())
            self.labels[env][name] = self.labels[env].get(name, 0) + 1

    def _close(self, env: int, ended: str) -> dict[str, Any]:
        row: dict[str, Any] = {name: int(self.open[name][env]) for name in _PER_EPISODE}
        row = {"frames": self.frames, "episode": self.episodes, "env": env, **row}
        row |= {"return": float(self.open["return"][env]), "cost": row["violations"], "ended": ended}
        labels, self.labels[env] = self.labels[env], {}
        # An episode that began before labels were counted, in a checkpoint of an earlier version, has not got all of them.
        row |= {"labels": labels} if sum(labels.values()) == row["length"] else {}
        for values in self.open.values():
            values[env] = 0
        self.open["start_frame"][env] = self.frames
        self.episodes += 1
        return row

    def abandon(self) -> None:
        """Forget the open episodes, which nobody will finish; what happened in them stays in the totals."""
        for values in self.open.values():
            values[:] = 0
        self.open["start_frame"][:] = self.frames
        self.labels = [{} for _ in range(self.envs)]

    def totals(self) -> dict[str, int]:
        """The run's counters."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.type is int and one.name != "envs"}


@functools.lru_cache(maxsize=4096)
def combination(atoms: tuple[str, ...], held: bytes) -> str:
    """Atoms that hold (a byte each, 1 or 0), as formulas write them, joined by `+`; empty: none."""
    return "+".join(str(Atom(name)) for name, holds in zip(atoms, held, strict=True) if holds)

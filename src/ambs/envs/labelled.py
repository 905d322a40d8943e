"""Any Gymnasium environment, a labelling function and Ψ make a labelled environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import gymnasium
import numpy as np

from ambs.envs.options import read_spec, refuse_constant
from ambs.envs.saving import savable
from ambs.errors import UserError
from ambs.spec.formula import Atoms, Constant, Formula, vocabulary

Labelling = Callable[[Any, dict[str, Any]], Mapping[str, Any] | Set[str]]
"""From observation and info to the atoms that hold: their names, or a truth value for each name."""


def with_labels(
    env: Any, *, labels: Labelling, spec: str | Formula, atoms: Sequence[str] | Atoms | None = None
) -> LabelledEnv:
    """Label every state of `env`, and charge a cost of 1 where Ψ fails.

    `labels(observation, info)` judges the state just reached. `atoms` are the names it may use, in the order of the
    label array; by default those of `spec`. An environment that MuJoCo moves can then be saved (`ambs.envs.saving`).
    """
    if not isinstance(env, gymnasium.Env):
        raise UserError(f"with_labels needs a gymnasium.Env, got {type(env).__name__}")
    if not callable(labels):
        raise UserError(f"labels must be a function of observation and info, got {labels!r}")
    psi = read_spec(spec)
    if psi != Constant(True):  # Which says that nothing is unsafe: a world to play in.
        refuse_constant(psi)
    known = vocabulary(psi.atoms() if atoms is None else atoms)
    for name in psi.atoms():
        known.index(name)
    return LabelledEnv(savable(env), labels, psi, known)


class LabelledEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment with `info["labels"]` (bool `[atoms]`) and `info["cost"]` (1.0 where Ψ fails, else 0.0)."""

    def __init__(self, env: gymnasium.Env, labels: Labelling, psi: Formula, atoms: Atoms) -> None:
        super().__init__(env)
        self.labelling, self.psi, self.atoms = labels, psi, atoms

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, self._labelled(observation, info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Advance by one frame."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, self._labelled(observation, info)

    def _labelled(self, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        labels = encode(self.labelling(observation, info), self.atoms)
        return {**info, "labels": labels, "cost": float(not self.psi.holds(labels, self.atoms))}


def encode(labels: Any, atoms: Atoms) -> np.ndarray:
    """What a labelling function returned, as an array bool `[atoms]`."""
    if isinstance(labels, Mapping):
        missing = [name for name in atoms.names if name not in labels]
        if missing:
            raise UserError(f"the labelling function says nothing about {', '.join(missing)}")
        return atoms.encode(name for name, holds in labels.items() if _truth(name, holds))
    if isinstance(labels, Set):
        return atoms.encode(labels)
    kind = type(labels).__name__
    raise UserError(f"a labelling function must return a mapping from names to bools or a set of names, got {kind}")


def _truth(name: str, value: Any) -> bool:
    array = np.asarray(value)
    if array.ndim or array.dtype != np.bool_:
        raise UserError(f"the label {name!r} must be true or false, got {value!r}")
    return bool(array)

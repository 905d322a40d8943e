"""What a shield is given: the model as a function, both policies, Ψ and the settings.

The world enters as a function: `rollout_fn(key, state, first_action, policy) -> Trace` plays one future, for whatever a
state is: a latent of a world model, a cell of a grid, a snapshot of a simulator.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Shaped

from ambs.config.checks import short
from ambs.errors import UserError
from ambs.shield.config import SafetyConfig, ShieldConfig
from ambs.spec.formula import Atoms, Formula
from ambs.spec.parser import parse_path, speaks_of_future
from ambs.spec.pctl import Path

Policy = Callable[[Key[Array, ""], Any], Any]
Critics = Callable[[Any], Float[Array, "critics"]]


class Trace(NamedTuple):
    """A future s_1 … s_H: labels, continue flags, whether all was finite at each step, and s_H for a critic."""

    labels: Shaped[Array, "time frames atoms"]
    continues: Shaped[Array, "time"]
    finite: Bool[Array, "time"]
    final_state: PyTree


RolloutFn = Callable[[Key[Array, ""], Any, Any, Policy], Trace]


@dataclass(frozen=True)
class ShieldProblem:
    """All that a shield needs besides the moment: policies and model are functions of one environment's state."""

    rollout_fn: RolloutFn
    """(key, state, first action, policy) -> Trace."""
    policy: Policy
    """The task policy that would act from the second step on: (key, state) -> action."""
    backup: Policy
    """The backup policy: (key, state) -> action."""
    psi: Formula
    atoms: Atoms
    config: ShieldConfig = field(default_factory=ShieldConfig)
    critics: Critics | None = None
    """Safety critics: final state -> values `[critics]`."""
    fallback: Any = None
    """Action of last resort, and after `ShieldConfig.failsafe_after` refusals in a row; None: zeros."""
    thresholds: Float[Array, "atoms"] | None = None
    """Calibrated label thresholds, in place of the settings' `label_threshold`; they may change from call to call."""
    level: Int[Array, ""] | None = None
    """Number of the level in force (`ShieldConfig.levels`), in place of the settings' Δ; it may change from call to call."""
    leave: Policy | None = None
    """What acts where the state violates Ψ already, in place of the backup policy."""
    blind: Policy | None = None
    """What acts where something cannot be trusted (`Reason.NON_FINITE`), in place of the backup policy: its best action, say."""
    safety: SafetyConfig = field(default_factory=SafetyConfig)
    """C and γ, by which costs are judged where `config` says so; they must be those that the critics were learned with."""

    def __post_init__(self) -> None:
        self._check_types()
        known = [leaf for leaf in jax.tree.leaves(self.fallback) if not isinstance(leaf, jax.core.Tracer)]
        numbers = all(np.asarray(leaf).dtype.kind in "fiub" for leaf in known)
        with np.errstate(over="ignore"):
            finite = numbers and all(np.isfinite(np.asarray(leaf).astype(np.float32)).all() for leaf in known)
        if not finite:
            raise UserError(f"the fallback action must be finite, in single precision too, got {self.fallback}")
        if self.level is not None and not isinstance(self.level, jax.core.Tracer) and not self.is_level(self.level):
            raise UserError(f"the level in force must be one of 0 to {len(self.config.levels()) - 1}, got {self.level}")
        certain = self.thresholds is not None and not isinstance(self.thresholds, jax.core.Tracer)
        if certain and not _fit(np.asarray(self.thresholds), len(self.atoms)):
            raise UserError(f"label thresholds must be {len(self.atoms)} numbers in (0, 1], got {self.thresholds}")

    def _check_types(self) -> None:
        """Refuse parts of a wrong kind now, and not when they are first asked."""
        optional = ("critics", "leave", "blind")
        for name in ("rollout_fn", "policy", "backup", *(one for one in optional if getattr(self, one) is not None)):
            if not callable(getattr(self, name)):
                raise UserError(f"{name} must be a function, got {short(getattr(self, name))}")
        for name, kind in {"psi": Formula, "atoms": Atoms, "config": ShieldConfig, "safety": SafetyConfig}.items():
            if not isinstance(getattr(self, name), kind):
                hint = ", such as ambs.parse_formula('!hazard') gives" if name == "psi" else ""
                raise UserError(f"{name} must be of the type {kind.__name__}{hint}, got {short(getattr(self, name))}")
        if speaks_of_future(self.psi):
            raise UserError(f"psi must be a formula over atoms, without P [ … ], got {self.psi}")
        for name in self.psi.atoms():
            self.atoms.index(name)
        if self.level is not None and not jnp.issubdtype(getattr(self.level, "dtype", type(self.level)), jnp.integer):
            raise UserError(f"level must be the number of a level, got {short(self.level)}")

    @functools.cached_property
    def path(self) -> Path | None:
        """The path formula that a future must satisfy, if it is another one than G≤T Ψ."""
        if self.config.path is None:
            return None
        path = parse_path(self.config.path, self.atoms)
        if any(speaks_of_future(state) for state in path.states()):
            raise UserError(f"the labels of one future tell nothing of a P inside {path}")
        if path.bound() != self.config.horizon:
            raise UserError(f"{path} must be bounded by the horizon of the shield, {self.config.horizon} steps")
        return path

    @property
    def goes_on(self) -> Policy:
        """Who acts in an imagined future after the proposed action."""
        return self.backup if self.config.kind == "recovery" else self.policy

    def is_level(self, level: Any) -> Any:
        """Whether there is a level of this number."""
        return (level >= 0) & (level < len(self.config.levels()))


def _fit(thresholds: np.ndarray, atoms: int) -> bool:
    return thresholds.shape == (atoms,) and thresholds.dtype.kind in "fiu" and bool(are_thresholds(thresholds))


def are_thresholds(values: Any) -> Any:
    """Whether label thresholds lie in (0, 1]: above, no label would ever hold, and nothing be overridden."""
    return ((values > 0) & (values <= 1)).all()

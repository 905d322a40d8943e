"""PCTL state and path formulas (paper, Sec. 2.2) and their meaning on finite traces.

    Φ ::= true | a | ¬Φ | Φ ∧ Φ | P~p(φ)          φ ::= X Φ | Φ U Φ | Φ U≤n Φ

with ~ one of ≥ > ≤ <, and `P=?` for values. F, G and their bounded forms are derived as in the paper. What a finite
prefix of a trace says about a path formula is three-valued; exact values on finite chains are in `ambs.spec.chain`.
"""

from __future__ import annotations

import enum
import math
import numbers
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

from ambs.errors import UserError
from ambs.spec.formula import Atoms, Constant, Formula, FormulaError, Not, bracketed

MAX_STEPS = 10**9


class Verdict(enum.IntEnum):
    """What a finite prefix settles about a path formula."""

    FALSE = 0
    TRUE = 1
    UNDECIDED = 2


@dataclass(frozen=True)
class Path(ABC):
    """Base of path formulas φ."""

    @abstractmethod
    def states(self) -> tuple[Formula, ...]:
        """The state formulas in it."""

    def on_traces(self, labels: Any, atoms: Atoms) -> Any:
        """Verdict codes (int8) `[...]` for prefixes s_0..s_L with labels `[..., L+1, atoms]`; NumPy or JAX, jit-able."""
        if labels.ndim < 2 or labels.shape[-2] < 1:
            raise FormulaError(f"a trace needs labels [..., states, atoms] and at least one state, got {labels.shape}")
        return self._verdicts(labels, atoms, labels.__array_namespace__())

    @abstractmethod
    def bound(self) -> int | None:
        """Steps after which every trace has settled it; None: there is no such number."""

    @abstractmethod
    def afterwards(self) -> _Timed:
        """What must hold from s_1 on, where s_0 does not settle it (expansion laws of Sec. 2.2)."""

    def lost(self, labels: Any, atoms: Atoms) -> Any:
        """Number of the state in which a whole trace s_0 … s_L has lost it, `[...]`; −1 of those that satisfy it."""
        kept = self.on_traces(labels, atoms) == int(Verdict.TRUE)
        return labels.__array_namespace__().where(kept, -1, self.falls(labels, atoms))

    @abstractmethod
    def falls(self, labels: Any, atoms: Atoms) -> Any:
        """Number of the state of s_0 … s_L from which on it is lost, `[...]`; of those that hold it means nothing."""

    @abstractmethod
    def _verdicts(self, labels: Any, atoms: Atoms, xp: Any) -> Any: ...


@dataclass(frozen=True)
class Next(Path):
    """`X Φ`."""

    operand: Formula

    def states(self) -> tuple[Formula, ...]:
        """The state formulas in it."""
        return (self.operand,)

    def bound(self) -> int | None:
        """One step."""
        return 1

    def afterwards(self) -> _Timed:
        """Φ in s_1: □≤0 Φ."""
        return Always(self.operand, 0)

    def falls(self, labels: Any, atoms: Atoms) -> Any:
        """After the one step."""
        del atoms
        xp = labels.__array_namespace__()
        return xp.full(labels.shape[:-2], 1, dtype=xp.int32)

    def _verdicts(self, labels: Any, atoms: Atoms, xp: Any) -> Any:
        if labels.shape[-2] < 2:
            known = self.operand.constant()
            verdict = Verdict.UNDECIDED if known is None else Verdict(int(known))
            return xp.full(labels.shape[:-2], int(verdict), dtype=xp.int8)
        return xp.astype(self.operand.holds(labels[..., 1, :], atoms), xp.int8)

    def __str__(self) -> str:
        return f"X {bracketed(self.operand)}"


@dataclass(frozen=True)
class _Timed(Path):
    """Base of U, F and G; `steps`, a field of each, is the bound n of U≤n, F≤n and G≤n, or None."""

    def __post_init__(self) -> None:
        steps = self.as_until()[2]
        if steps is not None and not 0 <= steps <= MAX_STEPS:
            raise FormulaError(f"a step bound must be between 0 and {MAX_STEPS}, got {steps}")

    @abstractmethod
    def as_until(self) -> tuple[Formula, Formula, int | None, bool]:
        """(Φ₁, Φ₂, n, negated) such that this is Φ₁ U≤n Φ₂ or its negation (◇ and □ of Sec. 2.2)."""

    def bound(self) -> int | None:
        """n."""
        return self.as_until()[2]

    def afterwards(self) -> _Timed:
        """The same with one step less."""
        steps = self.bound()
        if steps == 0:
            raise FormulaError(f"{self} is settled by the first state")
        return self if steps is None else replace(self, steps=steps - 1)  # type: ignore[call-arg]  # A field of each.

    def falls(self, labels: Any, atoms: Atoms) -> Any:
        """As said above; of U≤n at its bound, if Φ₁ holds until then."""
        first, second, steps, negated = self.as_until()
        xp = labels.__array_namespace__()
        if negated:
            return _first(second.holds(labels, atoms), xp)
        last = labels.shape[-2] - 1 if steps is None else min(labels.shape[-2] - 1, steps)
        return xp.minimum(_first(~first.holds(labels, atoms), xp), last)

    def _verdicts(self, labels: Any, atoms: Atoms, xp: Any) -> Any:
        first, second, steps, negated = self.as_until()
        seen = labels.shape[-2] if steps is None else min(labels.shape[-2], steps + 1)
        labels = labels[..., :seen, :]
        reached = _first(second.holds(labels, atoms), xp)
        broken = _first(~first.holds(labels, atoms), xp)
        true = (reached < seen) & (reached <= broken)
        false = (broken < seen) & (broken < reached)
        # Nothing can be added: the bound is reached, or Φ₂ holds in no state at all.
        if (steps is not None and seen == steps + 1) or second.constant() is False:
            false = ~true
        if negated:
            true, false = false, true
        verdict = xp.where(true, int(Verdict.TRUE), xp.where(false, int(Verdict.FALSE), int(Verdict.UNDECIDED)))
        return xp.astype(verdict, xp.int8)


def _first(holds: Any, xp: Any) -> Any:
    """Index of the first True on the last axis, or its length where there is none."""
    return xp.where(holds.any(axis=-1), holds.argmax(axis=-1), holds.shape[-1])


@dataclass(frozen=True)
class Until(_Timed):
    """`Φ U Φ` or `Φ U<=n Φ`."""

    left: Formula
    right: Formula
    steps: int | None = None

    def states(self) -> tuple[Formula, ...]:
        """The state formulas in it."""
        return (self.left, self.right)

    def as_until(self) -> tuple[Formula, Formula, int | None, bool]:
        """Itself."""
        return self.left, self.right, self.steps, False

    def __str__(self) -> str:
        return f"{bracketed(self.left)} U{_bound(self.steps)} {bracketed(self.right)}"


@dataclass(frozen=True)
class Eventually(_Timed):
    """`F Φ` or `F<=n Φ`: true U Φ."""

    operand: Formula
    steps: int | None = None

    def states(self) -> tuple[Formula, ...]:
        """The state formulas in it."""
        return (self.operand,)

    def as_until(self) -> tuple[Formula, Formula, int | None, bool]:
        """◇Φ = true U Φ."""
        return Constant(True), self.operand, self.steps, False

    def __str__(self) -> str:
        return f"F{_bound(self.steps)} {bracketed(self.operand, 0)}"


@dataclass(frozen=True)
class Always(_Timed):
    """`G Φ` or `G<=n Φ`: Φ holds in s_0 … s_n."""

    operand: Formula
    steps: int | None = None

    def states(self) -> tuple[Formula, ...]:
        """The state formulas in it."""
        return (self.operand,)

    def as_until(self) -> tuple[Formula, Formula, int | None, bool]:
        """□Φ = ¬◇¬Φ."""
        return Constant(True), Not(self.operand), self.steps, True

    def __str__(self) -> str:
        return f"G{_bound(self.steps)} {bracketed(self.operand, 0)}"


def _bound(steps: int | None) -> str:
    return "" if steps is None else f"<={steps}"


@dataclass(frozen=True)
class Probability(Formula):
    """`P~p [ φ ]`, or `P=? [ φ ]` if comparison and bound are None."""

    path: Path
    comparison: str | None
    bound: Decimal | None

    def __post_init__(self) -> None:
        if (self.comparison is None) != (self.bound is None):
            raise FormulaError("a probability bound needs both a comparison and a number")
        if self.comparison not in (None, ">=", ">", "<=", "<"):
            raise FormulaError(f"probabilities are compared with >=, >, <= or <, not {self.comparison!r}")
        if self.bound is not None and not 0 <= self.bound <= 1:
            raise FormulaError(f"a probability bound must be between 0 and 1, got {self.bound}")
        super().__post_init__()

    @property
    def is_query(self) -> bool:
        """Whether this is `P=?`, which asks for a value and not for a truth."""
        return self.bound is None

    def children(self) -> tuple[Formula, ...]:
        """Direct subformulas."""
        return self.path.states()

    def admits(self, values: Any) -> Any:
        """Whether probabilities satisfy the bound; arrays or numbers."""
        match self.comparison:
            case ">=":
                return values >= float(self.bound or 0)
            case ">":
                return values > float(self.bound or 0)
            case "<=":
                return values <= float(self.bound or 0)
            case "<":
                return values < float(self.bound or 0)
        raise FormulaError(f"{self} asks for a value and is neither true nor false")

    def __str__(self) -> str:
        relation = "=?" if self.is_query else f"{self.comparison}{self.bound:f}"
        return f"P{relation} [ {self.path} ]"


def bounded_safety(psi: Formula, safety_level: float | Decimal, horizon: int) -> Probability:
    """Δ-bounded safety P≥1−Δ(□≤n Ψ), Eq. 1: psi is Ψ, safety_level Δ (read as the decimal it prints as), horizon n."""
    if not isinstance(psi, Formula):
        raise UserError(f"psi must be a formula, such as ambs.parse_formula('!hazard') gives, got {psi!r}")
    if isinstance(horizon, bool) or not isinstance(horizon, numbers.Integral):
        raise UserError(f"the horizon n must be a whole number, got {horizon!r}")
    number = isinstance(safety_level, numbers.Real | Decimal) and not isinstance(safety_level, bool | Fraction)
    if not number or not math.isfinite(safety_level) or not 0 <= safety_level <= 1:
        raise UserError(f"the safety level Δ must be between 0 and 1, got {safety_level!r}")
    delta = Decimal(str(safety_level))
    return Probability(Always(psi, horizon), ">=", 1 - delta)

"""Theorems 1–3: how many traces are enough, what they buy, and what must be true of the model.

Notation of the paper: ε approximation error, δ failure probability, Δ safety level, n horizon, m traces, α bound on the KL
divergence of one model step. Theorem 1 samples the true system, Theorem 2 a model of it. The step of Theorem 2's printed
proof that compares averaged state distributions does not hold; its conclusion does, on path measures, and the KL chain rule
improves its premise from ε²/(2n²) to ε²/(2n).
"""

from __future__ import annotations

import math
import numbers
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from ambs.errors import UserError, one_line

Real = int | float | Decimal | Fraction


SMALLEST, LARGEST = 1e-9, 10**9
"""Probabilities below and counts above are refused."""


def decimal_fraction(value: Real) -> Fraction:
    """The number a person meant: 0.1 is one tenth, not the nearest binary fraction."""
    if not isinstance(value, numbers.Real | Decimal) or isinstance(value, bool) or not math.isfinite(value):
        raise UserError(f"expected a finite number, got {one_line(value)}")
    return value if isinstance(value, Fraction) else Fraction(str(value))


def _plain(value: Real) -> Any:
    return float(value) if isinstance(value, Decimal | Fraction) else value


def traces_needed(epsilon: float, delta: float, *, model: bool = False, sides: int = 2, decisions: int = 1) -> int:
    """Least m of Theorem 1 (Eq. 2), or with `model` of Theorem 2 (Eq. 4), which spends half of ε on the model.

    `sides=1` bounds the error in the dangerous direction only; `decisions` > 1 makes δ hold for that many decisions
    together (union bound).
    """
    _check(epsilon=epsilon, delta=delta, sides=sides, decisions=decisions)
    share = epsilon / 2 if model else epsilon
    return math.ceil(math.log(sides * decisions / delta) / (2 * share**2))


def epsilon_achieved(traces: int, delta: float, *, model: bool = False, sides: int = 2, decisions: int = 1) -> float:
    """The ε that m traces give with probability 1 − δ; Theorem 1, or Theorem 2 with `model`."""
    _check(traces=traces, delta=delta, sides=sides, decisions=decisions)
    sampling = math.sqrt(math.log(sides * decisions / delta) / (2 * traces))
    return 2 * sampling if model else sampling


def delta_achieved(traces: int, epsilon: float, *, model: bool = False, sides: int = 2, decisions: int = 1) -> float:
    """The δ with which m traces give ε, at most 1; Theorem 1, or Theorem 2 with `model`."""
    _check(traces=traces, epsilon=epsilon, sides=sides, decisions=decisions)
    share = epsilon / 2 if model else epsilon
    return min(1.0, sides * decisions * math.exp(-2 * traces * share**2))


def kl_premise(epsilon: float, horizon: int) -> float:
    """Theorem 2 as printed (Eq. 3): one step of the model may differ by α ≤ ε²/(2n²) nats, in every state."""
    _check(epsilon=epsilon, horizon=horizon)
    return epsilon**2 / (2 * horizon**2)


def kl_premise_chain_rule(epsilon: float, horizon: int) -> float:
    """α ≤ ε²/(2n): the same conclusion from the chain rule of KL and one use of Pinsker, √(nα/2) ≤ ε/2."""
    _check(epsilon=epsilon, horizon=horizon)
    return epsilon**2 / (2 * horizon)


def kl_premise_unequal_split(epsilon: float, delta: float, horizon: int, traces: int) -> float | None:
    """α when sampling takes what m traces need of ε and the model gets the rest; None if nothing is left."""
    _check(epsilon=epsilon, horizon=horizon)
    left = epsilon - epsilon_achieved(traces, delta)
    return 2 * left**2 / horizon if left > 0 else None


def kl_premise_binary(safety_level: float, delta: float, horizon: int, traces: int, violating: int) -> float:
    """α at which `violating` of m traces still prove μ ≥ 1 − Δ with probability 1 − δ; 0 if they prove nothing.

    Data processing gives kl(μ ‖ μ̂) ≤ nα, and the exact one-sided binomial (Clopper–Pearson) bound gives μ̂ ≥ L; so μ ≥ 1−Δ
    as soon as nα ≤ kl(1−Δ ‖ L).
    """
    _check(safety_level=safety_level, delta=delta, horizon=horizon, traces=traces)
    lower = safe_share_lower_bound(traces, violating, delta)
    floor = 1 - safety_level
    return binary_kl(floor, lower) / horizon if lower > floor else 0.0


def binary_kl(p: float, q: float) -> float:
    """KL divergence of Bernoulli(p) from Bernoulli(q), nats."""
    for share in (p, q):
        _check(share=share)

    def part(a: float, b: float) -> float:
        if a == 0:
            return 0.0
        return a * math.log(a / b) if b > 0 else math.inf

    return part(p, q) + part(1 - p, 1 - q)


def safe_share_lower_bound(traces: int, violating: int, delta: float) -> float:
    """One-sided Clopper–Pearson lower bound on μ̂ after `violating` of m traces violated."""
    _check(violating=violating, delta=delta)
    return float(clopper_pearson(traces, np.asarray(violating), 2 * delta)[0]) if delta < 0.5 else 0.0


def clopper_pearson(traces: int, violating: np.ndarray, delta: float) -> tuple[np.ndarray, np.ndarray]:
    """Exact two-sided 1 − δ interval for the share of safe traces, for an array of violating counts."""
    from scipy.stats import beta

    _check(traces=traces, delta=delta)
    violating = np.asarray(violating)
    safe = traces - violating
    with np.errstate(invalid="ignore"):
        low = np.where(safe == 0, 0.0, beta.ppf(delta / 2, safe, violating + 1))
        high = np.where(violating == 0, 1.0, beta.ppf(1 - delta / 2, safe + 1, violating))
    return low, high


def accept_count(safety_level: Real, epsilon: Real, traces: int) -> int:
    """Most violating traces at which μ̃ ∈ [1 − Δ + ε, 1] (Alg. 2): ⌊m(Δ − ε)⌋, in exact decimal arithmetic."""
    _check(safety_level=_plain(safety_level), epsilon=_plain(epsilon), traces=traces)
    margin = decimal_fraction(safety_level) - decimal_fraction(epsilon)
    if margin < 0:
        raise UserError(
            f"the approximation error ε = {epsilon} must not exceed the safety level Δ = {safety_level}: "
            "no number of safe traces could be accepted"
        )
    return math.floor(traces * margin)


def acceptance_probability(mu: float, max_violating: int, traces: int) -> float:
    """P(the fixed-m rule accepts) when each trace is safe with probability μ̂: an exact binomial tail."""
    _check(share=mu, violating=max_violating, traces=traces)
    from scipy.stats import binom

    return float(binom.cdf(max_violating, traces, 1 - mu))


def state_divergence_bound(belief_divergence: float) -> float:
    """Theorem 3: D_f between next-state distributions is at most D_f between next-belief distributions.

    Nothing is lost in numbers; the point is which divergence may stand in Theorem 2's premise under partial observability.
    """
    _check(divergence=belief_divergence)
    return belief_divergence


_NAMES = {
    "epsilon": "the approximation error ε",
    "delta": "the failure probability δ",
    "safety_level": "the safety level Δ",
    "horizon": "the horizon n",
    "traces": "the number of traces m",
    "decisions": "the number of decisions",
    "sides": "the number of sides",
    "violating": "the number of violating traces",
    "share": "a probability",
    "divergence": "a divergence",
}


def _check(**settings: int | float) -> None:
    for name, value in settings.items():
        if not isinstance(value, numbers.Real) or isinstance(value, bool | Fraction):
            raise UserError(f"{_NAMES[name]} must be a number, got {one_line(value)}")
        if name == "divergence":
            if not value >= 0:
                raise UserError(f"{_NAMES[name]} is at least 0, got {value}")
        elif name == "share":
            if not 0 <= value <= 1:
                raise UserError(f"{_NAMES[name]} must lie between 0 and 1, got {value}")
        elif name in ("epsilon", "delta", "safety_level"):
            if not 0 < value < 1:
                raise UserError(f"{_NAMES[name]} must lie strictly between 0 and 1, got {value}")
            if value < SMALLEST:
                raise UserError(f"{_NAMES[name]} below {SMALLEST:g} is beyond what can be computed, got {value}")
        elif name == "sides":
            if value not in (1, 2):
                raise UserError(f"{_NAMES[name]} must be 1 or 2, got {value}")
        elif not (least := int(name != "violating")) <= value <= LARGEST or value != int(value):
            raise UserError(f"{_NAMES[name]} must be a whole number from {least} to {LARGEST}, got {value}")

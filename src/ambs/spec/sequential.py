"""Decide early: a one-sided betting test of μ̂ ≥ p0 that is valid at any stopping time.

Traces are bets. Wealth starts at 1 and is multiplied by 1 + λ(X − p0) for a trace with X = 1 (safe) or 0 (violating), so
under μ̂ ≤ p0 it is a supermartingale and by Ville's inequality reaches 1/δ with probability at most δ, whenever one looks.
λ = (p1 − p0)/(p0(1 − p0)) grows it fastest if the truth is p1; then wealth is the likelihood ratio of p1 against p0.

Looks happen after whole chunks only. Accept at wealth ≥ 1/δ, override (futility) at wealth ≤ δ, and override at the cap:
what is not shown to be safe is not safe. A deadline may end the test after any chunk, with the same answer: override.
All comparisons are made once, in exact arithmetic, as integer counts of violating traces per look.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ambs.errors import UserError
from ambs.spec.bounds import Real, decimal_fraction


@dataclass(frozen=True)
class BettingTest:
    """null p0 against alternative p1 at level δ, looking every `chunk` traces up to `cap`; all as exact fractions."""

    null: Fraction
    alternative: Fraction
    delta: Fraction
    chunk: int
    cap: int

    @property
    def looks(self) -> tuple[int, ...]:
        """Numbers of traces after which the test looks."""
        return tuple(range(self.chunk, self.cap + 1, self.chunk))

    @property
    def bet(self) -> Fraction:
        """λ, the share of the wealth at stake."""
        return (self.alternative - self.null) / (self.null * (1 - self.null))

    def wealth(self, traces: int, violating: int) -> Fraction:
        """M = ∏(1 + λ(X_i − p0)) after these counts."""
        win, lose = 1 + self.bet * (1 - self.null), 1 - self.bet * self.null
        return win ** (traces - violating) * lose**violating

    def thresholds(self) -> tuple[tuple[int, int], ...]:
        """Per look: accept at ≤ the first number of violating traces (−1: never), override at ≥ the second.

        At the last look, the cap, whatever is not accepted is overridden.
        """
        return tuple(self._threshold(look) for look in self.looks)

    @property
    def least_traces(self) -> int:
        """Safe traces, none violating, after which wealth reaches 1/δ: with fewer the test can never accept."""
        guess = self.about_least_traces
        return next(m for m in range(max(1, guess - 1), guess + 2) if self.wealth(m, 0) >= 1 / self.delta)

    @property
    def about_least_traces(self) -> int:
        """`least_traces` by logarithms, at most one off; where the margin is tiny, exact powers would take forever."""
        return math.ceil(-math.log(self.delta) / math.log(self.alternative / self.null))

    def _threshold(self, look: int) -> tuple[int, int]:
        accept = self._count(look, 1 / self.delta, lambda wealth: wealth >= 1 / self.delta) - 1
        return accept, self._count(look, self.delta, lambda wealth: wealth > self.delta)

    def _count(self, look: int, border: Fraction, holds: Callable[[Fraction], bool]) -> int:
        """How many of k = 0, 1, … violating traces leave the wealth on the near side of the border.

        Logarithms find the place, exact fractions settle it: powers of long fractions are slow.
        """
        win, lose = 1 + self.bet * (1 - self.null), 1 - self.bet * self.null
        if lose == 0:
            return int(holds(self.wealth(look, 0)))
        crossing = (look * math.log(win) - math.log(border)) / (math.log(win) - math.log(lose))
        count = min(max(math.floor(crossing), 0), look + 1)
        while count <= look and holds(self.wealth(look, count)):
            count += 1
        while count > 0 and not holds(self.wealth(look, count - 1)):
            count -= 1
        return count


def betting_test(
    safety_level: Real,
    epsilon: Real,
    delta: Real,
    *,
    chunk: int = 64,
    cap: int = 512,
    model_error: Real = 0,
) -> BettingTest:
    """The shield's test of μ̂ ≥ 1 − Δ, betting on 1 − Δ + ε.

    `model_error` is kept back for the model: with .045 of ε = .09 the test asks for μ̂ ≥ .945 instead of .9, so that
    μ ≥ .9 still follows if the model's own error is at most .045.
    """
    level, error, failure, reserve = map(decimal_fraction, (safety_level, epsilon, delta, model_error))
    if not 0 < failure < 1:
        raise UserError(f"the failure probability δ must lie strictly between 0 and 1, got {delta}")
    if not 0 < level < 1:
        raise UserError(f"the safety level Δ must lie strictly between 0 and 1, got {safety_level}")
    if not 0 < error <= level:
        raise UserError(f"the approximation error ε must lie in (0, Δ = {safety_level}], got {epsilon}")
    if not 0 <= reserve < error:
        raise UserError(f"the part of ε kept for the model must lie in [0, ε = {epsilon}), got {model_error}")
    whole = all(isinstance(count, numbers.Integral) for count in (chunk, cap))
    if not whole or chunk < 1 or cap < chunk or cap % chunk:
        raise UserError(f"the cap of traces must be a positive multiple of the chunk, got cap {cap} and chunk {chunk}")
    test = BettingTest(1 - level + reserve, 1 - level + error, failure, chunk, cap)
    guess = test.about_least_traces
    needed = guess if guess > cap + 1 else test.least_traces
    if needed > cap:
        raise UserError(
            f"with at most {cap} traces this test could never accept, not even if all are safe; it takes {needed}"
        )
    return test


@dataclass(frozen=True)
class Characteristics:
    """What a decision rule does when every trace is safe with probability μ̂, independently."""

    accept: float
    expected_traces: float
    stops: tuple[tuple[int, float, float], ...]
    """(traces, P(accept there), P(override there)) per look."""


def characteristics(looks: tuple[int, ...], thresholds: tuple[tuple[int, int], ...], mu: float) -> Characteristics:
    """Exact operating characteristics of any rule given as integer thresholds, by dynamic programming over the looks."""
    stops = tuple(_stops(looks, thresholds, mu))
    return Characteristics(
        accept=math.fsum(accepted for _, accepted, _ in stops),
        expected_traces=math.fsum(look * (accepted + overridden) for look, accepted, overridden in stops),
        stops=stops,
    )


def _stops(
    looks: tuple[int, ...], thresholds: tuple[tuple[int, int], ...], mu: float
) -> Iterator[tuple[int, float, float]]:
    from scipy.stats import binom

    going = np.ones(1)
    before = 0
    for look, (accept_at, override_at) in zip(looks, thresholds, strict=True):
        fresh = binom.pmf(np.arange(look - before + 1), look - before, 1 - mu)
        counts = np.convolve(going, fresh)
        index = np.arange(counts.size)
        accepted = index <= accept_at
        overridden = ~accepted if look == looks[-1] else index >= override_at
        yield look, float(counts[accepted].sum()), float(counts[overridden].sum())
        going, before = np.where(accepted | overridden, 0.0, counts), look

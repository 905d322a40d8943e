"""Settings of the shield. `ShieldConfig()` is the `corrected` semantics, `paper_semantics()` what the paper's code did.

`SafetyConfig` is what a shield has in common with policies and critics.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import tyro

from ambs.config.checks import above, all_finite, at_least, at_most, checked, choice, of_types, one_of, within
from ambs.errors import UserError
from ambs.spec.bounds import LARGEST, accept_count, delta_achieved, epsilon_achieved
from ambs.spec.parser import parse_path
from ambs.spec.sequential import BettingTest, betting_test

MOST_COST = 1e6
"""Of C, and 1 over it the least: returns of cost must stay numbers in single precision."""
MOST_TRACES, MOST_STEPS, MOST_ENTRIES = 100_000, 100_000, 20_000_000
"""Of a decision that anybody could wait for."""


RULES = {"sequential": True, "fixed": False}
"""Names of the decision rules, and whether each looks after every chunk of futures. Their tables are
`ambs.shield.rules.TABLES`, and, for the inspector's page, those of inspector-rules.js."""


KINDS = {
    "ambs": "the proposed action, then the task policy, must keep Ψ (Alg. 2)",
    "recovery": "the proposed action, then the backup policy, must keep Ψ: there is a way back (model-predictive shielding)",
    "latent": "as ambs, a few steps ahead and no further (latent shielding)",
    "critic": "one step ahead, then by what the safety critics say",
    "prescient": "as ambs, in the simulator itself, for evaluation in worlds that can be saved (bounded-prescience shielding)",
}
"""Kinds of shield, and what each asks of an action before it is accepted."""


@dataclass(frozen=True)
class SafetyConfig:
    """What a violation amounts to: one C and one γ for policies, critics and the shield, whether that is on or off."""

    cost: float = 10.0
    """C: what a step that violates Ψ costs."""
    discount: Annotated[float, tyro.conf.arg(aliases=["--gamma"])] = 0.997
    """γ: of returns of reward and of cost, and of traces judged by their cost (critics, or `mean` labels)."""

    def __post_init__(self) -> None:
        of_types(self)
        all_finite(self)
        above(self, 0, "cost")
        at_least(self, 1 / MOST_COST, "cost")
        at_most(self, MOST_COST, "cost")
        within(self, "(0, 1)", "discount")


@dataclass(frozen=True)
class ShieldConfig:
    """When an action is accepted (Alg. 2). Defaults: the paper's Δ, ε, δ, T, m; sequential rule; all T steps rolled out."""

    kind: Annotated[str, choice(KINDS)] = "ambs"
    """Which futures are judged: `ambs`, the proposed action and then the task policy; `recovery`, then the backup policy;
    `latent`, as ambs but `short` steps; `critic`, one step and the critics; `prescient`, as ambs in the simulator itself."""
    short: int = 5
    """Steps that the kind `latent` looks ahead, T at most."""
    safety_level: float = 0.1
    """Δ: an accepted action keeps Ψ for the whole horizon with probability at least 1 − Δ."""
    asked: Annotated[float | None, tyro.conf.Suppress] = None
    """The Δ that was asked for, where a blurred model made calibration put another one in force; None: Δ itself."""
    approximation_error: float = 0.09
    """ε: the margin on top; an action is accepted on evidence for 1 − Δ + ε."""
    failure_probability: float = 0.01
    """δ: the chance, per decision, that the evidence misleads."""
    horizon: int = 30
    """T: steps ahead for which Ψ must hold."""
    traces: int = 512
    """m: imagined futures per decision, or the most of them under the sequential rule."""
    path: Annotated[str | None, tyro.conf.Suppress] = None  # --spec on the command line
    """Another bounded path formula than G≤T Ψ that accepted actions must satisfy, e.g. `!hazard U<=20 goal`, T its bound."""
    rule: Annotated[str, choice(RULES)] = "sequential"
    """`sequential` stops as soon as the evidence suffices (betting test); `fixed` always draws m and counts."""
    chunk: int = 64
    """Futures drawn between two looks of the sequential rule."""
    model_error: float = 0.0
    """Part of ε that the sequential rule keeps back for the model's own error; .045 keeps half."""
    labels: Literal["mode", "sample", "mean"] = "sample"
    """What a trace takes from label probabilities: thresholded, drawn (then the level that is in force is calibrated), or as
    expected cost."""
    label_threshold: float | tuple[float, ...] = 0.5
    """`mode`: an atom holds where its probability reaches this; one number, or one per atom."""
    rolled: int | None = None
    """H: steps actually rolled out; less than T only together with critics. None: all T."""
    critics: Literal["max", "min"] | None = None
    """How two safety critics judge the steps beyond H; None: no critic, and only then do the theorems apply."""
    threshold_exponent: float = -0.5
    """A trace is violating if its cost exceeds γ^(T + this)·C."""
    check_initial: bool = True
    """Whether s_0 must satisfy Ψ too (G≤T); if it does not, override at once."""
    hold: int = 1
    """Agent steps for which the backup policy's action is held while the state violates Ψ already: a policy that does not know
    where it is changes its mind at every step, and stays."""
    latch: int = 1
    """Agent steps for which the backup policy stays in control once it has taken over, that step among them: more than 1 lets the
    two policies fight less over one place, and costs what the task policy would have done meanwhile."""
    leave: Literal["sample", "mode"] = "mode"
    """What of the backup policy acts while the state violates Ψ already: its best action, or a drawn one."""
    failsafe_after: int | None = None
    """Refusals in a row (observations, or numbers that are not finite) in which the backup policy acts on the last good state;
    from the next one on the world's fallback action does, until a decision can be trusted again. None: never."""
    resample_first: bool = False
    """Whether each trace draws its own first action; then the executed action itself is never checked."""
    frame_costs: Literal["any", "sum"] = "any"
    """Expected cost of a step of several frames: C·P(Ψ fails) of the most dangerous, or their costs summed, C at most."""

    def __post_init__(self) -> None:
        of_types(self)
        for name, choices in _CHOICES.items():
            one_of(name, getattr(self, name), choices)
        if self.asked is not None and not 0 < self.asked <= self.safety_level:
            raise UserError(f"asked must lie in (0, safety_level = {self.safety_level}], got {self.asked}")
        within(self, f"[1, {LARGEST}]", "horizon")
        if self.rolled is not None and not 1 <= self.rolled <= self.horizon:
            raise UserError(
                f"the rolled-out steps must lie between 1 and the horizon {self.horizon}, got {self.rolled}"
            )
        at_least(self, 1, "short")
        if self.steps < self.horizon and self.critics_used is None and self.kind != "latent":
            raise UserError(
                f"only {self.steps} of {self.horizon} steps are rolled out: set critics to max or min to judge the rest"
            )
        if self.path is not None:
            parse_path(self.path)
        if self.path is not None and self.judged_by_cost:
            raise UserError(
                f"costs and critics know Ψ alone, and cannot judge {self.path}: leave out critics and `mean`"
            )
        if self.steps > MOST_STEPS:
            raise UserError(f"at most {MOST_STEPS} steps can be rolled out, got {self.steps}")
        within(self, f"[1, {MOST_STEPS}]", "hold", "latch")
        at_least(self, 0, "failsafe_after")
        within(self, "(-1, 0]", "threshold_exponent")
        thresholds = self.label_threshold if isinstance(self.label_threshold, tuple) else (self.label_threshold,)
        if not thresholds or not all(0 < threshold <= 1 for threshold in thresholds):
            raise UserError(f"label_threshold must lie in (0, 1], got {self.label_threshold}")
        delta_achieved(self.traces, self.approximation_error)
        epsilon_achieved(self.traces, self.failure_probability)
        if not 0 <= self.model_error < self.approximation_error:
            raise UserError(f"model_error must lie in [0, approximation_error), got {self.model_error}")
        _check_size(self.traces, self.chunk if RULES[self.rule] else self.traces)
        accept_count(self.safety_level, self.approximation_error, self.traces)
        if self.rule == "sequential":
            self.betting_test()

    def at_level(self, level: float) -> "ShieldConfig":
        """These settings with another Δ in force. The sequential rule's ε is in proportion; that of rules that look once, as the
        fixed one, which accepts up to Δ − ε of the traces, stays what it is."""
        if checked("safety_level", level, float) == self.safety_level:
            return self
        share = level / self.safety_level if RULES[self.rule] else 1.0
        return replace(
            self,
            safety_level=level,
            approximation_error=round(self.approximation_error * share, 12),
            asked=self.safety_level if self.asked is None else self.asked,
        )

    def as_asked(self) -> "ShieldConfig":
        """These settings with the Δ that was asked for in force again, and its ε."""
        return self if self.asked is None else replace(self.at_level(self.asked), asked=None)

    def levels(self) -> tuple[float, ...]:
        """Δ and the levels above it that calibration may put in force, evenly spaced in log-odds."""
        if self.safety_level >= HIGHEST_LEVEL:
            return (self.safety_level,)
        lowest, highest = (math.log(level / (1 - level)) for level in (self.safety_level, HIGHEST_LEVEL))
        odds = (lowest + (highest - lowest) * index / (LEVELS - 1) for index in range(1, LEVELS))
        return (self.safety_level, *(round(1 / (1 + math.exp(-one)), 6) for one in odds))

    @property
    def steps(self) -> int:
        """Steps that a rollout must have."""
        match self.kind:
            case "latent":
                return min(self.short, self.horizon)
            case "critic":
                return 1
            case "ambs" if self.rolled is not None:
                return self.rolled
        return self.horizon

    @property
    def critics_used(self) -> Literal["max", "min"] | None:
        """How critics judge the steps beyond the imagined ones; None: they are not asked. They speak of the task policy, so only
        kinds in which that goes on can ask them."""
        match self.kind:
            case "ambs":
                return self.critics
            case "critic":
                return self.critics or "max"
        return None

    @property
    def judged_by_cost(self) -> bool:
        """Whether a trace is judged by its discounted cost instead of by `any violation`."""
        return self.critics_used is not None or self.labels == "mean"

    def cost_threshold(self, safety: SafetyConfig) -> float:
        """Cost above which a trace counts as violating (Alg. 2, with the boundary moved off float32's doubt)."""
        return float(safety.discount ** (self.horizon + self.threshold_exponent) * safety.cost)

    @property
    def caveat(self) -> str:
        """What a reader must know of these settings: another Δ than was asked for, and what the theorems do not cover; empty if
        they speak of exactly this shield."""
        found = []
        if self.asked is not None:
            why = "its model is too blurred for less"
            why += ", or was never judged" if self.safety_level >= HIGHEST_LEVEL else ""
            found.append(
                f"Δ = {self.safety_level:.3g} is in force instead of the {self.asked:g} that was asked for: {why}"
            )
        if self.kind == "latent" and self.steps < self.horizon:
            found.append(f"it looks {self.steps} of {self.horizon} steps ahead: the theorems speak of these alone")
        if self.kind == "recovery":
            found.append(
                "the backup policy is imagined after the action: the theorems speak of that, not of the task policy"
            )
        if self.critics_used is not None:
            found.append(
                "critics judge the steps beyond the imagined ones: the estimate is biased and no theorem applies"
            )
        elif self.labels == "mean":
            found.append("traces are judged by expected cost: the estimate is biased and no theorem applies")
        elif self.resample_first or not self.check_initial:
            found.append(
                "the proposed action or the current state is not checked: the theorems speak of another property"
            )
        return "; ".join(found)

    def betting_test(self) -> BettingTest:
        """The sequential rule's test."""
        return betting_test(
            self.safety_level,
            self.approximation_error,
            self.failure_probability,
            chunk=self.chunk,
            cap=self.traces,
            model_error=self.model_error,
        )


LEVELS, HIGHEST_LEVEL = 24, 0.98


def margin(error: float, level: float) -> float:
    """The ε that goes with a Δ that is asked for: it stays, unless Δ does not exceed it; then it is .9 Δ, the paper's share."""
    return error if error < level or not level > 0 else round(0.9 * level, 12)


def _check_size(traces: int, chunk: int) -> None:
    """Refuse rules whose table of intervals would take minutes to make, or for ever."""
    if traces > MOST_TRACES or (traces // max(chunk, 1)) * traces > MOST_ENTRIES:
        raise UserError(
            f"at most {MOST_TRACES} traces can be drawn, in chunks that leave at most {MOST_ENTRIES:,} pairs of a look and a "
            f"count, got {traces} traces in chunks of {chunk}"
        )


_CHOICES: dict[str, Iterable[Any]] = {
    "rule": RULES,
    "kind": KINDS,
    "labels": ("mode", "sample", "mean"),
    "critics": (None, "max", "min"),
    "frame_costs": ("any", "sum"),
    "leave": ("sample", "mode"),
}


def paper_semantics() -> ShieldConfig:
    """What the authors' code did: 15 steps and critics, fixed m, expected costs, first action re-drawn per trace."""
    return ShieldConfig(
        rule="fixed",
        labels="mean",
        rolled=15,
        critics="min",
        threshold_exponent=0.0,
        check_initial=False,
        leave="sample",
        resample_first=True,
        frame_costs="sum",
    )

"""Settings of the shield. `ShieldConfig()` is the `corrected` semantics, `paper_semantics()` what the paper's code did."""

from dataclasses import dataclass
from typing import Literal

from ambs.errors import UserError
from ambs.spec.bounds import accept_count
from ambs.spec.sequential import BettingTest, betting_test


@dataclass(frozen=True)
class ShieldConfig:
    """When an action is accepted (Alg. 2). Defaults: the paper's Δ, ε, δ, T, m; sequential rule; all T steps rolled out."""

    safety_level: float = 0.1
    """Δ: an accepted action keeps Ψ for the whole horizon with probability at least 1 − Δ."""
    approximation_error: float = 0.09
    """ε: the margin on top; an action is accepted on evidence for 1 − Δ + ε."""
    failure_probability: float = 0.01
    """δ: the chance, per decision, that the evidence misleads."""
    horizon: int = 30
    """T: steps ahead for which Ψ must hold."""
    traces: int = 512
    """m: imagined futures per decision, or the most of them under the sequential rule."""
    rule: Literal["sequential", "fixed"] = "sequential"
    """`sequential` stops as soon as the evidence suffices (betting test); `fixed` always draws m and counts."""
    chunk: int = 64
    """Futures drawn between two looks of the sequential rule."""
    model_error: float = 0.0
    """Part of ε that the sequential rule keeps back for the model's own error; .045 keeps half."""
    labels: Literal["mode", "sample", "mean"] = "mode"
    """What a trace takes from label probabilities: thresholded, drawn, or as expected cost."""
    label_threshold: float | tuple[float, ...] = 0.5
    """`mode`: an atom holds where its probability reaches this; one number, or one per atom."""
    rolled: int | None = None
    """H: steps actually rolled out; less than T only together with critics. None: all T."""
    critics: Literal["max", "min"] | None = None
    """How two safety critics judge the steps beyond H; None: no critic, and only then do the theorems apply."""
    discount: float = 0.997
    """γ, for traces judged by their cost (critics, or `mean` labels)."""
    cost: float = 10.0
    """C: what a violated step costs, for the same traces."""
    threshold_exponent: float = -0.5
    """A trace is violating if its cost exceeds γ^(T + this)·C."""
    check_initial: bool = True
    """Whether s_0 must satisfy Ψ too (G≤T); if it does not, override at once."""
    resample_first: bool = False
    """Whether each trace draws its own first action; then the executed action itself is never checked."""

    def __post_init__(self) -> None:
        if self.horizon < 1:
            raise UserError(f"the horizon T must be at least 1, got {self.horizon}")
        if self.rolled is not None and not 1 <= self.rolled <= self.horizon:
            raise UserError(
                f"the rolled-out steps must lie between 1 and the horizon {self.horizon}, got {self.rolled}"
            )
        if self.steps < self.horizon and self.critics is None:
            raise UserError(
                f"only {self.steps} of {self.horizon} steps are rolled out: set critics to max or min to judge the rest"
            )
        if not 0 < self.discount <= 1 or not self.cost > 0:
            raise UserError(f"discount must lie in (0, 1] and cost above 0, got {self.discount} and {self.cost}")
        accept_count(self.safety_level, self.approximation_error, self.traces)
        if self.rule == "sequential":
            self.betting_test()

    @property
    def steps(self) -> int:
        """Steps that a rollout must have."""
        return self.horizon if self.rolled is None else self.rolled

    @property
    def judged_by_cost(self) -> bool:
        """Whether a trace is judged by its discounted cost instead of by `any violation`."""
        return self.critics is not None or self.labels == "mean"

    @property
    def cost_threshold(self) -> float:
        """Cost above which a trace counts as violating (Alg. 2, with the boundary moved off float32's doubt)."""
        return float(self.discount ** (self.horizon + self.threshold_exponent) * self.cost)

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


def paper_semantics() -> ShieldConfig:
    """What the authors' code did: 15 steps and critics, fixed m, expected costs, first action re-drawn per trace."""
    return ShieldConfig(
        rule="fixed",
        labels="mean",
        rolled=15,
        critics="min",
        threshold_exponent=0.0,
        check_initial=False,
        resample_first=True,
    )

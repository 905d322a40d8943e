"""Settings of model and agent: nested frozen dataclasses, the paper's values as defaults (its appendix "Hyperparameters")."""

from dataclasses import dataclass, field
from typing import Literal

from ambs.errors import UserError
from ambs.shield.config import ShieldConfig


@dataclass(frozen=True)
class Size:
    """Widths of all networks."""

    deter: int
    """Recurrent units of the GRU."""
    hidden: int
    """Units of every dense layer."""
    layers: int
    """Dense layers of heads, actors and critics."""
    cnn_depth: int
    """Channels of the first convolution; doubled at each of the next three."""
    latents: int = 32
    classes: int = 32
    vector_layers: int = 2
    """Layers of the encoder and decoder of vectors."""
    vector_units: int = 1024
    bins: int = 255
    """Bins of two-hot rewards and values."""


SIZES = {
    "xxs": Size(96, 96, 1, 8, latents=8, classes=8, vector_layers=1, vector_units=96, bins=63),
    "xs": Size(256, 256, 1, 24, vector_units=256),
    "s": Size(512, 512, 2, 32, vector_units=512),
    "m": Size(1024, 640, 3, 48, vector_units=640),
    "l": Size(2048, 768, 4, 64),
}
"""`xxs` is for CPUs, `l` is the paper's."""


@dataclass(frozen=True)
class ModelConfig:
    """The world model and its loss."""

    size: Literal["xxs", "xs", "s", "m", "l"] = "l"
    cost_head: Literal["labels", "two_hot"] = "labels"
    """`labels`: one Bernoulli per atom and frame, Ψ evaluated on them. `two_hot`: the paper's symlog two-hot cost."""
    positive_weight: float = 1.0
    """How much more a label that holds counts in the loss; undone in the probabilities."""
    dyn_scale: float = 0.5
    rep_scale: float = 0.1
    free_nats: float = 1.0
    learning_rate: float = 1e-4
    adam_eps: float = 1e-8
    clip: float = 1000.0

    def __post_init__(self) -> None:
        if self.size not in SIZES:
            raise UserError(f"size must be one of {', '.join(SIZES)}, got {self.size!r}")
        if not self.positive_weight > 0:
            raise UserError(f"positive_weight must be above 0, got {self.positive_weight}")

    @property
    def widths(self) -> Size:
        """The named size."""
        return SIZES[self.size]


@dataclass(frozen=True)
class AgentConfig:
    """Actors, critics and the penalty."""

    penalty: Literal["none", "penl", "plpg", "copt", "lag"] = "copt"
    alpha: float | None = None
    """Penalty coefficient α; None: 1.0, for plpg .8."""
    kappa: float = 0.01
    """COPT's sigmoid scale κ as a share of C."""
    actor_grad: Literal["reinforce", "dynamics"] = "reinforce"
    imagination: int = 15
    """H: steps imagined for learning."""
    discount: float = 0.997
    lam: float = 0.95
    """λ of the returns."""
    entropy: float = 3e-4
    ema_decay: float = 0.98
    """Of the critics' slow copies."""
    ema_regulariser: float = 1.0
    norm_decay: float = 0.99
    norm_limit: float = 1.0
    learning_rate: float = 3e-5
    adam_eps: float = 1e-5
    clip: float = 100.0
    plpg_stop_gradient: bool = True
    lag_start: float = 0.01
    """λ₀ of the Lagrangian."""
    lag_mu: float = 5e-9
    """μ₀."""
    lag_sigma: float = 1.5e-4
    """σ, by which μ grows."""
    lag_limit: float = 1.0
    """d: the cost return that is allowed."""
    lag_rule: Literal["min", "max"] = "min"
    """`min`: μ ← min{μ(1+σ), 1}. `max`, the paper's code: μ ← max{μ(1+σ), 1}, with ψ per state."""

    @property
    def penalty_weight(self) -> float:
        """α."""
        if self.alpha is not None:
            return self.alpha
        return 0.8 if self.penalty == "plpg" else 1.0


@dataclass(frozen=True)
class Config:
    """Everything that learns, and the shield."""

    model: ModelConfig = field(default_factory=ModelConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    shield: ShieldConfig = field(default_factory=ShieldConfig)

"""Settings of a run: nested frozen dataclasses, the paper's values as defaults (its appendix "Hyperparameters")."""

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

import tyro

from ambs.config.checks import LARGEST, MOST_ENVS, above, all_finite, at_least, at_most, of_types, one_of, within
from ambs.config.methods import METHODS, MethodName, PenaltyName
from ambs.errors import UserError
from ambs.shield.config import MOST_STEPS, SafetyConfig, ShieldConfig


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
    bin_limit: float = 20.0
    """They reach from minus to plus this, in symlog space."""


SIZES = {
    "xxs": Size(64, 64, 1, 8, latents=24, classes=8, vector_layers=1, vector_units=64, bins=49, bin_limit=6.0),
    "xs": Size(256, 256, 1, 24, vector_units=256),
    "s": Size(512, 512, 2, 32, vector_units=512),
    "m": Size(1024, 640, 3, 48, vector_units=640),
    "l": Size(2048, 768, 4, 64),
}
"""`xxs` is for CPUs, `l` is the paper's."""


@dataclass(frozen=True)
class ModelConfig:
    """The world model and its loss."""

    size: Annotated[Literal["xxs", "xs", "s", "m", "l"], tyro.conf.arg(aliases=["--size"])] = "l"
    """Widths of all networks; xxs is for CPUs, l is the paper's."""
    cost_head: Literal["labels", "two_hot"] = "labels"
    """`labels`: one Bernoulli per atom and frame, Ψ evaluated on them. `two_hot`: the paper's symlog two-hot cost."""
    positive_weight: float = 1.0
    """How much more a label that holds counts in the loss; undone in the probabilities."""
    standardise: bool = True
    """Whether entries of a vector are brought to one scale, by what a short survey at random finds."""
    grades: int = 0
    """Steps, four deviations to either side, by which the encoder is also told each entry of a vector (32, say): a threshold
    far out in an entry's range is hard to learn from the number alone. 0: the number alone."""
    vector_scale: float = 1.0
    """Weight of the vector's reconstruction; at 1, differences far below an entry's own spread are not worth encoding."""
    label_scale: float = 1.0
    """Weight of the labels' (or the cost's) loss; labels are rare, and at 1 the latents hardly encode what they need."""
    open_loop: int = 0
    """Steps for which labels are also learned on latents imagined without observations; 0: on filtered ones only."""
    open_loop_starts: int = 4
    """Places in every sequence from which that is done."""
    also_predict: Literal["nothing", "sensors"] = "nothing"
    """What the decoder must reconstruct beside what the agent sees: `sensors`, where the agent sees pictures only, is the vector
    that the simulator knows; the agent never sees it and needs it for nothing once it is trained."""
    dyn_scale: float = 0.5
    """β_dyn: weight of the divergence by which the prior learns to foretell the posterior."""
    rep_scale: float = 0.1
    """β_rep: weight of the same divergence where the posterior learns to be foretold."""
    free_nats: float = 1.0
    """Nats below which that divergence costs nothing."""
    learning_rate: float = 1e-4
    """Step size of Adam for the world model."""
    adam_eps: float = 1e-8
    """ε of that Adam."""
    clip: float = 1000.0
    """Norm to which the world model's gradient is clipped."""

    def __post_init__(self) -> None:
        of_types(self)
        one_of("size", self.size, SIZES)
        all_finite(self)
        above(self, 0, "positive_weight", "adam_eps", "clip")
        at_least(self, 1, "open_loop_starts")
        at_least(
            self, 0, "learning_rate", "grades", "open_loop", "vector_scale", "label_scale", "dyn_scale", "rep_scale"
        )
        at_least(self, 0, "free_nats")

    @property
    def widths(self) -> Size:
        """The named size."""
        return SIZES[self.size]


@dataclass(frozen=True)
class AgentConfig:
    """Actors, critics and the penalty."""

    penalty: PenaltyName = "copt"
    """What the task policy is taught about cost; it is the method's, and set by it."""
    alpha: float | None = None
    """Penalty coefficient α; None: 1.0, for plpg .8."""
    kappa: float = 0.01
    """COPT's sigmoid scale κ as a share of C."""
    actor_grad: Literal["reinforce", "dynamics"] = "reinforce"
    """How policies learn: `reinforce` weighs the logarithm of an action's probability with its advantage (the paper's equations),
    `dynamics` lets the gradient pass through the imagined steps (its code)."""
    imagination: int = 15
    """H: steps imagined for learning."""
    imagine_from: int | None = None
    """States of a batch from which futures are imagined, drawn at random; None: from all."""
    lam: float = 0.95
    """λ of the returns."""
    entropy: float = 3e-4
    """η: weight of the policies' entropy."""
    critic_mean: Literal["value", "symlog"] = "value"
    """What a critic's bins average: the return itself, or its symlog, by which random returns are read too low."""
    ema_decay: float = 0.98
    """Of the critics' slow copies."""
    ema_regulariser: float = 1.0
    """Weight with which critics also learn what their slow copies say."""
    norm_decay: float = 0.99
    """Of the running 5th and 95th percentile of returns, whose distance advantages are divided by."""
    norm_limit: float = 1.0
    """Least range by which the task policy's returns of reward and cost are divided."""
    backup_norm_limit: float = 0.03
    """Least range by which the backup policy's returns are divided, in units of C: cost is all it learns from, and divided by
    more than it ever amounts to it would drown in the entropy bonus."""
    unsafe_weight: float = 1.0
    """How much more futures that begin in a violating state count in the backup policy's learning: the way out."""
    backup_imitation: float = 0.0
    """What it costs the backup policy to do something else than the task policy would, in units of C at most per step; its way
    back to safety is then one that leads on."""
    learning_rate: float = 3e-5
    """Step size of Adam for policies and critics."""
    adam_eps: float = 1e-5
    """ε of that Adam."""
    clip: float = 100.0
    """Norm to which the gradient of each policy and each critic is clipped."""
    plpg_stop_gradient: bool = True
    """Whether plpg's weights are taken as given (the paper's equation) or learned through (its code)."""
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

    def __post_init__(self) -> None:
        of_types(self)
        all_finite(self)
        one_of("penalty", self.penalty, dict.fromkeys(method.penalty for method in METHODS.values()))
        at_least(self, 1, "imagination", "imagine_from")
        at_most(self, MOST_STEPS, "imagination")
        above(self, 0, "kappa", "adam_eps", "clip", "norm_limit", "backup_norm_limit", "unsafe_weight")
        at_least(self, 0, "alpha", "learning_rate", "entropy", "ema_regulariser", "lag_start", "lag_mu", "lag_sigma")
        at_least(self, 0, "backup_imitation")
        within(self, "[0, 1]", "lam", "ema_decay", "norm_decay")

    @property
    def penalty_weight(self) -> float:
        """α."""
        if self.alpha is not None:
            return self.alpha
        return 0.8 if self.penalty == "plpg" else 1.0


MOST_KEPT = 10_000_000_000
"""Steps in memory."""
MOST_RATIO = 1_000_000
"""Replayed steps per agent step that anybody could wait for."""


@dataclass(frozen=True)
class TrainingConfig:
    """Data, its reuse, and what is written when."""

    frames: Annotated[int, tyro.conf.arg(aliases=["--frames"])] = 1_000_000
    """Simulator frames of all environments together, prefill included."""
    envs: int = 8
    """Environments that are played side by side."""
    action_repeat: int = 2
    """Frames for which an action is held."""
    prefill: int = 1560
    """Agent steps, all environments together, of a random policy before learning starts."""
    batch: int = 64
    """Sequences per update."""
    length: int = 16
    """Steps per sequence."""
    train_ratio: float = 512.0
    """Replayed steps per agent step; updates per agent step are this over batch × length."""
    early_ratio: float | None = None
    """The ratio for the first `early_frames` after the prefill instead; None: the same throughout."""
    early_frames: int = 100_000
    """Frames for which `early_ratio` holds."""
    explore: float = 0.0
    """Around a policy that is given: share of the time in which, in worlds that are learned from, the backup policy acts instead,
    or an action drawn at random is held; what the policy never does would else never be seen."""
    deterministic: bool = True
    """Whether a policy that is given, and knows the difference, is asked for its best action or for a drawn one."""
    mirror: bool = False
    """Whether every other replayed sequence is mirrored, left for right, where the environment says how: another true episode."""
    updates_per_call: int = 4
    """Updates that run as one compiled call (with images on a CPU: always 1)."""
    devices: int = 1
    """Devices of this machine that share each update, a part of its batch on each; acting stays on the first."""
    capacity: int = 1_000_000
    """Steps that the replay buffer holds."""
    replay: Literal["auto", "device", "host"] = "auto"
    """Where it lives: on the accelerator if it fits, or in host memory."""
    store_replay: bool = True
    """Whether checkpoints hold the replay buffer, gigabytes from pixels; without it a run can be evaluated, and not resumed."""
    time_limit: Literal["truncation", "termination"] = "truncation"
    """What a time limit is to the model: `truncation` keeps continue = 1, `termination` is what the paper's code did."""
    shield_from: int = 0
    """Frame from which a shield that is on begins to decide; never before the prefill is over."""
    log_every: int = 2000
    """Frames between two rows of metrics."""
    checkpoint_every: int = 100_000
    """Frames between two checkpoints; 0: only at the end."""
    keep: Annotated[int, tyro.conf.arg(aliases=["--keep"])] = 2
    """Checkpoints that are kept."""
    max_skipped: int = 100
    """Updates in a row with a non-finite loss or gradient that stop the run."""
    max_faults: int = 10
    """Environment faults that are tolerated: each ends its episode and replaces the environment; one more ends the run."""
    env_timeout: float = 60.0
    """Seconds after which an environment of your own that does not answer is killed and replaced."""
    wandb: bool = False
    """Log to Weights & Biases too; needs the extra `wandb`."""

    def __post_init__(self) -> None:
        of_types(self)
        at_least(
            self,
            1,
            "frames",
            "envs",
            "action_repeat",
            "batch",
            "length",
            "updates_per_call",
            "devices",
            "capacity",
            "log_every",
        )
        at_least(self, 1, "keep")
        at_most(self, MOST_ENVS, "envs")
        at_most(self, MOST_KEPT, "capacity")
        at_least(self, 0, "prefill", "shield_from", "checkpoint_every", "max_skipped", "max_faults", "early_frames")
        all_finite(self)
        above(self, 0, "train_ratio", "env_timeout", "early_ratio")
        at_most(self, MOST_RATIO, "train_ratio", "early_ratio")
        within(self, "[0, 1]", "explore")
        if self.capacity < self.envs * self.length:
            raise UserError(f"capacity must hold a sequence of every environment, {self.envs * self.length} steps")
        if self.batch % self.devices:
            raise UserError(f"batch must be a multiple of devices, {self.devices}, got {self.batch}")
        if self.batch > self.steps:  # At each step at most one sequence begins.
            raise UserError(
                f"a batch of {self.batch} sequences can never be filled: {self.frames} frames are {self.steps} steps"
            )

    @property
    def steps(self) -> int:
        """Agent steps that the frames are."""
        return math.ceil(self.frames / self.action_repeat)

    def refuse_futile(self) -> None:
        """Refuse what would end without having learned anything: apart, since such a run, once made, can still be read."""
        if self.length < 2:
            raise UserError(f"length must be at least 2, for a single step shows no transition, got {self.length}")
        if self.prefill > self.steps:
            raise UserError(
                f"a prefill of {self.prefill} steps leaves nothing to learn in: {self.frames} frames are {self.steps} steps; "
                "lower training.prefill or raise training.frames"
            )

    def updates_due(self, steps: int) -> int:
        """Updates after so many agent steps of play."""
        early = min(steps, self.early_frames // self.action_repeat) if self.early_ratio is not None else 0
        replayed = early * (self.early_ratio or 0.0) + (steps - early) * self.train_ratio
        return math.floor(replayed / (self.batch * self.length))


@dataclass(frozen=True)
class CalibrationConfig:
    """How the shield's Δ in force is set, on what it said when it decided; or label thresholds, on held-out worlds."""

    every: int = 1000
    """Updates between two settings of the level in force, or of label thresholds; 0: they stay as given."""
    windows: int = 1024
    """Held-out windows by which labels and foresight are judged; and the level is set, where the shield does not decide."""
    context: int = 5
    """Steps of such a window that the model watches before its labels are judged: as many as it takes to see what is around."""
    false_flags: float = 0.0035
    """Labels thresholded (`mode`): share of safe windows that may be flagged by the calibrated thresholds."""
    false_alarms: float = 0.05
    """Labels drawn (`sample`): share of the decisions that turn out safe which may be refused; where the model is too blurred to
    keep it at the Δ that is asked for, the shield accepts more, up to the level that does."""

    def __post_init__(self) -> None:
        of_types(self)
        all_finite(self)
        at_least(self, 0, "every")
        at_least(self, 1, "windows", "context")
        within(self, "[0, 1]", "false_flags", "false_alarms")


@dataclass(frozen=True)
class StopConfig:
    """A rule, given before, by which a run that gets nowhere is given up: it is then finished, and says why."""

    metric: str | None = None
    """What is looked at: return or length, means of the last 20 episodes, or a name in metrics.jsonl; None: there is no rule."""
    at: int = 0
    """Frame at which; the first row of metrics from then on counts."""
    below: float = 0.0
    """The run is given up if the figure is less than this."""

    def __post_init__(self) -> None:
        of_types(self)
        all_finite(self)
        at_least(self, 0, "at")
        if self.metric == "":
            raise UserError("stop.metric must name a metric, such as 'return', got ''")
        if self.metric is not None and self.at < 1:
            raise UserError(f"stop.at must be the frame at which {self.metric} is looked at, at least 1, got {self.at}")


@dataclass(frozen=True)
class Config:
    """Everything that a run depends on."""

    model: ModelConfig = field(default_factory=ModelConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    shield: ShieldConfig = field(default_factory=ShieldConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    safety: SafetyConfig = field(default_factory=SafetyConfig)
    calibration: CalibrationConfig = field(default_factory=CalibrationConfig)
    stop: StopConfig = field(default_factory=StopConfig)
    env: str = "ambs/PointGoal1-v0"
    """Registered environment, short name, or `module:factory` of your own labelled one."""
    obs: Literal["vision", "vector", "both"] = "vision"
    """What the agent sees."""
    cameras: Literal["front", "front+back"] = "front"
    """Where a Safety Gym robot's cameras look; with both, a picture has six channels."""
    method: MethodName = "copt"
    """penl, plpg, copt: AMBS with that policy gradient; ambs: shield only; lag: augmented Lagrangian; dreamer: neither; guard: a
    policy that is given acts, and what guards it is learned."""
    semantics: Literal["corrected", "paper"] = "corrected"
    """The paper with its slips repaired, or what its code did. A name only; the other fields decide."""
    psi: Annotated[str | None, tyro.conf.Suppress] = None  # --spec on the command line
    """Safety formula Ψ over the environment's atoms; None: the environment's own."""
    shielded: Annotated[bool, tyro.conf.Suppress] = True  # --shield on the command line
    """Whether the shield decides."""
    seed: int = 0
    """Worlds, weights, noise: everything."""

    @property
    def guards(self) -> bool:
        """Whether the policy that acts is given, and the task policy its clone."""
        return METHODS[self.method].foreign

    def __post_init__(self) -> None:
        of_types(self)
        all_finite(self)
        at_least(self, 0, "seed")
        taught = METHODS[one_of("method", self.method, METHODS)].penalty
        if self.agent.penalty != taught:
            raise UserError(f"method {self.method} has the penalty {taught}, but agent.penalty is {self.agent.penalty}")
        if self.model.open_loop >= self.training.length:
            raise UserError(
                f"model.open_loop must be below training.length, {self.training.length} steps, got {self.model.open_loop}"
            )

    def refuse_futile(self) -> None:
        """Refuse what would end without having learned anything, or would never set the level in force."""
        self.training.refuse_futile()
        kept, window = self.training.capacity // self.training.envs, self.calibration.context + self.shield.horizon
        if self.calibration.every and window > kept:
            raise UserError(
                f"calibration.context and the shield's horizon make windows of {window} steps, and training.capacity keeps "
                f"{kept} of each environment: lower the one or raise the other"
            )


__all__ = [
    "LARGEST",
    "SIZES",
    "AgentConfig",
    "CalibrationConfig",
    "Config",
    "ModelConfig",
    "SafetyConfig",
    "ShieldConfig",
    "Size",
    "StopConfig",
    "TrainingConfig",
]

"""The world model as a whole: encoder, RSSM, decoder, heads; and what the shield and the agent ask of it."""

from dataclasses import fields
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from ambs.config import ModelConfig
from ambs.data import Observation
from ambs.dynamics import SplitDynamics
from ambs.nn.distributions import two_hot_mean
from ambs.nn.layers import MLP
from ambs.nn.precision import at_least_float32
from ambs.spec.formula import Atom, Atoms, Formula, Not
from ambs.spec.risk import step_risk, violates
from ambs.streams import stream
from ambs.world_model.heads import HEADS
from ambs.world_model.rssm import RSSM, Latent
from ambs.world_model.vision import Decoder, Encoder, ObservationSpec


class WorldSpec(NamedTuple):
    """What a world looks like to the model."""

    observation: ObservationSpec
    actions: int
    """Length of an action vector (one-hot for discrete actions)."""
    atoms: Atoms
    psi: Formula
    frames: int = 1
    """Frames per agent step (action repeat); each has labels of its own."""
    cost: float = 10.0
    """C."""
    fallback: tuple[float, ...] | None = None
    """Action of last resort; None: zeros."""


class Heads(eqx.Module):
    """Reward, continue, labels or cost, and more, from features."""

    reward: MLP
    proceed: MLP
    """Logit of continue."""
    labels: MLP | None
    cost: MLP | None
    more: dict[str, MLP]
    """Those of `ambs.world_model.heads.HEADS`."""


class WorldModel(eqx.Module):
    """p_θ of the paper."""

    encoder: Encoder
    rssm: RSSM
    decoder: Decoder
    heads: Heads
    spec: WorldSpec = eqx.field(static=True)
    config: ModelConfig = eqx.field(static=True)

    def __init__(self, spec: WorldSpec, config: ModelConfig, *, key: Key[Array, ""]):
        size = config.widths
        features = size.deter + size.latents * size.classes
        self.spec, self.config = spec, config
        self.encoder = Encoder(spec.observation, size, grades=config.grades, key=stream(key, "encoder"))
        self.rssm = RSSM(self.encoder.outputs, spec.actions, size, key=stream(key, "rssm"))
        self.decoder = Decoder(features, spec.observation, size, key=stream(key, "decoder"))

        def head(name: str, outputs: int, scale: float = 1.0) -> MLP:
            own = stream(key, f"head {name}")
            return MLP(features, outputs, layers=size.layers, units=size.hidden, key=own, out_scale=scale)

        by_labels = config.cost_head == "labels"
        self.heads = Heads(
            reward=head("reward", size.bins, 0.0),
            proceed=head("proceed", 1),
            labels=head("labels", spec.frames * len(spec.atoms)) if by_labels else None,
            cost=None if by_labels else head("cost", size.bins, 0.0),
            more={name: head(name, one.outputs(spec)) for name, one in HEADS.items()},
        )

    def for_formula(self, psi: Formula) -> "WorldModel":
        """The same model, asked about another Ψ over the same atoms."""
        other = object.__new__(type(self))
        for part in fields(self):
            object.__setattr__(other, part.name, getattr(self, part.name))
        object.__setattr__(other, "spec", self.spec._replace(psi=psi))
        return other

    def reward(self, features: Float[Array, "features"]) -> Float[Array, ""]:
        """r̂ on arriving here."""
        return two_hot_mean(self.heads.reward(features), self.config.widths.bin_limit)

    def proceed(self, features: Float[Array, "features"]) -> Float[Array, ""]:
        """Probability that the episode goes on after this state."""
        return _chance(at_least_float32(self.heads.proceed(features)[0]))

    def label_probs(self, features: Float[Array, "features"]) -> Float[Array, "frames atoms"]:
        """Probability of each atom in each frame of the step that led here, with the positive-class weight undone."""
        assert self.heads.labels is not None
        logits = at_least_float32(self.heads.labels(features)) - jnp.log(self.config.positive_weight)
        return _chance(logits.reshape(self.spec.frames, len(self.spec.atoms)))

    def cost(self, features: Float[Array, "features"]) -> Float[Array, ""]:
        """ĉ of arriving here, in [0, C]: C·P(¬Ψ), by its most dangerous frame, differentiable; or the two-hot mean."""
        if self.heads.cost is not None:
            return jnp.clip(two_hot_mean(self.heads.cost(features), self.config.widths.bin_limit), 0, self.spec.cost)
        return self.spec.cost * step_risk(self.spec.psi, self.spec.atoms, self.label_probs(features))

    def seen(self, features: Float[Array, "features"]) -> Observation:
        """What would be observed here, as the environment shows it: pictures uint8, vectors in their own units."""
        found = {name: at_least_float32(part) for name, part in self.decoder(features).items()}
        if "image" in found:
            found["image"] = (jnp.clip(found["image"], 0, 1) * 255).round().astype(jnp.uint8)
        if "vector" in found:
            found["vector"] = self.spec.observation.natural(found["vector"])
        return found

    def trace_labels(self, features: Float[Array, "features"]) -> Float[Array, "frames atoms"]:
        """Label probabilities as a trace carries them; a two-hot cost head has one frame and one label, `violation`, of
        probability ĉ/C (`trace_formula`)."""
        if self.heads.labels is not None:
            return self.label_probs(features)
        return jnp.clip(self.cost(features) / self.spec.cost, 0, 1).reshape(1, 1)

    def trace_formula(self) -> tuple[Formula, Atoms]:
        """Ψ over the labels of a trace."""
        if self.heads.labels is not None:
            return self.spec.psi, self.spec.atoms
        atoms = Atoms(("violation",))
        return Not(Atom("violation")), atoms

    def true_trace_labels(
        self, labels: Bool[Array, "*axes frames atoms"]
    ) -> Bool[Array, "*axes trace_frames trace_atoms"]:
        """What `trace_labels` should say where the world's labels are these."""
        if self.heads.labels is not None:
            return labels
        return violates(self.spec.psi, self.spec.atoms, labels)[..., None, None]

    def moves(self) -> SplitDynamics:
        """The model as the shield rolls it out."""

        def read(features: Float[Array, "features"]) -> tuple[Array, Array]:
            return self.trace_labels(features), self.proceed(features)

        return SplitDynamics(self.rssm.draw, self.rssm.imagine, lambda latent: latent.features, read)

    def encode(
        self,
        latent: Latent,
        action: Float[Array, "actions"],
        observation: Observation,
        is_first: Bool[Array, ""],
        key: Key[Array, ""],
    ) -> Latent:
        """Filter one step: the posterior latent after `action` led to `observation`."""
        return self.rssm.observe(latent, action, self.encoder(observation), is_first, self.rssm.draw(key)).latent


def _chance(logits: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
    """The probability of a logit; NaN for an infinite one, which comes of a broken network and must not pass for certainty."""
    return jnp.where(jnp.isfinite(logits), jax.nn.sigmoid(logits), jnp.nan)

"""Encoders and decoders of observations: a small CNN for images, a symlog MLP for vectors, both where both are observed."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from ambs.config import Size
from ambs.data import Observation
from ambs.errors import UserError
from ambs.nn.distributions import symexp, symlog
from ambs.nn.layers import MLP, Conv, Linear
from ambs.nn.precision import at_least_float32

REACH = 4.0
"""Deviations to either side over which entries of a vector are graded."""


class ObservationSpec(NamedTuple):
    """What is observed: image size in pixels (0: none) and length of the vector (0: none)."""

    image: int = 0
    vector: int = 0
    mean: tuple[float, ...] = ()
    """Of each entry of the vector, in symlog scale; empty: 0."""
    deviation: tuple[float, ...] = ()
    """How much it varies; empty: 1. The model sees and predicts (symlog(vector) − mean) / deviation."""
    channels: int = 3
    """Of the image: three for each camera."""
    unseen: bool = False
    """Whether the vector is for the decoder alone: known while training, never seen by the agent."""

    @property
    def seen(self) -> "ObservationSpec":
        """What of it the agent sees."""
        return self._replace(vector=0, mean=(), deviation=(), unseen=False) if self.unseen else self

    def standardised(self, vector: Float[Array, "vector"]) -> Float[Array, "vector"]:
        """As the networks see it: without it, an accelerometer's entries would drown a lidar's."""
        mean, deviation = self._statistics()
        return (symlog(at_least_float32(vector)) - mean) / deviation

    def natural(self, standard: Float[Array, "vector"]) -> Float[Array, "vector"]:
        """The inverse of `standardised`."""
        mean, deviation = self._statistics()
        return symexp(standard * deviation + mean)

    def _statistics(self) -> tuple[Float[Array, "vector"], Float[Array, "vector"]]:
        return jnp.array(self.mean or (0.0,) * self.vector), jnp.array(self.deviation or (1.0,) * self.vector)

    def check(self) -> None:
        """Refuse what no network can be built for."""
        if not self.image and not self.vector:
            raise UserError("an observation needs an image, a vector, or both")
        if self.image % 16:
            raise UserError(f"the image size must be a multiple of 16 pixels, got {self.image}")


def graded(vector: Float[Array, "vector"], grades: int) -> Float[Array, "graded"]:
    """How far each entry has got through each of so many equal steps from −REACH to REACH: 0 before it, 1 beyond."""
    climbed = (vector[:, None] + REACH) * (grades / (2 * REACH)) - jnp.arange(grades)[None]
    return jnp.clip(climbed, 0, 1).reshape(-1)


class Encoder(eqx.Module):
    """Observation -> embedding."""

    convs: tuple[Conv, ...]
    mlp: MLP | None
    outputs: int = eqx.field(static=True)
    spec: ObservationSpec = eqx.field(static=True)
    grades: int = eqx.field(static=True)

    def __init__(self, spec: ObservationSpec, size: Size, *, grades: int = 0, key: Key[Array, ""]):
        spec = spec.seen
        spec.check()
        self.spec, self.grades = spec, grades
        keys = jax.random.split(key, 5)
        channels = [spec.channels] + [size.cnn_depth * factor for factor in (1, 2, 4, 8)]
        stages = zip(channels[:-1], channels[1:], keys[:4], strict=True) if spec.image else ()
        self.convs = tuple(Conv(a, b, key=k) for a, b, k in stages)
        self.mlp = (
            MLP(spec.vector * (1 + grades) + 1, None, layers=size.vector_layers, units=size.vector_units, key=keys[4])
            if spec.vector
            else None
        )
        self.outputs = (spec.image // 16) ** 2 * channels[-1] + (size.vector_units if spec.vector else 0)

    def __call__(self, observation: Observation) -> Float[Array, "embedding"]:
        """Apply."""
        parts = []
        if self.convs:
            image = observation["image"].astype(self.convs[0].weight.dtype) / 255 - 0.5
            for conv in self.convs:
                image = conv(image)
            parts.append(image.reshape(-1))
        if self.mlp is not None:
            vector = self.spec.standardised(observation["vector"])
            # Beside a constant: alone, the first LayerNorm would keep the vector's direction and drop its length.
            parts.append(self.mlp(jnp.concatenate([vector, jnp.ones(1), graded(vector, self.grades)])))
        return jnp.concatenate(parts)


class Decoder(eqx.Module):
    """Features -> reconstruction: image in [0, 1] scale, vector standardised; float32 at least."""

    project: Linear | None
    convs: tuple[Conv, ...]
    mlp: MLP | None
    grid: int = eqx.field(static=True)

    def __init__(self, features: int, spec: ObservationSpec, size: Size, *, key: Key[Array, ""]):
        keys = jax.random.split(key, 6)
        self.grid = spec.image // 16
        channels = [size.cnn_depth * factor for factor in (8, 4, 2, 1)] + [spec.channels]
        self.project = Linear(features, self.grid**2 * channels[0], key=keys[4]) if spec.image else None
        stages = zip(channels[:-1], channels[1:], keys[:4], strict=True) if spec.image else ()
        self.convs = tuple(Conv(a, b, key=k, up=True, plain=n == 3) for n, (a, b, k) in enumerate(stages))
        self.mlp = (
            MLP(features, spec.vector, layers=size.vector_layers, units=size.vector_units, key=keys[5])
            if spec.vector
            else None
        )

    def __call__(self, features: Float[Array, "features"]) -> dict[str, Float[Array, "..."]]:
        """Apply."""
        outputs = {}
        if self.project is not None:
            image = self.project(features).reshape(self.grid, self.grid, -1)
            for conv in self.convs:
                image = conv(image)
            outputs["image"] = at_least_float32(image) + 0.5
        if self.mlp is not None:
            outputs["vector"] = at_least_float32(self.mlp(features))
        return outputs


def reconstruction_loss(
    outputs: dict[str, Float[Array, "..."]], observation: Observation, spec: ObservationSpec
) -> dict[str, Float[Array, ""]]:
    """Squared error, summed over pixels or entries, one term per part of the observation."""
    losses = {}
    if "image" in outputs:
        target = at_least_float32(observation["image"]) / 255
        losses["image"] = ((outputs["image"] - target) ** 2).sum()
    if "vector" in outputs:
        target = spec.standardised(observation["vector"])
        losses["vector"] = ((outputs["vector"] - target) ** 2).sum()
    return losses

"""Actors and critics on the world model's features."""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from ambs.config import Size
from ambs.nn.distributions import (
    BoundedNormal,
    OneHotCategorical,
    cross_entropy,
    two_hot,
    two_hot_mean,
    value_mean,
    value_two_hot,
)
from ambs.nn.layers import MLP
from ambs.streams import streams
from ambs.world_model.rssm import Latent

CRITICS = ("task", "penalty", "safety_a", "safety_b", "backup")
"""task: reward of the task policy; penalty: its cost; backup: cost of the backup policy; safety: its twins for the shield."""


class Actor(eqx.Module):
    """π(a | ŝ): bounded normal for continuous actions, categorical (one-hot) for discrete ones."""

    mlp: MLP
    actions: int = eqx.field(static=True)
    discrete: bool = eqx.field(static=True)

    def __init__(self, features: int, actions: int, size: Size, *, discrete: bool, key: Key[Array, ""]):
        outputs = actions if discrete else 2 * actions
        self.mlp = MLP(features, outputs, layers=size.layers, units=size.hidden, key=key)
        self.actions, self.discrete = actions, discrete

    def __call__(self, features: Float[Array, "features"]) -> BoundedNormal | OneHotCategorical:
        """The action distribution."""
        return self.decide(self.mlp.body(features))

    def decide(self, hidden: Float[Array, "units"]) -> BoundedNormal | OneHotCategorical:
        """The action distribution, from what the hidden layers made of the features."""
        outputs = self.mlp.head(hidden)
        return OneHotCategorical.from_outputs(outputs) if self.discrete else BoundedNormal.from_outputs(outputs)

    def draw(self, key: Key[Array, ""]) -> Float[Array, "drawn"]:
        """The chance in one action."""
        return (OneHotCategorical if self.discrete else BoundedNormal).draw(key, self.actions)

    def act(self, key: Key[Array, ""], latent: Latent) -> Float[Array, "actions"]:
        """A sampled action, as the shield's policies are called."""
        return self(latent.features).sample(self.draw(key))

    def best(self, key: Key[Array, ""], latent: Latent) -> Float[Array, "actions"]:
        """The likeliest action, as the shield's policies are called."""
        del key
        return self(latent.features).mode()


class Critics(eqx.Module):
    """All critics at once, stacked on a leading axis in the order of `CRITICS`, so that they run as one."""

    mlp: MLP
    bin_limit: float = eqx.field(static=True)
    mean: Literal["value", "symlog"] = eqx.field(static=True)

    def __init__(self, features: int, size: Size, *, key: Key[Array, ""], mean: Literal["value", "symlog"] = "value"):
        def make(key: Key[Array, ""]) -> MLP:
            return MLP(features, size.bins, layers=size.layers, units=size.hidden, key=key, out_scale=0.0)

        self.mlp = eqx.filter_vmap(make)(streams(key, CRITICS))
        self.bin_limit, self.mean = size.bin_limit, mean

    def only(self, *names: str) -> "Critics":
        """A stack of just these critics, which must stand side by side in the order of `CRITICS`."""
        first = CRITICS.index(names[0])
        if names != CRITICS[first : first + len(names)]:
            raise ValueError(f"{names} do not stand side by side")
        some = jax.tree.map(lambda leaf: leaf[first : first + len(names)], self.mlp)
        return eqx.tree_at(lambda critics: critics.mlp, self, some)

    def logits(self, features: Float[Array, "features"]) -> Float[Array, "critics bins"]:
        """Two-hot logits of every critic in the stack."""
        return eqx.filter_vmap(lambda mlp: mlp(features))(self.mlp)

    def values(self, features: Float[Array, "features"]) -> Float[Array, "critics"]:
        """Values of every critic in the stack."""
        return self.means(self.logits(features))

    def means(self, logits: Float[Array, "critics bins"]) -> Float[Array, "critics"]:
        """Values that these logits stand for."""
        mean = value_mean if self.mean == "value" else two_hot_mean
        return jax.vmap(lambda one: mean(one, self.bin_limit))(logits)

    def losses(
        self,
        logits: Float[Array, "critics bins"],
        targets: Float[Array, "critics"],
        anchors: Float[Array, "critics"],
        weight: float,
    ) -> Float[Array, "critics"]:
        """Cross-entropy of every critic in the stack to its target and, `weight` times, to its anchor, both two-hot."""
        place = value_two_hot if self.mean == "value" else two_hot

        def one(logits: Float[Array, "bins"], target: Array, anchor: Array) -> Float[Array, ""]:
            target, anchor = (place(value, logits.shape[0], self.bin_limit) for value in (target, anchor))
            return cross_entropy(logits, target + weight * anchor)

        return jax.vmap(one)(logits, targets, anchors)


def safety_value(values: Float[Array, "*axes 2"], mode: Literal["max", "min"], cost: float) -> Float[Array, "*axes"]:
    """The twins' joint estimate, in [0, C]; `max` is the careful one."""
    joint = values.max(axis=-1) if mode == "max" else values.min(axis=-1)
    return jnp.clip(joint, 0, cost)

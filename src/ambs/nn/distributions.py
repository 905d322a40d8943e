"""Symlog, two-hot values, categorical latents and action distributions, per example.

Logits arrive in any float type and are judged in float32 at least.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from ambs.nn.precision import at_least_float32

UNIMIX = 0.01
LIMIT = 20.0
"""Two-hot bins reach from −LIMIT to LIMIT in symlog space, unless said otherwise."""


def symlog(x: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
    """sign(x)·ln(|x| + 1)."""
    return jnp.sign(x) * jnp.log1p(jnp.abs(x))


def symexp(x: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
    """The inverse of `symlog`."""
    return jnp.sign(x) * jnp.expm1(jnp.abs(x))


def bins(count: int, limit: float = LIMIT) -> Float[Array, "bins"]:
    """Support of a two-hot value, evenly spaced in symlog space and exactly symmetric about 0."""
    return (jnp.arange(count) - (count - 1) / 2) * (2 * limit / (count - 1))


def two_hot(x: Float[Array, ""], count: int, limit: float = LIMIT) -> Float[Array, "bins"]:
    """Weights on the two bins next to symlog(x) whose mean is symlog(x); beyond the ends all on the last bin."""
    support = bins(count, limit)
    width = support[1] - support[0]
    place = jnp.clip((symlog(x) - support[0]) / width, 0, count - 1)
    return jnp.maximum(1 - jnp.abs(place - jnp.arange(count)), 0)


def two_hot_mean(logits: Float[Array, "bins"], limit: float = LIMIT) -> Float[Array, ""]:
    """symexp of the mean bin; symmetric logits give exactly 0."""
    return symexp(_mean_of(logits, bins(logits.shape[-1], limit)))


def two_hot_loss(logits: Float[Array, "bins"], target: Float[Array, ""], limit: float = LIMIT) -> Float[Array, ""]:
    """Cross-entropy of the two-hot target."""
    return cross_entropy(logits, two_hot(target, logits.shape[-1], limit))


def cross_entropy(logits: Float[Array, "bins"], weights: Float[Array, "bins"]) -> Float[Array, ""]:
    """−Σ weights·ln softmax(logits); the weights get no gradient."""
    return -(jax.lax.stop_gradient(weights) * jax.nn.log_softmax(at_least_float32(logits))).sum()


def value_two_hot(x: Float[Array, ""], count: int, limit: float = LIMIT) -> Float[Array, "bins"]:
    """Weights on the two bins next to x whose mean is x itself: bins at symexp(`bins`), beyond the ends all on the last.

    `two_hot` keeps the mean of symlog(x), which lies below the mean of x where x is random: half 0 and half 10 would read as 2.3.
    """
    support = symexp(bins(count, limit))
    share = jnp.clip((x - support[:-1]) / (support[1:] - support[:-1]), 0, 1)
    return jnp.concatenate([jnp.ones(1), share]) - jnp.concatenate([share, jnp.zeros(1)])


def value_mean(logits: Float[Array, "bins"], limit: float = LIMIT) -> Float[Array, ""]:
    """The mean that cross-entropy to `value_two_hot` teaches: that of the targets themselves."""
    return _mean_of(logits, symexp(bins(logits.shape[-1], limit)))


def _mean_of(logits: Float[Array, "bins"], support: Float[Array, "bins"]) -> Float[Array, ""]:
    """Mean over a support symmetric about 0: what bins and their mirror images differ by, so that equal ones cancel exactly.
    NaN if a logit is infinite, which comes of a broken network.

    The outermost bins may lie at ±5e8: had each its own product, rounding alone could move the mean by one.
    """
    wide = at_least_float32(logits)
    weights = jnp.exp(wide - jax.lax.stop_gradient(wide.max()))
    half = support.shape[0] // 2
    mean = ((weights[-half:] - weights[:half][::-1]) * support[-half:]).sum() / weights.sum()
    return jnp.where(jnp.isfinite(logits).all(), mean, jnp.nan)


def bernoulli_loss(
    logit: Float[Array, "*axes"], target: Float[Array, "*axes"], weight: float = 1.0
) -> Float[Array, "*axes"]:
    """Negative log-likelihood of 0/1 targets; positives count `weight` times."""
    logit = at_least_float32(logit)
    return weight * target * jax.nn.softplus(-logit) + (1 - target) * jax.nn.softplus(logit)


def unimix_log_probs(logits: Float[Array, "*axes classes"]) -> Float[Array, "*axes classes"]:
    """Log-probabilities of a categorical mixed with 1 % uniform."""
    probs = jax.nn.softmax(at_least_float32(logits))
    return jnp.log((1 - UNIMIX) * probs + UNIMIX / logits.shape[-1])


def sample_straight_through(
    drawn: Float[Array, "latents"], log_probs: Float[Array, "latents classes"]
) -> Float[Array, "latents classes"]:
    """One-hot samples whose gradient is that of the probabilities, by the inverse CDF of one uniform number per latent."""
    probs = jnp.exp(log_probs)
    classes = log_probs.shape[-1]
    below = jnp.triu(jnp.ones((classes, classes), probs.dtype))
    reached = jnp.matmul(jax.lax.stop_gradient(probs), below, precision=jax.lax.Precision.HIGHEST)
    index = jnp.minimum((reached <= drawn[:, None] * reached[:, -1:]).sum(axis=-1), classes - 1)
    hot = jax.nn.one_hot(index, classes, dtype=probs.dtype)
    return _in_place_of(probs, jnp.where(jnp.isnan(reached[:, -1:]), jnp.nan, hot))


@jax.custom_jvp
def _in_place_of(_probs: Float[Array, "*axes"], hot: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
    """`hot`, with the gradient of the probabilities."""
    return hot


@_in_place_of.defjvp
def _(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    return primals[1], tangents[0]


def categorical_kl(p: Float[Array, "latents classes"], q: Float[Array, "latents classes"]) -> Float[Array, ""]:
    """KL(p ‖ q) of independent categoricals given by log-probabilities, summed over latents, nats."""
    return (jnp.exp(p) * (p - q)).sum()


class BoundedNormal(NamedTuple):
    """Normal actions around a tanh mean with deviation in [.1, 1]; the world clips what lies outside [−1, 1]."""

    mean: Float[Array, "actions"]
    deviation: Float[Array, "actions"]

    @classmethod
    def from_outputs(cls, outputs: Float[Array, "two_actions"]) -> "BoundedNormal":
        """From the actor's raw outputs."""
        mean, spread = jnp.split(at_least_float32(outputs), 2)
        return cls(jnp.tanh(mean), 0.9 * jax.nn.sigmoid(spread + 2.0) + 0.1)

    @staticmethod
    def draw(key: Key[Array, ""], actions: int) -> Float[Array, "actions"]:
        """The chance in a sample: a standard normal number per entry."""
        return jax.random.normal(key, (actions,))

    def sample(self, drawn: Float[Array, "actions"]) -> Float[Array, "actions"]:
        """Reparameterised, so dynamics gradients can pass."""
        return self.mean + self.deviation * drawn

    def mode(self) -> Float[Array, "actions"]:
        """The most likely action."""
        return self.mean

    def log_prob(self, action: Float[Array, "actions"]) -> Float[Array, ""]:
        """Log-density, summed over action dimensions."""
        z = (action - self.mean) / self.deviation
        return (-0.5 * z**2 - jnp.log(self.deviation) - 0.5 * jnp.log(2 * jnp.pi)).sum()

    def distance(self, action: Float[Array, "actions"]) -> Float[Array, ""]:
        """How far an action lies from the likeliest one, in [0, 1]: mean square over what the bounds allow."""
        return (((jnp.clip(action, -1, 1) - self.mean) / 2) ** 2).mean()

    def entropy(self) -> Float[Array, ""]:
        """Differential entropy, nats."""
        return (jnp.log(self.deviation) + 0.5 * jnp.log(2 * jnp.pi * jnp.e)).sum()


class OneHotCategorical(NamedTuple):
    """Discrete actions as one-hot vectors, 1 % uniform mixed in."""

    log_probs: Float[Array, "actions"]

    @classmethod
    def from_outputs(cls, outputs: Float[Array, "actions"]) -> "OneHotCategorical":
        """From the actor's raw outputs."""
        return cls(unimix_log_probs(outputs))

    @staticmethod
    def draw(key: Key[Array, ""], _actions: int) -> Float[Array, "1"]:
        """The chance in a sample: one uniform number."""
        return jax.random.uniform(key, (1,))

    def sample(self, drawn: Float[Array, "1"]) -> Float[Array, "actions"]:
        """Straight-through."""
        return sample_straight_through(drawn, self.log_probs[None])[0]

    def mode(self) -> Float[Array, "actions"]:
        """The most likely action."""
        return jax.nn.one_hot(jnp.argmax(self.log_probs), self.log_probs.shape[0])

    def log_prob(self, action: Float[Array, "actions"]) -> Float[Array, ""]:
        """Log-probability of a one-hot action."""
        return (action * self.log_probs).sum()

    def distance(self, action: Float[Array, "actions"]) -> Float[Array, ""]:
        """How unlike this distribution a one-hot action is, in [0, 1]: the probability of all others."""
        return 1 - (action * jnp.exp(self.log_probs)).sum()

    def entropy(self) -> Float[Array, ""]:
        """Shannon entropy, nats."""
        return -(jnp.exp(self.log_probs) * self.log_probs).sum()

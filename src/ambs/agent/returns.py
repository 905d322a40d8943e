"""λ-returns and their normalisation (paper, App. F; DreamerV3)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def lambda_returns(
    reward_t: Float[Array, "time *traces"],
    discount_t: Float[Array, "time *traces"],
    value_t: Float[Array, "time *traces"],
    lam: float,
) -> Float[Array, "time *traces"]:
    """R_t = r_{t+1} + γ_{t+1}((1 − λ)·V_{t+1} + λ·R_{t+1}), with R_H = V_H at the end.

    Entry k of all three arguments belongs to the state arrived in at step k + 1; entry k of the result to the state before.
    """

    def backward(following: Array, now: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        reward, discount, value = now
        result = reward + discount * ((1 - lam) * value + lam * following)
        return result, result

    _, returns = jax.lax.scan(backward, value_t[-1], (reward_t, discount_t, value_t), reverse=True, unroll=True)
    return returns


class Normaliser(NamedTuple):
    """Running 5th and 95th percentile of returns."""

    low: Float[Array, ""]
    high: Float[Array, ""]

    @classmethod
    def initial(cls) -> "Normaliser":
        """Zero range."""
        return cls(jnp.zeros(()), jnp.zeros(()))

    def update(self, values: Float[Array, "..."], decay: float) -> "Normaliser":
        """Exponential moving average of Per(R, 5) and Per(R, 95)."""
        low, high = jnp.percentile(values, jnp.array([5.0, 95.0]))
        return Normaliser(decay * self.low + (1 - decay) * low, decay * self.high + (1 - decay) * high)

    def scale(self, limit: float) -> Float[Array, ""]:
        """S = max(limit, Per95 − Per5); returns are divided by this."""
        return jnp.maximum(limit, self.high - self.low)

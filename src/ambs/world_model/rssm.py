"""The recurrent state-space model (paper, Sec. 2.3): h_t = f(h_{t−1}, z_{t−1}, a_{t−1}), z_t ~ q(z | h_t, o_t), ẑ_t ~ p(ẑ | h_t).

Written for one sequence; batches by `jax.vmap`.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from ambs.config import Size
from ambs.nn.distributions import sample_straight_through, unimix_log_probs
from ambs.nn.layers import GRU, MLP, Dense


class Latent(NamedTuple):
    """ŝ_t = (h_t, z_t): deter `[deter]`, stoch `[latents, classes]` one-hot."""

    deter: Float[Array, "*batch deter"]
    stoch: Float[Array, "*batch latents classes"]

    @property
    def features(self) -> Float[Array, "*batch features"]:
        """h and z side by side, what heads, actors and critics see."""
        flat = self.stoch.reshape(*self.stoch.shape[:-2], -1)
        return jnp.concatenate([self.deter, flat.astype(self.deter.dtype)], axis=-1)


class Observed(NamedTuple):
    """A filtered step: the posterior latent, and both distributions as log-probabilities for the KL."""

    latent: Latent
    posterior: Float[Array, "*batch latents classes"]
    prior: Float[Array, "*batch latents classes"]


class RSSM(eqx.Module):
    """Recurrent model, prior and posterior."""

    input: Dense
    gru: GRU
    prior: MLP
    posterior: MLP
    initial_deter: Float[Array, "deter"]
    latents: int = eqx.field(static=True)
    classes: int = eqx.field(static=True)

    def __init__(self, embedding: int, actions: int, size: Size, *, key: Key[Array, ""]):
        keys = jax.random.split(key, 4)
        self.latents, self.classes = size.latents, size.classes
        flat = size.latents * size.classes
        self.input = Dense(flat + actions, size.hidden, key=keys[0])
        self.gru = GRU(size.hidden, size.deter, key=keys[1])
        self.prior = MLP(size.deter, flat, layers=1, units=size.hidden, key=keys[2])
        self.posterior = MLP(size.deter + embedding, flat, layers=1, units=size.hidden, key=keys[3])
        self.initial_deter = jnp.zeros(size.deter)

    def initial(self) -> Latent:
        """The learned first state: a bounded h and the prior's most likely z."""
        deter = jnp.tanh(self.initial_deter)
        stoch = jax.nn.one_hot(jnp.argmax(self._prior(deter), axis=-1), self.classes, dtype=deter.dtype)
        return Latent(deter, stoch)

    def imagine(self, latent: Latent, action: Float[Array, "actions"], key: Key[Array, ""]) -> Latent:
        """One step without an observation: ẑ from the prior."""
        deter = self._advance(latent, action)
        return Latent(deter, sample_straight_through(key, self._prior(deter)).astype(deter.dtype))

    def observe(
        self,
        latent: Latent,
        action: Float[Array, "actions"],
        embedding: Float[Array, "embedding"],
        is_first: Bool[Array, ""],
        key: Key[Array, ""],
    ) -> Observed:
        """One step with an observation; `action` led to it. At the first step of an episode memory and action are dropped."""
        fresh = self.initial()
        latent = jax.tree.map(lambda new, old: jnp.where(is_first, new, old.astype(new.dtype)), fresh, latent)
        deter = self._advance(latent, jnp.where(is_first, 0.0, action))
        prior = self._prior(deter)
        outputs = self.posterior(jnp.concatenate([deter, embedding.astype(deter.dtype)]))
        posterior = unimix_log_probs(outputs.reshape(self.latents, self.classes))
        stoch = sample_straight_through(key, posterior).astype(deter.dtype)
        return Observed(Latent(deter, stoch), posterior, prior)

    def filter(
        self,
        start: Latent,
        actions: Float[Array, "time actions"],
        embeddings: Float[Array, "time embedding"],
        is_first: Bool[Array, "time"],
        key: Key[Array, ""],
    ) -> Observed:
        """`observe` along a sequence: all fields with a leading time axis."""

        def step(latent: Latent, inputs: tuple[Array, Array, Array, Int[Array, ""]]) -> tuple[Latent, Observed]:
            action, embedding, first, index = inputs
            observed = self.observe(latent, action, embedding, first, jax.random.fold_in(key, index))
            return observed.latent, observed

        times = jnp.arange(actions.shape[0])
        _, observed = jax.lax.scan(step, start, (actions, embeddings, is_first, times))
        return observed

    def _advance(self, latent: Latent, action: Float[Array, "actions"]) -> Float[Array, "deter"]:
        inputs = jnp.concatenate([latent.stoch.reshape(-1), action.astype(latent.stoch.dtype)])
        return self.gru(self.input(inputs), latent.deter)

    def _prior(self, deter: Float[Array, "deter"]) -> Float[Array, "latents classes"]:
        return unimix_log_probs(self.prior(deter).reshape(self.latents, self.classes))

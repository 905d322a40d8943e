"""The recurrent state-space model (paper, Sec. 2.3): h_t = f(h_{t−1}, z_{t−1}, a_{t−1}), z_t ~ q(z | h_t, o_t), ẑ_t ~ p(ẑ | h_t).

A step is written for one example, batches of them by `jax.vmap`; filtering for a batch of sequences.
"""

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from ambs.config import Size
from ambs.nn.distributions import sample_straight_through, unimix_log_probs
from ambs.nn.layers import GRU, MLP, Dense
from ambs.nn.recurrent import recur, unrolled
from ambs.streams import stream


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
        self.latents, self.classes = size.latents, size.classes
        flat = size.latents * size.classes
        self.input = Dense(flat + actions, size.hidden, key=stream(key, "input"))
        self.gru = GRU(size.hidden, size.deter, key=stream(key, "gru"))
        self.prior = MLP(size.deter, flat, layers=1, units=size.hidden, key=stream(key, "prior"))
        seen = size.deter + embedding
        self.posterior = MLP(seen, flat, layers=1, units=size.hidden, key=stream(key, "posterior"))
        self.initial_deter = jnp.zeros(size.deter)

    def initial(self) -> Latent:
        """The learned first state: a bounded h and the prior's most likely z."""
        deter = jnp.tanh(self.initial_deter)
        stoch = jax.nn.one_hot(jnp.argmax(self._prior(deter), axis=-1), self.classes, dtype=deter.dtype)
        return Latent(deter, stoch)

    def draw(self, key: Key[Array, ""]) -> Float[Array, "latents"]:
        """The chance in one step: a uniform number per latent."""
        return jax.random.uniform(key, (self.latents,))

    def imagine(self, latent: Latent, action: Float[Array, "actions"], drawn: Float[Array, "latents"]) -> Latent:
        """One step without an observation: ẑ from the prior."""
        deter = self._advance(latent, action)
        return Latent(deter, sample_straight_through(drawn, self._prior(deter)).astype(deter.dtype))

    def imagine_along(self, start: Latent, actions: Float[Array, "time actions"], key: Key[Array, ""]) -> Latent:
        """`imagine` with these actions one after the other: the latents they lead to `[time]`."""
        drawn = jax.vmap(lambda step: self.draw(jax.random.fold_in(key, step)))(jnp.arange(actions.shape[0]))

        def advance(latent: Latent, item: tuple[Array, Array]) -> tuple[Latent, Latent]:
            after = self.imagine(latent, *item)
            return after, after

        return jax.lax.scan(advance, start, (actions, drawn), unroll=unrolled())[1]

    def observe(
        self,
        latent: Latent,
        action: Float[Array, "actions"],
        embedding: Float[Array, "embedding"],
        is_first: Bool[Array, ""],
        drawn: Float[Array, "latents"],
    ) -> Observed:
        """One step with an observation; `action` led to it. At the first step of an episode memory and action are dropped."""
        after, posterior = self._correct(self.initial(), latent, action, self._look(embedding), is_first, drawn)
        return Observed(after, posterior, self._prior(after.deter))

    def filter(
        self,
        start: Latent,
        actions: Float[Array, "batch time actions"],
        embeddings: Float[Array, "batch time embedding"],
        is_first: Bool[Array, "batch time"],
        keys: Key[Array, "batch"],
    ) -> Observed:
        """`observe` along sequences, from `start` `[batch]`; all fields of the result `[batch, time]`. What does not depend
        on memory is done for all steps at once."""
        steps = jnp.arange(actions.shape[1])
        drawn = jax.vmap(lambda key: jax.vmap(lambda step: self.draw(jax.random.fold_in(key, step)))(steps))(keys)
        inputs = (actions, jax.vmap(jax.vmap(self._look))(embeddings), is_first, drawn)
        arrays, rest = eqx.partition((self, self.initial()), eqx.is_inexact_array)

        def step(arrays: Any, latent: Latent, inputs: tuple[Array, Array, Array, Array]) -> tuple[Latent, Array]:
            rssm, fresh = eqx.combine(arrays, rest)
            return rssm._correct(fresh, latent, *inputs)

        by_time = partial(jax.tree.map, lambda leaf: jnp.swapaxes(leaf, 0, 1))
        latent, posterior = by_time(recur(step, arrays, start, by_time(inputs)))
        return Observed(latent, posterior, jax.vmap(jax.vmap(self._prior))(latent.deter))

    def _look(self, embedding: Float[Array, "embedding"]) -> Float[Array, "hidden"]:
        """What the posterior's first layer makes of an embedding, before it is added to what it makes of h."""
        weight = self.posterior.hidden[0].linear.weight[self.initial_deter.shape[0] :]
        return embedding.astype(weight.dtype) @ weight

    def _correct(
        self,
        fresh: Latent,
        latent: Latent,
        action: Float[Array, "actions"],
        seen: Float[Array, "hidden"],
        is_first: Bool[Array, ""],
        drawn: Float[Array, "latents"],
    ) -> tuple[Latent, Float[Array, "latents classes"]]:
        """The posterior latent and its log-probabilities."""
        latent = jax.tree.map(lambda new, old: jnp.where(is_first, new, old.astype(new.dtype)), fresh, latent)
        deter = self._advance(latent, jnp.where(is_first, 0.0, action))
        (first,), out = self.posterior.hidden, self.posterior.out
        assert out is not None
        remembered = deter @ first.linear.weight[: deter.shape[0]]
        outputs = out(first.norm.silu(remembered + seen))
        posterior = unimix_log_probs(outputs.reshape(self.latents, self.classes))
        return Latent(deter, sample_straight_through(drawn, posterior).astype(deter.dtype)), posterior

    def _advance(self, latent: Latent, action: Float[Array, "actions"]) -> Float[Array, "deter"]:
        executed = jnp.clip(action, -1, 1)  # As the world executes it.
        inputs = jnp.concatenate([latent.stoch.reshape(-1), executed.astype(latent.stoch.dtype)])
        return self.gru(self.input(inputs), latent.deter)

    def _prior(self, deter: Float[Array, "deter"]) -> Float[Array, "latents classes"]:
        return unimix_log_probs(self.prior(deter).reshape(self.latents, self.classes))

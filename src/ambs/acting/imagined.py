"""A policy that is a JAX function of observations, inside imagination: it acts on what the model decodes, in place of its clone.

That is the policy itself and no likeness of it, but it meets observations that are only imagined, and every imagined step is
decoded, which a clone needs not.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from ambs.acting.adapter import Interface
from ambs.config.checks import short
from ambs.errors import UserError
from ambs.shield.problem import Policy
from ambs.world_model.model import WorldModel
from ambs.world_model.rssm import Latent

Imagined = Callable[[Key[Array, ""], Any], Any]
"""(key, observation) -> action: one of each, in the environment's units; JAX can trace it. A picture and a vector together are a
dictionary of `image` and `vector`."""


def in_model_terms(policy: Imagined, shown: Interface) -> Imagined:
    """The same from the parts that a model decodes to the action as the model has it; a UserError if it is no such function."""
    if not callable(policy):
        raise UserError(f"an imagined policy is a JAX function (key, observation) -> action, got {short(policy)}")

    def act(key: Key[Array, ""], parts: dict[str, Array]) -> Float[Array, "actions"]:
        action = jnp.asarray(policy(key, parts if len(parts) > 1 else next(iter(parts.values()))))
        wanted = () if shown.discrete else (shown.spec.actions,)
        if action.shape != wanted:
            raise UserError(
                f"the imagined policy must give an action of shape {wanted} for one observation, got {action.shape}"
            )
        if shown.discrete:
            if not jnp.issubdtype(action.dtype, jnp.integer):
                raise UserError(
                    f"the imagined policy must give the number of an action, a whole one, got {action.dtype}"
                )
            known = (action >= 0) & (action < shown.spec.actions)
            # What is no action must not be trusted, and NaN is not.
            return jnp.where(known, jax.nn.one_hot(action, shown.spec.actions), jnp.nan)
        span = jnp.where(shown.high > shown.low, shown.high - shown.low, 1.0)
        return (2 * (action - shown.low) / span - 1).clip(-1.0, 1.0).astype(jnp.float32)

    seen = shown.spec.observation
    parts = {"image": jax.ShapeDtypeStruct((seen.image, seen.image, seen.channels), jnp.uint8)} if seen.image else {}
    parts |= {"vector": jax.ShapeDtypeStruct((seen.vector,), jnp.float32)} if seen.vector else {}
    try:
        jax.eval_shape(act, jax.eval_shape(lambda: jax.random.key(0)), parts)
    except UserError:
        raise
    except Exception as error:
        told = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"JAX cannot trace the imagined policy, (key, observation) -> action: {told[0]}") from error
    return act


def acting_on_decoded(model: WorldModel, policy: Imagined) -> Policy:
    """A policy of latents that does what this one, in the model's terms, does on the decoded observation."""

    def act(key: Key[Array, ""], latent: Latent) -> Float[Array, "actions"]:
        return policy(key, model.seen(latent.features)).astype(latent.features.dtype)

    return act

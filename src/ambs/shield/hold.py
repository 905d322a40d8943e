"""What a shield remembers from one decision to the next: a backup action that is held, and a backup policy that stays in control.

A backup policy that does not know where it is changes its mind at every step, and stays; `ShieldConfig.hold` makes it go on
in one direction for so many steps. Where task and backup policy fight over one place, control goes to and fro;
`ShieldConfig.latch` leaves it with the backup policy for so many steps.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from ambs.shield.traces import all_finite, select


class Memory(NamedTuple):
    """Of the decision before, a row per environment; `held` is 0 where an episode has begun since."""

    action: PyTree
    """Executed last."""
    held: Int[Array, "envs"]
    """For how many more steps it is held, should the state violate Ψ as long."""
    refused: Int[Array, "envs"]
    """Decisions in a row, up to the last, in which something could not be trusted (`Reason.NON_FINITE`)."""
    latched: Int[Array, "envs"]
    """For how many more steps the backup policy stays in control; 0 where an episode has begun since."""


def no_memory(like: PyTree) -> Memory:
    """Before the first decision, for actions `like` these: nothing is held, nothing was refused."""
    envs = jax.tree.leaves(like)[0].shape[0]
    # Each an array of its own, so that all can be donated.
    return Memory(jax.tree.map(jnp.zeros_like, like), *(jnp.zeros(envs, jnp.int32) for _ in range(3)))


def begun_anew(memory: Memory, is_first: Bool[Array, "envs"]) -> Memory:
    """The memory where an episode `is_first` begun: nothing of the one before is held or stays."""
    held, latched = (jnp.where(is_first, 0, count) for count in (memory.held, memory.latched))
    return memory._replace(held=held, latched=latched)


def hold(unsafe: Bool[Array, "envs"], action: PyTree, memory: Memory, steps: int) -> tuple[PyTree, Int[Array, "envs"]]:
    """The last action in place of a new one where the state violates Ψ (`unsafe`) and it is held still; and for how long on.

    A new action is held for `steps` steps, its own among them. One that is not finite is never held.
    """
    again = unsafe & (memory.held > 0) & jax.vmap(all_finite)(memory.action)
    last = jax.tree.map(lambda old, new: jnp.asarray(old).astype(new.dtype), memory.action, action)
    left = jnp.where(unsafe, jnp.where(again, memory.held - 1, steps - 1), 0)
    return select(again, last, action), left


def latch(
    took_over: Bool[Array, "envs"], stayed: Bool[Array, "envs"], memory: Memory, steps: int
) -> Int[Array, "envs"]:
    """For how many more steps the backup policy stays in control: of `steps`, that in which it `took_over` among them."""
    return jnp.where(stayed, memory.latched - 1, jnp.where(took_over, steps - 1, 0))

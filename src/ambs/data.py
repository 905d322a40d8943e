"""What was experienced in an environment, as the learning core takes it."""

from typing import NamedTuple

from jaxtyping import Array, Bool, Float, Shaped

Observation = dict[str, Shaped[Array, "..."]]
"""`image` `[size, size, channels]` uint8 and/or `vector` `[vector]` float."""


class Experience(NamedTuple):
    """Consecutive agent steps, time first (a batch of them: batch, then time).

    Entry t holds the observation o_t, the action that led to it, the reward received and the labels of the frames passed
    on the way, whether the episode goes on after it (time limits are no end), and whether it is an episode's first.

    Where a policy that is given is guarded, it also holds what that proposed at o_t, in the model's terms; NaN where it
    proposed nothing that could be used.
    """

    observation: Observation
    action: Float[Array, "*batch time actions"]
    reward: Float[Array, "*batch time"]
    labels: Bool[Array, "*batch time frames atoms"]
    proceed: Shaped[Array, "*batch time"]
    is_first: Bool[Array, "*batch time"]
    proposed: Float[Array, "*batch time actions"] | None = None

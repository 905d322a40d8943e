"""What a run asks of whoever computes for it: decisions and updates.

A run is a generator of these requests (`Life`). One that is alone is answered at once, by its own trainer; those of a fleet wait
for one another and are answered together (`ambs.training.fleet`). What a run does does not depend on who answers.
"""

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jaxtyping import Array, Bool

from ambs.data import Experience, Observation


class Act(NamedTuple):
    """A decision for every environment of the run is wanted, and what `act` is told for it; the answer is a `Decision`."""

    observation: Observation
    is_first: Bool[Array, "envs"]
    labels: Bool[np.ndarray, "envs atoms"]
    active: np.ndarray
    """Whether the shield decides."""
    step: int
    """Number of the decision."""
    proposed: np.ndarray | None
    """What a policy that is given proposes."""

    def arguments(self, root: jax.Array) -> tuple[Any, ...]:
        """As `act` takes them, after player and memory; `root` is the run's key."""
        given = () if self.proposed is None else (None, self.proposed)
        return (self.observation, self.is_first, self.labels, self.active, root, self.step, *given)


class Clock(NamedTuple):
    """How long does this decision take, with the device otherwise idle? The answer is in milliseconds; nothing is remembered."""

    act: Act


class Learn(NamedTuple):
    """Updates are due, and what `learn` is told for them; the answer are their metrics."""

    batches: Experience
    first: int
    """Number of the first of them."""

    def arguments(self, root: jax.Array) -> tuple[Any, ...]:
        """As `learn` takes them, after the state; `root` is the run's key."""
        return self.batches, root, self.first


Request = Act | Clock | Learn
T = TypeVar("T")
Life = Generator[Request, Any, T]
"""Asks, is told, and returns something at its end."""


def lived(life: Life[T], answer: Callable[[Request], Any]) -> T:
    """Answer every request of a life to its end; what goes wrong with an answer is raised where it was asked for."""
    try:
        request = next(life)
        while True:
            try:
                told = answer(request)
            except BaseException as error:
                request = life.throw(error)
            else:
                request = life.send(told)
    except StopIteration as end:
        return end.value

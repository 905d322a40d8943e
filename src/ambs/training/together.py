"""Several runs on one device as one: what they keep there is stacked, and what they ask is answered in one mapped call each.

Parameters, optimisers and the actors' memories have a leading axis of runs from the first call to the last; no turn puts them
together or takes them apart. Whoever needs those of one run (a checkpoint, a calibration) gets a copy of its slice. A call is
always as wide as there are runs: for one that does not ask, whatever comes out is thrown away, and what it has is kept.
"""

import functools
import threading
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from ambs.acting.act import act
from ambs.config import Config
from ambs.envs.mirror import Mirror
from ambs.nn.layers import as_products
from ambs.nn.precision import compute_dtype
from ambs.shield.traces import select
from ambs.training.asking import Act, Clock, Learn, Request
from ambs.training.learn import learn
from ambs.training.trainer import Trainer, clocked, player_of

HELD = ("learned", "carry", "thresholds", "level")
"""Fields of a run's state that are kept together."""
ORDER = (Learn, Clock, Act)
"""Within a turn, from what is answered first: so that all are due for the same when nobody asks for anything else."""


class Slice:
    """One run's part of an array of all, as NumPy or `jax.device_get` ask for it; nothing is copied before."""

    def __init__(self, whole: jax.Array, index: int) -> None:
        self.whole, self.index = whole, index

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The part."""
        del copy  # It always is one.
        return np.array(np.asarray(self.whole)[self.index], dtype)


class Together:
    """What several runs, which differ in their seed only, keep on the device."""

    def __init__(self, runs: Sequence[Trainer]) -> None:
        """From each run's own state as it is now."""
        first = runs[0]
        self.size = len(runs)
        self.roots = stacked([run.root for run in runs])
        self.held = {name: stacked([getattr(run, name) for run in runs]) for name in HELD}
        mirror = first.envs.mirror if first.config.training.mirror else None
        self._act = compiled_act(first.common, first.config.shielded)
        self._learn = compiled_learn(first.common, mirror)
        self._lock = threading.Lock()

    def get(self, name: str, index: int) -> Any:
        """A copy of what one run has of a field."""
        with self._lock:
            return _taken(self.held[name], index)

    def put(self, name: str, index: int, value: Any) -> None:
        """Give one run another value of a field."""
        with self._lock:
            self.held[name] = _placed(self.held[name], index, value)

    def answer(self, asked: Sequence[Request | None]) -> dict[int, Any]:
        """The answers to the requests of one kind, the next that is due, by the number of who asked."""
        kind = next(kind for kind in ORDER if any(isinstance(one, kind) for one in asked))
        askers = [index for index, one in enumerate(asked) if isinstance(one, kind)]
        wanted = np.isin(np.arange(self.size), askers)
        # Whoever does not ask is given another's question, so that all have the same form.
        filled: Any = [one if wanted[index] else asked[askers[0]] for index, one in enumerate(asked)]
        if kind is Learn:
            return self._dealt(askers, self._update(filled, wanted))
        if kind is Act:
            return self._dealt(askers, self._decide(filled, wanted))
        return dict.fromkeys(askers, self._time([one.act for one in filled], wanted))

    def _update(self, questions: list[Learn], wanted: np.ndarray) -> Any:
        self.held["learned"], metrics = self._learn(self.held["learned"], tuple(questions), self.roots, wanted)
        return metrics

    def _decide(self, questions: list[Act], wanted: np.ndarray) -> Any:
        learned, carry, *in_force = (self.held[name] for name in HELD)
        self.held["carry"], decision = self._act(learned, in_force, carry, tuple(questions), self.roots, wanted)
        return decision

    def _time(self, questions: list[Act], wanted: np.ndarray) -> float:
        """Of a decision for all of them at once."""
        learned, carry, *in_force = (self.held[name] for name in HELD)
        return clocked(
            learned, carry, lambda carry: self._act(learned, in_force, carry, tuple(questions), self.roots, wanted)
        )

    @staticmethod
    def _dealt(askers: list[int], whole: Any) -> dict[int, Any]:
        return {index: jax.tree.map(lambda leaf: Slice(leaf, index), whole) for index in askers}  # noqa: B023


@functools.lru_cache(maxsize=8)
def compiled_act(config: Config, shielded: bool, products: bool = True) -> Any:
    """`act` of several runs, compiled; donates the carries. `products`: whether convolutions are (`as_products`)."""
    bound = functools.partial(act, config=config, shielded=shielded, dtype=compute_dtype())

    def together(
        learned: Any, in_force: Any, carries: Any, questions: tuple[Act, ...], roots: Any, wanted: Bool[Array, "runs"]
    ) -> Any:
        def one(learned: Any, in_force: Any, carry: Any, question: Act, root: Any, wanted: Any) -> Any:
            # Nobody waits for futures of a run that does not ask.
            question = question._replace(active=question.active & wanted)
            player = player_of(as_products(learned, products), *in_force)
            return bound(player, carry, *question.arguments(root))

        new, decision = jax.vmap(one)(learned, in_force, carries, _stack(questions), roots, wanted)
        return select(wanted, new, carries), decision

    return jax.jit(together, donate_argnums=2)


@functools.lru_cache(maxsize=8)
def compiled_learn(config: Config, mirror: Mirror | None, products: bool = True) -> Any:
    """`learn` of several runs, compiled; donates the states. `products`: as for `compiled_act`."""
    bound = functools.partial(learn, config=config, dtype=compute_dtype(), mirror=mirror)

    def together(states: Any, questions: tuple[Learn, ...], roots: Any, wanted: Bool[Array, "runs"]) -> Any:
        def one(state: Any, question: Learn, root: Any) -> Any:
            new, metrics = bound(as_products(state, products), *question.arguments(root))
            return as_products(new, False), metrics

        new, metrics = jax.vmap(one)(states, _stack(questions), roots)
        return select(wanted, new, states), metrics

    return jax.jit(together, donate_argnums=0)


def _stack(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


stacked = jax.jit(_stack)
"""Trees of the same form as one, whose arrays have a leading axis of trees."""
_taken = jax.jit(lambda whole, index: jax.tree.map(lambda leaf: leaf[index], whole))
_placed = jax.jit(lambda whole, index, value: jax.tree.map(lambda leaf, new: leaf.at[index].set(new), whole, value))

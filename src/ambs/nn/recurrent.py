"""A recurrent cell along time, with gradients of its parameters taken for all steps at once.

Differentiating `lax.scan` itself adds to every parameter's gradient at every step: as many small products and passes over
all weights as there are steps. Here only the gradient of the carry goes back step by step; once it is known at every step,
the parameters' is one large product (the chain rule, summed in another order).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

Cell = Callable[[Any, Any, Any], tuple[Any, Any]]
"""(parameters, carry, inputs) -> (carry, outputs), of one example."""


def unrolled() -> int:
    """Steps to a turn of a loop: many where each turn costs launches, one on CPUs, where they would only cost compilation."""
    return 1 if jax.default_backend() == "cpu" else 16


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def recur(cell: Cell, params: PyTree, start: PyTree, inputs: PyTree) -> tuple[PyTree, PyTree]:
    """Carries and outputs `[time, batch, …]` after each step, from `start` `[batch, …]` and `inputs` `[time, batch, …]`."""

    def step(carry: Any, item: Any) -> tuple[Any, Any]:
        carry, out = _over_batch(cell)(params, carry, item)
        return carry, (carry, out)

    return jax.lax.scan(step, start, inputs, unroll=unrolled())[1]


def _forward(cell: Cell, params: PyTree, start: PyTree, inputs: PyTree) -> tuple[PyTree, PyTree]:
    carries, outs = recur(cell, params, start, inputs)
    return (carries, outs), (params, start, inputs, carries)


def _backward(cell: Cell, kept: PyTree, grads: PyTree) -> tuple[PyTree, PyTree, PyTree]:
    params, start, inputs, carries = kept
    before = jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest[:-1]]), start, carries)
    batched = _over_batch(cell)

    def step(later: Any, item: Any) -> tuple[Any, Any]:
        carry, given, (carry_grad, out_grad) = item
        total = jax.tree.map(jnp.add, later, carry_grad)
        _, pull = jax.vjp(lambda carry: batched(params, carry, given), carry)
        return pull((total, out_grad))[0], total

    none = jax.tree.map(jnp.zeros_like, start)
    first, totals = jax.lax.scan(step, none, (before, inputs, grads), reverse=True, unroll=unrolled())
    flat = partial(jax.tree.map, lambda leaf: leaf.reshape(-1, *leaf.shape[2:]))
    _, pull = jax.vjp(lambda params, given: batched(params, flat(before), given), params, flat(inputs))
    param_grads, input_grads = pull((flat(totals), flat(grads[1])))
    return param_grads, first, jax.tree.map(lambda leaf, like: leaf.reshape(like.shape), input_grads, inputs)


def _over_batch(cell: Cell) -> Cell:
    return jax.vmap(cell, in_axes=(None, 0, 0))


recur.defvjp(_forward, _backward)

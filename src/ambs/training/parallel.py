"""One update on several devices of this machine: each has all parameters and a part of the batch.

The function is that of one device: XLA splits it along the batch and adds up what has to be added, so that results differ by the
order of additions alone. Acting and calibrating stay on the first device.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ambs.errors import UserError
from ambs.nn.kernels import plain

AXIS = "batch"


class Devices:
    """The devices that share an update."""

    def __init__(self, count: int) -> None:
        there = jax.local_devices()
        if count > len(there):
            raise UserError(f"training.devices is {count}, and JAX has {len(there)} here")
        mesh = Mesh(there[:count], (AXIS,))
        self._whole = NamedSharding(mesh, PartitionSpec())
        self._split = NamedSharding(mesh, PartitionSpec(None, AXIS))

    def compiled(self, learn: Callable[..., Any]) -> Any:
        """`learn(state, batches, root, first)`, compiled for all of them; donates the state. Batches `[updates, batch, …]`."""

        def shared(*args: Any) -> Any:
            with plain():  # XLA cannot split a kernel that it has not made.
                return learn(*args)

        jitted = jax.jit(shared, donate_argnums=0, out_shardings=self._whole)

        def call(state: Any, batches: Any, root: Any, first: Any) -> Any:
            placed = jax.device_put((state, root), self._whole)
            return jitted(placed[0], jax.device_put(batches, self._split), placed[1], first)

        return call


def on_first(tree: Any) -> Any:
    """What lies on all devices, as it is on the first; nothing is copied."""
    return jax.tree.map(lambda leaf: leaf.addressable_data(0) if isinstance(leaf, jax.Array) else leaf, tree)

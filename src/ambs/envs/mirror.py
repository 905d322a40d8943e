"""Left and right exchanged: of a world without handedness, a mirrored episode is another true one.

In pictures it is the width that is reversed, in actions and vectors entries change places and signs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Mirror(NamedTuple):
    """How a step of a world looks when left and right are exchanged.

    Entry i of a mirrored action or vector is the entry `order[i]` of the original, times `sign[i]`; mirrored twice it is
    the original again. Labels, reward and the end of an episode stay as they are.
    """

    action_order: tuple[int, ...]
    action_sign: tuple[float, ...]
    vector_order: tuple[int, ...] = ()
    """Empty where there is no vector; so is its sign."""
    vector_sign: tuple[float, ...] = ()

    def action(self, action: Any) -> Any:
        """The mirrored actions `[..., actions]`, in NumPy or JAX."""
        return _exchange(action, self.action_order, self.action_sign)

    def vector(self, vector: Any) -> Any:
        """The mirrored vectors `[..., entries]`."""
        return _exchange(vector, self.vector_order, self.vector_sign)

    def picture(self, picture: Any) -> Any:
        """The mirrored pictures `[..., height, width, channels]`."""
        return picture[..., ::-1, :]


def _exchange(array: Any, order: tuple[int, ...], sign: tuple[float, ...]) -> Any:
    signs = np.asarray(sign, array.dtype).reshape((1,) * (array.ndim - 1) + (-1,))
    return array[..., np.asarray(order, int)] * signs

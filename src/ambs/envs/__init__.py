"""Worlds with labels, in the manner of Gymnasium 1.x; importing this package registers them with `gymnasium.make`."""

from ambs.envs.labelled import LabelledEnv, with_labels
from ambs.envs.registration import make, make_vector, register_all, registered
from ambs.envs.vector.vector import Fault, LabelledVectorEnv, TooManyFaults

__all__ = [
    "Fault",
    "LabelledEnv",
    "LabelledVectorEnv",
    "TooManyFaults",
    "make",
    "make_vector",
    "registered",
    "with_labels",
]

register_all()

"""Worlds with labels, in the manner of Gymnasium 1.x; importing this package registers them with `gymnasium.make`."""

from ambs.envs.labelled import LabelledEnv, with_labels
from ambs.envs.pictures import PictureEnv, with_pictures
from ambs.envs.registration import make, make_vector, register_all, registered
from ambs.envs.vector.vector import Fault, LabelledVectorEnv, TooManyFaults

__all__ = [
    "Fault",
    "LabelledEnv",
    "LabelledVectorEnv",
    "PictureEnv",
    "TooManyFaults",
    "make",
    "make_vector",
    "registered",
    "with_labels",
    "with_pictures",
]

register_all()

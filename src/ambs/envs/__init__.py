"""Worlds with labels, in the manner of Gymnasium 1.x."""

from ambs.envs.registration import make, register_all, registered

__all__ = ["make", "registered"]

register_all()

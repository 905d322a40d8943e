"""Approximate model-based shielding (AMBS): learn in continuous worlds without breaking things on the way."""

__version__ = "0.1.0"

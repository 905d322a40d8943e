"""Worlds with labels, in the manner of Gymnasium 1.x."""

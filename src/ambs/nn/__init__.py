"""Layers and distributions of DreamerV3."""

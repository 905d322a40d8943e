"""Approximate model-based shielding (AMBS): learn in continuous worlds without breaking things on the way."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# What a user imports, by where it lives; nothing heavy is loaded before it is asked for.
_PUBLIC = {
    "Atoms": "ambs.spec",
    "Decision": "ambs.shield",
    "ShieldProblem": "ambs.shield",
    "Reason": "ambs.shield",
    "ShieldConfig": "ambs.shield",
    "Shielded": "ambs.shield",
    "UserError": "ambs.errors",
    "bounded_safety": "ambs.spec",
    "make": "ambs.envs",
    "load": "ambs.acting.agent",
    "make_vector": "ambs.envs",
    "parse_formula": "ambs.spec",
    "parse_property": "ambs.spec",
    "rollout": "ambs.shield",
    "simulator_dynamics": "ambs.shield",
    "train": "ambs.training.session",
    "with_labels": "ambs.envs",
}

__all__ = [*_PUBLIC, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'ambs' has no attribute {name!r}")

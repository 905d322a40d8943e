"""What a run depends on: settings, the paper's methods, presets; `ambs.config.resolve` combines them.

Loaded when asked for: reports read `ambs.config.methods`, and must not wait for JAX.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ambs.config.methods import METHODS, Method, MethodName, PenaltyName
    from ambs.config.presets import PRESETS
    from ambs.config.settings import (
        LARGEST,
        SIZES,
        AgentConfig,
        CalibrationConfig,
        Config,
        ModelConfig,
        SafetyConfig,
        Size,
        TrainingConfig,
    )

__all__ = [
    "LARGEST",
    "METHODS",
    "PRESETS",
    "SIZES",
    "AgentConfig",
    "CalibrationConfig",
    "Config",
    "Method",
    "MethodName",
    "ModelConfig",
    "PenaltyName",
    "SafetyConfig",
    "Size",
    "TrainingConfig",
]

_OF_METHODS = ("METHODS", "Method", "MethodName", "PenaltyName")

if not TYPE_CHECKING:  # A type checker would believe any name.

    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module 'ambs.config' has no attribute {name!r}")
        home = "presets" if name == "PRESETS" else "methods" if name in _OF_METHODS else "settings"
        return getattr(import_module(f"ambs.config.{home}"), name)

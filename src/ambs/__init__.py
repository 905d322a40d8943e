"""Approximate model-based shielding (AMBS): learn in continuous worlds without breaking things on the way."""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

# What a user imports, by where it lives; nothing heavy is loaded before it is asked for. Type checkers read the imports below.
_PUBLIC = {
    "METHODS": "ambs.config.methods",
    "PRESETS": "ambs.config.presets",
    "Agent": "ambs.acting.agent",
    "AgentConfig": "ambs.config",
    "Atoms": "ambs.spec",
    "CalibrationConfig": "ambs.config",
    "Config": "ambs.config",
    "Decision": "ambs.shield",
    "Guard": "ambs.acting.guard",
    "GuardDecision": "ambs.acting.guard",
    "ModelConfig": "ambs.config",
    "ShieldProblem": "ambs.shield",
    "Reason": "ambs.shield",
    "SafetyConfig": "ambs.shield",
    "ShieldConfig": "ambs.shield",
    "Shielded": "ambs.shield",
    "ShieldedVector": "ambs.acting.guarded",
    "TrainingConfig": "ambs.config",
    "UserError": "ambs.errors",
    "bounded_safety": "ambs.spec",
    "evaluate": "ambs.acting.compare",
    "load": "ambs.acting.agent",
    "make": "ambs.envs",
    "make_vector": "ambs.envs",
    "parse_formula": "ambs.spec",
    "parse_property": "ambs.spec",
    "quickstart": "ambs.config.presets",
    "resolve": "ambs.config.resolve",
    "rollout": "ambs.shield",
    "simulator_dynamics": "ambs.shield",
    "train": "ambs.training.session",
    "train_shield": "ambs.training.guard",
    "with_labels": "ambs.envs",
}

__all__ = [*_PUBLIC, "__version__"]

if TYPE_CHECKING:
    from ambs.acting.agent import Agent as Agent
    from ambs.acting.agent import load as load
    from ambs.acting.compare import evaluate as evaluate
    from ambs.acting.guard import Guard as Guard
    from ambs.acting.guard import GuardDecision as GuardDecision
    from ambs.acting.guarded import ShieldedVector as ShieldedVector
    from ambs.config import AgentConfig as AgentConfig
    from ambs.config import CalibrationConfig as CalibrationConfig
    from ambs.config import Config as Config
    from ambs.config import ModelConfig as ModelConfig
    from ambs.config import TrainingConfig as TrainingConfig
    from ambs.config.methods import METHODS as METHODS
    from ambs.config.presets import PRESETS as PRESETS
    from ambs.config.presets import quickstart as quickstart
    from ambs.config.resolve import resolve as resolve
    from ambs.envs import make as make
    from ambs.envs import make_vector as make_vector
    from ambs.envs import with_labels as with_labels
    from ambs.errors import UserError as UserError
    from ambs.shield import Decision as Decision
    from ambs.shield import Reason as Reason
    from ambs.shield import SafetyConfig as SafetyConfig
    from ambs.shield import ShieldConfig as ShieldConfig
    from ambs.shield import Shielded as Shielded
    from ambs.shield import ShieldProblem as ShieldProblem
    from ambs.shield import rollout as rollout
    from ambs.shield import simulator_dynamics as simulator_dynamics
    from ambs.spec import Atoms as Atoms
    from ambs.spec import bounded_safety as bounded_safety
    from ambs.spec import parse_formula as parse_formula
    from ambs.spec import parse_property as parse_property
    from ambs.training.guard import train_shield as train_shield
    from ambs.training.session import train as train
else:

    def __getattr__(name):
        if name in _PUBLIC:
            return getattr(import_module(_PUBLIC[name]), name)
        raise AttributeError(f"module 'ambs' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

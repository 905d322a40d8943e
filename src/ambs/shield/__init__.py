"""Approximate model-based shielding (Alg. 2) over any model that is given as a function."""

from ambs.shield.config import SafetyConfig, ShieldConfig, paper_semantics
from ambs.shield.hold import Memory, no_memory
from ambs.shield.problem import Policy, RolloutFn, ShieldProblem, Trace
from ambs.shield.rules import Decision, Reason, Rule, replay, rule
from ambs.shield.shield import shield, shield_with_deadline
from ambs.shield.simulator import simulator_dynamics, simulator_state
from ambs.shield.traces import Evidence, rollout
from ambs.shield.wrapper import Shielded

__all__ = [
    "Decision",
    "Evidence",
    "Memory",
    "Policy",
    "Reason",
    "RolloutFn",
    "Rule",
    "SafetyConfig",
    "ShieldConfig",
    "ShieldProblem",
    "Shielded",
    "Trace",
    "no_memory",
    "paper_semantics",
    "replay",
    "rollout",
    "rule",
    "shield",
    "shield_with_deadline",
    "simulator_dynamics",
    "simulator_state",
]

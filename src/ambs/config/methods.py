"""The paper's methods, in one table that settings, presets, reports and `ambs reproduce` read. A new one is added here alone;
its penalty, if that is new too, in `ambs.agent.penalties`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

MethodName = Literal["dreamer", "lag", "ambs", "penl", "plpg", "copt"]
PenaltyName = Literal["none", "lag", "penl", "plpg", "copt"]


@dataclass(frozen=True)
class Method:
    """How an agent is kept safe: what its task policy is taught about cost, and whether a shield is there by default."""

    title: str
    """As the paper calls it."""
    penalty: PenaltyName
    shielded: bool
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings that it has otherwise than the preset, nested as in a config file."""


METHODS: dict[MethodName, Method] = {
    "dreamer": Method("DreamerV3", "none", shielded=False),
    # The Lagrangian counts violations: C = 1, so that its limit d is a number of them.
    "lag": Method("DreamerV3 + LAG", "lag", shielded=False, changes={"safety": {"cost": 1.0}}),
    "ambs": Method("AMBS", "none", shielded=True),
    "penl": Method("AMBS + PENL", "penl", shielded=True),
    "plpg": Method("AMBS + PLPG", "plpg", shielded=True),
    "copt": Method("AMBS + COPT", "copt", shielded=True),
}
"""By the name that `--method` takes; in the order of tables and colours."""
TITLES: dict[str, str] = {name: method.title for name, method in METHODS.items()}


def title_with_shield(name: str) -> str:
    """`AMBS + COPT, shield`; a name that is no method's stands for itself."""
    known = {str(one): method for one, method in METHODS.items()}
    return f"{known[name].title}, {'shield' if known[name].shielded else 'no shield'}" if name in known else name

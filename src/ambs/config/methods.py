"""The paper's methods, and one for a policy that is given, in one table that settings, presets, reports and `ambs reproduce`
read. A new one is added here alone; its penalty, if that is new too, in `ambs.agent.penalties`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from ambs.config.checks import LARGEST, choice


@dataclass(frozen=True)
class Method:
    """How an agent is kept safe: what its task policy is taught about cost, and whether a shield is there by default."""

    title: str
    """As the paper calls it."""
    penalty: str
    """A name of `ambs.agent.penalties.PENALTIES`."""
    shielded: bool
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings that it has otherwise than the preset, nested as in a config file."""
    foreign: bool = False
    """Whether the policy that acts is given: the task policy then learns to propose what that proposes."""


METHODS: dict[str, Method] = {
    "dreamer": Method("DreamerV3", "none", shielded=False),
    # The Lagrangian counts violations: C = 1, so that its limit d is a number of them.
    "lag": Method("DreamerV3 + LAG", "lag", shielded=False, changes={"safety": {"cost": 1.0}}),
    "ambs": Method("AMBS", "none", shielded=True),
    "penl": Method("AMBS + PENL", "penl", shielded=True),
    "plpg": Method("AMBS + PLPG", "plpg", shielded=True),
    "copt": Method("AMBS + COPT", "copt", shielded=True),
    # The policy acts at its own rate, and the horizon is counted in its steps. While it is learned, the shield does not decide:
    # what the policy does by itself is what its clone is to do, and what calibration judges risks by.
    "guard": Method(
        "Guard",
        "none",
        shielded=True,
        changes={
            "agent": {"backup_imitation": 0.2},
            "training": {"action_repeat": 1, "explore": 0.2, "shield_from": LARGEST},
        },
        foreign=True,
    ),
}
"""By the name that `--method` takes; in the order of tables and colours."""
MethodName = Annotated[str, choice(METHODS)]
PenaltyName = Annotated[str, choice(dict.fromkeys(method.penalty for method in METHODS.values()))]
PAPER: tuple[str, ...] = tuple(name for name, method in METHODS.items() if not method.foreign)
"""Those of the paper, which `ambs reproduce` compares."""
TITLES: dict[str, str] = {name: method.title for name, method in METHODS.items()}


def title_with_shield(name: str) -> str:
    """`AMBS + COPT, shield`; a name that is no method's stands for itself."""
    known = METHODS.get(name)
    return name if known is None else f"{known.title}, {'shield' if known.shielded else 'no shield'}"

"""What compared runs differ in beside their method, in a sentence that stands above the figures."""

import json

from ambs.report.formatting import number
from ambs.report.groups import INERT, Group, settings_that_differ

NAMED = {
    "shield.safety_level": "Δ",
    "shield.approximation_error": "ε",
    "shield.failure_probability": "δ",
    "shield.horizon": "n (steps)",
    "shield.traces": "futures per decision",
    "training.action_repeat": "action repeat (frames per step)",
    "semantics": "semantics",
    "training.frames": "frames to train for",
    "obs": "observations",
}
"""Settings that decide what is asked of a run, and what they are called."""
OF_THE_METHOD = frozenset(("method", "agent.penalty", "shielded", "psi", "env"))
"""Settings that a method's name or the sentence on Ψ tells."""
MOST = 6
"""Other settings that are called by name."""


def settings_sentence(groups: list[Group]) -> list[str]:
    """One sentence if these groups differ in more than their method, else none."""
    differing = settings_that_differ(groups)
    told = [f"{word} ({_values(groups, differing[name])})" for name, word in NAMED.items() if name in differing]
    others = sorted(set(differing) - set(NAMED) - OF_THE_METHOD - INERT)
    if others:
        rest = f" and {len(others) - MOST} more" if len(others) > MOST else ""
        told.append(f"{', '.join(others[:MOST])}{rest}")
    return [f"The runs differ in more than their method: {'; '.join(told)}"] if told else []


def _values(groups: list[Group], values: list[str]) -> str:
    """`0.1: A, B; 0.3: C`."""
    by_value: dict[str, list[str]] = {}
    for group, value in zip(groups, values, strict=True):
        by_value.setdefault(_readable(value), []).append(group.label)
    return ", ".join(f"{value} in {' and '.join(labels)}" for value, labels in by_value.items())


def _readable(value: str) -> str:
    try:
        plain = json.loads(value)
    except ValueError:
        return value
    numeric = isinstance(plain, int | float) and not isinstance(plain, bool) and abs(plain) < 1e15
    return number(float(plain)) if numeric else str(plain)

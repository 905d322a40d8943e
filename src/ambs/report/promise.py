"""What was asked of a shield, and what the theorems say of that: the settings that belong beside every headline."""

from typing import Any

from ambs.errors import UserError
from ambs.report.formatting import number
from ambs.report.groups import Group
from ambs.spec.guarantee import guarantee, in_words

SETTINGS = ("safety_level", "approximation_error", "failure_probability", "horizon", "traces")
USUAL = {"failure_probability": 0.01}
"""What settings were before runs stored them."""


def asked_of_shields(groups: list[Group], outcomes: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Per settings of a shield that is on: the methods that had them, and `asked_in_words` with the last quarter's futures."""
    found: dict[str, list[str]] = {}
    used: dict[str, list[str]] = {}
    for group, outcome in zip(groups, outcomes, strict=True):
        config = group.runs[0].config if group.runs else {}
        sentence = None if config.get("shielded") is False else asked_in_words(config)
        if sentence is not None:
            found.setdefault(sentence, []).append(group.label)
            if "traces" in outcome:
                drawn = f"{number(outcome['traces']['mean']['mean'])} ({group.label})"
                used.setdefault(sentence, []).append(drawn)
    return [
        {
            "label": ", ".join(labels),
            "sentence": sentence + (f"; used on average: {', '.join(used[sentence])}" if sentence in used else ""),
        }
        for sentence, labels in found.items()
    ]


def asked_in_words(config: dict[str, Any], used: float | None = None) -> str | None:
    """Δ, ε, δ, n in steps and frames, futures allowed and used, and what `ambs guarantee` says; None: settings that are none."""
    try:
        shield, repeat = USUAL | config["shield"], config.get("training", {}).get("action_repeat")
        settings: dict[str, Any] = {name: shield[name] for name in SETTINGS}
        promised = in_words(guarantee(**settings))
        level, epsilon, delta = (number(float(settings[name])) for name in SETTINGS[:3])
        steps, most = int(settings["horizon"]), int(settings["traces"])
        short = int(shield.get("short", steps))
        frames = f" ({steps * int(repeat)} frames)" if repeat is not None else ""
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError, UserError):
        return None
    kind, path = str(shield.get("kind", "ambs")), shield.get("path")
    asked = "" if kind == "ambs" else f"kind {kind}, "
    asked += "" if path is None else f"{path}, "
    drawn = "" if used is None else f", {number(used)} used on average"
    told = f"{asked}Δ = {level}, ε = {epsilon}, δ = {delta}, n = {steps} step{'s' * (steps != 1)}{frames}, "
    told += f"at most {most} futures{drawn}"
    if kind == "latent" and short < steps:
        return f"{told}; it looks {short} of {steps} steps ahead, and the theorems speak of these alone"
    if shield.get("critics") is not None or kind == "critic":
        return f"{told}; critics judge part of the horizon, so no theorem applies"
    if shield.get("labels") == "mean":
        return f"{told}; traces are judged by expected cost, so no theorem applies"
    if shield.get("resample_first") or shield.get("check_initial") is False:
        return f"{told}; the proposed action or the current state is not checked, so the theorems speak of another property"
    whose = "; after the action the backup policy is imagined, and the theorems speak of that" * (kind == "recovery")
    early = "; the sequential rule, which stops early, keeps δ by a test of its own"
    return f"{told}; as ambs guarantee says, {promised}{whose}" + (early if shield.get("rule") == "sequential" else "")

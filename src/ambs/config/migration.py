"""Settings as earlier versions wrote them, in the form of today: in files, in run folders and on the command line."""

from collections.abc import Mapping, Sequence
from typing import Any

MOVED = {
    "shield.cost": "safety.cost",
    "agent.discount": "safety.discount",
    "shield.discount": "safety.discount",
    "training.calibrate_every": "calibration.every",
    "training.calibration_windows": "calibration.windows",
    "training.calibration_context": "calibration.context",
    "training.false_flags": "calibration.false_flags",
    "training.false_alarms": "calibration.false_alarms",
}
"""Earlier names and today's. Of two values for one setting, the one listed first counts: critics, by which a shield judges, were
always learned with the agent's γ."""
GONE = ("shield.semantics",)
"""Names that repeated another setting (`semantics`)."""


def migrated(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings by today's names; what is no group of settings stays as it is, for others to refuse."""
    found = {name: dict(value) if isinstance(value, Mapping) else value for name, value in settings.items()}
    for old in (*GONE, *MOVED):
        group, name = old.split(".")
        if not isinstance(found.get(group), dict) or name not in found[group]:
            continue
        value = found[group].pop(name)
        if old in MOVED:
            home, today = MOVED[old].split(".")
            there = found.setdefault(home, {})
            if isinstance(there, dict):
                there.setdefault(today, value)
    return found


def migrated_flags(args: Sequence[str]) -> list[str]:
    """Words of a command line with today's names in place of earlier ones: `--safety.cost` for `--shield.cost`."""

    def today(word: str) -> str:
        flag, equals, value = word.partition("=")
        name = MOVED.get(flag.removeprefix("--").replace("-", "_")) if flag.startswith("--") else None
        return word if name is None else f"--{name.replace('_', '-')}{equals}{value}"

    return [today(word) for word in args]


def completed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A stored run's settings with what was meant where a field did not exist yet, so that the run goes on as it began."""
    agent, shield, safety = (settings.get(name) for name in ("agent", "shield", "safety"))
    if not isinstance(agent, Mapping) or not isinstance(shield, Mapping):
        return dict(settings)
    limit, cost = agent.get("norm_limit"), safety.get("cost") if isinstance(safety, Mapping) else None
    if "backup_norm_limit" not in agent and _is_positive(limit) and _is_positive(cost):
        agent = {**agent, "backup_norm_limit": limit / cost}  # type: ignore[operator]
    found = {**settings, "agent": agent, "shield": {"leave": "sample", **shield}}
    model, training = settings.get("model"), settings.get("training")
    if isinstance(model, Mapping) and isinstance(training, Mapping):
        ahead, length = model.get("open_loop"), training.get("length")
        if _is_positive(ahead) and _is_positive(length) and ahead >= length:  # type: ignore[operator]
            found["model"] = {**model, "open_loop": length - 1}  # type: ignore[operator]
    return found


def _is_positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0

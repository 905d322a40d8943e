"""Settings as earlier versions wrote them, in the form of today."""

from collections.abc import Mapping
from typing import Any


def migrated(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Without `shield.semantics`, which once repeated `semantics`; all else as it is."""
    shield = settings.get("shield")
    if not isinstance(shield, Mapping):
        return dict(settings)
    return {**settings, "shield": {name: value for name, value in shield.items() if name != "semantics"}}


def completed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A stored run's settings with what was meant where a field did not exist yet, so that the run goes on as it began."""
    agent, shield = settings.get("agent"), settings.get("shield")
    if not isinstance(agent, Mapping) or not isinstance(shield, Mapping):
        return dict(settings)
    limit, cost = agent.get("norm_limit"), shield.get("cost")
    if "backup_norm_limit" not in agent and _is_positive(limit) and _is_positive(cost):
        agent = {**agent, "backup_norm_limit": limit / cost}  # type: ignore[operator]
    return {**settings, "agent": agent, "shield": {"leave": "sample", **shield}}


def _is_positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0

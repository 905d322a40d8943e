"""Settings as earlier versions wrote them, in the form of today."""

from collections.abc import Mapping
from typing import Any


def migrated(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Without `shield.semantics`, which once repeated `semantics`; all else as it is."""
    shield = settings.get("shield")
    if not isinstance(shield, Mapping):
        return dict(settings)
    return {**settings, "shield": {name: value for name, value in shield.items() if name != "semantics"}}

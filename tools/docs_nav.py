"""Hook of the documentation's build: pages that are listed in mkdocs.yml but not written yet are left out."""

from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    """Drop them from the navigation."""
    config["nav"] = present(config["nav"], Path(config["docs_dir"]))
    return config


def present(entries: list[dict[str, Any]], docs: Path) -> list[dict[str, Any]]:
    """The entries whose page exists; sections without any go too."""
    kept = []
    for entry in entries:
        ((title, target),) = entry.items()
        inside = present(target, docs) if isinstance(target, list) else target
        if inside and (isinstance(inside, list) or (docs / inside).is_file()):
            kept.append({title: inside})
    return kept

"""Which runs are those of a sweep, and what varies among them, as the ledger in the sweep's folder tells."""

from pathlib import Path
from typing import Any

from ambs.errors import UserError
from ambs.storage.run_folder import LEDGER, read_rows

DEPTH = 4
"""How many folders above a run its sweep's may be."""


def varied(path: Path, known: dict[Path, dict[Path, dict[str, Any]]]) -> dict[str, Any]:
    """The settings in which a run differs from others of its sweep, by dotted name; empty where it is none of a sweep's.

    `known` keeps what was read, by the sweep's folder.
    """
    path = path.absolute()
    for folder in list(path.parents)[:DEPTH]:
        if folder not in known:
            known[folder] = _read(folder)
        for home in (path, path.parent):
            if home in known[folder]:
                return known[folder][home]
    return {}


def words(settings: dict[str, Any]) -> str:
    """What varies, briefly: the method is told elsewhere."""
    return ", ".join(
        f"{name.rpartition('.')[2]} {value}" for name, value in settings.items() if name not in ("method", "env")
    )


def _read(folder: Path) -> dict[Path, dict[str, Any]]:
    """What varies, by the folder of a run; nothing where there is no ledger that can be read."""
    try:
        rows = read_rows(folder / LEDGER)
    except UserError:
        return {}
    return {
        folder / row["run"]: row["varied"]
        for row in rows
        if isinstance(row.get("run"), str) and isinstance(row.get("varied"), dict)
    }

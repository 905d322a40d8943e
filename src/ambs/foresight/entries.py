"""How entries into violation came about, and how long the stays were."""

from typing import Any

import numpy as np

from ambs.foresight.collect import Record


def entry_figures(record: Record) -> dict[str, Any]:
    """Entries: steps that violate Ψ from a state that does not; by direction and view where the world tells."""
    entries = record.violated & ~record.unsafe_now
    told = entries & np.isfinite(record.forwards)
    if not told.any():
        return {"entries": int(entries.sum()), "told": False}
    backwards = record.forwards[told] < 0
    unseen = record.in_view[told] == 0
    return {
        "entries": int(entries.sum()),
        "told": True,
        "forwards": int((~backwards).sum()),
        "backwards": int(backwards.sum()),
        "out_of_view": int(unseen.sum()),
        "forwards_in_view": int((~backwards & ~unseen).sum()),
    }


def stay_figures(record: Record) -> dict[str, Any]:
    """Stays, rows of violating steps in one episode: how many, how long (agent steps), in whose hands."""
    inside = record.violated
    same = np.concatenate([[False], record.episode[1:] == record.episode[:-1]])
    begins = inside & ~(np.concatenate([[False], inside[:-1]]) & same)
    lengths = np.bincount(np.cumsum(begins)[inside] - 1) if inside.any() else np.zeros(0, int)
    return {
        "steps": len(inside),
        "stays": len(lengths),
        "median": float(np.median(lengths)) if len(lengths) else None,
        "mean": float(lengths.mean()) if len(lengths) else None,
        "max": int(lengths.max()) if len(lengths) else None,
        "backup_acted": float(record.overridden[inside].mean()) if inside.any() else None,
    }

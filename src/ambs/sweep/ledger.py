"""`sweep.jsonl` in a sweep's folder: which runs there are and how they were doing when it was written. A view; nothing is decided
by it but what belongs to the sweep."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ambs.errors import UserError
from ambs.storage.files import read_plain, reason, to_json, utc_now, write_atomic
from ambs.storage.run_folder import LEDGER
from ambs.sweep.plan import Job, Sweep
from ambs.sweep.status import Found, look

FORMAT = 1


@dataclass(frozen=True)
class Entry:
    """A run as the ledger knows it."""

    name: str
    frames: int
    """How many it is to have."""
    why: str = ""
    """Why it failed, where it did."""


def write_ledger(sweep: Sweep, found: Iterable[tuple[Job, Found]], failed: dict[str, str]) -> None:
    """As a whole: a first line about the sweep, and one per run."""
    first = {"format": FORMAT, "sweep": sweep.name, "updated": utc_now().isoformat(), "runs": len(sweep.jobs)}
    rows: list[dict[str, Any]] = [first]
    for job, one in found:
        state = "failed" if job.name in failed and one.state != "finished" else one.state
        row = {
            "run": job.name, "state": state, "frames": one.frames, "wanted_frames": job.frames,
            "seed": job.settings["seed"], "varied": job.varied,
        }  # fmt: skip
        if job.name in failed:
            row["why"] = failed[job.name]
        rows.append(row)
    sweep.out.mkdir(parents=True, exist_ok=True)
    write_atomic(sweep.out / LEDGER, b"".join(to_json(row, indent=None) + b"\n" for row in rows))


def read_ledger(folder: Path) -> list[tuple[Entry, Found]]:
    """The runs of the sweep in a folder, each as it is now."""
    path = folder / LEDGER
    try:
        first, *rows = [json.loads(line) for line in read_plain(path).splitlines()]
        if first["format"] != FORMAT:
            raise UserError(f"{path} has format {first['format']}, this version of ambs reads {FORMAT}")
        entries = [Entry(str(row["run"]), int(row["wanted_frames"]), str(row.get("why", ""))) for row in rows]
    except OSError as error:
        raise UserError(f"{folder} is not the folder of a sweep ({reason(error)})") from None
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} is not the ledger of a sweep") from None
    if any(Path(entry.name).is_absolute() or ".." in Path(entry.name).parts for entry in entries):
        raise UserError(f"{path} names runs outside its folder")
    return [(entry, look(folder / entry.name, entry.frames)) for entry in entries]

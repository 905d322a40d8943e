"""How often each promise is tried: a few times in `make test`, in full under `make faults`, which also prints the figures."""

import json
import os
from pathlib import Path

FULL = os.environ.get("AMBS_FAULTS") == "full"
LEDGER = os.environ.get("AMBS_FAULTS_LEDGER")
"""File to which figures are added, one JSON object per line."""


def count(few: int, full: int) -> int:
    """How many trials to make."""
    return full if FULL else few


def report(promise: str, figure: str) -> None:
    """Put a figure on record."""
    if LEDGER:
        with Path(LEDGER).open("a") as file:
            file.write(json.dumps([promise, figure]) + "\n")

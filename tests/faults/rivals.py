"""A process that tries to become a run folder's writer; little is imported, so that many start quickly."""

import os
from pathlib import Path
from typing import Any

from ambs.errors import UserError
from ambs.storage.run_folder import RunFolder


def contend(path: str, barrier: Any, results: Any) -> None:
    """Try at the same moment as others, stay the writer until all have tried, then die without a word."""
    folder = RunFolder.open(Path(path))
    barrier.wait()
    try:
        folder.claim()
        results.put("won")
    except UserError as error:
        results.put(str(error))
    barrier.wait()
    os._exit(0)

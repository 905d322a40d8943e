"""Prints the figures of `make faults`, one line per promise."""

import json
import os
from pathlib import Path

from tests.faults.counts import LEDGER


def pytest_terminal_summary(terminalreporter):
    """At the end, where they are seen."""
    if LEDGER and Path(LEDGER).exists() and "PYTEST_XDIST_WORKER" not in os.environ:
        terminalreporter.section("what was promised, and what was seen")
        for line in Path(LEDGER).read_text().splitlines():
            promise, figure = json.loads(line)
            terminalreporter.write_line(f"{promise}: {figure}")

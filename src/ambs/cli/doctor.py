"""`ambs doctor`: is this machine fit?"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Doctor:
    """Look at machine, Python, JAX, GPU, MuJoCo and disk, try acting, shielding and learning, and say what to do.

    The last takes about ten seconds on two cores, most of it to compile. Exits with 0 if nothing is in the way of training,
    else with 1.
    """

    out: Path = Path("runs")
    """Folder that runs would be written to."""
    skip_self_test: bool = False
    """Leave out acting, shielding and learning."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Examine and print."""
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        from ambs.apps.doctor import examine
        from ambs.cli.train import prepare_device

        with suppress(ImportError):  # The examination says what is missing.
            prepare_device("auto", "xxs")
        findings = examine(self.out, test=not self.skip_self_test)
        fit = all(finding.state != "problem" for finding in findings)
        if self.json:
            print(json.dumps({"fit": fit, "findings": [finding._asdict() for finding in findings]}))
            return 0 if fit else 1
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        colours = {"ok": "green", "note": "yellow", "problem": "bold red"}
        for finding in findings:
            told = Text(finding.said)
            if finding.advice:
                told.append(f"\n→ {finding.advice}", style=colours[finding.state])
            table.add_row(Text(finding.state, style=colours[finding.state]), finding.what, told)
        console = Console()
        console.print(table)
        console.print(
            "This machine is fit for training." if fit else "Something is in the way of training: see the arrows."
        )
        return 0 if fit else 1

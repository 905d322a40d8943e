"""`ambs report`: what happened, as one file to look at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from ambs.cli.words import refuse_folder

OTHERS = (".pdf", ".svg", ".jpg", ".jpeg", ".gif", ".tex", ".txt", ".xlsx")
"""Ends of names that promise what is not written."""


@dataclass(frozen=True)
class Report:
    """Write what runs show, and how sure we are of it, to one file that needs no server and no network.

    Runs of one environment, method and configuration are seeds of one experiment and are averaged. Folders are searched for
    runs; plots and tables in them are passed over; runs that are unfinished or damaged are shown as far as they go.

    Example: ambs report runs/* --out report.html
    """

    runs: tyro.conf.Positional[list[Path]]
    """Run folders, or folders of them."""
    out: Path | None = None
    """File to write; None: report.<format>."""
    at: int | None = None
    """Compare at so many frames, leaving out runs that are shorter by over 2 %; None: at the most that half of each method's
    runs have reached."""
    spec: str | None = None
    """Count violations by this Ψ, e.g. '!hazard', or by that of a property, from the labels that runs store; None: by the runs'
    own, or where they differ by that of the first run shown."""
    format: Literal["html", "md", "png", "csv", "json"] | None = None
    """html: a page with curves. md: tables. png: a figure for a paper, return left, violations right. csv: all curves.
    json: everything. None: as the file's name ends, else html."""

    def run(self) -> int:
        """Read, work out, write."""
        from ambs.report.summary import summarise
        from ambs.report.write import write

        out, kind = self._target()
        summary = summarise(self.runs, at=self.at, psi=self.spec)
        write(summary, out, kind)
        for sentence in summary["notes"]:
            print(f"note: {sentence}")
        count = len(summary["runs"])
        print(f"Wrote {out}: {count} {'run' if count == 1 else 'runs'}")
        return 0

    def _target(self) -> tuple[Path, Literal["html", "md", "png", "csv", "json"]]:
        from ambs.errors import UserError

        refuse_folder("--out", self.out)
        if self.out is None:
            kind = self.format or "html"
            return Path(f"report.{kind}"), kind
        for kind in ("html", "md", "png", "csv", "json"):
            if self.format == kind or (self.format is None and self.out.suffix.lower() == f".{kind}"):
                return self.out, kind
        if self.out.suffix.lower() in OTHERS:
            raise UserError(
                f"a report is html, md, png, csv or json, which --format says, and not {self.out.suffix[1:]}"
            )
        return self.out, "html"

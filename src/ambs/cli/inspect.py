"""`ambs inspect`: why the shield stepped in, as a page to look at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from ambs.cli.words import refuse_file, refuse_folder
from ambs.errors import UserError

if TYPE_CHECKING:
    from ambs.inspector.write import Glance


@dataclass(frozen=True)
class Inspect:
    """Turn recorded episodes into pages that tell, step by step, why the shield accepted or overrode.

    Pages need no server and no network. Episodes are recorded by `ambs eval RUN --record DIR`.

    Example: ambs eval RUN --episodes 10 --record recorded && ambs inspect recorded --open
    """

    recorded: tyro.conf.Positional[Path]
    """Folder of recorded episodes, or one of them."""
    out: Path | None = None
    """Folder for the pages; None: beside the recordings."""
    open: bool = False
    """Show the page with the most to see in a browser."""
    episode: str | None = None
    """Only this one, e.g. episode-0001-on."""
    step: int | None = None
    """Step of the figure; None: the first override that was looked into."""
    figure: Path | None = None
    """Draw one step for a paper instead (.png or .svg)."""
    audit: Path | None = None
    """Write the audit of all episodes as a table instead (.csv)."""

    def run(self) -> int:
        """Read, draw, write."""
        from ambs.inspector import write
        from ambs.inspector.recording import find

        refuse_file("--out", self.out)
        refuse_folder("--figure", self.figure)
        refuse_folder("--audit", self.audit)
        if self.step is not None and self.figure is None:
            raise UserError("--step is the step of a figure, and goes with --figure")
        glances, notes = write.look_through(self._chosen(find(self.recorded)))
        for sentence in notes:
            print(f"note: {sentence}")
        if self.figure is not None:
            chosen = write.most_to_see(glances)
            print(f"Wrote {self.figure}: {write.figure(chosen, self.step, self.figure)}")
        if self.audit is not None:
            found = write.audit_csv(glances, self.audit)
            print(f"Wrote {self.audit}: {found} finding{'' if found == 1 else 's'}")
        if self.figure is None and self.audit is None:
            self._pages(glances)
        return 0

    def _chosen(self, paths: list[Path]) -> list[Path]:
        if self.episode is None:
            return paths
        chosen = [path for path in paths if path.stem == self.episode]
        if not chosen:
            raise UserError(f"there is no {self.episode!r}; there are {', '.join(path.stem for path in paths)}")
        return chosen

    def _pages(self, glances: list[Glance]) -> None:
        from ambs.inspector import write

        folder = self.out or (self.recorded.parent if self.recorded.is_file() else self.recorded)
        files = write.pages(glances, folder)
        for file, glance in zip(files, glances, strict=True):
            print(f"Wrote {file} ({glance.headline.partition(': ')[2]})")
        best = files[glances.index(write.most_to_see(glances))]
        if not any(glance.overrides for glance in glances):
            print("No action was overridden: record more episodes, or ask more of the shield (ambs eval --spec).")
        if self.open:
            import webbrowser

            webbrowser.open(best.resolve().as_uri())
        else:
            print(f"Open {best} in a browser.")

"""Pages, figures and tables of recorded episodes, on disk."""

from dataclasses import dataclass
from pathlib import Path

from ambs.errors import UserError
from ambs.inspector.audit import as_csv, audit
from ambs.inspector.document import document, headline
from ambs.inspector.recording import read
from ambs.storage.files import write_atomic


@dataclass(frozen=True)
class Glance:
    """What is kept of a recording that was looked at: its arrays are read again when they are needed, one file at a time."""

    path: Path
    name: str
    headline: str
    overrides: int
    findings: int
    shield: bool


def look_through(paths: list[Path]) -> tuple[list[Glance], list[str]]:
    """Glances at the recordings that can be read, and a sentence about each that cannot; an error if none can."""
    found, refused = [], []
    for path in paths:
        try:
            found.append(_glance(path))
        except UserError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    return found, [str(error) for error in refused]


def _glance(path: Path) -> Glance:
    recording = read(path)
    findings, shield = len(audit(recording)), recording.facts.shield
    return Glance(path, recording.name, headline(recording), len(recording.overrides), findings, shield)


def pages(glances: list[Glance], folder: Path) -> list[Path]:
    """A page for each episode, linked to the others; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{glance.name}.html" for glance in glances]
    for file, glance in zip(files, glances, strict=True):
        others = [(other.name, one.headline, other == file) for other, one in zip(files, glances, strict=True)]
        write_atomic(file, document(read(glance.path), others).encode(errors="backslashreplace"))
    return files


def most_to_see(glances: list[Glance]) -> Glance:
    """The episode with the most overrides and findings; with the shield on, if there is nothing at all."""
    return max(glances, key=lambda one: (one.overrides + 2 * one.findings, one.shield))


def audit_csv(glances: list[Glance], path: Path) -> int:
    """Write the audits; returns how many findings there are."""
    if not path.name:
        raise UserError("the audit needs the name of a file to go to")
    path.parent.mkdir(parents=True, exist_ok=True)
    text = as_csv(read(glance.path) for glance in glances)
    write_atomic(path, text.encode(errors="backslashreplace"))
    return sum(glance.findings for glance in glances)


def figure(glance: Glance, step: int | None, path: Path) -> str:
    """Draw one step, by default the first override that was looked into; says what was drawn."""
    recording = read(glance.path)
    if path.suffix.lower() not in (".png", ".svg"):
        raise UserError(f"a figure must end in .png or .svg, got {path.name}")
    if step is None:
        step = recording.first_to_see or 0
    if not 0 <= step < recording.facts.steps:
        raise UserError(f"{recording.name} has steps 0 to {recording.facts.steps - 1}, got --step {step}")
    from ambs.inspector.figure import draw

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".tmp-{path.name}")
    try:
        draw(recording, step, temporary, path.suffix.lower()[1:])
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return f"step {step} of {recording.name}"

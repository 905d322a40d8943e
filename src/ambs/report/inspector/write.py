"""Pages, figures and tables of recorded episodes, on disk."""

from pathlib import Path

from ambs.errors import UserError
from ambs.report.inspector.audit import as_csv, audit
from ambs.report.inspector.document import document, headline
from ambs.report.inspector.recording import Recording
from ambs.training.files import write_atomic


def pages(recordings: list[Recording], folder: Path) -> list[tuple[Path, str]]:
    """A page for each episode, linked to the others; the files and what is in them."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [(folder / f"{recording.name}.html", headline(recording)) for recording in recordings]
    for recording, (file, _) in zip(recordings, files, strict=True):
        others = [(other.name, text, other == file) for other, text in files]
        write_atomic(file, document(recording, others).encode(errors="backslashreplace"))
    return files


def most_to_see(recordings: list[Recording]) -> Recording:
    """The episode with the most overrides and findings; with the shield on, if there is nothing at all."""
    return max(recordings, key=lambda one: (overrides(one) + 2 * len(audit(one)), bool(one.facts["shield"])))


def overrides(recording: Recording) -> int:
    """How many actions were overridden."""
    return int(recording.arrays["overridden"].sum()) if recording.decided else 0


def audit_csv(recordings: list[Recording], path: Path) -> int:
    """Write the audits; returns how many findings there are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, as_csv(recordings).encode(errors="backslashreplace"))
    return sum(len(audit(recording)) for recording in recordings)


def figure(recording: Recording, step: int | None, path: Path) -> str:
    """Draw one step, by default the first override; says what was drawn."""
    if path.suffix.lower() not in (".png", ".svg"):
        raise UserError(f"a figure must end in .png or .svg, got {path.name}")
    if step is None:
        overrides = recording.arrays["overridden"].nonzero()[0].tolist() if recording.decided else []
        step = int(overrides[0]) if overrides else 0
    if not 0 <= step < recording.steps:
        raise UserError(f"{recording.name} has steps 0 to {recording.steps - 1}, got --step {step}")
    from ambs.report.inspector.figure import draw

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".tmp-{path.name}")
    try:
        draw(recording, step, temporary, path.suffix.lower()[1:])
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return f"step {step} of {recording.name}"

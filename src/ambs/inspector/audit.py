"""Where the shield was wrong, or seems to have been."""

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ambs.recording.schema import Episode, Twins
from ambs.report.write import cell
from ambs.spec.bounds import clopper_pearson

FALSE_ALARM, MISS, BACKUP, OPTIMIST = "false alarm", "miss", "violation under the backup policy", "too optimistic"
KINDS = {
    FALSE_ALARM: "overridden, but without the shield nothing would have happened within the horizon",
    MISS: "accepted, and the formula broke within the horizon",
    BACKUP: "the formula broke while the backup policy acted",
    OPTIMIST: "accepted, though the true probability, where it is known, was below what the Δ in force asks for",
}

UNSURE = 0.01
"""1 − coverage of the interval of a true probability."""


@dataclass(frozen=True)
class Entry:
    """One finding: its kind, its step, and a sentence."""

    kind: str
    step: int
    text: str


def audit(recording: Episode) -> list[Entry]:
    """Findings by step. A miss is listed at the last decision that could have prevented it and was accepted."""
    decided = recording.steps.decided
    if decided is None or not recording.facts.shield:
        return []
    horizon = int(recording.facts.settings["horizon"])
    broken = np.asarray(recording.steps.frame_violations.any(axis=1))
    overridden = decided.overridden
    # Of another path formula than G≤n Ψ it is Ψ that the frames which are counted violate.
    formula = recording.facts.psi if recording.facts.path else "the formula"
    found = _false_alarms(recording.examination.twin, horizon)
    found += [
        Entry(BACKUP, step, f"the backup policy acted, and {_names(recording, step)} broke {formula}")
        for step in np.flatnonzero(broken & overridden).tolist()
    ]
    # Of a stretch of violating steps only the first is news.
    for step in np.flatnonzero(broken & ~np.append(False, broken[:-1])).tolist():
        before = [at for at in range(max(0, step - horizon + 1), step + 1) if not overridden[at]]
        if before and decided.traces_used[before[-1]] > 0:
            at = before[-1]
            when = "in this very step" if at == step else f"{step - at + 1} steps on"
            told = f"accepted with p̃ = {decided.p_safe[at]:.3g}; {_names(recording, step)} broke {formula} {when}"
            found.append(Entry(MISS, at, told))
    found += _optimistic(recording)
    return sorted(found, key=lambda entry: (entry.step, entry.kind))


def not_examined(recording: Episode) -> str:
    """Of what there may be more findings, in words; empty: of nothing."""
    overrides, near = recording.not_examined if recording.facts.shield else (0, 0)
    parts = [(overrides, "override", "overrides"), (near, "near miss", "near misses")]
    return " and ".join(f"{count} {one if count == 1 else many}" for count, one, many in parts if count)


def as_csv(recordings: Iterable[Episode]) -> str:
    """The audits of several episodes, a row for each finding, and one that counts what was not examined."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["episode", "step", "finding", "p_safe", "traces", "violating", "what happened"])
    for recording in recordings:
        if (decided := recording.steps.decided) is None:
            continue
        for entry in audit(recording):
            used = int(decided.traces_used[entry.step])
            numbers: list[Any] = [f"{decided.p_safe[entry.step]:.6g}" if used else "", used]
            numbers.append(int(decided.violating[entry.step]))
            writer.writerow([cell(recording.name), entry.step, entry.kind, *numbers, cell(entry.text)])
        if unseen := not_examined(recording):
            writer.writerow([cell(recording.name), "", "not examined", "", "", "", unseen])
    return out.getvalue()


def _false_alarms(twins: Twins | None, horizon: int) -> list[Entry]:
    """Overrides whose twins did not violate."""
    if twins is None:
        return []
    found = []
    for index in np.flatnonzero(twins.violation == 0).tolist():
        step, taken = int(twins.step[index]), int(twins.taken[index])
        after = f"for {taken} step{'s' if taken != 1 else ''}"
        after += ", when the episode ended" if taken < horizon else ""
        told = f"overridden; from the same state, unshielded, the formula held {after}"
        found.append(Entry(FALSE_ALARM, step, told))
    return found


def _optimistic(recording: Episode) -> list[Entry]:
    """Accepted decisions whose true probability was surely too low."""
    decided, truth = recording.steps.decided, recording.examination.truth
    if decided is None or truth is None:
        return []
    asked, found = 1 - float(recording.facts.settings["safety_level"]), []
    for step, safe, futures in zip(truth.step, truth.safe, truth.futures, strict=True):
        high = float(clopper_pearson(int(futures), np.array(int(futures - safe)), UNSURE)[1])
        if not decided.overridden[step] and high < asked:
            told = f"accepted with p̃ = {decided.p_safe[step]:.3g}; the true probability was {safe / futures:.3g}"
            found.append(Entry(OPTIMIST, int(step), f"{told}, below {asked:.3g}"))
    return found


def _names(recording: Episode, step: int) -> str:
    frames = recording.steps.frame_labels[step][recording.steps.frame_violations[step]]
    held = [name for name, holds in zip(recording.facts.atoms, frames.any(axis=0), strict=False) if holds]
    return " and ".join(held) or "the absence of all labels"

"""Violations of runs that were trained for different Ψ, counted again under one of them.

An episode's row has the frames per combination of labels (`ambs.acting.accounting`), so Ψ can be asked of every frame afterwards.
What counts are the episodes that have ended.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ambs.errors import UserError
from ambs.report.groups import Group
from ambs.report.runs import Run, Series
from ambs.spec.formula import Formula
from ambs.spec.parser import parse_formula, parse_property
from ambs.spec.pctl import Always, Probability
from ambs.storage.run_folder import EPISODES, iterate_rows

OWN = "the environment's own"
"""Ψ of a run that does not say which that was."""
NAME = re.compile(r'"([^"]*)"|([^+"]+)')
"""One name in a combination of labels."""
KEYS = ("violations", "violations_per_1000")
"""Outcomes that depend on Ψ."""


class Alike(NamedTuple):
    """Groups whose violations are counted by one Ψ, or the reason why they are not."""

    groups: list[Group]
    psi: list[str]
    """By which the violations of each group are counted."""
    sentences: list[str]
    """What a reader must know of it."""


class _MissingError(Exception):
    """A run cannot be counted again, for this reason."""


def asked_for(spec: str) -> tuple[str, list[str]]:
    """Ψ of a formula, or of a property such as `P>=0.9 [ G<=30 !hazard ]`, and then a sentence: the rest of it counts nothing."""
    wanted = parse_property(spec)
    if not isinstance(wanted, Probability) or not isinstance(wanted.path, Always):
        return str(parse_formula(spec)), []
    psi = str(parse_formula(str(wanted.path.operand)))
    return psi, [f"of {wanted} only Ψ = {psi} counts here: frames that violate it"]


def psi_of(run: Run) -> str:
    """Ψ by which a run counted its violations, in the formula's own spelling."""
    told = run.config.get("psi")
    told = told if isinstance(told, str) else run.status.get("psi")
    if not isinstance(told, str):
        return OWN
    try:
        return str(parse_formula(told))
    except UserError:
        return told


def count_alike(groups: list[Group], wanted: str | None = None) -> Alike:
    """The same groups with violations counted under one Ψ: `wanted`, else that of the first run where they differ."""
    runs = [run for group in groups for run in group.runs]
    found = [psi_of(group.runs[0]) if group.runs else OWN for group in groups]
    by = wanted if wanted is not None else (psi_of(runs[0]) if runs else OWN)
    differing = {psi_of(run) for run in runs}
    if differing <= {by}:
        return Alike(groups, found, [f"Violations are counted by Ψ = {by}"] if wanted is not None else [])
    told = (
        f"Trained for different Ψ ({', '.join(sorted(differing))})" if len(differing) > 1 else f"Trained for {found[0]}"
    )
    try:
        if by == OWN:
            raise _MissingError(f"{runs[0].name} does not say which Ψ the environment's own is")
        counted = [_counted(group, parse_formula(by)) for group in groups]
    except _MissingError as reason:
        refused = f"{told}, and violations are not compared: {reason}. Each method's own are counted by its own Ψ"
        if wanted is not None:
            raise UserError(f"violations cannot be counted by Ψ = {by}: {reason}") from None
        return Alike(groups, found, [refused])
    source = "as asked for" if wanted is not None else f"that of {runs[0].name}, the first run"
    sentence = f"{told}: violations are counted again by Ψ = {by}, {source}, in episodes that have ended"
    return Alike(counted, [by] * len(groups), [sentence])


def frames_by_labels(path: Path) -> list[tuple[float, dict[str, int]] | None]:
    """Per ended episode of a run folder: frames of the run then, and frames per combination of labels; None: not stored."""
    try:
        rows = list(iterate_rows(path / EPISODES, []))
    except OSError:
        return [None]
    found = [(float(row["frames"]), row["labels"]) if _tells_labels(row) else None for row in rows]
    return sorted(found, key=lambda row: row[0] if row else 0.0)


def atoms_in(combination: str) -> frozenset[str]:
    """The names that `ambs.acting.accounting.combination` has joined."""
    return frozenset(quoted or plain for quoted, plain in NAME.findall(combination))


def _tells_labels(row: dict[str, Any]) -> bool:
    """Whether a row has counts of labels that add up to its length."""
    labels, frames = row.get("labels"), row.get("frames")
    if not isinstance(labels, dict) or type(frames) is not int or not 0 <= frames < 10**15:
        return False
    counts = list(labels.values())
    return all(type(count) is int and count >= 0 for count in counts) and sum(counts) == row.get("length")


def _counted(group: Group, psi: Formula) -> Group:
    return replace(group, runs=[_recounted(run, psi) for run in group.runs])


def _recounted(run: Run, psi: Formula) -> Run:
    """The run with its totals of violations made from the labels of its episodes."""
    known: Any = run.status.get("atoms")
    unknown = [name for name in psi.atoms() if isinstance(known, list) and name not in known]
    if unknown:
        raise _MissingError(
            f"the environment of {run.name} does not label {unknown[0]!r}; it labels {', '.join(known)}"
        )
    rows = frames_by_labels(run.path)
    if not rows:
        raise _MissingError(f"no episode of {run.name} has ended")
    lacking = sum(row is None for row in rows)
    if lacking or not isinstance(known, list):
        which = f"{lacking} of the {len(rows)} episodes"
        raise _MissingError(
            f"{run.name} does not have the labels of {which} (older versions of ambs did not store them)"
        )
    whole = [row for row in rows if row is not None]
    breaks = {name: not psi.holds_in(atoms_in(name)) for _, labels in whole for name in labels}
    violations = np.array([sum(count for name, count in labels.items() if breaks[name]) for _, labels in whole], float)
    at = np.array([frames for frames, _ in whole])
    totals = Series(at, np.cumsum(violations))
    return replace(
        run,
        metrics=run.metrics | {"violations": totals},
        episodes=run.episodes | {"violations": Series(at, violations)},
    )

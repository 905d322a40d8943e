"""Everything a report shows, as one plain object; every format is a view of it."""

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import ambs
from ambs.config.checks import checked, folder, short
from ambs.errors import UserError
from ambs.report.coverage import sentence
from ambs.report.curves import common_frames, grid
from ambs.report.groups import Group, colours, group_runs, settings_that_differ
from ambs.report.levels import levels_in_force
from ambs.report.outcomes import OUTCOMES, as_json, compared_frames, comparisons, group_outcomes, takes_part
from ambs.report.panels import draw_panels
from ambs.report.paper import beside_the_paper
from ambs.report.promise import asked_of_shields
from ambs.report.recount import KEYS, Alike, asked_for, count_alike
from ambs.report.runs import Run, read_runs
from ambs.report.unlike import settings_sentence
from ambs.statistics import iqm_interval
from ambs.storage.files import utc_now

FORMAT = 1


class Part(NamedTuple):
    """Runs that are shown together: one environment, and a heading for it."""

    title: str
    groups: list[Group]
    length: int | None = None
    """Only the paper's figures at so many frames belong beside them; None: all that were reached."""


def summarise(
    paths: Iterable[Path | str], curves: bool = True, at: int | None = None, psi: str | None = None
) -> dict[str, Any]:
    """Read the runs at these paths and work out what they show, `at` so many frames, or see `compared_frames`.

    Violations are counted by `psi`, a formula or a property with one, or see `count_alike`.
    """
    if isinstance(paths, str | Path | np.ndarray) or not isinstance(paths, Iterable):
        raise UserError(f"paths must be a list of run folders, such as ['runs'], got {short(paths)}")
    if at is not None and checked("at", at, int) < 1:
        raise UserError(f"runs can be compared at 1 frame or more, not at {at}")
    psi, said = (None, []) if psi is None else asked_for(psi)
    runs, notes = read_runs(folder("a path of runs", path) for path in paths)
    longest = max(run.frames for run in runs)
    if at is not None and not any(takes_part(run, at) for run in runs):
        raise UserError(f"no run has {at:,} frames, at which they are to be compared: the longest has {longest:,}")
    notes = [*said, *notes]
    return assemble([Part(env, groups) for env, groups in group_runs(runs).items()], notes, curves, at, psi)


def assemble(
    parts: list[Part], notes: list[str], curves: bool = True, at: int | None = None, psi: str | None = None
) -> dict[str, Any]:
    """Everything that a report of these parts shows."""
    alike = [count_alike(part.groups, psi) for part in parts]
    parts = [part._replace(groups=found.groups) for part, found in zip(parts, alike, strict=True)]
    colour = colours({part.title: part.groups for part in parts})
    environments = [_environment(part, found, colour, curves, at) for part, found in zip(parts, alike, strict=True)]
    return {
        "format": FORMAT,
        "ambs": ambs.__version__,
        "created": utc_now().isoformat(),
        "notes": notes,
        "environments": environments,
        "across": _across(parts, environments),
        "coverage": {str(n): sentence(n) for n in sorted(_sizes(environments)) if n > 1},
        "runs": [
            _run(run, group, takes_part(run, environment["frames"]))
            for environment, part in zip(environments, parts, strict=True)
            for group in part.groups
            for run in (*group.runs, *group.doubles)
        ],
    }


def _environment(part: Part, alike: Alike, colour: dict[str, int], curves: bool, wanted: int | None) -> dict[str, Any]:
    groups = part.groups
    frames = compared_frames(groups) if wanted is None else wanted
    outcomes = [group_outcomes(group, frames) for group in groups]
    upto = common_frames([run for group in groups for run in group.runs])
    at = grid(upto) if upto else np.zeros(0)
    return {
        "env": part.title,
        "frames": frames,
        "unlike": alike.sentences + settings_sentence(groups),
        "groups": [
            {
                "label": group.label,
                "method": group.method,
                "note": group.note,
                "colour": colour[group.label],
                "runs": len(group.runs),
                "psi": psi,
                "outcomes": found,
            }
            for group, psi, found in zip(groups, alike.psi, outcomes, strict=True)
        ],
        "left_out": _left_out(groups, frames),
        "comparisons": comparisons([group.label for group in groups], outcomes, dict.fromkeys(KEYS, alike.psi)),
        "paper": beside_the_paper(groups, part.length),
        "differences": settings_that_differ(groups),
        "asked": asked_of_shields(groups, outcomes),
        "levels": levels_in_force(groups),
        "foresight": [
            {"run": run.name, "label": group.label, "seed": run.seed, "colour": colour[group.label], **run.foresight}
            for group in groups
            for run in group.runs
            if run.foresight is not None
        ],
        "swept": len(groups) > 1 and all(run.varied for group in groups for run in group.runs),
        "x": [round(float(value)) for value in at],
        "panels": draw_panels(groups, at) if curves and upto else [],
    }


def _left_out(groups: list[Group], frames: int) -> list[str]:
    """Which runs the figures leave out, and why."""
    found = [
        f"{run.name} was given up by its rule at {run.frames:,} frames, and figures of {group.label} leave it out: they speak "
        "of the seeds that were not, which flatters it"
        for group in groups
        for run in group.runs
        if run.status.get("stopped") and not takes_part(run, frames)
    ]
    found += [
        f"{run.name} reached {run.frames:,} of the {frames:,} frames compared: in the curves, not in the figures"
        for group in groups
        for run in group.runs
        if not takes_part(run, frames) and not run.status.get("stopped")
    ]
    return found + [
        f"{run.name} repeats seed {run.seed} of {group.label}: left out, since it is no independent evidence"
        for group in groups
        for run in group.doubles
    ]


def _across(parts: list[Part], environments: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per experiment that was made in several environments: IQM over all of them, environments being the strata.

    An experiment is a method with its settings. Only quantities that have the same scale everywhere are shown.
    """
    experiments: dict[Any, list[tuple[str, dict[str, Any]]]] = {}
    for part, environment in zip(parts, environments, strict=True):
        for group, shown in zip(part.groups, environment["groups"], strict=True):
            experiments.setdefault((group.method, group.settings), []).append((part.title, shown))
    found = []
    for members in experiments.values():
        for outcome in OUTCOMES:
            known = [(title, shown) for title, shown in members if outcome.key in shown["outcomes"]]
            strata = [np.array(shown["outcomes"][outcome.key]["values"]) for _, shown in known]
            if outcome.key in ("violations_per_1000", "override_rate") and len(strata) > 1:
                found.append(
                    {
                        # The label that says most: it may tell settings apart that differ in one environment only.
                        "label": max((shown["label"] for _, shown in known), key=len),
                        "title": outcome.title,
                        "environments": [title for title, _ in known],
                        "runs": sum(part.size for part in strata),
                        "iqm": as_json(iqm_interval(strata)),
                    }
                )
    return found


def _sizes(environments: list[dict[str, Any]]) -> set[int]:
    """Numbers of seeds from which intervals were made."""
    return {
        len(found["values"])
        for part in environments
        for group in part["groups"]
        for found in group["outcomes"].values()
    }


def _run(run: Run, group: Group, counted: bool) -> dict[str, Any]:
    command, versions = run.record.get("command"), run.record.get("versions")
    words = [str(word) for word in command] if isinstance(command, list) else []
    return {
        "name": run.name,
        "path": str(run.path),
        "env": run.env,
        "label": group.label,
        "seed": run.seed,
        "state": run.state,
        "frames": run.frames,
        "wanted": run.wanted,
        "counted": counted and any(run is other for other in group.runs),
        "created": run.record.get("created"),
        "device": run.record.get("device"),
        "commit": run.record.get("commit"),
        "modified": run.record.get("modified"),
        "version": versions.get("ambs") if isinstance(versions, dict) else None,
        "command": shlex.join(words),
        "reproduce": shlex.join(["ambs", "train", "--config", str(run.path / "config.json")]),
        "missing": run.missing,
    }

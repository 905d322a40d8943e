"""Which runs are seeds of one and the same experiment."""

import re
import string
from dataclasses import dataclass

from ambs.config.methods import METHODS, TITLES
from ambs.report.runs import Run, flat
from ambs.report.sweeps import words

SHIELDED = frozenset(name for name, method in METHODS.items() if method.shielded)
"""Methods whose shield is on unless it was switched off."""
INERT = frozenset(
    f"training.{name}"
    for name in (
        "frames", "log_every", "checkpoint_every", "keep", "wandb", "max_skipped", "max_faults", "env_timeout", "replay",
        "store_replay",
    )
) | {"seed", "env", "method"}  # fmt: skip
"""Settings that do not change what is learnt, or are told apart elsewhere."""
ONCE_ABSENT = {
    "model.label_scale": "1.0", "model.grades": "0", "cameras": '"front"',
    "training.devices": "1", "shield.failsafe_after": "null", "shield.latch": "1", "shield.kind": '"ambs"', "shield.path": "null",
    "stop.metric": "null", "stop.at": "0", "stop.below": "0.0",
}  # fmt: skip
"""What settings were before there was a choice: a run that does not have them was made so."""
LONGEST = 24
"""Characters of the setting that a label may name; where it is longer, or there are several, they are in the group's note."""


@dataclass
class Group:
    """Runs of one environment, method and configuration that differ in their seed only."""

    env: str
    method: str
    label: str
    runs: list[Run]
    """One per seed, in order of seed."""
    doubles: list[Run]
    """Runs that repeat a seed and so add no evidence; left out of all figures."""
    note: str = ""
    """Settings that tell this group from others of its method, where the label has no room for them."""
    settings: tuple[tuple[str, str], ...] = ()
    """All settings that could matter: groups of two environments with the same ones are one experiment in both."""


def group_runs(runs: list[Run]) -> dict[str, list[Group]]:
    """Groups by environment, in the order of `METHODS`; environments in order of name."""
    found: dict[str, list[Group]] = {}
    for env in sorted({run.env for run in runs}):
        here = [run for run in runs if run.env == env]
        methods = sorted({run.method for run in here}, key=_rank)
        found[env] = [
            group for method in methods for group in _variants(env, method, [r for r in here if r.method == method])
        ]
    return found


def colours(grouped: dict[str, list[Group]]) -> dict[str, int]:
    """A number per label: a method's first one has its place in `METHODS`, so that it looks the same in every report."""
    found: dict[str, int] = {}
    later = []
    for group in [group for groups in grouped.values() for group in groups]:
        place = list(TITLES).index(group.method) if group.method in TITLES else None
        if place is not None and place not in found.values() and group.label not in found:
            found[group.label] = place
        elif group.label not in found:
            later.append(group.label)
    for label in dict.fromkeys(later):
        found[label] = next(number for number in range(len(found) + 1) if number not in found.values())
    return found


def settings_that_differ(groups: list[Group]) -> dict[str, list[str]]:
    """Settings in which runs of these groups differ, other than the seed, with each group's value (or values)."""
    settings = [[flat(run.config) for run in group.runs] for group in groups]
    names = sorted({name for part in settings for run in part for name in run} - {"seed"})
    found = {}
    for name in names:
        values = [sorted({run.get(name, ONCE_ABSENT.get(name, "not set")) for run in part}) for part in settings]
        if len({value for part in values for value in part}) > 1:
            found[name] = [", ".join(part) for part in values]
    return found


def _rank(method: str) -> tuple[int, str]:
    names = list(TITLES)
    return (names.index(method) if method in names else len(names), method)


def _variants(env: str, method: str, runs: list[Run]) -> list[Group]:
    """One group per configuration; their labels tell where configurations differ."""
    configurations: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for run in sorted(runs, key=lambda run: _natural(words(run.varied))):
        settings = {name: value for name, value in (ONCE_ABSENT | flat(run.config)).items() if name not in INERT}
        configurations.setdefault(tuple(sorted(settings.items())), []).append(run)
    variants = [dict(settings) for settings in configurations]
    names = sorted({name for variant in variants for name in variant})
    differing = [name for name in names if len({variant.get(name) for variant in variants}) > 1]
    groups = []
    for number, (variant, members) in enumerate(zip(variants, configurations.values(), strict=True), start=1):
        kept, doubles = _one_per_seed(members)
        suffix, note = _suffix(method, variant, differing, number)
        told = {words(run.varied) for run in members}
        if (note or len(differing) > 1) and len(told) == 1 and (brief := told.pop()):
            suffix = f" ({brief})"  # In the sweep's own words.
        label = TITLES.get(method, method) + suffix
        groups.append(Group(env, method, label, kept, doubles, note, tuple(sorted(variant.items()))))
    return groups


def _natural(text: str) -> list[str | float]:
    """By which 64 comes before 512: texts, and numbers between them."""
    return [float(part) if number % 2 else part for number, part in enumerate(re.split(r"(\d+(?:\.\d+)?)", text))]


def _suffix(method: str, variant: dict[str, str], differing: list[str], number: int) -> tuple[str, str]:
    """What follows a method's name, and the note: a shield that is not as the method has it, and the settings of a variant, or a
    letter for them."""
    usual = "true" if method in SHIELDED else "false"
    shield = variant.get("shielded", usual)
    words = [] if shield == usual else ["shield on" if shield == "true" else "shield off"]
    rest = [f"{name}={variant.get(name, 'not set')}" for name in differing if name != "shielded"]
    short = len(rest) == 1 and len(rest[0]) <= LONGEST
    if rest:
        words.append(rest[0] if short else _letter(number))
    return f" ({', '.join(words)})" if words else "", "" if short else ", ".join(rest)


def _letter(number: int) -> str:
    return string.ascii_uppercase[number - 1] if number <= len(string.ascii_uppercase) else str(number)


def _one_per_seed(runs: list[Run]) -> tuple[list[Run], list[Run]]:
    """Of runs with the same seed the one that went furthest, the latest of equals; and the others."""
    best: dict[str, Run] = {}
    for run in sorted(runs, key=lambda run: (run.frames, str(run.record.get("created")))):
        best[str(run.seed)] = run
    kept = sorted(best.values(), key=lambda run: (len(str(run.seed)), str(run.seed)))
    return kept, [run for run in runs if not any(run is other for other in kept)]

"""The file that declares a sweep: settings that all runs have, and those in which they differ, as a grid or a list; seeds."""

import itertools
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ambs.config import Config
from ambs.config.checks import one_of, short, whole
from ambs.config.resolve import resolve, to_dict
from ambs.errors import UserError
from ambs.sweep.plan import MOST, Job, Needs, Sweep

PARTS = {"sweep": dict, "settings": dict, "grid": dict, "list": list, "stop": dict}
FACTS = ("out", "seeds", "cpus", "gpus")
CHOICES = ("preset", "semantics", "method", "size", "shield", "spec")
"""What is no setting by itself and decides on several, as flags of `ambs train` do."""

Changes = dict[str, Any]
"""Settings by dotted name."""


def read_sweep(path: Path, *, out: Path | None = None, env: str | None = None) -> Sweep:
    """The sweep that a file declares; anything in it that cannot be run is refused, in a sentence.

    `out` replaces the folder that it names. An environment that is none of ours must be named again, as `env`: a file's word
    does not run code.
    """
    told = _read(path)
    facts = told["sweep"]
    home = out if out is not None else Path(_text("sweep.out", facts.get("out", f"runs/{path.stem}")))
    if home.exists() and not home.is_dir():
        raise UserError(f"out must be a folder, and {home} is a file")
    common = _dotted(told["settings"], "settings.")
    common |= {f"stop.{name}": value for name, value in told["stop"].items()}
    differing = list(_differing(told, path))
    seeds = _seeds(facts.get("seeds", 1))
    if len(differing) * len(seeds) > MOST:
        raise UserError(f"{path} declares {len(differing) * len(seeds):,} runs, more than {MOST:,}")
    names = _names(differing, path)
    resolved = [_resolved(common | varied, name, env) for name, varied in zip(names, differing, strict=True)]
    # Seed by seed, so that a sweep that is broken off has compared all with few seeds.
    jobs = tuple(
        _job(home, _folder(name, config), replace(config, seed=seed), varied)
        for seed in seeds
        for name, config, varied in zip(names, resolved, differing, strict=True)
    )
    return Sweep(path.stem, home, jobs, _needs(facts), str(path))


def _job(home: Path, folder: str, config: Config, varied: Changes) -> Job:
    name = f"{folder}-s{config.seed}"
    return Job(name, home / name, to_dict(config), varied)


def _read(path: Path) -> dict[str, Any]:
    """The parts of the file, each of its kind; those that are not there are empty."""
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid TOML: {error}") from None
    if not told:
        raise UserError(f"{path} declares nothing: it needs one of {', '.join(PARTS)}")
    for name, value in told.items():
        one_of(f"a part of {path}", name, PARTS)
        if not isinstance(value, PARTS[name]):
            kind = "a table" if PARTS[name] is dict else "a list of tables, [[list]]"
            raise UserError(f"{name} of {path} must be {kind}, got {short(value)}")
    for name in told.get("sweep", {}):
        one_of(f"a name in [sweep] of {path}", name, FACTS)
    return {name: told.get(name, kind()) for name, kind in PARTS.items()}


def _differing(told: Mapping[str, Any], path: Path) -> Iterator[Changes]:
    """Every combination of the grid, with each entry of the list."""
    grid = _dotted(told["grid"], "grid.")
    for name, values in grid.items():
        if not isinstance(values, list) or not values:
            raise UserError(f"grid.{name} of {path} must be a list of at least one value, got {short(values)}")
    entries = told["list"] or [{}]
    for entry in entries:
        if not isinstance(entry, Mapping):
            raise UserError(f"an entry of list in {path} must be a table of settings, got {short(entry)}")
        listed = _dotted(entry, "list.")
        if twice := grid.keys() & listed.keys():
            raise UserError(f"{min(twice)} is in the grid and in the list of {path}: it can be in one of them")
        for values in itertools.product(*grid.values()):
            yield listed | dict(zip(grid, values, strict=True))


def _dotted(table: Mapping[str, Any], where: str, before: str = "") -> Changes:
    """A nested table by dotted names; a seed is none of the settings."""
    found: Changes = {}
    for key, value in table.items():
        name = f"{before}{key}"
        if name == "seed":
            raise UserError(f"{where}seed: seeds are told in [sweep], as seeds = 3 or seeds = [0, 1, 2]")
        if isinstance(value, Mapping):
            found |= _dotted(value, where, f"{name}.")
        else:
            found[name] = value
    return found


def _nested(changes: Changes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in changes.items():
        *groups, last = name.split(".")
        place = found
        for group in groups:
            place = place.setdefault(group, {})
            if not isinstance(place, dict):
                raise UserError(f"{name} cannot be set beside {group}, which is no group of settings")
        place[last] = value
    return found


def _resolved(changes: Changes, name: str, env: str | None) -> Config:
    """All settings of a run."""
    choices = {key: value for key, value in changes.items() if key in CHOICES}
    try:
        for key, value in choices.items():
            _text(key, value)
        rest = {key: value for key, value in changes.items() if key not in CHOICES}
        config = resolve(**choices, changes=_nested(rest))
        config.training.refuse_futile()
        if config.guards:
            raise UserError("method guard needs the policy that acts, which a sweep cannot give it: use ambs train")
        if ":" in config.env and config.env != env:
            raise UserError(
                f"the environment {config.env}, whose code would be run, must be named (--env {config.env})"
            )
    except UserError as error:
        raise UserError(f"the run {name}: {error}") from None
    return config


def _names(differing: list[Changes], path: Path) -> list[str]:
    """What tells runs apart, as the name of a folder: values by the last part of their setting's name."""
    keys = list(dict.fromkeys(key for one in differing for key in one))
    last = Counter(key.rpartition(".")[2] for key in keys)
    short_names = {key: key.rpartition(".")[2] if last[key.rpartition(".")[2]] == 1 else key for key in keys}
    found = []
    for one in differing:
        words = [_word(one[key]) if key in ("env", "method") else f"{short_names[key]}{_word(one[key])}" for key in one]
        found.append("-".join(words))
    if twice := [name for name, count in Counter(found).items() if count > 1]:
        raise UserError(f"{path} declares the run {twice[0] or '(the settings alone)'} more than once")
    return found


def _folder(name: str, config: Config) -> str:
    return name or config.method


def _word(value: Any) -> str:
    """A value as part of a folder's name."""
    text = value if isinstance(value, str) else f"{value:.12g}" if isinstance(value, float) else str(value).lower()
    text = re.sub(r"^-(?=[\d.])", "minus", text)
    return re.sub(r"[^A-Za-z0-9.+]+", "_", text).strip("_.")[:40] or "none"


def _seeds(told: Any) -> tuple[int, ...]:
    if isinstance(told, list):
        seeds = tuple(whole("sweep.seeds", seed, 0) for seed in told)
        if not seeds or len(set(seeds)) < len(seeds):
            raise UserError(f"sweep.seeds must be a number, or a list of different seeds, got {short(told)}")
        return seeds
    return tuple(range(whole("sweep.seeds", told, 1, MOST)))


def _needs(facts: Mapping[str, Any]) -> Needs:
    found = {}
    for name in ("cpus", "gpus"):
        if name in facts:
            value = facts[name]
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1024:
                raise UserError(f"sweep.{name} must be a number from 0 to 1024, got {short(value)}")
            if value > 1 and value != int(value):
                raise UserError(f"sweep.{name} must be a whole number where it is above 1, got {value}")
            found[name] = float(value)
    if found.get("cpus") == 0:
        raise UserError("sweep.cpus must be above 0")
    return Needs(**found)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise UserError(f"{name} must be a text, got {short(value)}")
    return value

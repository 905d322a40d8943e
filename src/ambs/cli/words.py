"""Words of a command line that cannot be meant: refused before anything is made of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

from ambs.errors import UserError

PATHS = ("--out", "--record", "--video", "--config", "--audit", "--figure")
"""Options that name a file or a folder."""
OF_PATHS = ("compare", "eval", "foresight", "inspect", "report", "resume")
"""Verbs that are given files or folders."""


def refuse_empty(args: list[str]) -> None:
    """Refuse an empty word where a file or folder is meant: it would be read as the current folder."""
    for before, word in pairwise(["", *args]):
        option = word.removesuffix("=") if word.endswith("=") else before if not word else ""
        if option in PATHS:
            raise UserError(f"{option} is empty: name a file or a folder (. is the current one)")
        if not word and args[0] in OF_PATHS and not before.startswith("--"):
            raise UserError(f"{args[0]} is given an empty name: name a file or a folder (. is the current one)")


def refuse_file(option: str, path: Path | None) -> None:
    """Refuse a file, or a place in one, where a folder is to be made: before anything is begun in vain."""
    there = next((place for place in (path, *path.parents) if place.exists()), None) if path is not None else None
    if there is not None and not there.is_dir():
        raise UserError(f"{option} must be a folder, and {there} is a file")


def refuse_folder(option: str, path: Path | None) -> None:
    """Refuse a folder where a file is to be written, and whatever else that file would take the place of."""
    if path is not None and path.is_dir():
        raise UserError(f"{option} must be a file, and {path} is a folder")
    if path is not None and (path.is_symlink() or (path.exists() and not path.is_file())):
        raise UserError(f"{option} must be a file, and {path} is a link, a device or a pipe")


def refuse_twice(args: list[str], aliases: Mapping[str, str] | None = None) -> None:
    """Refuse an option that is said twice, and not the same; `aliases` are other names of some."""
    told: dict[str, str] = {}
    for option, values in _options(args):
        name, said = (aliases or {}).get(option, option), " ".join(values)
        if told.setdefault(name, said) != said:
            raise UserError(f"{option} is said to be {told[name]} and {said}: say it once")


def _options(args: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Each option with the words that follow it."""
    found: list[tuple[str, list[str]]] = []
    for word in args[: args.index("--")] if "--" in args else args:
        if word.startswith("--"):
            option, equals, value = word.partition("=")
            found.append((option.replace("_", "-"), [value] if equals else []))
        elif found:
            found[-1][1].append(word)
    return iter(found)

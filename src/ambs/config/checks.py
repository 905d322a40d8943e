"""Ranges of settings, each refused in one sentence that names the field, the value and what would be right."""

import difflib
import math
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import tyro

from ambs.errors import UserError

LARGEST = 2**53
"""Of whole numbers: beyond it JSON and floats no longer tell them apart."""


def at_least(settings: Any, least: int | float, *names: str) -> None:
    """Refuse fields below `least`; one that is None passes."""
    for name, value in _values(settings, names):
        if not value >= least:
            raise UserError(f"{name} must be at least {least}, got {value}")


def at_most(settings: Any, most: int | float, *names: str) -> None:
    """Refuse fields above `most`; one that is None passes."""
    for name, value in _values(settings, names):
        if not value <= most:
            raise UserError(f"{name} must be at most {most}, got {value}")


def above(settings: Any, bound: int | float, *names: str) -> None:
    """Refuse fields that do not exceed `bound`; one that is None passes."""
    for name, value in _values(settings, names):
        if not value > bound:
            raise UserError(f"{name} must be above {bound}, got {value}")


def within(settings: Any, interval: str, *names: str) -> None:
    """Refuse fields outside an interval such as `[0, 1]` or `(-1, 0]`, an open end as a parenthesis; None passes."""
    low, high = (float(word) for word in interval[1:-1].split(","))
    for name, value in _values(settings, names):
        beyond_low = value > low if interval[0] == "(" else value >= low
        below_high = value < high if interval[-1] == ")" else value <= high
        if not (beyond_low and below_high):
            raise UserError(f"{name} must lie in {interval}, got {value}")


def one_of(name: str, value: Any, choices: Iterable[Any]) -> Any:
    """The value, if it is one of these; else the nearest is suggested."""
    known = tuple(choices)
    if value in known:
        return value
    words = [choice for choice in known if isinstance(choice, str)]
    near = difflib.get_close_matches(value, words, n=1, cutoff=0.4) if isinstance(value, str) else []
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise UserError(f"{name} must be one of {', '.join(map(str, known))}, got {repr(value)[:60]}{hint}")


def choice(names: Iterable[str]) -> Any:
    """For the command line: a setting that is one of the names in a table."""
    known = tuple(names)
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=f"{{{','.join(known)}}}",
        instance_from_str=lambda words: words[0],
        is_instance=lambda value: isinstance(value, str),
        str_from_instance=lambda value: [value],
        choices=known,
    )


def all_finite(settings: Any) -> None:
    """Refuse NaN, infinity, and whole numbers that nobody means, in any field."""
    for name, value in _values(settings, [field.name for field in fields(settings)]):
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{name} must be a finite number, got {value}")
        if isinstance(value, int) and abs(value) > LARGEST:
            raise UserError(f"{name} must be at most {LARGEST}, got {value}")


def _values(settings: Any, names: Iterable[str]) -> list[tuple[str, Any]]:
    found = [(name, getattr(settings, name)) for name in names]
    return [(name, value) for name, value in found if value is not None]

"""Types and ranges of settings, each refused in one sentence that names the field, the value and what would be right."""

import difflib
import math
import numbers
import reprlib
import types
import typing
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import tyro

from ambs.errors import UserError

LARGEST = 2**53
"""Of whole numbers: beyond it JSON and floats no longer tell them apart."""
LARGEST_SINGLE = 3.4e38
"""Of numbers in single precision, nearly."""
MOST_ENVS = 1_000_000
"""Environments side by side, and episodes that an agent plays at once."""
MOST_PIXELS = 4096
"""Of a picture's side."""
MOST_EPISODES = 1_000_000
"""Played one after the other for one figure, or one folder."""
_SHORT = reprlib.Repr()
_SHORT.maxother = 60


def of_types(settings: Any) -> None:
    """Refuse fields that are not of their annotated types; whole numbers become real ones, and lists tuples, where those are."""
    for name, hint in types_of(type(settings)).items():
        object.__setattr__(settings, name, checked(name, getattr(settings, name), hint))


def types_of(settings: type) -> dict[str, Any]:
    """The annotated types of a class of settings."""
    return typing.get_type_hints(settings)


def checked(name: str, value: Any, hint: Any) -> Any:
    """The value, if it is of the wanted kind; whole numbers pass as real ones and lists as tuples."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        for option in options:
            try:
                return checked(name, value, option)
            except UserError:
                continue
    elif origin is typing.Literal:
        if is_among(value, options):
            return value
    elif origin is tuple:
        if isinstance(value, (list, tuple)):
            return tuple(checked(name, item, options[0]) for item in value)
    elif hint is float:
        if isinstance(value, numbers.Real) and not isinstance(value, bool):
            try:
                return float(value)
            except OverflowError:
                raise UserError(f"{name} must be a number that is not so large, got {short(value)}") from None
    elif hint is int:
        if isinstance(value, numbers.Integral) and not isinstance(value, bool):
            return int(value)
    elif hint is type(None):
        if value is None:
            return None
    elif isinstance(value, hint):
        return value
    raise UserError(f"{name} must be {_words(hint)}, got {short(value)}")


def whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """A whole number within bounds."""
    number = int(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else None
    if number is None or not least <= number <= (LARGEST if most is None else most):
        small = most is None and (number is None or number < least)
        bounds = f"of at least {least}" if small else f"from {least} to {LARGEST if most is None else most}"
        raise UserError(f"{name} must be a whole number {bounds}, got {short(value)}")
    return number


def function(name: str, value: Any, takes: str) -> Any:
    """A function, or whatever can be called; `takes` says with what."""
    if not callable(value):
        raise UserError(f"{name} must be a function {takes}, got {short(value)}")
    return value


def folder(name: str, value: Any, what: str = "a folder") -> Path:
    """The path of a folder, there or to be made; or of `what` it is said to be."""
    if not isinstance(value, str | Path) or "\0" in str(value):
        raise UserError(f"{name} must be the path of {what}, got {short(value)}")
    return Path(value)


def short(value: Any) -> str:
    """A value as a sentence can quote it, whatever it is."""
    return _SHORT.repr(value)


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
    if is_among(value, known):
        return value
    words = [choice for choice in known if isinstance(choice, str)]
    near = difflib.get_close_matches(value, words, n=1, cutoff=0.4) if isinstance(value, str) else []
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise UserError(f"{name} must be one of {', '.join(map(str, known))}, got {short(value)}{hint}")


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
    """Refuse NaN, infinity, what becomes so in single precision, and whole numbers that nobody means, in any field."""
    for name, value in _values(settings, [field.name for field in fields(settings)]):
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{name} must be a finite number, got {value}")
        if isinstance(value, float) and abs(value) > LARGEST_SINGLE:
            raise UserError(f"{name} must be finite in single precision, too, got {value}")
        if isinstance(value, int) and abs(value) > LARGEST:
            raise UserError(f"{name} must be at most {LARGEST}, got {value}")


def _values(settings: Any, names: Iterable[str]) -> list[tuple[str, Any]]:
    found = [(name, getattr(settings, name)) for name in names]
    return [(name, value) for name, value in found if value is not None]


def is_among(value: Any, known: tuple[Any, ...]) -> bool:
    """Whether it is one of these names; arrays, say, cannot be compared with them."""
    return any(value is one or (isinstance(value, str | int) and value == one) for one in known)


def _words(hint: Any) -> str:
    options = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return f"one of {', '.join(map(str, options))}"
    if options and typing.get_origin(hint) is not tuple:
        return " or ".join(_words(option) for option in options)
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
    return (
        f"a {hint.__name__}" if isinstance(hint, type) and is_dataclass(hint) else names.get(hint, "a list of numbers")
    )

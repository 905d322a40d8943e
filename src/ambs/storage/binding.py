"""Which settings a checkpoint belongs to: the digest of `config.json` as it was written, and a copy to name what differs.

This finds damage and mix-ups. It does not find a forger, who computes the digest anew.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ambs.config import Config
from ambs.errors import UserError
from ambs.spec.parser import parse_formula
from ambs.storage.checkpoint import Checkpoint
from ambs.storage.run_folder import CONFIG, RunFolder

FRAMES = "config.training.frames"
SETTINGS = "settings"
"""Name of the binding in a checkpoint's `meta`."""


def bind(folder: RunFolder) -> dict[str, Any]:
    """What a checkpoint of this run says of its settings."""
    return {"sha256": folder.digest, "record": folder.record}


def check_bound(found: Checkpoint, folder: RunFolder, config: Config, *, trust: bool = False) -> tuple[str, ...]:
    """Refuse a checkpoint that was not made with the settings of this folder, and name the first that differs.

    One that does not say what it was made with (format 1, or no digest) is refused too, unless the user says `trust`; then
    a sentence is returned.
    """
    bound = found.meta.get(SETTINGS)
    if isinstance(bound, dict) and bound.get("sha256"):
        if bound["sha256"] != folder.digest and not _was_extended(folder.record, bound):
            raise UserError(f"{found.path} was saved with other settings: {_difference(folder.record, bound)}")
        sentences: tuple[str, ...] = ()
    elif trust:
        sentences = (f"{_unknown(found)}; the file is taken as it is, because you trust it",)
    else:
        raise UserError(f"{_unknown(found)}; if you know that it is (--trust, trust=True), it can be used as it is")
    _check_interface_fits(found, config)
    return sentences


def _was_extended(now: Mapping[str, Any], bound: Mapping[str, Any]) -> bool:
    """Whether the settings are those of the checkpoint but for the frames to play, and say so themselves (`RunFolder.extend`)."""
    then, earlier = bound.get("record"), now.get("earlier")
    if not isinstance(then, Mapping) or not isinstance(earlier, list) or bound["sha256"] not in earlier:
        return False
    ours, theirs = (
        {name: value for name, value in _flat(one) if name not in (FRAMES, "earlier")} for one in (now, then)
    )
    return ours == theirs


def _unknown(found: Checkpoint) -> str:
    return (
        f"{found.path} has format {found.format} and no digest of its settings, so that nobody can tell whether {CONFIG} is "
        "still what it was made with"
    )


def _difference(now: Mapping[str, Any], bound: Mapping[str, Any]) -> str:
    """The first setting that differs, in words; the settings themselves before what else is on record."""
    then = bound.get("record")
    found = first_difference(now, then if isinstance(then, Mapping) else {})
    if found is None:
        return f"{CONFIG} has the same values in other bytes than those that were written"
    name, ours, theirs = found
    return f"{name.removeprefix('config.')} is {ours} in {CONFIG}, and was {theirs}"


def first_difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Name of the first entry of nested mappings that differs, those under `config` first, and what each says of it."""
    ours, theirs = dict(_flat(one)), dict(_flat(other))
    for name in sorted({*ours, *theirs}, key=lambda name: (not name.startswith("config."), name)):
        if ours.get(name) != theirs.get(name) or type(ours.get(name)) is not type(theirs.get(name)):
            return name, _word(ours, name), _word(theirs, name)
    return None


def _word(values: Mapping[str, Any], name: str) -> str:
    return repr(values[name])[:60] if name in values else "missing"


def _flat(record: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in record.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _check_interface_fits(found: Checkpoint, config: Config) -> None:
    """Refuse an interface that the settings would not have made: other Ψ, frames per step or cost."""
    interface = found.meta.get("interface")
    if not isinstance(interface, dict):
        return  # `check_meta` says so.
    wanted: dict[str, Any] = {"frames": config.training.action_repeat, "cost": config.safety.cost}
    for name, value in wanted.items():
        there = interface.get(name)
        if not isinstance(there, int | float) or not math.isclose(there, value, rel_tol=1e-9):
            raise UserError(f"{found.path} does not fit: its {name} is {there!r}, and the settings say {value}")
    if config.psi is not None and parse_formula(config.psi) != _formula(found, interface.get("psi")):
        raise UserError(
            f"{found.path} does not fit: its Ψ is {interface.get('psi')!r}, and the settings say {config.psi!r}"
        )


def _formula(found: Checkpoint, text: Any) -> Any:
    if not isinstance(text, str):
        raise UserError(f"{found.path} does not fit: its Ψ is {text!r}")
    return parse_formula(text)

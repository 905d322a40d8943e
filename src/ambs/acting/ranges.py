"""What a manifest says, checked for range before anything goes by it; and the action, checked last before it is executed."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ambs.config import Config
from ambs.errors import UserError
from ambs.shield.rules import Decision, Reason

if TYPE_CHECKING:
    from ambs.acting.adapter import Interface

LARGEST = float(np.finfo(np.float32).max)
MOST = {"actions": 10_000, "image": 4096, "vector": 10_000_000, "frames": 10_000, "atoms": 10_000}
"""Sizes beyond which nobody means it."""


def check_interface(data: Any) -> None:
    """Refuse an interface in which a number is missing, not finite or out of range; the sentence names it."""
    if not isinstance(data, Mapping):
        raise UserError("its interface is no table")
    missing = [name for name in _NEEDED if name not in data]
    if missing:
        raise UserError(f"its interface lacks {missing[0]}")
    for name, least in (("actions", 1), ("frames", 1)):
        _whole(name, data[name], least)
    _truth(isinstance(data["discrete"], bool), "discrete", data["discrete"])
    _truth(_is_number(data["cost"]) and data["cost"] > 0, "cost", data["cost"])
    atoms = data["atoms"]
    right = isinstance(atoms, list) and len(atoms) <= MOST["atoms"] and all(isinstance(name, str) for name in atoms)
    _truth(right, "atoms", atoms)
    _truth(isinstance(data["psi"], str), "psi", data["psi"])
    _check_bounds(data)
    _check_fallback(data)
    _check_observation(data["observation"], data.get("seen"))


_NEEDED = ("observation", "actions", "atoms", "psi", "frames", "cost", "fallback", "discrete", "low", "high")


def _check_bounds(data: Mapping[str, Any]) -> None:
    wanted = 1 if data["discrete"] else data["actions"]
    for name in ("low", "high"):
        _numbers(name, data[name], wanted)
    for low, high in zip(data["low"], data["high"], strict=True):
        _truth(low <= high and high - low <= LARGEST, "low and high", (low, high))


def _check_fallback(data: Mapping[str, Any]) -> None:
    fallback = data["fallback"]
    if fallback is None:
        return
    _numbers("fallback", fallback, data["actions"])
    if data["discrete"]:
        _truth(sorted(fallback) == [0.0] * (len(fallback) - 1) + [1.0], "fallback", fallback)
    else:
        _truth(all(abs(value) <= 1 + 1e-6 for value in fallback), "fallback", fallback)


def _check_observation(data: Any, seen: Any) -> None:
    if not isinstance(data, Mapping) or not {"image", "vector", "mean", "deviation"} <= data.keys():
        raise UserError("its observation is no table of image, vector, mean and deviation")
    for name in ("image", "vector"):
        _whole(name, data[name], 0)
    _truth(data.get("channels", 3) in (3, 6), "channels", data.get("channels"))
    _truth(isinstance(data.get("unseen", False), bool), "unseen", data.get("unseen"))
    for name in ("mean", "deviation"):
        _numbers(name, data[name], data["vector"] if data[name] else 0)
    _truth(all(value > 0 for value in data["deviation"]), "deviation", data["deviation"])
    if seen is not None:
        _truth(isinstance(seen, list) and len(seen) == 2, "seen", seen)
        for part in seen:
            _truth(isinstance(part, list) and len(part) == data["vector"], "seen", part)
            _numbers("seen", [0.0 if value is None else value for value in part], data["vector"])


def check_thresholds(thresholds: Any) -> None:
    """Refuse label thresholds that are no probabilities: above 1 no label would ever hold."""
    values = np.asarray(thresholds)
    if not ((values > 0) & (values <= 1)).all():
        raise UserError(f"its thresholds must lie in (0, 1], got {_short(values.tolist())}")


def check_level(level: Any, config: Config) -> int:
    """The number of a level in force; refused if there is no such level."""
    value, levels = np.asarray(level), len(config.shield.levels())
    if value.shape or value.dtype.kind not in "iu" or not 0 <= value < levels:
        raise UserError(f"its level in force must be one of 0 to {levels - 1}, got {_short(value.tolist())}")
    return int(value)


def _whole(name: str, value: Any, least: int) -> None:
    _truth(type(value) is int and least <= value <= MOST[name], name, value)


def _numbers(name: str, values: Any, count: int) -> None:
    right = isinstance(values, list | tuple) and len(values) == count and all(map(_is_number, values))
    _truth(right, name, values)


def _is_number(value: Any) -> bool:
    """Whether it is a number that is finite in single precision, too."""
    return type(value) in (int, float) and math.isfinite(value) and abs(value) <= LARGEST


def _truth(right: bool, name: str, value: Any) -> None:
    if not right:
        raise UserError(f"its {name} cannot be {_short(value)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def executed(interface: "Interface", decision: Decision) -> Decision:
    """The decision in the environment's terms, its actions `[batch, …]` finite and within bounds: the last thing of all.

    An action that is not, after scaling, is replaced by the action of last resort, and the decision says `NON_FINITE`.
    """
    action, proposed = interface.to_env(decision.action), interface.to_env(decision.proposed)
    sound = interface.allows(action) & np.isfinite(decision.action).all(axis=-1)
    if sound.all():
        return decision._replace(action=action, proposed=proposed)
    resort = np.broadcast_to(interface.last_resort(), action.shape)
    rows: dict[str, Any] = {
        "action": np.where(sound.reshape(-1, *(1,) * (action.ndim - 1)), action, resort).astype(action.dtype),
        "proposed": proposed,
        "overridden": decision.overridden | ~sound,
        "p_safe": np.where(sound, decision.p_safe, 0.0),
        "reason": np.where(sound, decision.reason, int(Reason.NON_FINITE)),
    }
    return decision._replace(**rows)

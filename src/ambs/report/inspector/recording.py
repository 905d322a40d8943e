"""Recorded episodes, read with suspicion: what is truncated, foreign or of another shape gets a sentence."""

import json
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ambs.errors import UserError
from ambs.training.files import read_plain

FORMAT = 2
LARGEST = 1 << 31
"""Bytes of one recording, unpacked."""
NOT_DRAWN = -1

_KINDS = {"b": "truth values", "i": "whole numbers", "f": "numbers", "u": "pixels"}
_TIMED = {
    # name: (axes, kind, needed); the first axis is time.
    "labels": (2, "b", True), "action": (None, "if", True), "frame_rewards": (2, "f", True),
    "frame_labels": (3, "b", True), "frame_violations": (2, "b", True), "frame_valid": (2, "b", True),
    "milliseconds": (1, "f", True), "proposed": (None, "if", False), "overridden": (1, "b", False), "p_safe": (1, "f", False),
    "interval": (2, "f", False), "traces_used": (1, "i", False), "violating": (1, "i", False), "reason": (1, "i", False),
    "first_violation": (2, "i", False), "atom": (2, "i", False), "cost": (2, "f", False), "critic": (2, "f", False),
    "scene.robot": (2, "f", False), "scene.items": (3, "f", False), "picture": (4, "u", False),
    "observation.image": (4, "u", False),
}  # fmt: skip
_DECIDED = (
    "proposed", "overridden", "p_safe", "interval", "traces_used", "violating", "reason", "first_violation", "atom", "cost",
    "critic",
)  # fmt: skip
_LISTED = {
    # name: (axes, kind); the first axis is that of `<group>.step`.
    "futures.first_violation": (2, "i"), "futures.atom": (2, "i"), "futures.cost": (2, "f"), "futures.critic": (2, "f"),
    "futures.trace": (2, "i"), "futures.labels": (5, "f"), "futures.continues": (3, "f"), "futures.shown": (3, "i"),
    "futures.image": (6, "u"), "futures.robot": (4, "f"), "futures.items": (5, "f"),
    "twin.violation": (1, "i"), "twin.taken": (1, "i"), "twin.labels": (4, "b"), "twin.robot": (3, "f"),
    "twin.shown": (2, "i"), "twin.image": (5, "u"), "truth.safe": (1, "i"), "truth.futures": (1, "i"),
}  # fmt: skip
_NEEDED = {
    "futures": ("first_violation", "atom", "trace", "labels", "shown"),
    "twin": ("violation", "taken", "labels"),
    "truth": ("safe", "futures"),
}
_SETTINGS = {
    "safety_level": float, "approximation_error": float, "failure_probability": float, "horizon": int, "traces": int,
    "chunk": int, "model_error": float, "discount": float, "cost": float, "threshold_exponent": float,
}  # fmt: skip


@dataclass(frozen=True)
class Recording:
    """One episode; shapes and kinds of `arrays` are those of docs/run-folder.md."""

    name: str
    facts: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @property
    def steps(self) -> int:
        """Decisions of the episode."""
        return int(self.facts["steps"])

    @property
    def decided(self) -> bool:
        """Whether there is a decision for every step: not if actions were random."""
        return "reason" in self.arrays

    @property
    def rolled(self) -> int:
        """H: steps of a stored future."""
        settings = self.facts["settings"]
        return int(settings["horizon"] if settings["rolled"] is None else settings["rolled"])


def find(path: Path) -> list[Path]:
    """The recordings of a folder, or one by its own name."""
    if path.is_file():
        return [path.with_suffix(".npz")]
    if not path.is_dir():
        raise UserError(f"{path} is neither a folder of recorded episodes nor one of them")
    found = sorted(path.glob("episode-*.npz"))
    if not found:
        raise UserError(f"{path} holds no recorded episode; `ambs eval RUN --record {path}` would write some")
    return found


def read(path: Path) -> Recording:
    """Read and check one recording."""
    facts = _facts(path.with_suffix(".json"))
    try:
        arrays = _arrays(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, KeyError, NotImplementedError, RuntimeError) as error:
        raise UserError(f"{path} is not a whole recording: {_line(error)}") from None
    _check(path.name, facts, arrays)
    return Recording(path.stem, facts, arrays)


def _facts(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(read_plain(path))
    except FileNotFoundError:
        raise UserError(f"{path} is missing: a recording is an .npz file and the .json file beside it") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {_line(error)}") from None
    if not isinstance(facts, dict) or not isinstance(facts.get("settings"), dict):
        raise UserError(f"{path} does not describe a recorded episode")
    if facts.get("format") != FORMAT:
        age = "an older" if facts.get("format") == 1 else "another"
        raise UserError(
            f"{path} was written by {age} version of ambs (format {_line(facts.get('format'))}): record again"
        )
    for name, kind in {"steps": int, "frames": int, **_SETTINGS}.items():
        value: Any = facts["settings"].get(name) if name in _SETTINGS else facts.get(name)
        good = isinstance(value, (int, float)) and not isinstance(value, bool) and np.isfinite(float(value))
        if not good or (kind is int and (value != int(value) or not 1 <= value <= 10**6)):
            raise UserError(f"{path}: {name} must be a number of a sane size, got {_line(value)}")
    rolled = facts["settings"].setdefault("rolled", None)
    if rolled is not None and not (isinstance(rolled, int) and 1 <= rolled <= facts["settings"]["horizon"]):
        raise UserError(f"{path}: rolled must be a number of steps up to the horizon, got {_line(rolled)}")
    for name in ("atoms", "trace_atoms", "kinds", "action_names"):
        value = facts.get(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise UserError(f"{path}: {name} must be a list of names, got {_line(value)}")
    reasons = facts.get("reasons")
    if not isinstance(reasons, dict) or not all(isinstance(code, int) for code in reasons.values()):
        raise UserError(f"{path}: reasons must be numbers by name, got {_line(reasons)}")
    left = facts.get("left_out")
    if not isinstance(left, dict) or not all(isinstance(count, int) for count in left.values()):
        facts["left_out"] = {}
    return facts


def _arrays(path: Path) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(path) as archive:
        size = sum(item.file_size for item in archive.infolist())
    if size > LARGEST:
        raise ValueError(f"it claims {size:,} bytes")
    wanted = {*_TIMED, *_LISTED, *(f"{group}.step" for group in _NEEDED), "scene.extent", "futures.extent"}
    with np.load(path, allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files if name in wanted}


def _check(name: str, facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    steps = int(facts["steps"])
    decided = "reason" in arrays
    for key, (axes, kind, needed) in _TIMED.items():
        if key not in arrays:
            if needed or (decided and key in _DECIDED):
                raise UserError(f"{name} lacks the array {key}")
            continue
        _fits(name, key, arrays[key], axes, kind, steps)
    for group, parts in _NEEDED.items():
        if f"{group}.step" not in arrays:
            for key in [key for key in arrays if key.startswith(f"{group}.")]:
                del arrays[key]
            continue
        count = len(np.atleast_1d(arrays[f"{group}.step"]))
        _fits(name, f"{group}.step", arrays[f"{group}.step"], 1, "i", count)
        for part in parts:
            if f"{group}.{part}" not in arrays:
                raise UserError(f"{name} lacks the array {group}.{part}")
        for key, (axes, kind) in _LISTED.items():
            if key in arrays and key.startswith(f"{group}."):
                _fits(name, key, arrays[key], axes, kind, count)
        if count and not ((arrays[f"{group}.step"] >= 0) & (arrays[f"{group}.step"] < steps)).all():
            raise UserError(f"{name}: {group}.step points beyond the {steps} steps of the episode")
    for group in ("scene", "futures"):
        extent = arrays.get(f"{group}.extent", np.array([-1.0, 1.0, -1.0, 1.0]))
        if extent.shape != (4,) or extent.dtype.kind != "f" or not np.isfinite(extent).all() or extent[0] >= extent[1]:
            raise UserError(f"{name}: {group}.extent must be least and greatest x, least and greatest y")


def _fits(name: str, key: str, array: np.ndarray, axes: int | None, kind: str, first: int) -> None:
    kinds = {"i": "iu", "f": "f", "b": "b", "u": "u", "if": "iuf"}[kind]
    right = array.ndim >= 1 and array.dtype.kind in kinds and array.shape[0] == first
    if key.endswith(("image", "picture")):
        right = right and array.dtype == np.uint8 and array.shape[-1] == 3 and array.size > 0
    if not right or (axes is not None and array.ndim != axes):
        wanted = f"{_KINDS[kind[-1]]}, {f'{axes} axes, ' if axes else ''}{first} along the first"
        raise UserError(f"{name}: {key} must be {wanted}, got {array.dtype} of shape {array.shape}")


def _line(value: Any) -> str:
    """Anything as one short line."""
    text = " ".join(str(value).split())
    return text if len(text) <= 120 else f"{text[:117]}…"

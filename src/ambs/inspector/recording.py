"""Recorded episodes, read with suspicion: what is truncated, foreign or of another shape gets a sentence."""

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ambs.errors import UserError
from ambs.report.foresight import read_brief
from ambs.storage.files import read_plain

FORMAT = 2
LARGEST = 1 << 29
"""Bytes of one recording, unpacked; there is never more than one in memory, or two for a moment."""
WIDEST = 65_000
"""Pixels of a picture, or of all pictures of a film strip side by side: what a JPEG can hold."""
MOST_TRACES, MOST_LOOKS, LONGEST = 10_000, 500, 10_000
"""Of a decision rule that a page can work out again without a pause, and of its horizon."""
NOT_DRAWN = -1

_KINDS = {"b": "truth values", "i": "whole numbers", "f": "numbers", "u": "pixels", "n": "numbers"}
_DTYPES = {"b": "b", "i": "iu", "f": "f", "u": "u", "n": "iuf"}
# Kind and shape; letters are sizes that must agree: T decisions, F frames, A atoms, L trace_atoms, m traces, H steps rolled,
# n the horizon, K worst futures, P and Q pictures of C channels, D, W and E decisions looked into; _ is any size, ? that of an
# axis that may be missing.
_NEEDED = {
    "labels": "b T A", "action": "n T ?", "frame_rewards": "f T F", "frame_labels": "b T F A", "frame_violations": "b T F",
    "frame_valid": "b T F", "milliseconds": "f T",
}  # fmt: skip
_DECISION = {
    "proposed": "n T ?", "overridden": "b T", "p_safe": "f T", "interval": "f T 2", "traces_used": "i T", "violating": "i T",
    "reason": "i T", "first_violation": "i T m", "atom": "i T m", "cost": "f T m", "critic": "f T m",
}  # fmt: skip
_OPTIONAL = {
    "scene.robot": "f T 3", "scene.items": "f T _ 4", "scene.extent": "f 4", "futures.extent": "f 4",
    "picture": "u T _ _ 3", "observation.image": "u T _ _ C",
}  # fmt: skip
_GROUPS = {
    "futures": {
        "step": "i D", "first_violation": "i D m", "atom": "i D m", "cost": "f D m", "critic": "f D m", "trace": "i D K",
        "labels": "f D K H _ L", "shown": "i D K P",
    },
    "twin": {"step": "i W", "violation": "i W", "taken": "i W", "labels": "b W n F A"},
    "truth": {"step": "i E", "safe": "i E", "futures": "i E"},
}  # fmt: skip
_OPTIONAL |= {
    "futures.image": "u D K P _ _ C", "futures.robot": "f D K H 3", "futures.items": "f D K H _ 4",
    "twin.robot": "f W n 3", "twin.shown": "i W Q", "twin.image": "u W Q _ _ C",
}  # fmt: skip
_SETTINGS = {
    "safety_level": float, "approximation_error": float, "failure_probability": float, "horizon": int, "traces": int,
    "chunk": int, "model_error": float, "discount": float, "cost": float, "threshold_exponent": float,
}  # fmt: skip


@dataclass(frozen=True)
class Recording:
    """One episode; shapes and kinds of `arrays` are those of docs/run-folder.md, but pictures of two cameras are side by side."""

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
    except Exception as error:  # Unpackers and parsers have exceptions of their own, without a common root.
        raise UserError(f"{path} is not a whole recording: {_line(error)}") from None
    _check(path.name, facts, arrays)
    pictures = {key: side_by_side(array) for key, array in arrays.items() if key.endswith(".image")}
    return Recording(path.stem, facts, arrays | pictures)


def side_by_side(pictures: np.ndarray) -> np.ndarray:
    """Pictures `[…, height, width, 3·cameras]` for people: `[…, height, cameras·width, 3]`, what is ahead on the left."""
    *lead, height, width, channels = pictures.shape
    apart = pictures.reshape(*lead, height, width, channels // 3, 3)
    return apart.swapaxes(-3, -2).reshape(*lead, height, width * channels // 3, 3)


def _facts(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(read_plain(path))
        # Half of a surrogate pair is a string to JSON, and to nobody who writes or draws text.
        facts = json.loads(json.dumps(facts, ensure_ascii=False).encode(errors="replace"))
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
        if not _is_number(value) or (kind is int and (value != int(value) or not 1 <= value <= 10**6)):
            raise UserError(f"{path}: {name} must be a number of a sane size, got {_line(value)}")
    _check_rule(path, facts["settings"])
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
    thresholds = facts.get("thresholds")
    if not isinstance(thresholds, list) or not all(map(_is_number, thresholds)):
        raise UserError(f"{path}: thresholds must be a list of numbers, got {_line(thresholds)}")
    if not isinstance(facts.get("shield"), bool):
        raise UserError(f"{path}: shield must be true or false, got {_line(facts.get('shield'))}")
    _check_trust(path, facts)
    together = facts.get("together")
    facts["together"] = together if isinstance(together, int) and 1 <= together <= 10**6 else 1
    left = facts.get("left_out")
    if not isinstance(left, dict) or not all(isinstance(count, int) for count in left.values()):
        facts["left_out"] = {}
    return facts


def _arrays(path: Path) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(path) as archive:
        size = sum(item.file_size for item in archive.infolist())
    if size > LARGEST:
        raise ValueError(f"it claims {size:,} bytes")
    wanted = {*_NEEDED, *_DECISION, *_OPTIONAL, *(f"{group}.{part}" for group in _GROUPS for part in _GROUPS[group])}
    with np.load(path, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files if name in wanted}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise ValueError(f"{name} is no array")
    return arrays


def _check(name: str, facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    settings = facts["settings"]
    rolled = settings["horizon"] if settings["rolled"] is None else settings["rolled"]
    sizes = {"T": facts["steps"], "F": facts["frames"], "A": len(facts["atoms"]), "L": len(facts["trace_atoms"])}
    sizes |= {"H": rolled, "n": settings["horizon"]}
    wanted = _NEEDED | (_DECISION if "reason" in arrays else {})
    for group, parts in _GROUPS.items():
        if f"{group}.step" in arrays and "reason" in arrays:
            wanted |= {f"{group}.{part}": form for part, form in parts.items()}
        else:
            for key in [key for key in arrays if key.startswith(f"{group}.")]:
                del arrays[key]
    for key, form in wanted.items():
        if key not in arrays:
            raise UserError(f"{name} lacks the array {key}")
        _fits(name, key, arrays[key], form, sizes)
    for key, form in _OPTIONAL.items():
        if key in arrays:
            _fits(name, key, arrays[key], form, sizes)
    for group in _GROUPS:
        steps = arrays.get(f"{group}.step", np.zeros(0, int))
        if ((steps < 0) | (steps >= facts["steps"])).any():
            raise UserError(f"{name}: {group}.step points beyond the {facts['steps']} steps of the episode")
    _check_truth(name, arrays)
    _check_pictures(name, arrays)
    for group in ("scene", "futures"):
        least_x, most_x, least_y, most_y = arrays.get(f"{group}.extent", np.array([-1.0, 1.0, -1.0, 1.0])).tolist()
        if not (-1e9 < least_x < most_x < 1e9 and -1e9 < least_y < most_y < 1e9):
            raise UserError(f"{name}: {group}.extent must be least and greatest x, least and greatest y")


def _check_rule(path: Path, settings: dict[str, Any]) -> None:
    """Refuse a decision rule that would keep the page busy for ever: it is worked out in whole numbers of any length."""
    for name in ("safety_level", "approximation_error", "failure_probability", "model_error"):
        if not (settings[name] == 0 or 1e-30 <= settings[name] <= 1):
            raise UserError(f"{path}: {name} must be a probability, got {_line(settings[name])}")
    looks = settings["traces"] / settings["chunk"] if settings.get("rule") != "fixed" else 1
    if settings["traces"] > MOST_TRACES or looks > MOST_LOOKS or settings["horizon"] > LONGEST:
        raise UserError(
            f"{path}: at most {MOST_TRACES} traces, {MOST_LOOKS} chunks of them and {LONGEST} steps ahead can be shown, "
            f"got {settings['traces']} in chunks of {settings['chunk']}, and {settings['horizon']}"
        )


def _check_trust(path: Path, facts: dict[str, Any]) -> None:
    """What is told of how far the shield can be trusted, all of it optional: Δ asked for, the checkpoint, the foresight."""
    asked = facts["settings"].setdefault("asked", None)
    if asked is not None and not (_is_number(asked) and 0 < asked <= 1):
        raise UserError(f"{path}: asked must be a probability, got {_line(asked)}")
    frames = facts.setdefault("checkpoint", None)
    if frames is not None and not (type(frames) is int and 0 <= frames < 10**15):
        raise UserError(f"{path}: checkpoint must be a number of frames, got {_line(frames)}")
    found = facts.setdefault("foresight", None)
    try:
        facts["foresight"] = None if found is None else read_brief(found)
    except ValueError as error:
        raise UserError(f"{path}: foresight is {error}, got {_line(found)}") from None


def _check_truth(name: str, arrays: dict[str, np.ndarray]) -> None:
    safe, futures = (arrays.get(f"truth.{part}", np.zeros(0, int)) for part in ("safe", "futures"))
    if ((safe < 0) | (safe > futures) | (futures < 1)).any():
        raise UserError(f"{name}: truth.safe must count some of truth.futures, of which there must be at least one")


def _check_pictures(name: str, arrays: dict[str, np.ndarray]) -> None:
    for key, form in _OPTIONAL.items():
        if key in arrays and form.startswith("u "):
            height, width, channels = arrays[key].shape[-3:]
            if channels not in (3, 6):
                raise UserError(f"{name}: pictures of {key} must have 3 channels, or 6 of two cameras, got {channels}")
            beside = arrays[key].shape[-4] if key.endswith(".image") and not key.startswith("observation") else 1
            if max(height, width * beside * channels // 3) > WIDEST:
                raise UserError(f"{name}: pictures of {key} are too large, {height} × {width}")


def _is_number(value: Any) -> bool:
    """Whether it is a finite number that a float can hold."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -1e300 < value < 1e300


def _fits(name: str, key: str, array: np.ndarray, form: str, sizes: dict[str, int]) -> None:
    """Refuse an array of another kind or shape; sizes that are met for the first time are noted in `sizes`."""
    kind, *letters = form.split()
    least = len(letters) - letters.count("?")
    right = array.dtype.kind in _DTYPES[kind] and least <= array.ndim <= len(letters)
    right = right and (kind != "u" or (array.dtype == np.uint8 and array.size > 0))
    for letter, size in zip(letters, array.shape, strict=False):
        right = right and (
            letter in "_?" or size == (int(letter) if letter.isdigit() else sizes.setdefault(letter, size))
        )
    if not right:
        told = ", ".join(str(sizes.get(letter, letter)) for letter in letters)
        raise UserError(
            f"{name}: {key} must be {_KINDS[kind]} of shape ({told}), got {array.dtype} of shape {array.shape}"
        )


def _line(value: Any) -> str:
    """Anything as one short line."""
    text = " ".join(str(value).split())
    return text if len(text) <= 120 else f"{text[:117]}…"

"""What the page is told about an episode: plain JSON, pictures and traces as base64."""

import base64
import io
import re
from typing import Any

import numpy as np

from ambs.inspector.audit import UNSURE, audit
from ambs.inspector.recording import NOT_DRAWN, Recording
from ambs.spec.bounds import clopper_pearson

LARGEST_PAGE = 20_000_000
"""Bytes."""
LARGEST_NUMBER = 1e9
NOTHING = -1
"""The kind of a thing that is not there."""
QUALITY = 88
"""Of the JPEGs."""
FARTHEST = 4
"""Sliders reach this many times the horizon where critics judge what lies beyond the stored steps."""


def page_data(recording: Recording) -> dict[str, Any]:
    """Everything the page shows."""
    facts = recording.facts
    data: dict[str, Any] = {
        "name": recording.name,
        "facts": _facts(recording),
        "settings": _settings(recording),
        "steps": _steps(recording),
        "map": _map(recording),
        "audit": [vars(entry) for entry in audit(recording)],
        "pictures": [],
        "traces": None,
        "futures": [],
        "twins": [],
        "truth": [],
        "left_out": facts["left_out"],
    }
    room = LARGEST_PAGE * 0.9
    data["pictures"], room = _pictures(recording, room)
    if recording.decided:
        data["traces"] = _traces(recording)
        room -= sum(len(part or "") for part in data["traces"].values() if isinstance(part, str))
        data["futures"], room = _futures(recording, room)
        data["twins"], room = _twins(recording, room)
        data["truth"] = _truth(recording)
    data["without_pictures"] = room <= 0
    seen = recording.arrays.get("observation.image")
    data["wide"] = seen is not None and seen.shape[2] == 2 * seen.shape[1]
    return data


def _facts(recording: Recording) -> dict[str, Any]:
    facts = recording.facts
    texts = {name: str(facts.get(name, "")) for name in ("env", "method", "policy", "psi", "caveat")}
    return texts | {
        "atoms": facts["atoms"], "trace_atoms": facts["trace_atoms"], "actions": facts["action_names"],
        "kinds": facts["kinds"], "looks": looks(facts),
        "discrete": bool(facts.get("discrete")), "shield": bool(facts["shield"]) and recording.decided,
        "decided": recording.decided, "frames": int(facts["frames"]), "reasons": facts["reasons"],
        "named": {name: _named(facts[name], texts["psi"]) for name in ("atoms", "trace_atoms")},
        "together": facts["together"], "thresholds": _numbers(np.array(facts["thresholds"], float)),
    }  # fmt: skip


def looks(facts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """How the map shows kinds that are not its own; colours that are no plain word are left out."""
    given = facts.get("looks")
    found = {name: look for name, look in given.items() if isinstance(look, dict)} if isinstance(given, dict) else {}
    return {
        name: {"colour": str(look.get("colour")), "square": bool(look.get("square"))}
        for name, look in found.items()
        if re.fullmatch("[a-z]+", str(look.get("colour")))
    }


def _named(atoms: list[str], psi: str) -> list[int]:
    """Which atoms the formula speaks of; all, if none can be made out."""
    words = set(re.findall(r"\w+", psi))
    return [index for index, name in enumerate(atoms) if name in words] or list(range(len(atoms)))


def _settings(recording: Recording) -> dict[str, Any]:
    given = recording.facts["settings"]
    names = ("safety_level", "approximation_error", "failure_probability", "horizon", "traces", "chunk", "model_error")
    settings = {name: given[name] for name in names}
    by_cost = given.get("critics") is not None or given.get("labels") == "mean"
    farthest = FARTHEST * int(given["horizon"]) if given.get("critics") is not None else int(given["horizon"])
    ahead = np.arange(1, farthest + 1) if by_cost else np.zeros(0)
    with np.errstate(all="ignore"):
        thresholds = (float(given["discount"]) ** (ahead + given["threshold_exponent"]) * given["cost"]).astype(
            np.float32
        )
    return settings | {
        "rule": str(given.get("rule", "sequential")),
        "labels": str(given.get("labels")),
        "critics": None if given.get("critics") is None else str(given["critics"]),
        "rolled": recording.rolled,
        "asked": given.get("asked"),
        "by_cost": by_cost,
        "cost_thresholds": np.nan_to_num(thresholds).tolist(),
        "check_initial": bool(given.get("check_initial", True)),
    }


def _steps(recording: Recording) -> dict[str, Any]:
    arrays = recording.arrays
    frames = arrays["frame_labels"] & arrays["frame_valid"][..., None]
    columns: dict[str, Any] = {
        "count": recording.steps,
        "action": _numbers(arrays["action"].astype(float)),
        "reward": _numbers((arrays["frame_rewards"] * arrays["frame_valid"]).sum(axis=1)),
        "broken": (arrays["frame_violations"] & arrays["frame_valid"]).any(axis=1).astype(int).tolist(),
        "labels": arrays["labels"].astype(int).tolist(),
        "met": frames.any(axis=1).astype(int).tolist(),
        "milliseconds": _numbers(arrays["milliseconds"]),
    }
    if recording.decided:
        columns |= {
            "proposed": _numbers(arrays["proposed"].astype(float)),
            "overridden": arrays["overridden"].astype(int).tolist(),
            "p_safe": _numbers(arrays["p_safe"]),
            "interval": _numbers(arrays["interval"]),
            "used": arrays["traces_used"].astype(int).tolist(),
            "violating": arrays["violating"].astype(int).tolist(),
            "reason": arrays["reason"].astype(int).tolist(),
        }
    return columns


def _map(recording: Recording) -> dict[str, Any] | None:
    arrays = recording.arrays
    if "scene.robot" not in arrays or "scene.items" not in arrays:
        return None
    items = _drawable(arrays["scene.items"])
    # What has not moved since the step before is not told again.
    same = np.append(False, (items[1:] == items[:-1]).all(axis=(1, 2)))
    return {
        "robot": _numbers(arrays["scene.robot"]),
        "items": [None if known else _numbers(row) for known, row in zip(same, items, strict=True)],
        "extent": _numbers(arrays.get("scene.extent", np.array([-1.0, 1.0, -1.0, 1.0]))),
        "square": bool(recording.facts.get("square")),
    }


def _traces(recording: Recording) -> dict[str, Any]:
    """Per step and trace: step of the first violation + 1 (0: not drawn), the atom + 2, and costs where they judge.

    Steps whose futures were imagined again have all that the rule could have drawn.
    """
    arrays = {name: recording.arrays[name].copy() for name in ("first_violation", "atom", "cost", "critic")}
    for index, step in enumerate(recording.arrays.get("futures.step", ())):
        missing = arrays["first_violation"][step] == NOT_DRAWN
        for name, array in arrays.items():
            more = recording.arrays.get(f"futures.{name}")
            if more is not None and more.shape[1:] == array.shape[1:]:
                array[step] = np.where(missing, more[index], array[step])
    drawn = (arrays["first_violation"] != NOT_DRAWN).sum(axis=1)
    most = max(int(drawn.max(initial=0)), 1)
    first = np.clip(arrays["first_violation"][:, :most] + 1, 0, 65535)
    by_cost = (
        recording.facts["settings"].get("critics") is not None or recording.facts["settings"].get("labels") == "mean"
    )
    return {
        "most": most,
        "drawn": drawn.tolist(),
        "first": _base64(first.astype("<u2")),
        "atom": _base64(np.clip(arrays["atom"][:, :most] + 2, 0, 255).astype("u1")),
        "cost": _base64(arrays["cost"][:, :most].astype("<f4")) if by_cost else None,
        "critic": _base64(arrays["critic"][:, :most].astype("<f4")) if by_cost else None,
    }


def _pictures(recording: Recording, room: float) -> tuple[list[str], float]:
    pictures = recording.arrays.get("observation.image", recording.arrays.get("picture"))
    if pictures is None:
        return [], room
    found = []
    for picture in pictures:
        found.append(_jpeg(picture))
        room -= len(found[-1])
    return (found, room) if room > 0 else ([], room)


def _futures(recording: Recording, room: float) -> tuple[list[dict[str, Any]], float]:
    arrays, found = recording.arrays, []
    images, robot, items = (arrays.get(f"futures.{name}") for name in ("image", "robot", "items"))
    items = None if items is None else _drawable(items)
    for index, step in enumerate(arrays.get("futures.step", np.zeros(0, int)).tolist()):
        worst = []
        for rank, trace in enumerate(arrays["futures.trace"][index].tolist()):
            labels = arrays["futures.labels"][index, rank].max(axis=1)
            steps = labels.shape[0]
            shown = sorted({min(max(at, 1), steps) for at in arrays["futures.shown"][index, rank].tolist()})
            first = (
                int(arrays["futures.first_violation"][index, trace])
                if 0 <= trace < arrays["futures.first_violation"].shape[1]
                else 0
            )
            one: dict[str, Any] = {"trace": trace, "first": first, "labels": _numbers(labels), "shown": shown}
            if images is not None and room > 0:
                chosen = {at: place for place, at in enumerate(arrays["futures.shown"][index, rank].tolist())}
                one["strip"] = _jpeg(np.concatenate([images[index, rank, chosen.get(at, 0)] for at in shown], axis=1))
                room -= len(one["strip"])
            if robot is not None and items is not None:
                one["robot"] = _numbers(robot[index, rank])
                one["items"] = [_numbers(items[index, rank, at - 1]) for at in shown]
                room -= 40 * items.shape[-2] * len(shown)
            worst.append(one)
        found.append({"step": step, "worst": worst})
    extent = arrays.get("futures.extent")
    for one in found:
        one["extent"] = None if extent is None else _numbers(extent)
    return found, room


def _twins(recording: Recording, room: float) -> tuple[list[dict[str, Any]], float]:
    arrays, found = recording.arrays, []
    images, robot = arrays.get("twin.image"), arrays.get("twin.robot")
    for index, step in enumerate(arrays.get("twin.step", np.zeros(0, int)).tolist()):
        taken = int(np.clip(arrays["twin.taken"][index], 0, arrays["twin.labels"].shape[1]))
        labels = arrays["twin.labels"][index].any(axis=1)
        one: dict[str, Any] = {"step": step, "violation": int(arrays["twin.violation"][index]), "taken": taken}
        one["labels"] = labels[:taken].astype(int).tolist()
        if robot is not None:
            one["robot"] = _numbers(robot[index, :taken])
        if images is not None and "twin.shown" in arrays and room > 0:
            places = {int(at): place for place, at in enumerate(arrays["twin.shown"][index]) if 1 <= at <= taken}
            if places:
                one["shown"] = sorted(places)
                one["strip"] = _jpeg(np.concatenate([images[index, places[at]] for at in one["shown"]], axis=1))
                room -= len(one["strip"])
        found.append(one)
    return found, room


def _truth(recording: Recording) -> list[dict[str, Any]]:
    arrays, found = recording.arrays, []
    for index, step in enumerate(arrays.get("truth.step", np.zeros(0, int)).tolist()):
        safe, futures = (int(arrays[f"truth.{name}"][index]) for name in ("safe", "futures"))
        low, high = clopper_pearson(futures, np.array(futures - safe), UNSURE)
        found.append({"step": step, "safe": safe, "futures": futures, "low": float(low), "high": float(high)})
    return found


def _drawable(items: np.ndarray) -> np.ndarray:
    """Things without those that have no place or no size."""
    good = (np.abs(items) < LARGEST_NUMBER).all(axis=-1, keepdims=True) & (items[..., 3:] >= 0)
    return np.where(good, items, np.array([NOTHING, 0.0, 0.0, 0.0]))


def _numbers(array: np.ndarray) -> Any:
    """Nested lists of short numbers; what is not finite, or larger than anything one could draw, is null."""
    values = np.asarray(array, float)
    rounded = np.round(np.where(np.abs(values) < LARGEST_NUMBER, values, np.nan), 4)
    if np.isfinite(rounded).all():
        return rounded.tolist()
    plain = rounded.astype(object)
    plain[~np.isfinite(rounded)] = None
    return plain.tolist()


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def _jpeg(picture: np.ndarray) -> str:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(picture)).save(out, "JPEG", quality=QUALITY, subsampling=0)
    return f"data:image/jpeg;base64,{base64.b64encode(out.getvalue()).decode()}"

"""What the page is told about an episode: plain JSON, pictures and traces as base64."""

import base64
import io
import re
from typing import Any

import numpy as np

from ambs.errors import UserError, extras
from ambs.inspector.audit import UNSURE, audit, not_examined
from ambs.recording.schema import NOT_DRAWN, Decided, Episode, Futures
from ambs.spec.bounds import clopper_pearson
from ambs.spec.formula import Atoms
from ambs.spec.parser import parse_path

LARGEST_PAGE = 20_000_000
"""Bytes."""
LARGEST_NUMBER = 1e9
NOTHING = -1
"""The kind of a thing that is not there."""
QUALITY = 88
"""Of the JPEGs."""
FARTHEST = 4
"""Sliders reach this many times the horizon where critics judge what lies beyond the stored steps."""


def page_data(recording: Episode) -> dict[str, Any]:
    """Everything the page shows."""
    data: dict[str, Any] = {
        "name": recording.name,
        "facts": _facts(recording),
        "settings": _settings(recording),
        "steps": _steps(recording),
        "map": _map(recording),
        "audit": [vars(entry) for entry in audit(recording)],
        "not_examined": not_examined(recording),
        "first": recording.first_to_see if recording.facts.shield else None,
        "pictures": [],
        "traces": None,
        "futures": [],
        "twins": [],
        "truth": [],
        "left_out": recording.facts.left_out,
    }
    room = LARGEST_PAGE * 0.9
    data["pictures"], room = _pictures(recording, room)
    if recording.steps.decided is not None:
        data["traces"] = _traces(recording, recording.steps.decided)
        room -= sum(len(part or "") for part in data["traces"].values() if isinstance(part, str))
        data["futures"], room = _futures(recording, room)
        data["twins"], room = _twins(recording, room)
        data["truth"] = _truth(recording)
    data["without_pictures"] = room <= 0
    seen = recording.steps.image
    data["wide"] = seen is not None and seen.shape[2] == 2 * seen.shape[1]
    return data


def _facts(recording: Episode) -> dict[str, Any]:
    facts = recording.facts
    return {
        "env": facts.env, "method": facts.method, "policy": facts.policy, "psi": facts.psi, "path": facts.path,
        "caveat": facts.caveat,
        "atoms": facts.atoms, "trace_atoms": facts.trace_atoms, "kinds": facts.kinds, "actions": facts.action_names,
        "looks": facts.looks,
        "discrete": facts.discrete, "shield": facts.shield and recording.decided,
        "decided": recording.decided, "frames": facts.frames, "reasons": facts.reasons,
        "named": {"atoms": _named(facts.atoms, facts.psi), "trace_atoms": _named(facts.trace_atoms, facts.psi)},
        "together": facts.together, "thresholds": _numbers(np.array(facts.thresholds, float)),
    }  # fmt: skip


def _named(atoms: list[str], psi: str) -> list[int]:
    """Which atoms the formula speaks of; all, if none can be made out."""
    words = set(re.findall(r"\w+", psi))
    return [index for index, name in enumerate(atoms) if name in words] or list(range(len(atoms)))


def _settings(recording: Episode) -> dict[str, Any]:
    given = recording.facts.settings
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
        "rolled": recording.facts.rolled,
        "asked": given.get("asked"),
        "by_cost": by_cost,
        "cost_thresholds": np.nan_to_num(thresholds).tolist(),
        "check_initial": bool(given.get("check_initial", True)),
    }


def _steps(recording: Episode) -> dict[str, Any]:
    steps = recording.steps
    frames = steps.frame_labels & steps.frame_valid[..., None]
    columns: dict[str, Any] = {
        "count": recording.facts.steps,
        "action": _numbers(steps.action.astype(float)),
        "reward": _numbers((steps.frame_rewards * steps.frame_valid).sum(axis=1)),
        "broken": (steps.frame_violations & steps.frame_valid).any(axis=1).astype(int).tolist(),
        "labels": steps.labels.astype(int).tolist(),
        "met": frames.any(axis=1).astype(int).tolist(),
        "milliseconds": _numbers(steps.milliseconds),
        "lost": _lost(recording),
    }
    if (decided := steps.decided) is not None:
        columns |= {
            "proposed": _numbers(decided.proposed.astype(float)),
            "overridden": decided.overridden.astype(int).tolist(),
            "p_safe": _numbers(decided.p_safe),
            "interval": _numbers(decided.interval),
            "used": decided.traces_used.astype(int).tolist(),
            "violating": decided.violating.astype(int).tolist(),
            "reason": decided.reason.astype(int).tolist(),
        }
    return columns


def _lost(recording: Episode) -> list[int] | None:
    """After how many steps from each one a path formula other than G≤n Ψ was really lost, −1 where it was satisfied; an episode
    that ends stays as it ended. None: there is no such formula, or none that can be read."""
    steps, horizon = recording.steps, int(recording.facts.settings["horizon"])
    try:
        known = Atoms(tuple(recording.facts.atoms))
        path = parse_path(recording.facts.path, known) if recording.facts.path else None
    except UserError:
        return None
    if path is None or path.bound() != horizon:
        return None
    last = steps.frame_labels[-1][np.flatnonzero(steps.frame_valid[-1])[-1:]]
    told = np.concatenate([steps.labels, last])
    states = np.concatenate([told, np.repeat(told[-1:], horizon, axis=0)])
    return [int(path.lost(states[at : at + horizon + 1], known)) for at in range(recording.facts.steps)]


def _map(recording: Episode) -> dict[str, Any] | None:
    scene = recording.scene
    if scene.robot is None or scene.items is None:
        return None
    items = _drawable(scene.items)
    # What has not moved since the step before is not told again.
    same = np.append(False, (items[1:] == items[:-1]).all(axis=(1, 2)))
    return {
        "robot": _numbers(scene.robot),
        "items": [None if known else _numbers(row) for known, row in zip(same, items, strict=True)],
        "extent": _numbers(np.array([-1.0, 1.0, -1.0, 1.0]) if scene.extent is None else scene.extent),
        "square": recording.facts.square,
    }


def _traces(recording: Episode, decided: Decided) -> dict[str, Any]:
    """Per step and trace: step of the first violation + 1 (0: not drawn), the atom + 2, and costs where they judge.

    Steps whose futures were imagined again have all that the rule could have drawn.
    """
    arrays = {name: getattr(decided, name).copy() for name in ("first_violation", "atom", "cost", "critic")}
    if (again := recording.examination.futures) is not None:
        for index, step in enumerate(again.step):
            missing = arrays["first_violation"][step] == NOT_DRAWN
            for name, array in arrays.items():
                array[step] = np.where(missing, getattr(again, name)[index], array[step])
    drawn = (arrays["first_violation"] != NOT_DRAWN).sum(axis=1)
    most = max(int(drawn.max(initial=0)), 1)
    first = np.clip(arrays["first_violation"][:, :most] + 1, 0, 65535)
    settings = recording.facts.settings
    by_cost = settings.get("critics") is not None or settings.get("labels") == "mean"
    return {
        "most": most,
        "drawn": drawn.tolist(),
        "first": _base64(first.astype("<u2")),
        "atom": _base64(np.clip(arrays["atom"][:, :most] + 2, 0, 255).astype("u1")),
        "cost": _base64(arrays["cost"][:, :most].astype("<f4")) if by_cost else None,
        "critic": _base64(arrays["critic"][:, :most].astype("<f4")) if by_cost else None,
    }


def _pictures(recording: Episode, room: float) -> tuple[list[str], float]:
    pictures = recording.steps.picture if recording.steps.image is None else recording.steps.image
    if pictures is None:
        return [], room
    found = []
    for picture in pictures:
        found.append(_jpeg(picture))
        room -= len(found[-1])
    return (found, room) if room > 0 else ([], room)


def _futures(recording: Episode, room: float) -> tuple[list[dict[str, Any]], float]:
    futures = recording.examination.futures
    if futures is None:
        return [], room
    found: list[dict[str, Any]] = []
    items = None if futures.items is None else _drawable(futures.items)
    extent = None if futures.extent is None else _numbers(futures.extent)
    for index, step in enumerate(futures.step.tolist()):
        worst = []
        for rank in range(futures.trace.shape[1]):
            one, room = _future(futures, items, (index, rank), room)
            worst.append(one)
        found.append({"step": step, "worst": worst, "extent": extent})
    return found, room


def _future(
    futures: Futures, items: np.ndarray | None, place: tuple[int, int], room: float
) -> tuple[dict[str, Any], float]:
    """One of the worst futures of a decision, `place` (decision, rank), and the room that is left after it."""
    trace, labels = int(futures.trace[place]), futures.labels[place].max(axis=1)
    pictured = futures.shown[place].tolist()
    shown = sorted({min(max(at, 1), labels.shape[0]) for at in pictured})
    known = 0 <= trace < futures.first_violation.shape[1]
    first = int(futures.first_violation[place[0], trace]) if known else 0
    one: dict[str, Any] = {"trace": trace, "first": first, "labels": _numbers(labels), "shown": shown}
    if futures.image is not None and room > 0:
        chosen = {at: number for number, at in enumerate(pictured)}
        one["strip"] = _jpeg(np.concatenate([futures.image[place][chosen.get(at, 0)] for at in shown], axis=1))
        room -= len(one["strip"])
    if futures.robot is not None and items is not None:
        one["robot"] = _numbers(futures.robot[place])
        one["items"] = [_numbers(items[place][at - 1]) for at in shown]
        room -= 40 * items.shape[-2] * len(shown)
    return one, room


def _twins(recording: Episode, room: float) -> tuple[list[dict[str, Any]], float]:
    twins, found = recording.examination.twin, []
    if twins is None:
        return [], room
    for index, step in enumerate(twins.step.tolist()):
        taken = int(np.clip(twins.taken[index], 0, twins.labels.shape[1]))
        labels = twins.labels[index].any(axis=1)
        one: dict[str, Any] = {"step": step, "violation": int(twins.violation[index]), "taken": taken}
        one["labels"] = labels[:taken].astype(int).tolist()
        if twins.robot is not None:
            one["robot"] = _numbers(twins.robot[index, :taken])
        if twins.image is not None and twins.shown is not None and room > 0:
            places = {int(at): place for place, at in enumerate(twins.shown[index]) if 1 <= at <= taken}
            if places:
                one["shown"] = sorted(places)
                one["strip"] = _jpeg(np.concatenate([twins.image[index, places[at]] for at in one["shown"]], axis=1))
                room -= len(one["strip"])
        found.append(one)
    return found, room


def _truth(recording: Episode) -> list[dict[str, Any]]:
    truth, found = recording.examination.truth, []
    if truth is None:
        return []
    for step, safe, futures in zip(truth.step.tolist(), truth.safe.tolist(), truth.futures.tolist(), strict=True):
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
    with extras():
        from PIL import Image

    out = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(picture)).save(out, "JPEG", quality=QUALITY, subsampling=0)
    return f"data:image/jpeg;base64,{base64.b64encode(out.getvalue()).decode()}"

"""Logged episodes: one file of plain arrays each (`.npz`, no pickles), which any program can write (docs/episodes.md).

With T steps, entry t of `observation` and `labels` is what was seen before step t, and entry T what was seen last.
"""

import io
import itertools
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ambs.config.checks import folder
from ambs.errors import UserError, one_line
from ambs.storage.files import open_plain, reason, write_atomic

FORMAT = 1
PART = "observation."
"""How the parts of an observation that has several are named: `observation.vision`."""
_KNOWN = (
    "format", "observation", "action", "proposed", "reward", "labels", "terminated", "truncated", "atoms", "actions",
    "action_low", "action_high", "observation_low", "observation_high", "env", "policy", "spec",
)  # fmt: skip
ALONE = ""
"""Name of the one part of an observation that has no others."""


class Episode(NamedTuple):
    """One episode of T steps."""

    observation: dict[str, np.ndarray]
    """By part, `[T + 1, …]`: numbers `[T + 1, n]` or pictures uint8 `[T + 1, height, width, channels]`."""
    action: np.ndarray
    """What was executed: real numbers `[T, actions]`, or the choices `[T]`."""
    labels: np.ndarray
    """Bool `[T + 1, atoms]`."""
    atoms: tuple[str, ...]
    terminated: bool
    """Whether the episode ended by itself; nothing came after its last observation."""
    truncated: bool
    """Whether it was cut off; it would have gone on."""
    proposed: np.ndarray | None = None
    """What the policy wanted, as `action`; NaN, or −1 as a choice, where it wanted nothing. None: what was executed."""
    reward: np.ndarray | None = None
    """`[T]`; None: nobody knows."""
    actions: int | None = None
    """Number of choices; None: not told, or real numbers."""
    action_bounds: tuple[np.ndarray, np.ndarray] | None = None
    """Of real numbers `[actions]`; None: not told."""
    observation_bounds: tuple[np.ndarray, np.ndarray] | None = None
    """Of the vector `[n]`; None: not told."""
    env: str = ""
    policy: str = ""
    spec: str = ""
    """Ψ of the environment; all three may be left empty."""

    @property
    def steps(self) -> int:
        """T."""
        return self.action.shape[0]

    @property
    def discrete(self) -> bool:
        """Whether actions are choices."""
        return self.action.ndim == 1

    @property
    def wanted(self) -> np.ndarray:
        """What the policy proposed, or, where that is not known, what was executed."""
        return self.action if self.proposed is None else self.proposed


def write_episode(path: Path, episode: Episode) -> None:
    """Write the file whole or not at all; what `read_episode` would refuse is refused here."""
    arrays = _arrays(episode)
    _check(path.name, _from_arrays(arrays))
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    write_atomic(path, buffer.getvalue())


def read_episode(path: Path | str) -> Episode:
    """The episode of a file; a UserError says in a sentence what is wrong with which file."""
    path = folder("path", path, "a file")
    try:
        with open_plain(path) as (file, _):
            arrays = _loaded(path, file)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {reason(error)}") from error
    unknown = [name for name in arrays if name not in _KNOWN and not name.startswith(PART)]
    if unknown:
        raise UserError(f"{path}: there is no array {unknown[0]!r} in an episode; it has {', '.join(_KNOWN)}")
    missing = [name for name in ("action", "labels", "atoms", "terminated", "truncated") if name not in arrays]
    if missing:
        raise UserError(f"{path}: the array {missing[0]!r} is missing")
    if arrays.get("format", np.array(FORMAT)).tolist() != FORMAT:
        raise UserError(f"{path}: its format is {one_line(arrays['format'])}, and {FORMAT} is the only one known here")
    episode = _from_arrays(arrays)
    _check(str(path), episode)
    return episode


def read_episodes(paths: Iterable[Path]) -> Iterator[Episode]:
    """The episodes of these files, one after the other, which must be of one kind of world."""
    first: Episode | None = None
    for path in paths:
        episode = read_episode(path)
        if first is not None:
            _check_alike(path, episode, first)
        first = first or episode
        yield episode


def _loaded(path: Path, file: Any) -> dict[str, np.ndarray]:
    try:
        with np.load(file, allow_pickle=False) as stored:
            return {name: np.asarray(stored[name]) for name in stored.files}
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, TypeError, AttributeError, ValueError) as error:
        told = "it holds Python objects (pickles), which are not read" if "allow_pickle" in str(error) else ""
        raise UserError(f"{path} is no file of arrays (.npz): {told or one_line(error)}") from error


def _arrays(episode: Episode) -> dict[str, np.ndarray]:
    parts = {PART + name if name else "observation": part for name, part in episode.observation.items()}
    found: dict[str, Any] = {"format": FORMAT, **parts, "action": episode.action, "labels": episode.labels}
    found |= {"atoms": np.array(episode.atoms), "terminated": episode.terminated, "truncated": episode.truncated}
    found |= {name: getattr(episode, name) for name in ("proposed", "reward", "actions")}
    for name in ("action", "observation"):
        bounds = getattr(episode, f"{name}_bounds")
        found |= {} if bounds is None else {f"{name}_low": bounds[0], f"{name}_high": bounds[1]}
    found |= {name: getattr(episode, name) or None for name in ("env", "policy", "spec")}
    return {name: np.asarray(value) for name, value in found.items() if value is not None}


def _from_arrays(arrays: Mapping[str, np.ndarray]) -> Episode:
    parts = {name.removeprefix(PART): part for name, part in arrays.items() if name.startswith(PART)}
    parts |= {ALONE: arrays["observation"]} if "observation" in arrays else {}
    words = {name: str(arrays[name]) for name in ("env", "policy", "spec") if name in arrays}

    def bounds(name: str) -> Any:
        pair = arrays.get(f"{name}_low"), arrays.get(f"{name}_high")
        return None if all(bound is None for bound in pair) else pair

    actions = arrays.get("actions")
    fields: dict[str, Any] = {
        "observation": parts,
        "atoms": tuple(map(str, arrays["atoms"].ravel().tolist())),
        "actions": actions.tolist() if actions is not None else None,
        "action_bounds": bounds("action"),
        "observation_bounds": bounds("observation"),
        "proposed": arrays.get("proposed"),
        "reward": arrays.get("reward"),
        **{name: arrays[name] for name in ("action", "labels")},
        **{name: arrays[name].tolist() for name in ("terminated", "truncated")},
        **words,
    }
    return Episode(**fields)


def _check(name: str, episode: Episode) -> None:
    """A UserError about the first thing in which an episode is not what the table says."""
    for problem in itertools.chain(_actions(episode), _labels(episode), _observations(episode), _rest(episode)):
        raise UserError(f"{name}: {problem}")


def _actions(episode: Episode) -> Iterator[str]:
    action, proposed = episode.action, episode.proposed
    if not (action.ndim == 1 and action.dtype.kind in "iu") and not (action.ndim == 2 and action.dtype.kind == "f"):
        yield f"action must be real numbers [T, actions] or whole ones [T], got {_kind(action)}"
        return
    if not action.size:
        yield "there is no step in it"
    if not np.isfinite(action).all():
        yield "not all entries of action are finite"
    if proposed is not None:
        if proposed.shape != action.shape or proposed.dtype.kind != action.dtype.kind:
            yield f"proposed must be like action, {_kind(action)}, got {_kind(proposed)}"
            return
        if np.isinf(proposed).any():
            yield "entries of proposed must be finite, or NaN where nothing was proposed"
    yield from _choices(episode) if episode.discrete else _within_bounds(episode)


def _choices(episode: Episode) -> Iterator[str]:
    number = episode.actions
    if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
        yield f"actions must be the number of choices, got {number}"
        return
    for name, array, least in (("action", episode.action, 0), ("proposed", episode.wanted, -1)):
        if array.size and not (array.min() >= least and (number is None or array.max() < number)):
            most = "" if number is None else f" to {number - 1}"
            yield f"{name} must lie from {least}{most}, got {array.min()} to {array.max()}"


def _within_bounds(episode: Episode) -> Iterator[str]:
    if episode.actions is not None:
        yield "actions is the number of choices, and there are none: action has real numbers"
    size = episode.action.shape[1]
    bounds = episode.action_bounds
    if bounds is not None and (problem := _bounds("action", bounds, size)):
        yield problem
        return
    low, high = bounds or (-np.ones(size), np.ones(size))
    for name, array in (("action", episode.action), ("proposed", episode.wanted)):
        if (array < low - 1e-5).any() or (array > high + 1e-5).any():
            said = "action_low and action_high" if bounds else "−1 and 1, for want of action_low and action_high"
            yield f"{name} lies beyond {said}"


def _bounds(name: str, bounds: tuple[Any, Any], size: int) -> str:
    if any(bound is None for bound in bounds):
        return f"{name}_low and {name}_high go together"
    if any(bound.shape != (size,) or bound.dtype.kind not in "fiu" for bound in bounds):
        return f"{name}_low and {name}_high must be {size} numbers each, got {_kind(bounds[0])} and {_kind(bounds[1])}"
    if not (bounds[0] <= bounds[1]).all():
        return f"{name}_low must nowhere exceed {name}_high"
    if name == "action" and not np.isfinite(bounds).all():
        return "action_low and action_high must be finite"
    return ""


def _labels(episode: Episode) -> Iterator[str]:
    wanted, labels = (episode.steps + 1, len(episode.atoms)), episode.labels
    if labels.dtype != np.bool_ or labels.shape != wanted:
        yield f"labels must be truth values [T + 1, atoms] = {list(wanted)}, got {_kind(labels)}"
    if not all(episode.atoms) or len(set(episode.atoms)) < len(episode.atoms) or not episode.atoms:
        yield f"atoms must be different names, at least one, got {list(episode.atoms)}"


def _observations(episode: Episode) -> Iterator[str]:
    parts, rows = episode.observation, episode.steps + 1
    if not parts or (ALONE in parts and len(parts) > 1):
        yield f"it must have an array observation, or several that are called {PART}…"
    for name, part in parts.items():
        title = PART + name if name else "observation"
        vector = part.ndim == 2 and part.dtype.kind in "fiub"
        if part.shape[:1] != (rows,) or not (vector or (part.ndim == 4 and part.dtype == np.uint8)):
            wanted = f"numbers [T + 1, n] or pictures uint8 [T + 1, height, width, channels] with T + 1 = {rows}"
            yield f"{title} must be {wanted}, got {_kind(part)}"
            return
        if vector and not np.isfinite(part).all():
            yield f"not all entries of {title} are finite"
        bounds = episode.observation_bounds
        if vector and bounds and (problem := _bounds("observation", bounds, part.shape[1])):
            yield problem


def _rest(episode: Episode) -> Iterator[str]:
    for name in ("terminated", "truncated"):
        if not isinstance(getattr(episode, name), bool):
            yield f"{name} must be a single true or false, got {one_line(getattr(episode, name))}"
    if episode.terminated and episode.truncated:
        yield "an episode that ended by itself was not cut off: terminated and truncated cannot both be true"
    reward = episode.reward
    if reward is not None and (
        reward.shape != (episode.steps,) or reward.dtype.kind not in "fiu" or not np.isfinite(reward).all()
    ):
        yield f"reward must be {episode.steps} finite numbers [T], got {_kind(reward)}"


def _check_alike(path: Path, episode: Episode, first: Episode) -> None:
    for name, value in _kind_of_world(episode).items():
        wanted = _kind_of_world(first)[name]
        if value != wanted:
            raise UserError(
                f"{path} is of another world than the files before it: its {name} are {value}, not {wanted}"
            )


def _kind_of_world(episode: Episode) -> dict[str, Any]:
    def told(bounds: Any) -> Any:
        return bounds and tuple(bound.tolist() for bound in bounds)

    return {
        "observations": {name: list(part.shape[1:]) for name, part in episode.observation.items()},
        "actions": f"{episode.actions} choices" if episode.discrete else f"{episode.action.shape[1]} numbers",
        "bounds of actions": told(episode.action_bounds),
        "bounds of observations": told(episode.observation_bounds),
        "atoms": list(episode.atoms),
    }


def _kind(array: np.ndarray) -> str:
    return f"{array.dtype} {list(array.shape)}"

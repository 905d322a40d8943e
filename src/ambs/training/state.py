"""Everything that a run needs to go on as if it had never stopped: one list of fields, each with the way it is stored.

What a checkpoint holds of a run is what stands here. A field that does not say how it is stored is refused when this module is
imported, so that none can be forgotten.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np

from ambs.acting.accounting import Accounts
from ambs.acting.act import ActorState
from ambs.acting.adapter import Interface
from ambs.agent.update import Learned
from ambs.data import Experience
from ambs.envs.vector.vector import LabelledVectorEnv
from ambs.storage.arrays import Arrays
from ambs.training.replay import Replay


@dataclass
class Contents:
    """What a checkpoint is made of, before it is written or after it was read."""

    trees: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Groups of arrays whose names, shapes and dtypes follow from the settings."""
    groups: dict[str, Arrays] = field(default_factory=dict)
    """Groups of arrays whose form only their owner knows."""
    meta: dict[str, Any] = field(default_factory=dict)
    """Plain JSON."""
    pieces: Mapping[str, Callable[[], Arrays]] = field(default_factory=dict)
    """Of the replay buffer."""
    lost: tuple[str, ...] = ()
    """Names of pieces that are damaged."""


class Part(NamedTuple):
    """How one field is stored."""

    put: Callable[[str, Any, Contents], None]
    """Add the field of this name and value to the contents."""
    take: Callable[[str, Any, Contents], Any]
    """What the contents say of the field of this name, in place of its present value."""


def arrays_in(group: str) -> Part:
    """Arrays of a group, under the field's name; None is stored as nothing."""

    def put(name: str, value: Any, into: Contents) -> None:
        into.trees.setdefault(group, {})[name] = value

    return Part(put, lambda name, _value, found: found.trees[group][name])


def plain(packed: Callable[[Any], Any] | None = None, unpacked: Callable[[Any], Any] | None = None) -> Part:
    """JSON under the field's name, `packed` on the way in and `unpacked` on the way back."""

    def put(name: str, value: Any, into: Contents) -> None:
        into.meta[name] = packed(value) if packed else value

    def take(name: str, _value: Any, found: Contents) -> Any:
        return unpacked(found.meta[name]) if unpacked else found.meta[name]

    return Part(put, take)


def _put_learned(name: str, value: Learned, into: Contents) -> None:
    into.trees[name] = value._asdict()


def _take_learned(name: str, _value: Learned, found: Contents) -> Learned:
    return Learned(**found.trees[name])


def _put_accounts(name: str, value: Accounts, into: Contents) -> None:
    into.trees.setdefault(name, {}).update(value.open)
    into.meta |= {"totals": value.totals(), "open_labels": [dict(one) for one in value.labels]}


def _take_accounts(name: str, value: Accounts, found: Contents) -> Accounts:
    totals = {total: found.meta["totals"][total] for total in value.totals()}
    opened = {part: found.trees[name][part] for part in value.open}
    labels = found.meta.get("open_labels", [])  # Checkpoints from before labels were counted have none.
    if labels and len(labels) != value.envs:
        raise ValueError(f"labels were counted in {len(labels)} environments, and there are {value.envs}")
    return Accounts(value.envs, value.atoms, **totals, open=opened, labels=labels)


def _put_envs(name: str, value: LabelledVectorEnv, into: Contents) -> None:
    into.groups[name] = value.get_state() if value.can_save else value.get_progress()


def _take_envs(name: str, value: LabelledVectorEnv, found: Contents) -> LabelledVectorEnv:
    saved = found.groups[name]
    if resumes_episodes(value, saved):
        value.set_state(saved)
    else:
        value.set_progress(saved)
    value.earlier_faults = found.meta["totals"]["faults"]
    return value


def resumes_episodes(envs: LabelledVectorEnv, saved: Arrays) -> bool:
    """Whether environments can go on in the episodes that were open; they can be saved, and were."""
    return envs.can_save and saved.keys() != envs.get_progress().keys()


def _put_interface(name: str, value: Interface, into: Contents) -> None:
    into.meta[name] = value.to_dict()


def _take_interface(name: str, value: Interface, found: Contents) -> Interface:
    return value.as_surveyed(Interface.from_dict(found.meta[name]))


def _put_replay(name: str, value: Replay, into: Contents) -> None:
    into.pieces, into.groups[name] = value.pieces()
    into.meta |= {f"{name}_rows": value.count, f"{name}_lost": value.lost}


def _take_replay(name: str, value: Replay, found: Contents) -> Replay:
    lost = (*found.lost, *found.meta.get(f"{name}_lost", []))
    value.load(found.meta[f"{name}_rows"], found.pieces, found.groups[name], lost)
    return value


def _none_for_nan(table: dict[str, float]) -> dict[str, float | None]:
    return {name: None if value != value else value for name, value in table.items()}


def _nan_for_none(table: dict[str, float | None]) -> dict[str, float]:
    return {name: float("nan") if value is None else value for name, value in table.items()}


def _as_pairs(sums: dict[str, Any]) -> dict[str, tuple[float, int]]:
    return {name: (float(total), int(count)) for name, (total, count) in sums.items()}


def _as_lists(sums: dict[str, tuple[float, int]]) -> dict[str, list[float | int]]:
    return {name: list(pair) for name, pair in sums.items()}


@dataclass(kw_only=True, eq=False)
class TrainState:
    """A run between two turns. What follows from the settings (compiled functions, random streams) is not state."""

    learned: Annotated[Learned, Part(_put_learned, _take_learned)]
    carry: Annotated[ActorState, arrays_in("memory")]
    thresholds: Annotated[jax.Array, arrays_in("memory")]
    """Of the labels, one per atom of the traces."""
    level: Annotated[jax.Array | None, arrays_in("memory")]
    """Number of the level in force."""
    row: Annotated[Experience, arrays_in("memory")]
    """The latest step, not yet in the replay buffer."""
    labels: Annotated[np.ndarray, arrays_in("accounts")]
    """Of the latest frame, bool `[envs, atoms]`."""
    accounts: Annotated[Accounts, Part(_put_accounts, _take_accounts)]
    envs: Annotated[LabelledVectorEnv, Part(_put_envs, _take_envs)]
    interface: Annotated[Interface, Part(_put_interface, _take_interface)]
    replay: Annotated[Replay, Part(_put_replay, _take_replay)]
    turns: Annotated[int, plain()] = 0
    """Steps of the vector environment."""
    updates: Annotated[int, plain()] = 0
    calibrated: Annotated[int, plain()] = 0
    """Updates at the last calibration that had anything to go by."""
    skipped: Annotated[int, plain()] = 0
    """Updates that were not finite."""
    bad_run: Annotated[int, plain()] = 0
    """How many of them in a row, up to the latest update."""
    logged: Annotated[int, plain()] = 0
    """Frames at the last row of metrics."""
    last_totals: Annotated[dict[str, int], plain()]
    """The accounts' totals at the last row of metrics."""
    sums: Annotated[dict[str, tuple[float, int]], plain(_as_lists, _as_pairs)] = field(default_factory=dict)
    """Sum and number of every metric of updates since then."""
    label_quality: Annotated[dict[str, float], plain(_none_for_nan, _nan_for_none)] = field(default_factory=dict)
    """What the last calibration found."""


def parts_of(kind: type) -> dict[str, Part]:
    """The fields of a dataclass by name, each with the way it is stored; a TypeError if one does not say."""
    found = {
        one.name: [part for part in getattr(one.type, "__metadata__", ()) if isinstance(part, Part)]
        for one in fields(kind)
    }
    wrong = [name for name, said in found.items() if len(said) != 1]
    if wrong:
        raise TypeError(f"{kind.__name__}.{wrong[0]} does not say how it is stored: Annotated[…, plain()], for one")
    return {name: said[0] for name, said in found.items()}


PARTS = parts_of(TrainState)

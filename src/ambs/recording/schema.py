"""What a recorded episode is, for whoever writes one and whoever reads one; docs/run-folder.md tells it to people.

A recording is a file of arrays (`Episode.arrays`, `Episode.from_arrays`) and a file of facts (`Facts.to_json`,
`Facts.from_json`). Every array stands here once, with its kind and shape, and so does every fact. No learning code here.

A shape is letters for sizes that must agree: T decisions, F frames, A atoms, L trace_atoms, m traces, H steps rolled, n the
horizon, K worst futures, P and Q pictures of C channels, D, W and E decisions looked into; _ is any size, ? that of an axis
that may be missing. Before it stands the kind: b truth values, i whole numbers, f numbers, u pixels, n numbers of either kind.
"""

import re
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, get_args

import numpy as np

from ambs.errors import UserError, one_line

FORMAT = 2
LONGEST_PATH = 500
"""Letters of a path formula that are shown."""
NOT_DRAWN = -1
"""The `first_violation` of a trace that the rule did not need."""
NOT_YET = np.zeros(0)
"""What a step led to, before it was taken."""

Arrays = dict[str, np.ndarray]
Table = TypeVar("Table")
_KINDS = {"b": "truth values", "i": "whole numbers", "f": "numbers", "u": "pixels", "n": "numbers"}
_DTYPES = {"b": "b", "i": "iu", "f": "f", "u": "u", "n": "iuf"}


class Column(NamedTuple):
    """An array of a recording: its kind and shape; its name, if that is not the field's; whether readers care for it."""

    form: str
    name: str = ""
    read: bool = True


@dataclass(frozen=True)
class Decided:
    """A decision of the shield (`ambs.shield.Decision`); with a first axis of time, those of an episode."""

    overridden: Annotated[np.ndarray, Column("b T")]
    p_safe: Annotated[np.ndarray, Column("f T")]
    interval: Annotated[np.ndarray, Column("f T 2")]
    traces_used: Annotated[np.ndarray, Column("i T")]
    violating: Annotated[np.ndarray, Column("i T")]
    reason: Annotated[np.ndarray, Column("i T")]
    first_violation: Annotated[np.ndarray, Column("i T m")]
    atom: Annotated[np.ndarray, Column("i T m")]
    cost: Annotated[np.ndarray, Column("f T m")]
    critic: Annotated[np.ndarray, Column("f T m")]
    proposed: Annotated[np.ndarray, Column("n T ?")]


@dataclass
class Step:
    """One step: what the agent saw and did, and the frames it led to. With a first axis of time, those of an episode."""

    labels: Annotated[np.ndarray, Column("b T A")]
    action: Annotated[np.ndarray, Column("n T ?")]
    milliseconds: Annotated[np.ndarray, Column("f T")]
    frame_rewards: Annotated[np.ndarray, Column("f T F")] = field(default_factory=lambda: NOT_YET)
    frame_labels: Annotated[np.ndarray, Column("b T F A")] = field(default_factory=lambda: NOT_YET)
    frame_violations: Annotated[np.ndarray, Column("b T F")] = field(default_factory=lambda: NOT_YET)
    frame_valid: Annotated[np.ndarray, Column("b T F")] = field(default_factory=lambda: NOT_YET)
    image: Annotated[np.ndarray | None, Column("u T _ _ C", "observation.image")] = None
    vector: Annotated[np.ndarray | None, Column("f T _", "observation.vector", read=False)] = None
    picture: Annotated[np.ndarray | None, Column("u T _ _ 3")] = None
    decided: Decided | None = None
    """None where actions were random."""

    @property
    def taken(self) -> bool:
        """Whether it is known what came of it."""
        return self.frame_valid.size > 0


@dataclass(frozen=True)
class Places:
    """Maps of an episode; every field may be missing."""

    robot: Annotated[np.ndarray | None, Column("f T 3")] = None
    items: Annotated[np.ndarray | None, Column("f T _ 4")] = None
    extent: Annotated[np.ndarray | None, Column("f 4")] = None


@dataclass(frozen=True)
class Futures:
    """The futures of D decisions, imagined again, and the worst of them decoded."""

    step: Annotated[np.ndarray, Column("i D")]
    first_violation: Annotated[np.ndarray, Column("i D m")]
    atom: Annotated[np.ndarray, Column("i D m")]
    cost: Annotated[np.ndarray, Column("f D m")]
    critic: Annotated[np.ndarray, Column("f D m")]
    trace: Annotated[np.ndarray, Column("i D K")]
    labels: Annotated[np.ndarray, Column("f D K H _ L")]
    shown: Annotated[np.ndarray, Column("i D K P")]
    continues: Annotated[np.ndarray | None, Column("f D K H", read=False)] = None
    image: Annotated[np.ndarray | None, Column("u D K P _ _ C")] = None
    vector: Annotated[np.ndarray | None, Column("f D K H _", read=False)] = None
    robot: Annotated[np.ndarray | None, Column("f D K H 3")] = None
    items: Annotated[np.ndarray | None, Column("f D K H _ 4")] = None
    extent: Annotated[np.ndarray | None, Column("f 4")] = None


@dataclass(frozen=True)
class Twins:
    """How W overridden actions fared in the real simulator without the shield."""

    step: Annotated[np.ndarray, Column("i W")]
    violation: Annotated[np.ndarray, Column("i W")]
    taken: Annotated[np.ndarray, Column("i W")]
    labels: Annotated[np.ndarray, Column("b W n F A")]
    robot: Annotated[np.ndarray | None, Column("f W n 3")] = None
    shown: Annotated[np.ndarray | None, Column("i W Q")] = None
    image: Annotated[np.ndarray | None, Column("u W Q _ _ C")] = None


@dataclass(frozen=True)
class Truth:
    """How many of so many futures in the true world were safe, of E decisions."""

    step: Annotated[np.ndarray, Column("i E")]
    safe: Annotated[np.ndarray, Column("i E")]
    futures: Annotated[np.ndarray, Column("i E")]


@dataclass(frozen=True)
class Examination:
    """What was found out about decisions that somebody will ask about; None: nothing of the kind."""

    futures: Futures | None = None
    twin: Twins | None = None
    truth: Truth | None = None
    left_out: dict[str, int] = field(default_factory=dict)
    """By kind (`futures`, `twins`, `truth`), for how many decisions there was no time."""


GIVEN = "given"
"""Who acted where a policy that somebody else has made was recorded."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What holds for a whole episode; the names are those in the file."""

    atoms: list[str]
    psi: str = ""
    frames: int
    """F, per decision."""
    discrete: bool = False
    ambs: str = ""
    """The version that recorded it."""
    env: str = ""
    method: str = ""
    policy: str = ""
    """Who acted: task, backup, random, or `GIVEN`."""
    checkpoint: int | None = None
    """Of the agent, in frames."""
    foresight: dict[str, Any] | None = None
    """What is known of the agent's foresight (`ambs.report.foresight.brief`); None: it was never measured."""
    steps: int
    """T."""
    together: int = 1
    """Environments that were played at once."""
    shield: bool
    settings: dict[str, Any]
    """The shield's, by name."""
    caveat: str = ""
    reasons: dict[str, int]
    """Codes by name."""
    trace_atoms: list[str]
    thresholds: list[float]
    kinds: list[str]
    """Of things on a map."""
    looks: dict[str, dict[str, Any]] = field(default_factory=dict)
    """How the map shows kinds that are not its own: `colour`, a plain word, and `square`."""
    square: bool = False
    """Whether things on the map are cells."""
    action_names: list[str]
    left_out: dict[str, int] = field(default_factory=dict)
    interface: dict[str, Any] = field(default_factory=dict)
    """The rest of the agent's interface as its checkpoint has it; nobody reads it here."""

    def to_json(self) -> dict[str, Any]:
        """As it is written."""
        own = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "interface"}
        return self.interface | {"format": FORMAT} | own

    @classmethod
    def from_json(cls, data: Any, path: Path) -> "Facts":
        """What `to_json` returned, read from this path; a UserError that names what is wrong with it."""
        if not isinstance(data, dict) or not isinstance(data.get("settings"), dict):
            raise UserError(f"{path} does not describe a recorded episode")
        _check_facts(data, path)
        plain: dict[str, Any] = {name: data[name] for name in (*_LISTS, "shield", "reasons")}
        plain |= {name: str(data.get(name, "")) for name in ("psi", "ambs", "env", "method", "policy", "caveat")}
        plain |= {name: bool(data.get(name)) for name in ("discrete", "square")}
        together, left = data.get("together"), data.get("left_out")
        told = isinstance(left, dict) and all(isinstance(count, int) for count in left.values())
        return cls(
            **plain,
            frames=int(data["frames"]),
            steps=int(data["steps"]),
            thresholds=[float(value) for value in data["thresholds"]],
            settings={"rolled": None, "asked": None} | data["settings"],
            checkpoint=data.get("checkpoint"),
            foresight=data.get("foresight"),
            looks=_looks(data.get("looks")),
            together=together if isinstance(together, int) and 1 <= together <= 10**6 else 1,
            left_out=dict(left or {}) if told else {},
        )

    @property
    def path(self) -> str:
        """The path formula that futures were judged by, if it is another one than G≤n Ψ; else empty."""
        return str(self.settings.get("path") or "")[:LONGEST_PATH]

    @property
    def rolled(self) -> int:
        """H: steps of a stored future."""
        rolled = self.settings.get("rolled")
        return int(self.settings["horizon"] if rolled is None else rolled)


@dataclass(frozen=True)
class Episode:
    """A recorded episode, all of it."""

    name: str
    facts: Facts
    steps: Step
    scene: Places
    examination: Examination

    @property
    def decided(self) -> bool:
        """Whether there is a decision for every step: not if actions were random."""
        return self.steps.decided is not None

    @property
    def overrides(self) -> list[int]:
        """The steps at which the shield stepped in."""
        return [] if self.steps.decided is None else np.flatnonzero(self.steps.decided.overridden).tolist()

    @property
    def first_to_see(self) -> int | None:
        """The first override that was looked into, or else the first; None: nothing was overridden."""
        looked = () if self.examination.futures is None else self.examination.futures.step.tolist()
        return next((step for step in self.overrides if step in looked), next(iter(self.overrides), None))

    @property
    def not_examined(self) -> tuple[int, int]:
        """Overrides by futures, and accepted decisions of which a future broke Ψ, that were not looked into."""
        if (decided := self.steps.decided) is None:
            return 0, 0
        looked: Any = [] if self.examination.futures is None else self.examination.futures.step
        without = [
            code for name, code in self.facts.reasons.items() if name in ("already_unsafe", "non_finite", "latched")
        ]
        unseen = ~np.isin(np.arange(self.facts.steps), looked) & ~np.isin(decided.reason, without)
        overridden, near = decided.overridden, ~decided.overridden & (decided.violating > 0)
        return int((unseen & overridden).sum()), int((unseen & near).sum())

    def arrays(self) -> Arrays:
        """By the names they have in the file."""
        found = _columns_of(self.steps) | _columns_of(self.scene, "scene.")
        if self.steps.decided is not None:
            found |= _columns_of(self.steps.decided)
        for group in _GROUPS:
            part = getattr(self.examination, group)
            found |= {} if part is None else _columns_of(part, f"{group}.")
        return found

    @classmethod
    def from_arrays(cls, name: str, facts: Facts, arrays: Arrays) -> "Episode":
        """What `arrays` returned; a UserError that names what is missing, or of another kind or shape than it should be."""
        sizes = {"T": facts.steps, "F": facts.frames, "A": len(facts.atoms), "L": len(facts.trace_atoms)}
        sizes |= {"H": facts.rolled, "n": int(facts.settings["horizon"])}
        steps, scene = (_table(kind, prefix, name, arrays, sizes) for kind, prefix in ((Step, ""), (Places, "scene.")))
        groups: dict[str, Any] = {}
        if "reason" in arrays:
            steps.decided = _table(Decided, "", name, arrays, sizes)
            # What was looked into without a decision means nothing.
            groups = {
                group: _table(kind, f"{group}.", name, arrays, sizes)
                for group, kind in _GROUPS.items()
                if f"{group}.step" in arrays
            }
        return cls(name, facts, steps, scene, Examination(**groups, left_out=facts.left_out))


_LISTS = ("atoms", "trace_atoms", "kinds", "action_names")
_SETTINGS = {
    "safety_level": float, "approximation_error": float, "failure_probability": float, "horizon": int, "traces": int,
    "chunk": int, "model_error": float, "discount": float, "cost": float, "threshold_exponent": float,
}  # fmt: skip
_GROUPS: dict[str, Any] = {"futures": Futures, "twin": Twins, "truth": Truth}


def is_number(value: Any) -> bool:
    """Whether it is a finite number that a float can hold."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -1e300 < value < 1e300


def _check_facts(data: dict[str, Any], path: Path) -> None:
    """Refuse facts of another format, of another kind or of no sane size."""
    settings = data["settings"]

    def demand(right: bool, name: str, what: str, value: Any) -> None:
        if not right:
            raise UserError(f"{path}: {name} must be {what}, got {one_line(value)}")

    if data.get("format") != FORMAT:
        age = "an older" if data.get("format") == 1 else "another"
        told = one_line(data.get("format"))
        raise UserError(f"{path} was written by {age} version of ambs (format {told}): record again")
    for name, kind in {"steps": int, "frames": int, **_SETTINGS}.items():
        value: Any = settings.get(name) if name in _SETTINGS else data.get(name)
        sane = is_number(value) and (kind is float or (value == int(value) and 1 <= value <= 10**6))
        demand(sane, name, "a number of a sane size", value)
    rolled, asked = settings.get("rolled"), settings.get("asked")
    short = rolled is None or (isinstance(rolled, int) and 1 <= rolled <= settings["horizon"])
    demand(short, "rolled", "a number of steps up to the horizon", rolled)
    demand(asked is None or (is_number(asked) and 0 < asked <= 1), "asked", "a probability", asked)
    for name in _LISTS:
        value = data.get(name)
        named = isinstance(value, list) and all(isinstance(item, str) for item in value)
        demand(named, name, "a list of names", value)
    reasons, thresholds, frames = data.get("reasons"), data.get("thresholds"), data.get("checkpoint")
    coded = isinstance(reasons, dict) and all(isinstance(code, int) for code in reasons.values())
    demand(coded, "reasons", "numbers by name", reasons)
    listed = isinstance(thresholds, list) and all(map(is_number, thresholds))
    demand(listed, "thresholds", "a list of numbers", thresholds)
    demand(isinstance(data.get("shield"), bool), "shield", "true or false", data.get("shield"))
    counted = frames is None or (type(frames) is int and 0 <= frames < 10**15)
    demand(counted, "checkpoint", "a number of frames", frames)
    demand(isinstance(data.get("foresight"), dict | None), "foresight", "a table", data.get("foresight"))


def _looks(given: Any) -> dict[str, dict[str, Any]]:
    """Colours that are no plain word are left out."""
    found = {name: look for name, look in given.items() if isinstance(look, dict)} if isinstance(given, dict) else {}
    return {
        name: {"colour": str(look.get("colour")), "square": bool(look.get("square"))}
        for name, look in found.items()
        if re.fullmatch("[a-z]+", str(look.get("colour")))
    }


def stack(rows: list[Table]) -> Table:
    """Tables of the same form as one, with a new first axis; what one of them lacks, all do."""
    first = rows[0]

    def together(name: str) -> Any:
        parts = [getattr(row, name) for row in rows]
        if any(part is None for part in parts):
            return None
        return stack(parts) if is_dataclass(parts[0]) else np.stack(parts)

    return type(first)(**{one.name: together(one.name) for one in fields(first)})  # type: ignore[arg-type]


def known_names() -> set[str]:
    """Names of the arrays that readers care for."""
    tables = [("", Step), ("", Decided), ("scene.", Places), *((f"{group}.", kind) for group, kind in _GROUPS.items())]
    return {prefix + column.name for prefix, kind in tables for column in _columns(kind).values() if column.read}


def _columns(kind: Any) -> dict[str, Column]:
    """The columns of a table by their fields."""
    found = {one.name: getattr(one.type, "__metadata__", (None,))[0] for one in fields(kind)}
    return {name: column._replace(name=column.name or name) for name, column in found.items() if column is not None}


def _columns_of(table: Any, prefix: str = "") -> Arrays:
    values = {column.name: getattr(table, name) for name, column in _columns(type(table)).items()}
    return {prefix + name: np.asarray(value) for name, value in values.items() if value is not None}


def _table(kind: Any, prefix: str, file: str, arrays: Arrays, sizes: dict[str, int]) -> Any:
    """A table from the arrays that are there; sizes that are met for the first time are noted in `sizes`."""
    found = {}
    for name, column in _columns(kind).items():
        key = prefix + column.name
        if key in arrays and column.read:
            _check_fits(file, key, arrays[key], column.form, sizes)
            found[name] = arrays[key]
        elif not _may_be_missing(kind, name):
            raise UserError(f"{file} lacks the array {key}")
    return kind(**found)


def _may_be_missing(kind: Any, name: str) -> bool:
    return type(None) in get_args(get_args(kind.__annotations__[name])[0])


def _check_fits(file: str, key: str, array: np.ndarray, form: str, sizes: dict[str, int]) -> None:
    """Refuse an array of another kind or shape."""
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
            f"{file}: {key} must be {_KINDS[kind]} of shape ({told}), got {array.dtype} of shape {array.shape}"
        )

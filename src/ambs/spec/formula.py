"""Propositional safety formulas Ψ over named atoms (paper, Sec. 2.1).

A formula is a frozen tree. It is evaluated on arrays of labels `[..., atoms]` (NumPy or JAX, also inside jit), on sets
of names, or on atom probabilities, where it gives the exact chance that Ψ holds if the atoms are independent.
Text is turned into formulas by `ambs.spec.parser`; `str()` turns them back.
"""

from __future__ import annotations

import difflib
import functools
import operator
import re
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ambs.errors import UserError

MAX_DEPTH = 100
MAX_ATOMS = 256
MAX_DIAGRAM_NODES = 100_000

PLAIN_NAME = r"(?!(?:true|false|not|and|or|implies|iff|P|X|U|F|G)(?!\w))[^\W\d]\w*"
"""Names that need no quotes."""


class FormulaError(UserError):
    """A formula that cannot be read or used; `position` is the offset in the text where that shows, if known."""

    def __init__(self, message: str, position: int | None = None) -> None:
        super().__init__(message)
        self.position = position


def check_name(name: str) -> None:
    """Refuse what cannot be written as an atom, not even in quotes."""
    if not isinstance(name, str) or not name or '"' in name or not name.isprintable():
        raise FormulaError(f"atom name {name!r} must be text, printable, not empty and without quotes")


@dataclass(frozen=True)
class Atoms:
    """The vocabulary: names of the atomic propositions AP, in the order of the last axis of a label array."""

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.names, tuple | list):
            raise UserError(f"atoms must be a tuple of names, such as ('hazard', 'collision'), got {self.names!r}")
        object.__setattr__(self, "names", tuple(self.names))
        for name in self.names:
            check_name(name)
        if len(set(self.names)) != len(self.names):
            raise UserError(f"atom names must differ, got {', '.join(self.names)}")

    def __len__(self) -> int:
        return len(self.names)

    def index(self, name: str) -> int:
        """Position of `name` on the last axis of a label array."""
        if not isinstance(name, str) or name not in self.names:
            raise FormulaError(self.unknown(name))
        return self.names.index(name)

    def unknown(self, name: str) -> str:
        """One sentence about a name that is not in the vocabulary."""
        known = ", ".join(self.names) or "none"
        near = difflib.get_close_matches(name, self.names, n=1) if isinstance(name, str) else []
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"unknown atom {name!r}; known atoms: {known}{hint}"

    def encode(self, names: Iterable[str]) -> np.ndarray:
        """Label vector `[atoms]` in which exactly these names hold."""
        several = _several(names)
        if several is None:
            raise UserError(f"labels are encoded from a set of names, got {names!r}")
        labels = np.zeros(len(self.names), dtype=bool)
        for name in several:
            labels[self.index(name)] = True
        return labels

    def decode(self, labels: Any) -> frozenset[str]:
        """The set of names that hold in a label vector `[atoms]`."""
        if np.shape(labels) != (len(self.names),):
            raise UserError(f"labels must be {len(self.names)} truth values, one for each atom, got {labels!r}")
        return frozenset(name for name, holds in zip(self.names, np.asarray(labels), strict=True) if holds)


def vocabulary(names: Atoms | Iterable[str]) -> Atoms:
    """Atoms of these names, in this order; or as they are."""
    if isinstance(names, Atoms):
        return names
    several = _several(names)
    if several is None:
        raise UserError(f"atoms must be a sequence of names, such as ('hazard', 'collision'), got {names!r}")
    return Atoms(several)


def _several(names: Any) -> tuple[Any, ...] | None:
    try:
        return None if isinstance(names, str) else tuple(names)
    except TypeError:
        return None


@dataclass(frozen=True)
class Formula:
    """Base of all state formulas; a propositional formula is one without a probability operator in it."""

    depth: int = field(init=False, repr=False, compare=False, default=1)

    def __post_init__(self) -> None:
        for child in self.children():
            if not isinstance(child, Formula):
                raise FormulaError(f"a formula is made of formulas, such as parse_formula gives, got {child!r}")
        depth = 1 + max((child.depth for child in self.children()), default=0)
        if depth > MAX_DEPTH:
            raise FormulaError(f"the formula is nested more than {MAX_DEPTH} deep")
        object.__setattr__(self, "depth", depth)

    def children(self) -> tuple[Formula, ...]:
        """Direct subformulas."""
        return ()

    def atoms(self) -> tuple[str, ...]:
        """Free atoms, each once, in order of first appearance."""
        return tuple(dict.fromkeys(self._names()))

    def _names(self) -> Iterable[str]:
        for child in self.children():
            yield from child._names()

    def holds(self, labels: Any, atoms: Atoms) -> Any:
        """Whether Ψ holds (satisfaction relation of Sec. 2.1): labels `[..., atoms]` -> `[...]` bool, NumPy or JAX."""
        labels = _truths(labels, atoms)
        return evaluate(self, lambda node: _truth(node, labels, atoms))

    def holds_in(self, names: Set[str]) -> bool:
        """Whether Ψ holds in a state in which exactly the atoms of this set hold."""
        if not isinstance(names, Set):
            raise UserError(f"the atoms that hold must be a set of names, got {names!r}")
        own = Atoms(self.atoms())
        return bool(self.holds(own.encode(set(own.names) & set(names)), own))

    def probability(self, atom_probs: Any, atoms: Atoms) -> Any:
        """Exact P(Ψ) for independent atoms: probabilities `[..., atoms]` -> `[...]`; a polynomial, so differentiable."""
        _check_array("probabilities", atom_probs, atoms)
        nodes, root = _decision_diagram(self)
        values = [0.0, 1.0]
        for variable, low, high in nodes:
            p = atom_probs[..., atoms.index(variable)]
            values.append(p * values[high] + (1 - p) * values[low])
        return values[root] if root > 1 else atom_probs[..., :0].sum(axis=-1) + values[root]

    def constant(self) -> bool | None:
        """True or False if a propositional formula is so in every state, else None."""
        root = _decision_diagram(self)[1]
        return bool(root) if root < 2 else None

    def conjuncts(self) -> tuple[Formula, ...]:
        """The formulas whose conjunction this is; itself alone if it is not a conjunction."""
        if isinstance(self, And):
            return tuple(part for operand in self.operands for part in operand.conjuncts())
        return (self,)

    def __and__(self, other: Formula) -> And:
        return And((self, other))

    def __or__(self, other: Formula) -> Or:
        return Or((self, other))

    def __invert__(self) -> Not:
        return Not(self)

    def implies(self, other: Formula) -> Implies:
        """`self -> other`."""
        return Implies(self, other)

    def iff(self, other: Formula) -> Iff:
        """`self <-> other`."""
        return Iff(self, other)


@dataclass(frozen=True)
class Constant(Formula):
    """`true` or `false`."""

    value: bool

    def __str__(self) -> str:
        return "true" if self.value else "false"


@dataclass(frozen=True)
class Atom(Formula):
    """An atomic proposition; one whose name is no plain identifier is written in double quotes."""

    name: str

    def __post_init__(self) -> None:
        check_name(self.name)
        super().__post_init__()

    def _names(self) -> Iterable[str]:
        yield self.name

    def __str__(self) -> str:
        return self.name if re.fullmatch(PLAIN_NAME, self.name) else f'"{self.name}"'


@dataclass(frozen=True)
class Not(Formula):
    """`!operand`."""

    operand: Formula

    def children(self) -> tuple[Formula, ...]:
        """Direct subformulas."""
        return (self.operand,)

    def __str__(self) -> str:
        return "!" + bracketed(self.operand, _NOT)


@dataclass(frozen=True)
class _Several(Formula):
    operands: tuple[Formula, ...]

    def __post_init__(self) -> None:
        if len(self.operands) < 2:
            raise FormulaError(f"{type(self).__name__} needs at least two operands")
        super().__post_init__()

    def children(self) -> tuple[Formula, ...]:
        """Direct subformulas."""
        return self.operands


@dataclass(frozen=True)
class And(_Several):
    """`a & b & …`."""

    def __str__(self) -> str:
        return " & ".join(bracketed(operand, _AND + 1) for operand in self.operands)


@dataclass(frozen=True)
class Or(_Several):
    """`a | b | …`."""

    def __str__(self) -> str:
        return " | ".join(bracketed(operand, _OR + 1) for operand in self.operands)


@dataclass(frozen=True)
class _Pair(Formula):
    left: Formula
    right: Formula

    def children(self) -> tuple[Formula, ...]:
        """Direct subformulas."""
        return (self.left, self.right)


@dataclass(frozen=True)
class Implies(_Pair):
    """`left -> right`, right-associative."""

    def __str__(self) -> str:
        return f"{bracketed(self.left, _IMPLIES + 1)} -> {bracketed(self.right, _IMPLIES)}"


@dataclass(frozen=True)
class Iff(_Pair):
    """`left <-> right`, left-associative."""

    def __str__(self) -> str:
        return f"{bracketed(self.left, _IFF)} <-> {bracketed(self.right, _IFF + 1)}"


# How tightly each connective binds; everything else binds tightest.
_IFF, _IMPLIES, _OR, _AND, _NOT, _TIGHT = range(1, 7)
_BINDING: dict[type, int] = {Iff: _IFF, Implies: _IMPLIES, Or: _OR, And: _AND, Not: _NOT}


def bracketed(formula: Formula, at_least: int = _TIGHT) -> str:
    """Text of a formula, in parentheses if it binds less tightly than its place in a larger one asks for."""
    text = str(formula)
    return text if _BINDING.get(type(formula), _TIGHT) >= at_least else f"({text})"


def _truths(labels: Any, atoms: Atoms) -> Any:
    """Labels as bool, whole numbers taken as 0 and not 0; anything else would be misread without a word."""
    _check_array("labels", labels, atoms)
    if labels.dtype == bool:
        return labels
    if np.issubdtype(labels.dtype, np.integer):
        return labels != 0
    raise FormulaError(f"labels are true or false, got an array of {labels.dtype}; for probabilities use probability()")


def _check_array(what: str, values: Any, atoms: Atoms) -> None:
    if not isinstance(atoms, Atoms):
        raise FormulaError(f"{what} are read by their atoms, such as ambs.Atoms(('hazard',)), got {atoms!r}")
    if not hasattr(values, "dtype"):
        raise FormulaError(f"{what} must be an array, got {values!r}")
    if values.ndim < 1 or values.shape[-1] != len(atoms):
        names = ", ".join(atoms.names)
        raise FormulaError(f"{what} must have a last axis of {len(atoms)} atoms ({names}), got shape {values.shape}")


def _truth(node: Formula, labels: Any, atoms: Atoms) -> Any:
    """Whether a constant or an atom holds, by labels `[..., atoms]`."""
    match node:
        case Constant(value):
            never = labels[..., :0].any(axis=-1)
            return ~never if value else never
        case Atom(name):
            return labels[..., atoms.index(name)]
    raise FormulaError(f"{node} cannot be judged from the labels of one state: it speaks of the future")


def evaluate(formula: Formula, leaf: Callable[[Formula], Any]) -> Any:
    """Evaluate in any Boolean algebra with `& | ^ ~`; `leaf` gives the value of what is not a connective."""
    match formula:
        case Not(operand):
            return ~evaluate(operand, leaf)
        case And(operands):
            return functools.reduce(operator.and_, [evaluate(part, leaf) for part in operands])
        case Or(operands):
            return functools.reduce(operator.or_, [evaluate(part, leaf) for part in operands])
        case Implies(left, right):
            return ~evaluate(left, leaf) | evaluate(right, leaf)
        case Iff(left, right):
            return ~(evaluate(left, leaf) ^ evaluate(right, leaf))
    return leaf(formula)


@functools.lru_cache(maxsize=256)
def _decision_diagram(formula: Formula) -> tuple[tuple[tuple[str, int, int], ...], int]:
    """Reduced ordered decision diagram: nodes (atom, low, high), children first, and the root.

    Indices 0 and 1 are the constants; node i of the tuple has index i + 2.
    """
    order = {name: rank for rank, name in enumerate(formula.atoms())}
    if len(order) > MAX_ATOMS:
        raise FormulaError(f"the formula has {len(order)} atoms; at most {MAX_ATOMS} can be handled")
    builder = _DiagramBuilder(len(order))

    def leaf(node: Formula) -> _Diagram:
        match node:
            case Constant(value):
                return _Diagram(builder, int(value))
            case Atom(name):
                return _Diagram(builder, builder.node(order[name], 0, 1))
        raise FormulaError(f"{node} has no probability from the atoms of one state: it speaks of the future")

    return _reachable(builder.nodes, evaluate(formula, leaf).index, tuple(order))


def _reachable(
    nodes: list[tuple[int, int, int]], root: int, names: tuple[str, ...]
) -> tuple[tuple[tuple[str, int, int], ...], int]:
    """The diagram without what building it left behind, numbered anew."""
    kept, stack = {0, 1}, [root]
    while stack:
        index = stack.pop()
        if index not in kept:
            kept.add(index)
            stack.extend(nodes[index][1:])
    number = {old: new for new, old in enumerate(sorted(kept))}
    rows = tuple((names[nodes[i][0]], number[nodes[i][1]], number[nodes[i][2]]) for i in sorted(kept - {0, 1}))
    return rows, number[root]


@dataclass(frozen=True)
class _Diagram:
    """A node seen as an element of a Boolean algebra, so that `evaluate` can build diagrams."""

    builder: _DiagramBuilder
    index: int

    def __and__(self, other: _Diagram) -> _Diagram:
        return _Diagram(self.builder, self.builder.apply(operator.and_, self.index, other.index))

    def __or__(self, other: _Diagram) -> _Diagram:
        return _Diagram(self.builder, self.builder.apply(operator.or_, self.index, other.index))

    def __xor__(self, other: _Diagram) -> _Diagram:
        return _Diagram(self.builder, self.builder.apply(operator.xor, self.index, other.index))

    def __invert__(self) -> _Diagram:
        return self ^ _Diagram(self.builder, 1)


class _DiagramBuilder:
    def __init__(self, variables: int) -> None:
        self.nodes: list[tuple[int, int, int]] = [(variables, 0, 0), (variables, 1, 1)]
        self._unique: dict[tuple[int, int, int], int] = {}
        self._applied: dict[tuple[Any, int, int], int] = {}

    def node(self, variable: int, low: int, high: int) -> int:
        if low == high:
            return low
        key = (variable, low, high)
        if key not in self._unique:
            if len(self.nodes) >= MAX_DIAGRAM_NODES:
                raise FormulaError("the formula is too entangled for its exact probability to be computed")
            self._unique[key] = len(self.nodes)
            self.nodes.append(key)
        return self._unique[key]

    def apply(self, combine: Callable[[int, int], int], u: int, v: int) -> int:
        if u < 2 and v < 2:
            return combine(u, v)
        key = (combine, u, v)
        if key not in self._applied:
            (rank_u, low_u, high_u), (rank_v, low_v, high_v) = self.nodes[u], self.nodes[v]
            rank = min(rank_u, rank_v)
            if rank_u > rank:
                low_u = high_u = u
            if rank_v > rank:
                low_v = high_v = v
            low = self.apply(combine, low_u, low_v)
            self._applied[key] = self.node(rank, low, self.apply(combine, high_u, high_v))
        return self._applied[key]

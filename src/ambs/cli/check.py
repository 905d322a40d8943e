"""`ambs check`: read a formula or a property, and say in words what it asks for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tyro

if TYPE_CHECKING:
    from ambs.spec.formula import Formula


@dataclass(frozen=True)
class Check:
    """Parse a safety formula or a PCTL property and explain it.

    Example: ambs check "P>=0.9 [ G<=30 !hazard ]" --atoms hazard collision
    """

    formula: tyro.conf.Positional[str]
    """A formula such as "!hazard & (red_light -> stop)", or a property such as "P>=0.9 [ G<=30 !hazard ]"."""
    atoms: tuple[str, ...] | None = None
    """The atoms that exist; any other name is refused. Without this option every name is an atom."""
    json: bool = False
    """Print one JSON object instead of words."""

    def run(self) -> int:
        """Print the explanation."""
        from ambs.spec.parser import parse_property

        formula = parse_property(self.formula, self.atoms)
        facts = _facts(formula)
        if self.json:
            print(json.dumps(facts, ensure_ascii=False))
            return 0
        print(f"{facts['formula']}\n  is a {facts['kind']} over {', '.join(facts['atoms']) or 'no atoms'}")
        print(f"  it says: {facts['meaning']}")
        if "safety_level" in facts:
            print(f"  Δ-bounded safety with Δ = {facts['safety_level']}, n = {facts['horizon']}, Ψ = {facts['psi']}")
        return 0


def _facts(formula: Formula) -> dict[str, Any]:
    from ambs.spec.pctl import Always, Probability

    facts: dict[str, Any] = {"formula": str(formula), "kind": "propositional formula", "atoms": list(formula.atoms())}
    facts["meaning"] = _words(formula)
    if _has_probability(formula):
        facts["kind"] = "PCTL property"
    match formula:
        case Probability(Always(psi, int(steps)), ">=", bound) if bound is not None and not _has_probability(psi):
            facts |= {"safety_level": float(1 - bound), "horizon": steps, "psi": str(psi)}
    return facts


def _has_probability(formula: Formula) -> bool:
    from ambs.spec.pctl import Probability

    return isinstance(formula, Probability) or any(_has_probability(child) for child in formula.children())


def _words(formula: Formula) -> str:
    """The formula in English."""
    from ambs.spec import formula as f
    from ambs.spec import pctl

    match formula:
        case f.Constant(value):
            return "always true" if value else "never true"
        case f.Not(f.Atom(name)):
            return f"no {name}"
        case f.Atom(name):
            return name
        case f.Not(operand):
            return f"not ({_words(operand)})"
        case f.And(operands):
            return " and ".join(_grouped(part) for part in operands)
        case f.Or(operands):
            return " or ".join(_grouped(part) for part in operands)
        case f.Implies(left, right):
            return f"whenever {_grouped(left)}, then {_grouped(right)}"
        case f.Iff(left, right):
            return f"{_grouped(left)} exactly when {_grouped(right)}"
        case pctl.Probability(path, comparison, bound):
            relation = {">=": "at least", ">": "more than", "<=": "at most", "<": "less than"}
            if comparison is None:
                return f"how likely is it that {_path_words(path)}?"
            return f"with probability {relation[comparison]} {bound:f}, {_path_words(path)}"
    return str(formula)


def _grouped(formula: Formula) -> str:
    from ambs.spec import formula as f

    simple = isinstance(formula, f.Atom | f.Constant) or (
        isinstance(formula, f.Not) and isinstance(formula.operand, f.Atom)
    )
    return _words(formula) if simple else f"({_words(formula)})"


def _path_words(path: Any) -> str:
    from ambs.spec import pctl

    match path:
        case pctl.Next(operand):
            return f"in the next state: {_words(operand)}"
        case pctl.Eventually(operand, steps):
            return f"at some time{_within(steps)}: {_words(operand)}"
        case pctl.Always(operand, None):
            return f"now and for ever: {_words(operand)}"
        case pctl.Always(operand, steps):
            return f"now and in each of the next {steps} steps: {_words(operand)}"
        case pctl.Until(left, right, steps):
            return f"{_grouped(right)} comes{_within(steps)}, and until then {_grouped(left)}"
    return str(path)


def _within(steps: int | None) -> str:
    return "" if steps is None else f" within {steps} steps"

"""What "safe" means, and how sure we can be of it."""

from ambs.spec.formula import And, Atom, Atoms, Constant, Formula, FormulaError, Iff, Implies, Not, Or
from ambs.spec.parser import parse_formula, parse_property
from ambs.spec.pctl import Always, Eventually, Next, Path, Probability, Until, Verdict, bounded_safety
from ambs.spec.risk import frame_risk, step_risk, violates

__all__ = [
    "Always",
    "And",
    "Atom",
    "Atoms",
    "Constant",
    "Eventually",
    "Formula",
    "FormulaError",
    "Iff",
    "Implies",
    "Next",
    "Not",
    "Or",
    "Path",
    "Probability",
    "Until",
    "Verdict",
    "bounded_safety",
    "frame_risk",
    "parse_formula",
    "parse_property",
    "step_risk",
    "violates",
]

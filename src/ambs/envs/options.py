"""Options that all worlds have: Ψ and the render mode."""

from __future__ import annotations

from ambs.errors import UserError
from ambs.spec.formula import Atoms, Formula
from ambs.spec.parser import parse_formula


def choose_spec(spec: str | Formula | None, default: Formula, atoms: Atoms) -> Formula:
    """Ψ as given, or else the default; it may speak of these atoms only."""
    formula = parse_formula(spec) if isinstance(spec, str) else spec or default
    for name in formula.atoms():
        atoms.index(name)
    return formula


def check_render_mode(mode: str | None) -> str | None:
    """The render mode of a world that can only draw arrays."""
    if mode not in (None, "rgb_array"):
        raise UserError(f'render_mode must be None or "rgb_array", got {mode!r}')
    return mode

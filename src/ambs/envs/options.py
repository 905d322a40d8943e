"""Options that all worlds have: Ψ and the render mode."""

from __future__ import annotations

from ambs.errors import UserError
from ambs.spec.formula import Atoms, Formula
from ambs.spec.parser import parse_formula, speaks_of_future


def choose_spec(spec: str | Formula | None, default: Formula, atoms: Atoms) -> Formula:
    """Ψ as given, or else the default; it may speak of these atoms only."""
    formula = default if spec is None else read_spec(spec)
    for name in formula.atoms():
        atoms.index(name)
    return formula


def read_spec(spec: str | Formula) -> Formula:
    """Ψ from its text, or as it is."""
    if isinstance(spec, str):
        return parse_formula(spec)
    if not isinstance(spec, Formula) or speaks_of_future(spec):
        raise UserError(f"spec must be a formula over atoms such as '!hazard', got {spec}")
    return spec


def refuse_constant(psi: Formula) -> None:
    """Refuse a Ψ that no label can change."""
    always = psi.constant()
    if always is not None:
        told = (
            "holds in every state: nothing would be unsafe" if always else "fails in every state: nothing would be safe"
        )
        raise UserError(f"Ψ = {psi} {told}; say what must not happen, e.g. '!hazard'")


def check_render_mode(mode: str | None) -> str | None:
    """The render mode of a world that can only draw arrays."""
    if mode not in (None, "rgb_array"):
        raise UserError(f'render_mode must be None or "rgb_array", got {mode!r}')
    return mode

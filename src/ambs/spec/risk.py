"""Whether a step violates Ψ, or how likely it does: labels of its frames, or their probabilities.

One sign convention in the whole code base: a violated step costs, c = C·1[⊭ Ψ] ≥ 0.
"""

from __future__ import annotations

from typing import Any

from ambs.spec.formula import Atoms, Formula, Not


def violates(psi: Formula, atoms: Atoms, labels: Any) -> Any:
    """Whether a step violates Ψ: labels `[..., frames, atoms]` -> `[...]`, true iff Ψ fails in any frame of the step.

    Joining the frames' atoms first would be wrong for formulas such as `red_light -> stop`.
    """
    return (~psi.holds(labels, atoms)).any(axis=-1)


def frame_risk(psi: Formula, atoms: Atoms, probs: Any) -> Any:
    """P(¬Ψ) in every frame: label probabilities `[..., frames, atoms]` -> `[..., frames]`, atoms independent.

    That of the formula ¬Ψ itself: 1 − P(Ψ) would round what is unlikely to nothing, in value and in gradient.
    """
    return Not(psi).probability(probs, atoms)


def step_risk(psi: Formula, atoms: Atoms, probs: Any) -> Any:
    """P(a step violates Ψ): label probabilities `[..., frames, atoms]` -> `[...]`, that of its most dangerous frame, and so the
    least that it can be.

    The frames of a step are a few centimetres apart and say nearly the same: if one violates, so does the next in nine cases of
    ten. As if they were independent, 1 − ∏(1 − P), a doubt of .05 in each of two would count twice.
    """
    return frame_risk(psi, atoms, probs).max(axis=-1)

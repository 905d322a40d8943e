"""Exact PCTL values on finite labelled Markov chains: the answer key for everything that samples.

Bounded operators by backward iteration, unbounded until by graph analysis and one sparse linear solve, nested P included
(the algorithms of Baier and Katoen, *Principles of Model Checking*, Ch. 10).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import breadth_first_order
from scipy.sparse.linalg import spsolve

from ambs.errors import UserError
from ambs.spec.formula import Atom, Atoms, Constant, Formula, evaluate
from ambs.spec.pctl import Always, Eventually, Next, Path, Probability, Until


@dataclass(frozen=True)
class Chain:
    """A finite transition system T with labels: `transitions` [states, states] row-stochastic (kept sparse),
    `labels` [states, atoms] bool."""

    transitions: Any
    labels: np.ndarray
    atoms: Atoms

    def __post_init__(self) -> None:
        matrix = sp.csr_array(self.transitions, dtype=np.float64)
        labels = np.asarray(self.labels, dtype=bool)
        states = matrix.shape[0]
        if matrix.shape != (states, states) or labels.shape != (states, len(self.atoms)):
            raise UserError(
                f"a chain needs transitions [states, states] and labels [states, atoms]; got {matrix.shape} and "
                f"{labels.shape} for {len(self.atoms)} atoms"
            )
        rows = np.asarray(matrix.sum(axis=1)).ravel()
        if not np.isfinite(matrix.data).all() or (matrix.data < 0).any() or not np.allclose(rows, 1, rtol=0, atol=1e-9):
            raise UserError("every row of a chain's transitions must be a probability distribution")
        object.__setattr__(self, "transitions", matrix)
        object.__setattr__(self, "labels", labels)

    @property
    def states(self) -> int:
        """Number of states."""
        return int(self.labels.shape[0])

    def satisfies(self, formula: Formula) -> np.ndarray:
        """Which states satisfy a state formula Φ: `[states]` bool."""

        def leaf(node: Formula) -> np.ndarray:
            match node:
                case Constant(value):
                    return np.full(self.states, value)
                case Atom(name):
                    return self.labels[:, self.atoms.index(name)]
                case Probability(path):
                    return np.asarray(node.admits(self.probability(path)))
            raise UserError(f"{node} is not a state formula")

        return np.asarray(evaluate(formula, leaf))

    def probability(self, path: Path) -> np.ndarray:
        """P_s(φ) for every state s: `[states]` float64."""
        if isinstance(path, Next):
            return np.asarray(self.transitions @ self.satisfies(path.operand).astype(np.float64))
        assert isinstance(path, Until | Eventually | Always)
        first, second, steps, negated = path.as_until()
        stay, target = self.satisfies(first), self.satisfies(second)
        values = self._until(stay, target) if steps is None else self._bounded_until(stay, target, steps)
        return 1 - values if negated else values

    def check(self, formula: Formula) -> np.ndarray:
        """Values `[states]` for an outermost `P=?`, truths `[states]` for everything else."""
        if isinstance(formula, Probability) and formula.is_query:
            return self.probability(formula.path)
        return self.satisfies(formula)

    def _bounded_until(self, stay: np.ndarray, target: np.ndarray, steps: int) -> np.ndarray:
        values = target.astype(np.float64)
        for _ in range(steps):
            previous = values
            values = np.where(target, 1.0, np.where(stay, self.transitions @ previous, 0.0))
            if np.array_equal(values, previous):
                break
        return values

    def _until(self, stay: np.ndarray, target: np.ndarray) -> np.ndarray:
        inner = stay & ~target
        never = ~self._can_reach(target, inner)
        surely = ~self._can_reach(never, inner)
        values = surely.astype(np.float64)
        open_states = np.flatnonzero(~never & ~surely)
        if open_states.size:
            within = self.transitions[open_states][:, open_states]
            into_sure = self.transitions[open_states] @ values
            system = sp.csc_array(sp.eye_array(open_states.size) - within)
            values[open_states] = np.clip(np.atleast_1d(spsolve(system, into_sure)), 0.0, 1.0)
        return values

    def _can_reach(self, target: np.ndarray, through: np.ndarray) -> np.ndarray:
        """States from which `target` is reached with positive probability along `through` states; target included."""
        edges = self.transitions.tocoo()
        usable = through[edges.row] & (edges.data > 0)
        source, sink = edges.row[usable], edges.col[usable]
        # One extra node from which all targets hang, so that a single backward search finds everything.
        hub = self.states
        ends = np.flatnonzero(target)
        rows = np.concatenate([sink, np.full(ends.size, hub)])
        columns = np.concatenate([source, ends])
        backward = sp.csr_array((np.ones(rows.size), (rows, columns)), shape=(hub + 1, hub + 1))
        reached = np.zeros(hub + 1, dtype=bool)
        reached[breadth_first_order(backward, hub, return_predecessors=False)] = True
        return reached[:hub]

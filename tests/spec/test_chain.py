"""Exact values on chains against Storm, and against answers worked by hand."""

import importlib
import platform
import sys

import numpy as np
import pytest
import scipy.sparse as sp

from ambs.envs.worlds.grid import Grid
from ambs.errors import UserError
from ambs.spec import Atoms, bounded_safety, parse_formula, parse_property
from ambs.spec.chain import Chain
from ambs.spec.formula import And, Atom, Constant, Iff, Implies, Not, Or
from ambs.spec.parser import parse_path
from ambs.spec.pctl import Next
from tests.shield.test_formulas import MAPS, ODDS, PATHS

if sys.platform == "linux" and platform.machine() == "x86_64":
    import stormpy
else:
    stormpy = pytest.importorskip("stormpy", reason="Storm's wheels exist for Linux x86-64 only")


def test_gamblers_ruin_by_hand():
    """Fair coin, stake 1 of 4: ruin with 3/4; within two steps with 1/2; bounded safety is one minus that."""
    steps = np.zeros((5, 5))
    steps[0, 0] = steps[4, 4] = 1
    for money in (1, 2, 3):
        steps[money, money - 1] = steps[money, money + 1] = 0.5
    labels = np.eye(5, dtype=bool)[:, [0, 4]]
    chain = Chain(steps, labels, Atoms(("ruined", "rich")))
    np.testing.assert_allclose(chain.check(parse_property("P=? [ F ruined ]")), [1, 0.75, 0.5, 0.25, 0], atol=1e-15)
    np.testing.assert_allclose(chain.check(parse_property("P=? [ F<=2 ruined ]")), [1, 0.5, 0.25, 0, 0])
    np.testing.assert_allclose(chain.check(parse_property("P=? [ X rich ]")), [0, 0, 0, 0.5, 1])
    np.testing.assert_allclose(chain.check(parse_property("P=? [ G (!ruined & !rich) ]")), np.zeros(5), atol=1e-15)
    safe = bounded_safety(parse_formula("!ruined"), 0.25, 2)
    assert chain.check(safe).tolist() == [False, False, True, True, True]
    # Nested: states from which one surely-enough survives two steps, reached in one step from 1 with probability 1/2.
    nested = parse_property("P=? [ X P>=0.75 [ G<=2 !ruined ] ]")
    np.testing.assert_allclose(chain.check(nested), [0, 0.5, 0.5, 1, 1])


def test_bad_chains_are_refused():
    atoms = Atoms(("a",))
    for matrix in (np.eye(2) * 0.5, np.array([[2.0, -1.0], [0, 1]]), np.full((2, 2), np.nan), np.ones((2, 3))):
        with pytest.raises(UserError):
            Chain(matrix, np.zeros((2, 1), bool), atoms)
    with pytest.raises(UserError, match="value"):
        Chain(np.eye(2), np.zeros((2, 1), bool), atoms).satisfies(~parse_property("P=? [ F a ]"))


# An instantiated model lives in its instantiator's memory.
KEPT_ALIVE: list[object] = []


def storm_example(name: str, **parameters: float):
    """A model that ships with stormpy; a parametric one is instantiated at these parameters."""
    path = getattr(importlib.import_module("stormpy.examples.files"), name)
    options = stormpy.BuilderOptions(True, True)
    options.set_build_all_labels()
    if name.startswith("jani"):
        return stormpy.build_sparse_model_with_options(stormpy.parse_jani_model(path)[0], options)
    program = stormpy.parse_prism_program(path)
    if not parameters:
        return stormpy.build_sparse_model_with_options(program, options)
    model = stormpy.build_sparse_parametric_model_with_options(program, options)
    point = {
        variable: stormpy.RationalRF(str(parameters[variable.name]))
        for variable in model.collect_probability_parameters()
    }
    instantiator = importlib.import_module("stormpy.pars").PDtmcInstantiator(model)
    KEPT_ALIVE.append((program, model, instantiator))
    return instantiator.instantiate(point)


def random_model(seed: int):
    """A random sparse chain with absorbing states, random labels, built with Storm's own builder."""
    rng = np.random.default_rng(seed)
    states = int(rng.integers(3, 120))
    builder = stormpy.SparseMatrixBuilder(rows=states, columns=states)
    labeling = stormpy.StateLabeling(states)
    for name in ("x", "y", "z"):
        labeling.add_label(name)
    for state in range(states):
        degree = 1 if rng.uniform() < 0.15 else int(rng.integers(1, min(6, states) + 1))
        targets = np.array([state]) if degree == 1 else np.sort(rng.choice(states, degree, replace=False))
        for target, chance in zip(targets, rng.dirichlet(np.ones(targets.size)), strict=True):
            builder.add_next_value(state, int(target), float(chance))
        for name in ("x", "y", "z"):
            if rng.uniform() < 0.2:
                labeling.add_label_to_state(name, state)
    return stormpy.SparseDtmc(stormpy.SparseModelComponents(builder.build(), labeling))


def as_chain(model) -> Chain:
    names = tuple(sorted(model.labeling.get_labels()))
    entries = [
        (row, e.column, e.value()) for row in range(model.nr_states) for e in model.transition_matrix.get_row(row)
    ]
    rows, columns, values = (np.array(part) for part in zip(*entries, strict=True))
    matrix = sp.csr_array((values.astype(float), (rows, columns)), shape=(model.nr_states,) * 2)
    labels = np.array(
        [[name in model.labeling.get_labels_of_state(s) for name in names] for s in range(model.nr_states)]
    )
    return Chain(matrix, labels, Atoms(names))


def ask_storm(model, text: str) -> np.ndarray:
    environment = stormpy.Environment()
    environment.solver_environment.set_linear_equation_solver_type(stormpy.EquationSolverType.eigen)
    query = stormpy.parse_properties(text)[0]
    result = stormpy.model_checking(model, query, only_initial_states=False, environment=environment)
    return np.array(result.get_values())


EXAMPLES = {
    "die": lambda: storm_example("prism_dtmc_die"),
    "die as jani": lambda: storm_example("jani_dtmc_die"),
    "brp": lambda: storm_example("prism_dtmc_brp"),
    "biased die": lambda: storm_example("prism_pdtmc_die", p=0.3, q=0.8),
    "other biased die": lambda: storm_example("prism_pdtmc_die", p=0.9, q=0.5),
    **{f"random {seed}": (lambda seed=seed: random_model(seed)) for seed in range(14)},
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_agrees_with_storm(name):
    model = EXAMPLES[name]()
    chain = as_chain(model)
    usable = [label for label in chain.atoms.names if chain.labels[:, chain.atoms.index(label)].any()]
    x, y = (usable * 2)[:2]
    # Storm has no G<=n, so it is asked for the complement.
    questions = {
        f'P=? [ X "{x}" ]': f'P=? [ X "{x}" ]',
        f'P=? [ F "{y}" ]': f'P=? [ F "{y}" ]',
        f'P=? [ F<=7 "{x}" ]': f'P=? [ F<=7 "{x}" ]',
        f'P=? [ (!"{x}") U "{y}" ]': f'P=? [ !"{x}" U "{y}" ]',
        f'P=? [ (!"{x}") U<=5 "{y}" ]': f'P=? [ !"{x}" U<=5 "{y}" ]',
        f'P=? [ G !"{y}" ]': f'P=? [ G !"{y}" ]',
        f'P=? [ G P>0.2 [ F<=3 "{x}" ] ]': f'P=? [ G (P>0.2 [ F<=3 "{x}" ]) ]',
        f'P=? [ F (P<=0.4 [ X "{x}" ] & !"{y}") ]': f'P=? [ F ((P<=0.4 [ X "{x}" ]) & !"{y}") ]',
    }
    for ours, storms in questions.items():
        np.testing.assert_allclose(chain.check(parse_property(ours)), ask_storm(model, storms), atol=1e-9, rtol=0)
    safe = chain.check(parse_property(f'P=? [ G<=9 !"{x}" ]'))
    np.testing.assert_allclose(safe, 1 - ask_storm(model, f'P=? [ F<=9 "{x}" ]'), atol=1e-9, rtol=0)


def test_storm_agrees_on_the_formulas_that_shields_are_tried_with():
    """The chains of `tests/shield/test_formulas.py`, built for Storm from the same numbers."""
    for number, text in enumerate(PATHS):
        chain = Grid(map=MAPS[number % 2], slip=0.2).chain(np.tile(ODDS, (Grid(map=MAPS[number % 2]).cells.size, 1)))
        path = parse_path(text, chain.atoms)
        if isinstance(path, Next):
            found = ask_storm(storm_chain(chain), f"P=? [ X {spelt(path.operand)} ]")
        else:
            first, second, steps, negated = path.as_until()
            found = ask_storm(storm_chain(chain), f"P=? [ {spelt(first)} U<={steps} {spelt(second)} ]")
            found = 1 - found if negated else found  # Storm has no G<=n.
        np.testing.assert_allclose(chain.probability(path), found, atol=1e-9, rtol=0, err_msg=text)


def spelt(formula) -> str:
    """As Storm writes a state formula: labels in quotes, without arrows."""
    match formula:
        case Atom(name):
            return f'"{name}"'
        case Constant(value):
            return str(value).lower()
        case Not(Constant(value)):
            return str(not value).lower()
        case Not(operand):
            return f"(!{spelt(operand)})"
        case And(operands) | Or(operands):
            return "(" + (" & " if isinstance(formula, And) else " | ").join(map(spelt, operands)) + ")"
        case Implies(left, right):
            return spelt(~left | right)
        case Iff(left, right):
            return spelt((left & right) | (~left & ~right))
    raise AssertionError(formula)


def storm_chain(chain: Chain):
    labeling = stormpy.StateLabeling(chain.states)
    for index, name in enumerate(chain.atoms.names):
        labeling.add_label(name)
        for state in np.flatnonzero(chain.labels[:, index]).tolist():
            labeling.add_label_to_state(name, state)
    builder = stormpy.SparseMatrixBuilder(rows=chain.states, columns=chain.states)
    matrix = chain.transitions.toarray()
    for row, column in zip(*np.nonzero(matrix), strict=True):
        builder.add_next_value(int(row), int(column), float(matrix[row, column]))
    return stormpy.SparseDtmc(stormpy.SparseModelComponents(builder.build(), labeling))

"""Ψ: parsing, printing, evaluation and probability against truth tables and closed forms."""

import itertools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ambs.errors import UserError
from ambs.spec import And, Atom, Atoms, Constant, Formula, FormulaError, Iff, Implies, Not, Or
from ambs.spec.parser import parse_formula, parse_property
from ambs.spec.risk import violates

ABC = Atoms(("a", "b", "c"))
ROWS = np.array(list(itertools.product([False, True], repeat=3)))


@pytest.mark.parametrize(
    ("text", "python"),
    [
        ("a", lambda a, b, c: a),
        ("!a", lambda a, b, c: not a),
        ("¬a ∧ not b & !c", lambda a, b, c: not a and not b and not c),
        ("a | b & c", lambda a, b, c: a or (b and c)),
        ("a ∨ b or c || a", lambda a, b, c: a or b or c),
        ("!a & b | c", lambda a, b, c: ((not a) and b) or c),
        ("a -> b -> c", lambda a, b, c: not a or (not b or c)),
        ("(a => b) implies c", lambda a, b, c: not (not a or b) or c),
        ("a ⇒ b | c", lambda a, b, c: not a or b or c),
        ("a <-> b -> c", lambda a, b, c: a == (not b or c)),
        ("a iff b ⇔ c", lambda a, b, c: (a == b) == c),
        ("true & a", lambda a, b, c: a),
        ("false | a", lambda a, b, c: a),
        ("true", lambda a, b, c: True),
        ("!(a & (b | !c))", lambda a, b, c: not (a and (b or not c))),
        ('"a" and "b"', lambda a, b, c: a and b),
    ],
)
def test_truth_tables(text, python):
    formula = parse_formula(text, ABC)
    expected = [python(*row) for row in ROWS]
    assert formula.holds(ROWS, ABC).tolist() == expected
    assert jax.jit(lambda labels: formula.holds(labels, ABC))(jnp.asarray(ROWS)).tolist() == expected
    assert [formula.holds_in(ABC.decode(row)) for row in ROWS] == expected
    again = parse_formula(str(formula), ABC)
    assert again == formula
    assert again.holds(ROWS.reshape(2, 4, 3), ABC).shape == (2, 4)


def test_the_papers_example():
    psi = parse_formula("¬collision ∧ (red_light ⇒ stop)")
    assert psi.atoms() == ("collision", "red_light", "stop")
    assert psi.holds_in({"red_light", "stop", "something else"})
    assert not psi.holds_in({"red_light"})
    assert not psi.holds_in({"collision"})
    assert str(psi) == "!collision & (red_light -> stop)"
    assert [str(part) for part in psi.conjuncts()] == ["!collision", "red_light -> stop"]


NAMES = Atoms(("a", "b", "c", "G", "red light", "true", "e\u0301tat"))


def random_formula(rng: random.Random, leaves: int) -> Formula:
    if leaves == 1:
        return Constant(rng.random() < 0.5) if rng.random() < 0.2 else Atom(rng.choice(NAMES.names))
    kind = rng.choice([Not, And, Or, Implies, Iff])
    if kind is Not:
        return Not(random_formula(rng, leaves - 1))
    count = 2 if kind in (Implies, Iff) else rng.randint(2, min(4, leaves))
    parts = [random_formula(rng, max(1, leaves // count)) for _ in range(count)]
    return kind(*parts) if kind in (Implies, Iff) else kind(tuple(parts))


def test_printing_and_parsing_are_inverse():
    rng = random.Random(1)
    for _ in range(1000):
        formula = random_formula(rng, rng.randint(1, 20))
        assert parse_formula(str(formula)) == formula


def brute_force(formula: Formula, atoms: Atoms, probs: np.ndarray) -> float:
    rows = np.array(list(itertools.product([False, True], repeat=len(atoms))))
    odds = np.where(rows, probs[None], 1 - probs[None]).prod(axis=-1)
    return float(odds[np.asarray(formula.holds(rows, atoms))].sum())


def test_probability_is_exact_for_independent_atoms():
    rng = random.Random(2)
    for _ in range(200):
        formula = random_formula(rng, rng.randint(1, 20))
        probs = np.array([rng.random() for _ in NAMES.names])
        assert formula.probability(probs, NAMES) == pytest.approx(brute_force(formula, NAMES, probs), abs=1e-12)


def test_probability_is_differentiable_and_batched():
    psi = parse_formula("!a & (b -> c)", ABC)
    p = jnp.array([0.1, 0.5, 0.3])
    # P = (1 − a)(1 − b(1 − c)), differentiated by hand.
    assert psi.probability(p, ABC) == pytest.approx(0.9 * (1 - 0.5 * 0.7))
    gradient = jax.jit(jax.grad(lambda q: psi.probability(q, ABC)))(p)
    np.testing.assert_allclose(gradient, [-(1 - 0.5 * 0.7), -0.9 * 0.7, 0.9 * 0.5], rtol=1e-6)
    assert psi.probability(np.full((4, 2, 3), 0.5), ABC).shape == (4, 2)
    assert parse_formula("true").probability(np.zeros((4, 0)), Atoms(())).tolist() == [1, 1, 1, 1]
    # An atom that appears twice is one event: P(a & a) is p, not p².
    assert parse_formula("a & a", ABC).probability(p, ABC) == pytest.approx(0.1)


def test_a_step_violates_if_any_frame_does():
    psi, atoms = parse_formula("red_light -> stop"), Atoms(("red_light", "stop"))
    frames = np.array([[True, False], [False, True]])
    # Joined over frames both atoms hold and the formula would be satisfied; frame by frame the first one violates.
    assert bool(violates(psi, atoms, frames))
    assert psi.holds(frames.any(axis=0), atoms)
    assert not violates(psi, atoms, frames[1:])


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("", 1, "ends too early"),
        ("a &", 4, "ends too early"),
        ("a b", 3, "found 'b'"),
        ("(a", 3, "')'"),
        ("a)", 2, "found ')'"),
        ("a $ b", 3, "found '$'"),
        ("and b", 1, "found 'and'"),
        ("G a", 1, "inside P"),
        ("hazrd & a", 1, "unknown atom 'hazrd'; known atoms: a, b, c"),
        ("a & P>=0.5 [ F a ]", 5, "without P"),
        ('"a', 1, "found '\"'"),
    ],
)
def test_errors_name_the_place(text, column, says):
    with pytest.raises(FormulaError) as caught:
        parse_formula(text, ABC)
    message = str(caught.value)
    assert says in message
    assert f"(column {column})" in message
    shown, caret = message.split("\n")[-2:]
    assert caret.index("^") == 2 + column - 1
    assert shown.strip() == text.strip()


@pytest.mark.parametrize(
    "text",
    ["a" * 1_000_000, "!" * 100_000 + "a", "!" * 60_000 + "a", "(" * 100_000, "(" * 30_000 + "a" + ")" * 30_000 + "!",
     " & ".join(f"x{i}" for i in range(1000)), "a -> " * 5000 + "a"],
)  # fmt: skip
def test_huge_input_is_refused_clearly(text):
    with pytest.raises(FormulaError, match="column"):
        parse_formula(text)


def test_wide_and_deep_within_limits():
    wide = parse_formula(" & ".join(f"x{i}" for i in range(256)))
    atoms = Atoms(wide.atoms())
    assert wide.probability(np.full(256, 0.99), atoms) == pytest.approx(0.99**256)
    deep = parse_formula("!" * 98 + "a")
    assert deep.holds_in({"a"})
    with pytest.raises(FormulaError, match="nested"):
        Not(Not(deep))


def test_fuzz_never_raises_anything_else():
    rng = random.Random(0)
    pieces = [
        *"()[]!&|¬∧∨⇒⇔<>=-?.0123456789\"' \n\t\x00ab", "true", "false", "not ", "and", "->", "<->", "P>=0.9 [ ", "G<=30 ",
        "F ", "U", "X", "P=?", "hazard", "é", "😀", "1e-3", "<=", " ]", "\u202e", "((", "))", "iff", "implies",
        "P>=1e-999999999999 [ ", "9" * 60,
    ]  # fmt: skip
    accepted = 0
    for trial in range(20_000):
        text = "".join(rng.choice(pieces) for _ in range(rng.randint(0, 12)))
        read = parse_formula if trial % 2 else parse_property
        try:
            formula = read(text)
        except FormulaError as error:
            assert error.position is not None
            assert "(column " in str(error)
        else:
            accepted += 1
            assert read(str(formula)) == formula
    assert 100 < accepted < 19_000


def test_whole_numbers_are_truths_and_other_numbers_are_refused():
    assert not parse_formula("!a").holds(np.array([1]), Atoms(("a",)))
    assert parse_formula("a").holds(np.array([2], np.uint8), Atoms(("a",)))
    with pytest.raises(FormulaError, match="true or false, got an array of float64"):
        parse_formula("a").holds(np.array([0.4]), Atoms(("a",)))
    with pytest.raises(FormulaError, match="last axis of 3 atoms"):
        parse_formula("a").holds(jnp.zeros((4, 1), bool), ABC)


def test_vocabulary():
    with pytest.raises(UserError, match="differ"):
        Atoms(("a", "a"))
    with pytest.raises(UserError, match="quotes"):
        Atoms(('a"b',))
    with pytest.raises(UserError, match="did you mean 'hazard'"):
        parse_formula("hazrd").holds(np.zeros(1, bool), Atoms(("hazard",)))
    assert ABC.decode(ABC.encode({"a", "c"})) == {"a", "c"}

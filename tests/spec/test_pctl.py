"""PCTL: text, and three-valued meaning on finite prefixes against enumeration of all their continuations."""

import itertools
from decimal import Decimal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ambs.errors import UserError
from ambs.spec import Atoms, FormulaError, Probability, Verdict, bounded_safety, parse_formula, parse_property

AB = Atoms(("a", "b"))


@pytest.mark.parametrize(
    "text",
    [
        "P>=0.9 [ G<=30 !hazard & !collision ]",
        "P=? [ F goal ]",
        "P<0.25 [ X a ]",
        "P>0.5 [ a U<=7 (b & c) ]",
        "P<=1 [ (!a) U b ]",
        "a & P>=0.5 [ F<=3 P<0.1 [ X b ] ]",
        "!P>=0.001 [ G (a -> P>0 [ F b ]) ]",
    ],
)
def test_round_trip(text):
    formula = parse_property(text)
    assert parse_property(str(formula)) == formula


def test_spellings():
    plain = parse_property("P>=0.9 [ G<=30 !hazard ]")
    assert plain == parse_property('P≥.9[□≤30 ¬"hazard"]') == bounded_safety(parse_formula("!hazard"), 0.1, 30)
    assert plain.bound == Decimal("0.9")
    assert parse_property("P=?[◇ a]") == parse_property("P = ? [ F a ]")
    assert parse_property("P>0.5 [ (a U b) ]") == parse_property("P>0.5 [ a U b ]")
    assert parse_property("P>0.5 [ a & b U c ]") == parse_property("P>0.5 [ (a & b) U c ]")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("P>=1.5 [ F a ]", "between 0 and 1"),
        ("P>=0.9 [ a ]", "path formula"),
        ("P>=0.9 [ a U ]", "expected an atom"),
        ("P 0.9 [ F a ]", "a bound such as"),
        ("P>=0.9 F a", "'['"),
        ("P>=0.9 [ F a", "']'"),
        ("P=? [ F P=? [ F a ] ]", "outermost"),
        ("P=? [ F (a & P=? [ F b ]) ]", "outermost"),
        ("a & !P=? [ F b ]", "outermost"),
        ("P>=1e-99999999999999999999 [ F a ]", "exponent"),
        ("P=? [ F<=3.5 a ]", "found '.'"),
        ("P=? [ F<=99999999999 a ]", "step bound"),
    ],
)
def test_errors(text, says):
    with pytest.raises(FormulaError, match="column") as caught:
        parse_property(text)
    assert says in str(caught.value)


def satisfied(path: str, trace: list[tuple[bool, bool]]) -> bool:
    """The paper's definitions on a complete finite trace, in plain Python."""
    a, b = zip(*trace, strict=True)
    match path:
        case "X a":
            return a[1]
        case "F<=2 a":
            return any(a[:3])
        case "G<=2 a":
            return all(a[:3])
        case "a U<=2 b":
            return any(b[i] and all(a[:i]) for i in range(3))
        case "(!a) U<=2 (a & b)":
            return any(a[i] and b[i] and not any(a[:i]) for i in range(3))
        case "X (a | !a)" | "G<=2 true" | "F<=2 (b | !b)":
            return True
        case "X (a & !a)" | "F<=2 false" | "a U<=2 (b & !b)":
            return False
    raise AssertionError(path)


@pytest.mark.parametrize(
    "path",
    ["X a", "F<=2 a", "G<=2 a", "a U<=2 b", "(!a) U<=2 (a & b)", "X (a | !a)", "G<=2 true", "F<=2 (b | !b)", "X (a & !a)",
     "F<=2 false", "a U<=2 (b & !b)"],
)  # fmt: skip
@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_bounded_operators_on_prefixes(path, length):
    formula = parse_property(f"P=? [ {path} ]")
    assert isinstance(formula, Probability)
    states = list(itertools.product([False, True], repeat=2))
    prefixes = list(itertools.product(states, repeat=length))
    expected = []
    for prefix in prefixes:
        endings = itertools.product(states, repeat=4 - length)
        outcomes = {satisfied(path, [*prefix, *ending]) for ending in endings}
        expected.append(Verdict.UNDECIDED if len(outcomes) == 2 else Verdict(int(outcomes.pop())))
    labels = np.array(prefixes)
    assert formula.path.on_traces(labels, AB).tolist() == expected
    on_device = jax.jit(lambda x: formula.path.on_traces(x, AB))(jnp.asarray(labels))
    assert on_device.tolist() == expected


def test_unbounded_operators_on_prefixes():
    a = np.array([[True, True, True], [True, False, True], [False, False, False]])
    labels = np.stack([a, np.zeros_like(a)], axis=-1)

    def verdicts(path: str) -> list[Verdict]:
        formula = parse_property(f"P=? [ {path} ]")
        assert isinstance(formula, Probability)
        return formula.path.on_traces(labels, AB).tolist()

    undecided, true, false = Verdict.UNDECIDED, Verdict.TRUE, Verdict.FALSE
    assert verdicts("G a") == [undecided, false, false]
    assert verdicts("F a") == [true, true, undecided]
    assert verdicts("a U b") == [undecided, false, false]
    assert verdicts("F b") == [undecided] * 3


def test_a_trace_has_at_least_one_state():
    formula = parse_property("P=? [ G a ]")
    assert isinstance(formula, Probability)
    with pytest.raises(FormulaError, match="at least one state"):
        formula.path.on_traces(np.zeros((0, 2), bool), AB)
    assert parse_property("P=? [ G true ]").path.on_traces(np.zeros((1, 2), bool), AB) == Verdict.TRUE


def test_traces_cannot_settle_nested_probabilities():
    formula = parse_property("P=? [ F P>0.5 [ X a ] ]")
    assert isinstance(formula, Probability)
    with pytest.raises(FormulaError, match="speaks of the future"):
        formula.path.on_traces(np.zeros((3, 2), bool), AB)


def test_bounded_safety_takes_decimals_at_their_word():
    formula = bounded_safety(parse_formula("!a"), 0.3, 5)
    assert formula.bound == Decimal("0.7")
    assert str(formula) == "P>=0.7 [ G<=5 !a ]"
    with pytest.raises(UserError, match="Δ"):
        bounded_safety(parse_formula("a"), 1.5, 5)
    with pytest.raises(UserError, match="step bound"):
        bounded_safety(parse_formula("a"), 0.1, -1)

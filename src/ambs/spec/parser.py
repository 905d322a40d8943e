"""Text to formulas: Ψ by `parse_formula`, PCTL by `parse_property`, both in the manner of PRISM and Storm.

Every rejected text gives a `FormulaError` that says what is wrong and where, with a caret under the place.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from lark import Lark, Token
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken, VisitError
from lark.visitors import Transformer_NonRecursive

from ambs.spec.formula import (
    MAX_ATOMS,
    PLAIN_NAME,
    And,
    Atom,
    Atoms,
    Constant,
    Formula,
    FormulaError,
    Iff,
    Implies,
    Not,
    Or,
    vocabulary,
)
from ambs.spec.pctl import Always, Eventually, Next, Path, Probability, Until

MAX_LENGTH = 65_536
MAX_DIGITS = 50

GRAMMAR = r"""
?start: iff
?iff: implies | iff IFF implies
?implies: or_ | or_ IMPLIES implies
?or_: and_ (OR and_)*
?and_: unary (AND unary)*
?unary: primary | NOT unary -> not_
?primary: TRUE -> true
        | FALSE -> false
        | NAME -> atom
        | QUOTED -> quoted
        | "(" iff ")"
        | PROBABILITY COMPARE NUMBER "[" path "]" -> bounded
        | PROBABILITY QUERY "[" path "]" -> query
?path: NEXT iff -> next
     | EVENTUALLY [STEPS] iff -> eventually
     | ALWAYS [STEPS] iff -> always
     | iff UNTIL [STEPS] iff -> until
     | "(" path ")"

NOT.3: /!|¬|not\b/
AND.3: /&&?|∧|and\b/
OR.3: /\|\|?|∨|or\b/
IMPLIES.3: /->|=>|⇒|→|implies\b/
IFF.3: /<->|<=>|⇔|↔|iff\b/
TRUE.3: /true\b/
FALSE.3: /false\b/
PROBABILITY.3: /P(?!\w)/
NEXT.3: /X(?!\w)/
UNTIL.3: /U(?!\w)/
EVENTUALLY.3: /F(?!\w)|◇/
ALWAYS.3: /G(?!\w)|□/
QUERY.2: /=\s*\?/
COMPARE.1: />=|≥|<=|≤|>|</
STEPS.2: /(<=|≤)\s*[0-9]+/
NUMBER: /[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?|\.[0-9]+([eE][-+]?[0-9]+)?/
NAME: /%PLAIN_NAME%/
QUOTED: /"[^"\n]+"/
%ignore /\s+/
""".replace("%PLAIN_NAME%", PLAIN_NAME)


def parse_formula(text: str, atoms: Atoms | Iterable[str] | None = None) -> Formula:
    """Read a propositional formula Ψ; with `atoms`, names outside that vocabulary are refused."""
    formula = parse_property(text, atoms)
    if speaks_of_future(formula):
        place = re.search(r"(?<!\w)P(?!\w)", text)
        raise _located(text, "expected a formula over atoms, without P [ … ]", place.start() if place else 0)
    return formula


def parse_property(text: str, atoms: Atoms | Iterable[str] | None = None) -> Formula:
    """Read a PCTL state formula, e.g. `P>=0.9 [ G<=30 !hazard & !collision ]`."""
    if not isinstance(text, str):
        raise FormulaError(f"a formula is written as text, such as '!hazard', got {text!r}")
    if len(text) > MAX_LENGTH:
        raise _located(text, f"a formula may have at most {MAX_LENGTH} characters, this has {len(text)}", MAX_LENGTH)
    known = None if atoms is None else vocabulary(atoms)
    try:
        formula = _Builder(known).transform(_parser().parse(text))
    except UnexpectedInput as error:
        raise _syntax_error(text, error) from None
    except VisitError as error:
        if not isinstance(error.orig_exc, FormulaError):
            raise
        raise _located(text, str(error.orig_exc), error.orig_exc.position or 0) from None
    if any(_asks(child) for child in formula.children()):
        asked = [match.start() for match in re.finditer(r"(?<!\w)P\s*=\s*\?", text)]
        inner = asked[1:] if isinstance(formula, Probability) and formula.is_query else asked
        raise _located(text, "P=? asks for a number and can only stand outermost", inner[0] if inner else 0)
    if len(formula.atoms()) > MAX_ATOMS:
        raise _located(text, f"the formula has more than {MAX_ATOMS} atoms", 0)
    return formula


def parse_path(text: str, atoms: Atoms | Iterable[str] | None = None) -> Path:
    """Read a path formula such as `!hazard U<=20 goal`: what stands inside P [ … ]."""
    formula = parse_property(f"P=? [ {text} ]", atoms)
    if not isinstance(formula, Probability):  # The brackets were closed within.
        raise FormulaError(f"{text!r} is not one path formula")
    return formula.path


def _asks(formula: Formula) -> bool:
    """Whether there is a `P=?` in it."""
    return (isinstance(formula, Probability) and formula.is_query) or any(map(_asks, formula.children()))


def speaks_of_future(formula: Formula) -> bool:
    """Whether there is a probability operator in it."""
    return isinstance(formula, Probability) or any(speaks_of_future(child) for child in formula.children())


@functools.cache
def _parser() -> Lark:
    return Lark(GRAMMAR, parser="lalr", maybe_placeholders=True)


def _rule(build: Any) -> Any:
    """A builder method that gets tokens and subformulas apart, and whose errors know the place of its first token."""

    @functools.wraps(build)
    def method(self: _Builder, children: list[Any]) -> Any:
        tokens = [child for child in children if isinstance(child, Token)]
        parts = [child for child in children if isinstance(child, Formula | Path)]
        try:
            return build(self, tokens, *parts)
        except FormulaError as error:
            raise FormulaError(str(error), tokens[0].start_pos if tokens else None) from None

    return method


class _Builder(Transformer_NonRecursive):
    """Builds formulas from the parse tree, without recursion: its depth is the user's to choose."""

    def __init__(self, vocabulary: Atoms | None) -> None:
        super().__init__()
        self.vocabulary = vocabulary

    def _named(self, name: str) -> Atom:
        if self.vocabulary is not None:
            self.vocabulary.index(name)
        return Atom(name)

    true = _rule(lambda _self, _tokens: Constant(True))
    false = _rule(lambda _self, _tokens: Constant(False))
    atom = _rule(lambda self, tokens: self._named(str(tokens[0])))
    quoted = _rule(lambda self, tokens: self._named(tokens[0][1:-1]))
    not_ = _rule(lambda _self, _tokens, operand: Not(operand))
    and_ = _rule(lambda _self, _tokens, *operands: And(operands))
    or_ = _rule(lambda _self, _tokens, *operands: Or(operands))
    implies = _rule(lambda _self, _tokens, left, right: Implies(left, right))
    iff = _rule(lambda _self, _tokens, left, right: Iff(left, right))
    next = _rule(lambda _self, _tokens, operand: Next(operand))
    eventually = _rule(lambda _self, tokens, operand: Eventually(operand, _steps(tokens)))
    always = _rule(lambda _self, tokens, operand: Always(operand, _steps(tokens)))
    until = _rule(lambda _self, tokens, left, right: Until(left, right, _steps(tokens)))
    query = _rule(lambda _self, _tokens, path: Probability(path, None, None))

    @_rule
    def bounded(self, tokens: list[Token], path: Path) -> Probability:
        """`P~p [ φ ]`."""
        _, comparison, number = tokens
        digits, _, exponent = number.lower().partition("e")
        if len(digits) > MAX_DIGITS or len(exponent) > 4:
            raise FormulaError(f"a probability bound may have {MAX_DIGITS} digits and an exponent of three")
        return Probability(path, {"≥": ">=", "≤": "<="}.get(comparison, str(comparison)), Decimal(number))


def _steps(tokens: list[Token]) -> int | None:
    bound = next((token for token in tokens if token.type == "STEPS"), None)
    if bound is None:
        return None
    digits = bound.lstrip("<=≤ \t\r\n\f\v")
    if len(digits) > 12:
        raise FormulaError(f"a step bound with {len(digits)} digits is too large")
    return int(digits)


# What a parser that stopped was waiting for, in words; the first line whose terminal was acceptable is used.
_WAITING_FOR = (
    ("NAME", "an atom, '!', '(', 'true', 'false' or P"),
    ("COMPARE", "a bound such as '>=0.9', or '=?'"),
    ("NUMBER", "a probability such as 0.9"),
    ("LSQB", "'[' and a path formula"),
    ("RPAR", "an operator or ')'"),
    ("RSQB", "an operator or ']'"),
    ("UNTIL", "U, since inside [ ] stands a path formula (X, F, G or U)"),
    ("AND", "an operator such as &, | or ->, or the end"),
    ("$END", "the end"),
)


def _syntax_error(text: str, error: UnexpectedInput) -> FormulaError:
    if isinstance(error, UnexpectedCharacters):
        # No terminal matched at all, and the lexer cannot tell which brackets are open.
        accepted = set(error.allowed or ())
        if "AND" in accepted:
            accepted = {"AND"}
    else:
        accepted = set(getattr(error, "accepts", None) or getattr(error, "expected", None) or ())
    waited = next((words for terminal, words in _WAITING_FOR if terminal in accepted), "something else")
    position = error.pos_in_stream if error.pos_in_stream is not None and error.pos_in_stream >= 0 else len(text)
    at_end = position >= len(text.rstrip()) or (isinstance(error, UnexpectedToken) and error.token.type == "$END")
    if at_end:
        position = len(text.rstrip())
        return _located(text, f"the formula ends too early: expected {waited}", position)
    found = re.match(r"\w{1,20}|.", text[position:], re.DOTALL)
    word = found.group() if found else ""
    hint = " (X, U, F and G stand only inside P [ … ])" if word in {"X", "U", "F", "G"} else ""
    return _located(text, f"expected {waited}, found {word!r}{hint}", position)


def _located(text: str, message: str, position: int) -> FormulaError:
    """The error, with the column and a caret under it; of a long text only the neighbourhood is shown."""
    start, stop = max(0, position - 50), position + 30
    shown = "".join(char if char.isprintable() else " " for char in text[start:stop])
    lead = "…" if start else ""
    tail = "…" if stop < len(text) else ""
    caret = " " * (len(lead) + position - start) + "^"
    return FormulaError(f"{message} (column {position + 1})\n  {lead}{shown}{tail}\n  {caret}", position)

"""Boolean expressions over tags: `cvmfs:lhcb & (os:el9 | os:el10) & ~network:wan-degraded`.

`~` binds before `&`, `&` before `|`. Tags are compared as they are written.

Source: the match-making specification of DiracX, v0.2, section 7.
"""

import re
from collections.abc import Callable, Collection, Iterator
from typing import Final

from requirements.kept import keep

#: A tag, or an operator with its operands.
Term = str | tuple[str, frozenset["Term"]]

#: Characters of an expression, as it is written and in its normal form.
MOST_TEXT: Final = 4_000
_DEEPEST: Final = 50  #: parentheses and negations around one tag
_TOKEN: Final = re.compile(r"\s*(?:([A-Za-z0-9_][A-Za-z0-9_.:/-]*)|([~&|()])|(\S))")
_RANK: Final = {"|": 1, "&": 2}


class TagExpressionError(ValueError):
    """A text that is no expression; the message has the place and what is allowed there."""


class _Parser:
    """Reads the tokens of an expression from left to right."""

    def __init__(self, text: str) -> None:
        self._tokens = [
            (found[1] or found[2] or found[3], found.start(found.lastindex or 0) + 1)
            for found in _TOKEN.finditer(text)
        ]
        self._at = 0
        self._depth = 0

    def read(self) -> Term:
        """The whole expression."""
        term = self._join("|", lambda: self._join("&", self._operand))
        if self._at < len(self._tokens):
            self._fail("& or |")
        return term

    def _join(self, sign: str, read: Callable[[], Term]) -> Term:
        found = [read()]
        while self._take(sign):
            found.append(read())
        return _combine(sign, found)

    def _operand(self) -> Term:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise TagExpressionError(f"is nested too deeply, allowed are {_DEEPEST} levels")
        term = self._read_operand()
        self._depth -= 1
        return term

    def _read_operand(self) -> Term:
        if self._take("~"):
            return _negate(self._operand())
        if self._take("("):
            term = self._join("|", lambda: self._join("&", self._operand))
            if not self._take(")"):
                self._fail("& or | or )")
            return term
        if self._at == len(self._tokens) or not re.match(r"\w", self._tokens[self._at][0], re.ASCII):
            self._fail("a tag, ~ or (")
        self._at += 1
        return self._tokens[self._at - 1][0]

    def _take(self, sign: str) -> bool:
        is_next = self._at < len(self._tokens) and self._tokens[self._at][0] == sign
        self._at += is_next
        return is_next

    def _fail(self, allowed: str) -> None:
        if self._at == len(self._tokens):
            raise TagExpressionError(f"ends where {allowed} is needed")
        token, column = self._tokens[self._at]
        raise TagExpressionError(f"has {token!r} at character {column}, where {allowed} is needed")


def _combine(sign: str, terms: Collection[Term]) -> Term:
    """Operands in one set, with those of operands that have the same operator."""
    flat = frozenset(
        part
        for term in terms
        for part in (term[1] if not isinstance(term, str) and term[0] == sign else (term,))
    )
    return next(iter(flat)) if len(flat) == 1 else (sign, flat)


def _negate(term: Term) -> Term:
    return next(iter(term[1])) if not isinstance(term, str) and term[0] == "~" else ("~", frozenset({term}))


@keep(8, lambda _, text: 100 * len(text))
def parse(text: str) -> Term:
    """The expression in a text; raises `TagExpressionError`. Cached: jobs of one production have the same."""
    _check_length(text)
    return _Parser(text).read()


def _check_length(text: str) -> None:
    if len(text) > MOST_TEXT:
        raise TagExpressionError(f"has {len(text)} characters, allowed are {MOST_TEXT}")


def normalise(text: str) -> str:
    """One text for expressions that differ in blanks, order, repetitions and needless parentheses.

    It has blanks around operators, and is bounded as well, because it is parsed again.
    """
    normal = _format(parse(text))
    _check_length(normal)
    return normal


def _format(term: Term, outer: int = 0) -> str:
    if isinstance(term, str):
        return term
    sign, operands = term
    rank = _RANK.get(sign, 3)
    if sign == "~":
        [operand] = operands
        return f"~{_format(operand, rank)}"
    text = f" {sign} ".join(sorted(_format(each, rank) for each in operands))
    return f"({text})" if rank < outer else text


def holds(term: Term, tags: Collection[str]) -> bool:
    """Whether an expression is true of a resource with these tags."""
    if isinstance(term, str):
        return term in tags
    sign, operands = term
    if sign == "~":
        [operand] = operands
        return not holds(operand, tags)
    is_any = sign == "|"
    for each in operands:  # without a generator: a new node is compared with a thousand expressions
        if holds(each, tags) is is_any:
            return is_any
    return not is_any


def requires_one(text: str, is_meant: Callable[[str], bool]) -> bool:
    """Whether an expression is true only of resources with one of the tags that are meant.

    A tag that occurs twice counts as two: an operand that is never true may hide that one is required.
    """
    return not may_hold(parse(text), (), lambda tag: not is_meant(tag))


def may_hold(term: Term, tags: Collection[str], is_open: Callable[[str], bool]) -> bool:
    """Whether an expression may be true of a resource with these tags, and any of those that are open."""
    return _may_be(term, tags, is_open, value=True)


def _may_be(term: Term, tags: Collection[str], is_open: Callable[[str], bool], *, value: bool) -> bool:
    if isinstance(term, str):
        return (term in tags) is value or (value and is_open(term))
    sign, operands = term
    if sign == "~":
        value = not value
    results = (_may_be(each, tags, is_open, value=value) for each in operands)
    return all(results) if (sign == "&") is value else any(results)


def keep_operands(text: str, is_kept: Callable[[Term], bool]) -> str:
    """An expression without those operands of its outermost `&` that are not kept; empty: none is left."""
    whole = parse(text)
    operands = whole[1] if not isinstance(whole, str) and whole[0] == "&" else (whole,)
    kept = [each for each in operands if is_kept(each)]
    return _format(_combine("&", kept)) if kept else ""


def list_tags(text: str) -> frozenset[str]:
    """The tags in an expression."""
    return frozenset(_list_tags(parse(text)))


def _list_tags(term: Term) -> Iterator[str]:
    if isinstance(term, str):
        yield term
    else:
        for each in term[1]:
            yield from _list_tags(each)

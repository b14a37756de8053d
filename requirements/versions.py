"""Versions in requirements: the parameters that are compared as versions, and numbers in their place.

A version is a text: as a number 9.10 is 9.1, and older than 9.4.
"""

import re
from collections.abc import Iterator
from typing import Final

from requirements.canonical import Requirements
from requirements.classad import expression
from requirements.classad.restrictions import is_version, parts_of
from requirements.classad.syntax_tree import Attribute, Call, Literal, TextSpan
from requirements.record import Record
from requirements.values import fold

#: What each real number has, and other texts may have.
_REAL: Final = re.compile(r"\d[.eE]|\.\d")


def compared_names(requirements: Requirements) -> frozenset[str]:
    """The folded names of parameters that version functions of an expression read."""
    if isinstance(requirements, Record):
        return frozenset()
    return frozenset(fold(name) for call in _version_calls(requirements.text) for name in _names(call))


def may_have_reals(requirements: Requirements) -> bool:
    """Whether there may be a real number, without reading an expression."""
    if isinstance(requirements, Record):
        return next(find_reals(requirements), None) is not None
    return _REAL.search(requirements.text) is not None


def find_reals(requirements: Requirements) -> Iterator[tuple[str, str | float]]:
    """Yield each parameter with each real number that it is compared with, as text as it is written.

    Of a record, which is read already, the number, unless it has lost last zeros of its text.
    """
    if isinstance(requirements, Record):
        written = {(name, float(text)): text for name, text in requirements.written}
        for name, value in requirements.values:
            for each in value if isinstance(value, tuple) else (value,):
                if isinstance(each, float):
                    yield name, written.get((name, each), each)
        return
    text = requirements.text
    for compared in expression.comparisons(text):
        if isinstance(compared.value, float):
            yield compared.name, _written(text, compared.literal)
    for call in _version_calls(text):
        for argument in call.arguments:
            if isinstance(argument, Literal) and isinstance(argument.value, float):
                yield from ((name, _written(text, argument)) for name in _names(call))


def advise_zeros(written: str) -> str:
    """What is lost of a number that may be a version: the last zeros of its text."""
    return f'{written} is read as the number {float(written):.15g}; if it is a version, write "{written}"'


def _version_calls(text: str) -> Iterator[Call]:
    return (part for part in expression.parts(text) if isinstance(part, Call) and is_version(part))


def _names(call: Call) -> Iterator[str]:
    for part in parts_of(call):
        if isinstance(part, Attribute):
            yield expression.unscoped_name(".".join(part.names))


def _written(text: str, place: TextSpan) -> str:
    return text[place.start : place.end]

"""Reading text in the ClassAd language: job descriptions (JDL) and resource ads.

The text is scanned and parsed here, so that errors have a place and no literal is misread; then the
ClassAd library has to accept it as well.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import classad2

from requirements.grammar import read_ad
from requirements.height import check_height
from requirements.problem import Problem
from requirements.rendering import rendered
from requirements.source import Source
from requirements.syntax import Ad, ListOf, Literal, Node, Special, Unary

#: Ends the name of an attribute in the path of a problem: `InputData[3]`, `Requirements/Memory`.
_ATTRIBUTE = re.compile(r"[/\[]")
#: Characters of an ad.
MAX_SIZE = 1_000_000


@dataclass(frozen=True, slots=True)
class Unevaluated:
    """An expression that stands where a value might: its text as written."""

    text: str
    file: str | None = field(default=None, compare=False)
    line: int = field(default=1, compare=False)  #: where it begins in the file
    column: int = field(default=1, compare=False)  #: where it begins in the file


class Attributes(dict[str, object]):
    """The attributes of an ad, which know where they stand."""

    def __init__(self, values: Mapping[str, object], source: Source, starts: Mapping[str, int]) -> None:
        super().__init__(values)
        self._source = source
        self._starts = starts

    def placed(self, problem: Problem) -> Problem:
        """A problem with the value of an attribute, told with its line and column.

        Problems of unknown attributes, and those that know their place, stay as they are.
        """
        start = self._starts.get(_ATTRIBUTE.split(problem.path, maxsplit=1)[0])
        if start is None or problem.line is not None:
            return problem
        [found] = self._source.fault(start, problem.message).problems
        return replace(found, path=problem.path, suggestion=problem.suggestion)


def parse_ad(text: str, file: str | None = None, path: str = "ClassAd") -> Attributes:
    """The attributes of an ad, in the order and spelling in which they are written.

    Values are text, booleans, numbers, None for `undefined`, lists, a dict for a nested ad, and
    `Unevaluated` for everything that has to be computed. The brackets around the whole may be left out;
    its names may have dots.

    Args:
        text: `[ Name = value; … ]`.
        file: Where it comes from, for the messages.
        path: What it is, for the messages.

    Raises:
        InvalidInput: With line, column and the line itself: no ClassAd, names that differ only in case, or a
            literal that programs read differently.
    """
    source = Source(text=text, path=path, file=file)
    if len(text) > MAX_SIZE:
        raise source.fault(0, f"{len(text)} characters, allowed are {MAX_SIZE}")
    ad = read_ad(source)
    check(ad, source)
    starts = {name: node.start for name, node in ad.entries}
    return Attributes(_attributes(ad, source), source, starts)


def check(ad: Ad, source: Source) -> None:
    """Refuse an ad that HTCondor's library cannot read.

    Raises:
        InvalidInput: At its beginning.
    """
    check_height(ad, source)
    try:
        classad2.ClassAd(rendered(ad))
    except classad2.ClassAdException as error:
        raise source.fault(ad.start, "HTCondor's ClassAd library cannot read this") from error


def _attributes(ad: Ad, source: Source) -> dict[str, object]:
    return {name: value_of(node, source) for name, node in ad.entries}


def value_of(node: Node, source: Source) -> object:
    """What `parse_ad` gives for a part of an ad."""
    match node:
        case Literal(value=Special.UNDEFINED):
            return None
        case Literal(value=value) if not isinstance(value, Special):
            return value
        case Unary(operator="-" | "+", operand=Literal(value=int() | float() as number)) if not isinstance(
            number, bool
        ):
            return -number if node.operator == "-" else number
        case ListOf(items=items):
            return [value_of(item, source) for item in items]
        case Ad():
            return _attributes(node, source)
    line, column = source.place(node.start)
    return Unevaluated(source.text[node.start : node.end], source.file, line, column)

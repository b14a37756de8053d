"""Parse texts in the ClassAd language: job descriptions (JDL), resource ads, and files with several ads.

Our own parser reads the text, so that errors have a position and no literal is misread; then the ClassAd
library has to accept the expressions in it as well.

A file has ads in the new syntax (`[ a = 1; … ]`) or the old (one attribute per line).
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import classad2

from requirements.classad.lexer import TokenKind, UnfitNumber, scan
from requirements.classad.parser import SHORT, read_ad, read_ads
from requirements.classad.restrictions import MAX_HEIGHT, TOO_HIGH, height
from requirements.classad.syntax_tree import (
    Ad,
    ListOf,
    Literal,
    Node,
    SourceText,
    Special,
    Unary,
    children,
    render,
)
from requirements.errors import Problem
from requirements.values import Unevaluated, fold
from requirements.written_reals import keep_text

#: End of the attribute's name in the path of a problem: `InputData[3]`, `Requirements/Memory`.
_ATTRIBUTE = re.compile(r"[/\[]")
#: A number right behind its sign.
_SIGNED = re.compile(r"[-+][0-9.][0-9.eE+-]*")
#: Characters of an ad.
MAX_SIZE = 1_000_000


class Attributes(dict[str, object]):
    """The attributes of an ad, with their positions in the text."""

    def __init__(self, values: Mapping[str, object], source: SourceText, starts: Mapping[str, int]) -> None:
        super().__init__(values)
        self._source = source
        self._starts = starts

    def placed(self, problem: Problem) -> Problem:
        """Add line and column of the attribute to a problem with its value.

        Problems of unknown attributes, and those that have a position, are returned unchanged.
        """
        start = self._starts.get(_ATTRIBUTE.split(problem.path, maxsplit=1)[0])
        if start is None or problem.line is not None:
            return problem
        [found] = self._source.fault(start, problem.message).problems
        return replace(found, path=problem.path, suggestion=problem.suggestion)


def parse_ad(
    text: str, file: str | None = None, path: str = "ClassAd", *, keeps_texts: bool = False
) -> Attributes:
    """Parse the attributes of an ad, in the order and spelling in which they are written.

    Values are text, booleans, numbers, None for `undefined`, lists, a dict for a nested ad, and `Unevaluated`
    for every other expression. The outer brackets may be left out; names may have dots. With `keeps_texts`
    real numbers that are usually written in another way are `WrittenReal`.

    Raises:
        InvalidInput: Not an ad, names that differ only in case, or a literal that programs read differently.
    """
    source = SourceText(text=text, path=path, file=file)
    if len(text) > MAX_SIZE:
        raise source.fault(0, f"{len(text)} characters, allowed are {MAX_SIZE}")
    ad = read_ad(source)
    check(ad, source)
    starts = {name: node.start for name, node in ad.entries}
    values = {name: value_of(node, source, keeps_texts=keeps_texts) for name, node in ad.entries}
    return Attributes(values, source, starts)


def check(ad: Ad, source: SourceText) -> None:
    """Refuse an ad with expressions that HTCondor's library cannot read."""
    for _, node in ad.entries:
        is_plain = isinstance(node, ListOf) and all(isinstance(each, Literal) for each in node.items)
        if is_plain or isinstance(node, Literal):
            continue
        # The cache keeps the trees: only those of short texts.
        is_short = node.end - node.start <= SHORT
        if fault := _find_fault(node) if is_short else _fault(node):
            raise source.fault(node.start, fault)


@lru_cache(maxsize=1024)
def _find_fault(node: Node) -> str | None:
    return _fault(node)


def _fault(node: Node) -> str | None:
    if height(node) >= MAX_HEIGHT:
        return TOO_HIGH
    try:
        classad2.ExprTree(render(node))
    except classad2.ClassAdException:
        return "HTCondor's ClassAd library cannot read this"
    return None


def value_of(node: Node, source: SourceText, *, keeps_texts: bool = False) -> object:
    """Convert a part of an ad to a value as in `parse_ad`."""
    match node:
        case Literal(value=Special.UNDEFINED):
            return None
        case Literal(value=value) if not isinstance(value, Special):
            return keep_text(value, source.text[node.start : node.end]) if keeps_texts else value
        case Unary(operator="-" | "+", operand=Literal(value=int() | float() as number)) if not isinstance(
            number, bool
        ):
            signed = -number if node.operator == "-" else number
            written = source.text[node.start : node.end]
            return keep_text(signed, written) if keeps_texts and _SIGNED.fullmatch(written) else signed
        case ListOf(items=items):
            return [value_of(item, source, keeps_texts=keeps_texts) for item in items]
        case Ad():
            return {name: value_of(each, source, keeps_texts=keeps_texts) for name, each in node.entries}
    line, column = source.place(node.start)
    return Unevaluated(source.text[node.start : node.end], source.file, line, column)


#: Characters of a file; reading that many takes a minute.
MAX_FILE = 16_000_000

_COMMENTS = ("#", "//")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdEntry:
    """One attribute of an ad, with its line."""

    name: str
    value: object  #: as returned by `parse_ad`
    text: str  #: the value as written
    line: int
    fault: str | None = None  #: why its value is none that every program reads alike
    entries: "tuple[AdEntry, ...]" = ()  #: of a nested ad


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenAd:
    """An ad of a file, with its line; names differ by more than case."""

    entries: tuple[AdEntry, ...]
    line: int


def read_ad_file(text: str, file: str | None = None) -> tuple[WrittenAd, ...]:
    """Parse the ads of a text, in their order.

    New syntax: ads in brackets, one after the other or in a list; or one without brackets, its attributes
    ended by semicolons. Old syntax: lines `Name = value`, with an empty line between two ads. A number that
    programs read differently is a fault of its attribute only: others write these files.
    """
    source = SourceText(text=text, path="ClassAd", file=file, keeps_unfit_numbers=True)
    if len(text) > MAX_FILE:
        raise source.fault(0, f"{len(text)} characters, allowed are {MAX_FILE}")
    start = next(scan(source))
    if start.kind is TokenKind.END:
        raise source.fault(0, "there is no ad: [ name = value; … ]")
    if start.value in ("[", "{"):
        return _build_ads(read_ads(source), source)
    return _build_ads((read_ad(source),), source) if _has_semicolons(source) else tuple(_old_syntax(source))


def _has_semicolons(source: SourceText) -> bool:
    """Whether attributes end with semicolons, not with the line."""
    depth = 0
    for token in scan(source):
        if token.kind is TokenKind.OPERATOR:
            depth += (token.value in ("[", "(", "{")) - (token.value in ("]", ")", "}"))
            if token.value == ";" and depth == 0:
                return True
    return False


def _build_ads(ads: tuple[Ad, ...], source: SourceText) -> tuple[WrittenAd, ...]:
    lines = _Lines(source)
    for ad in ads:
        check(ad, source)
    return tuple(
        WrittenAd(entries=tuple(_entries(ad, source, lines)), line=lines.find_line(ad.start)) for ad in ads
    )


class _Lines:
    """Line numbers by offset; `SourceText.place` counts from the beginning each time."""

    def __init__(self, source: SourceText) -> None:
        self._first = source.line
        self._starts = [0, *(at + 1 for at, sign in enumerate(source.text) if sign == "\n")]

    def find_line(self, offset: int) -> int:
        return self._first + bisect_right(self._starts, offset) - 1


def _entries(ad: Ad, source: SourceText, lines: _Lines) -> Iterator[AdEntry]:
    for name, node in ad.entries:
        yield AdEntry(
            name=name,
            value=value_of(node, source),
            text=source.text[node.start : node.end],
            line=lines.find_line(node.start),
            fault=_find_unfit(node),
            entries=tuple(_entries(node, source, lines)) if isinstance(node, Ad) else (),
        )


def _find_unfit(node: Node) -> str | None:
    """What is wrong with the first number in a value that programs read differently; None: it has none."""
    waiting = [node]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Literal) and isinstance(part.value, UnfitNumber):
            return part.value.fault
        waiting.extend(reversed(children(part)))
    return None


def _old_syntax(source: SourceText) -> Iterator[WrittenAd]:
    """Yield the ads, each a block of lines."""
    block: list[AdEntry] = []
    for line in _attribute_lines(source):
        if not line.text.strip():
            if block:
                yield _block(block)
            block = []
            continue
        [ad] = _build_ads((read_ad(line),), line)
        for entry in ad.entries:
            for other in block:
                if fold(other.name) == fold(entry.name):
                    message = f"{entry.name} is named twice, the first time in line {other.line}"
                    raise line.fault(0, message)
            block.append(entry)
    if block:
        yield _block(block)


def _attribute_lines(source: SourceText) -> Iterator[SourceText]:
    """Yield the lines without comments; empty lines separate ads."""
    for number, text in enumerate(source.text.split("\n"), start=source.line):
        if not text.strip().startswith(_COMMENTS):
            yield replace(source, text=text.rstrip("\r"), line=number)


def _block(entries: list[AdEntry]) -> WrittenAd:
    return WrittenAd(entries=tuple(entries), line=entries[0].line)

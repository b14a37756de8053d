"""Files of ads: several in a row, in the new syntax (`[ a = 1; … ]`) or the old (a line for each name)."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace

from requirements import classads
from requirements.grammar import read_ad, read_ads
from requirements.source import Source
from requirements.syntax import Ad, Node
from requirements.tokens import TokenKind, scan
from requirements.values import fold

#: Characters of a file; reading that many takes a minute.
MAX_FILE = 16_000_000

_COMMENTS = ("#", "//")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One attribute of an ad, with its place."""

    name: str
    value: object  #: as `classads.parse_ad` gives it
    text: str  #: the value as it is written
    line: int
    entries: "tuple[Entry, ...]" = ()  #: of a nested ad


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenAd:
    """An ad of a file, with its place; its names differ by more than case."""

    entries: tuple[Entry, ...]
    line: int


def read(text: str, file: str | None = None) -> tuple[WrittenAd, ...]:
    """The ads of a text, in their order.

    New syntax: ads in brackets, one after the other or in a list; or one without brackets, its attributes
    ended by semicolons. Old syntax: lines `Name = value`, with an empty line between two ads.

    Raises:
        InvalidInput: With line, column and the line itself: no ad at all, or one that is none.
    """
    source = Source(text=text, path="ClassAd", file=file)
    if len(text) > MAX_FILE:
        raise source.fault(0, f"{len(text)} characters, allowed are {MAX_FILE}")
    start = next(scan(source))
    if start.kind is TokenKind.END:
        raise source.fault(0, "there is no ad: [ name = value; … ]")
    if start.value in ("[", "{"):
        return _written(read_ads(source), source)
    return _written((read_ad(source),), source) if _has_semicolons(source) else tuple(_old_syntax(source))


def _has_semicolons(source: Source) -> bool:
    """Whether attributes are ended by signs, not by lines."""
    depth = 0
    for token in scan(source):
        if token.kind is TokenKind.OPERATOR:
            depth += (token.value in ("[", "(", "{")) - (token.value in ("]", ")", "}"))
            if token.value == ";" and depth == 0:
                return True
    return False


def _written(ads: tuple[Ad, ...], source: Source) -> tuple[WrittenAd, ...]:
    lines = _Lines(source)
    for ad in ads:
        classads.check(ad, source)
    return tuple(WrittenAd(entries=tuple(_entries(ad, source, lines)), line=lines.of(ad.start)) for ad in ads)


class _Lines:
    """Which line a character stands in; `Source.place` counts from the beginning each time."""

    def __init__(self, source: Source) -> None:
        self._first = source.line
        self._starts = [0, *(at + 1 for at, sign in enumerate(source.text) if sign == "\n")]

    def of(self, offset: int) -> int:
        return self._first + bisect_right(self._starts, offset) - 1


def _entries(ad: Ad, source: Source, lines: _Lines) -> Iterator[Entry]:
    for name, node in ad.entries:
        yield Entry(
            name=name,
            value=classads.value_of(node, source),
            text=source.text[node.start : node.end],
            line=lines.of(node.start),
            entries=_nested(node, source, lines),
        )


def _nested(node: Node, source: Source, lines: _Lines) -> tuple[Entry, ...]:
    return tuple(_entries(node, source, lines)) if isinstance(node, Ad) else ()


def _old_syntax(source: Source) -> Iterator[WrittenAd]:
    """The ads that are blocks of lines."""
    block: list[Entry] = []
    for line in _attribute_lines(source):
        if not line.text.strip():
            if block:
                yield _block(block)
            block = []
            continue
        [ad] = _written((read_ad(line),), line)
        for entry in ad.entries:
            _refuse_again(entry, block, line)
            block.append(entry)
    if block:
        yield _block(block)


def _attribute_lines(source: Source) -> Iterator[Source]:
    """The lines that say something, or are empty; comments are neither."""
    for number, text in enumerate(source.text.split("\n"), start=source.line):
        if not text.strip().startswith(_COMMENTS):
            yield replace(source, text=text.rstrip("\r"), line=number)


def _block(entries: list[Entry]) -> WrittenAd:
    return WrittenAd(entries=tuple(entries), line=entries[0].line)


def _refuse_again(entry: Entry, before: list[Entry], line: Source) -> None:
    for other in before:
        if fold(other.name) == fold(entry.name):
            raise line.fault(0, f"{entry.name} is named twice, the first time in line {other.line}")

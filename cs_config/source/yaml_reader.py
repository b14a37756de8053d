"""Reader of the text of a configuration: restricted YAML, every name with its line.

Unquoted words follow the core schema of YAML 1.2. PyYAML follows YAML 1.1, in which `NO` (Norway) is false,
`12:30` is 750, `010` is 8 and `1e3` is a text.

The events of the parser are converted to sections in one pass without expansion or recursion, so that the
cost of any text is linear in its length. Anchors, aliases, tags and merge keys are refused: the file contains
every value literally.
"""

import math
import re
from dataclasses import dataclass, field
from sys import intern
from typing import Any

import yaml

from cs_config.source.sections import Leaf, LeafValue, Section
from requirements.errors import Problem
from requirements.values import MAX_INTEGER, Scalar, fold

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS = {
    "true": True, "True": True, "TRUE": True,
    "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_INTEGER = re.compile(r"[-+]?[0-9]+", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII)
#: Words with different values in YAML 1.1, YAML 1.2, JSON and for people: refused.
_AMBIGUOUS = re.compile(r"[-+]?0[0-9_]+|[-+]?0[xob][0-9a-fA-F_]+|[-+]?[1-9][0-9]*_[0-9_]*", re.ASCII)
_NO_NUMBER = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", re.ASCII)
_START_OF_NUMBER = frozenset("-+.0123456789")


def resolve_word(word: str) -> Scalar | None:
    """The value of an unquoted word; ValueError if it looks like a number, but not to every reader."""
    if word in _BOOLEANS:
        return _BOOLEANS[word]
    if word in _NULLS:
        return None
    return _number(word) if word[0] in _START_OF_NUMBER else word


class _Special:
    """Pattern-like object that matches the words that are not plain texts."""

    def match(self, word: str) -> bool:
        """Whether `resolve_word` returns something other than the word."""
        try:
            return resolve_word(word) != word
        except ValueError:
            return True


#: For writers that need a pattern.
looks_special = _Special()


def _number(word: str) -> Scalar:
    if _AMBIGUOUS.fullmatch(word):
        raise ValueError(
            f"{word} is not the same number to every reader: write it in decimal, or quote it as text"
        )
    if _NO_NUMBER.fullmatch(word):
        raise ValueError(f"{word} is not a number to compare with: leave the name out, or quote it as text")
    if _INTEGER.fullmatch(word):
        if len(word) > 17 or abs(int(word)) > MAX_INTEGER:
            raise ValueError(
                f"{word[:40]} is out of range, integers reach from {-MAX_INTEGER} to {MAX_INTEGER}"
            )
        return int(word)
    if _FLOAT.fullmatch(word):
        number = float(word)
        if not math.isfinite(number):
            raise ValueError(f"{word[:40]} is out of range")
        return number
    return word


#: Deeper than any valid section.
_MAX_DEPTH = 20
#: Number of problems after which reading stops: the text is probably something else.
_MAX_PROBLEMS = 200


@dataclass(slots=True, kw_only=True)
class YamlReading:
    """The content of a text, as far as it can be read, and its problems."""

    file: str
    text: str = ""  #: in Unicode
    root: Section = field(default_factory=lambda: Section(1))
    problems: list[Problem] = field(default_factory=list)


class TooManyProblemsError(Exception):
    """Too many problems: the remaining ones would not help."""


@dataclass(slots=True)
class _Frame:
    """A section or list that is being read."""

    path: str
    section: Section | None = None  #: None for a list
    items: list[Scalar | None] = field(default_factory=list)
    name: str | None = None  #: name whose value comes next
    name_line: int = 0
    folded: dict[str, str] = field(default_factory=dict)  #: names so far


class EventReader:
    """Builds the sections from the events of the parser."""

    def __init__(self, reading: YamlReading) -> None:
        self._reading = reading
        self._stack: list[_Frame] = []
        self._ignored = 0  # depth below a refused entry

    def read(self, text: str) -> None:
        """Read a whole text; TooManyProblemsError if the rest of it was not read."""
        documents = 0
        for event in yaml.parse(text, Loader=yaml.CSafeLoader):
            kind = type(event)
            if kind is yaml.ScalarEvent:
                self._scalar(event)
            elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
                self._start(event)
            elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                self._end()
            elif kind is yaml.AliasEvent:
                self._alias(event)
            elif kind is yaml.DocumentStartEvent:
                documents += 1
                if documents > 1:
                    self._stop("a second document begins here, a configuration is one", event)
        if documents == 0:
            self._stop("there are only comments; a section Resources, Operations or Registry is needed", None)

    def _scalar(self, event: Any) -> None:
        if self._ignored:
            return
        frame = self._stack[-1] if self._stack else None
        if event.anchor is not None or event.tag not in (None, "!"):
            self._refuse_decoration(event)
        if frame is not None and frame.section is not None and frame.name is None:
            self._name(frame, intern(event.value), event)
        else:
            self._value(frame, self._resolved(event), event)
        if "\0" in event.value:
            self._problem("the character NUL is not allowed", event)

    def _resolved(self, event: Any) -> Scalar | None:
        # Interned: thousands of queues use the same words.
        if not event.implicit[0]:  # quoted, or a block of text
            return intern(str(event.value))
        try:
            return resolve_word(intern(event.value))
        except ValueError as error:
            self._problem(str(error), event)
            return None

    def _name(self, frame: _Frame, name: str, event: Any) -> None:
        frame.name, frame.name_line = name, event.start_mark.line + 1
        other = frame.folded.setdefault(fold(name), name)
        first = frame.section.entries.get(name) if frame.section else None
        if name == "<<" and event.implicit[0]:
            self._problem("merge keys are not supported: write the values out", event)
        elif first is not None:
            self._problem(f"named twice, the first time in line {first.line}", event)
        elif other != name:
            self._problem(f"named twice, the other time as {other}; case makes no difference", event)

    def _value(self, frame: _Frame | None, value: LeafValue, event: Any) -> None:
        if frame is None:
            seen = "nothing" if value is None else repr(value)[:60]
            self._stop(f"{seen} instead of sections; allowed are Resources, Operations, Registry", event)
        elif frame.section is None:
            frame.items.append(value)  # type: ignore[arg-type]
        elif frame.name is not None:
            frame.section.entries.setdefault(frame.name, Leaf(value, frame.name_line))
            frame.name = None

    def _start(self, event: Any) -> None:
        if len(self._stack) + self._ignored >= _MAX_DEPTH:
            self._stop(f"nested more than {_MAX_DEPTH} deep", event)
        if self._ignored:
            self._ignored += 1
            return
        frame = self._stack[-1] if self._stack else None
        if event.anchor is not None or event.tag not in (None, "!"):
            self._refuse_decoration(event)
        is_list = type(event) is yaml.SequenceStartEvent
        if fault := self._misplaced(frame, is_list=is_list):
            self._problem(fault, event)
            self._ignored = 1
            return
        line = frame.name_line if frame else 1
        self._stack.append(_Frame(path=self._path(), section=None if is_list else Section(line)))

    def _misplaced(self, frame: _Frame | None, *, is_list: bool) -> str | None:
        if frame is None:
            return (
                "a list instead of sections; allowed are Resources, Operations, Registry" if is_list else None
            )
        if frame.section is None:
            return "a list holds texts, numbers and booleans only"
        return "a name is a text, not a list or section" if frame.name is None else None

    def _end(self) -> None:
        if self._ignored:
            self._ignored -= 1
            if not self._ignored:
                self._skipped()
            return
        done = self._stack.pop()
        parent = self._stack[-1] if self._stack else None
        if parent is None:
            self._reading.root = done.section or Section(1)
        elif parent.section is not None and parent.name is not None:
            entry = done.section or Leaf(done.items, parent.name_line)
            parent.section.entries.setdefault(parent.name, entry)
            parent.name = None

    def _skipped(self) -> None:
        """Finish a refused entry: if it was a name, its value is refused too."""
        frame = self._stack[-1] if self._stack else None
        if frame is not None and frame.section is not None:
            frame.name = "?" if frame.name is None else None

    def _alias(self, event: Any) -> None:
        if self._ignored:
            return
        self._problem(f"aliases (*{event.anchor}) are not supported: write the value out", event)
        frame = self._stack[-1] if self._stack else None
        if frame is not None and frame.section is not None and frame.name is None:
            frame.name, frame.name_line = "?", event.start_mark.line + 1
        elif frame is not None:
            self._value(frame, None, event)

    def _refuse_decoration(self, event: Any) -> None:
        seen = f"anchors (&{event.anchor})" if event.anchor is not None else f"tags ({event.tag})"
        self._problem(f"{seen} are not supported: write the value out", event)

    def _path(self) -> str:
        names = (frame.name for frame in self._stack if frame.name is not None)
        return "/".join(names) or "/"

    def _problem(self, message: str, event: Any) -> None:
        line = event.start_mark.line + 1 if event is not None else None
        where = Problem(path=self._path(), message=message, file=self._reading.file, line=line)
        self._reading.problems.append(where)
        if len(self._reading.problems) >= _MAX_PROBLEMS:
            raise TooManyProblemsError

    def _stop(self, message: str, event: Any) -> None:
        self._problem(message, event)
        raise TooManyProblemsError


#: Largest accepted text; a grid of 1,000 queues has 0.4 MB.
MAX_BYTES = 16 * 2**20


def read_yaml(source: str | bytes, file: str) -> YamlReading:
    """The sections of a text; with problems, everything else that could be read."""
    reading = YamlReading(file=file)
    text = _decode(source, reading)
    if text is None:
        return reading
    reading.text = text
    try:
        EventReader(reading).read(text)
    except TooManyProblemsError:
        pass
    except yaml.MarkedYAMLError as error:
        reading.problems.append(_syntax_problem(error, text, file))
    except yaml.reader.ReaderError as error:
        reading.problems.append(_character_problem(error, text, file))
    return reading


def _decode(source: str | bytes, reading: YamlReading) -> str | None:
    """The text in Unicode; None, and a problem, if it cannot be decoded or is empty."""
    text, line = "", None
    message: str | None = None
    if len(source) > MAX_BYTES:
        message = f"{len(source)} bytes are too many, allowed are {MAX_BYTES}"
    elif isinstance(source, str):
        text = source
        message = "the text has characters that are not Unicode" if _has_surrogates(text) else None
    else:
        try:
            text = source.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = source.count(b"\n", 0, error.start) + 1
            message = f"byte 0x{source[error.start]:02x} is not UTF-8, which the file has to be"
    if message is None and not text.strip():
        message = "the file is empty; it needs a section Resources, Operations or Registry"
    if message is None:
        return text
    reading.problems.append(Problem(path="/", message=message, file=reading.file, line=line))
    return None


def _has_surrogates(text: str) -> bool:
    return not text.isascii() and any("\ud800" <= sign <= "\udfff" for sign in text)


def _syntax_problem(error: yaml.MarkedYAMLError, text: str, file: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    detail = ", ".join(part for part in (error.problem, error.context) if part)
    if mark is None:
        return Problem(path="/", message=f"not YAML: {detail}", file=file)
    return Problem(
        path="/",
        message=f"not YAML: {detail}",
        file=file,
        line=mark.line + 1,
        column=mark.column + 1,
        excerpt="".join(text.split("\n")[mark.line : mark.line + 1])[:200] or None,
    )


def _character_problem(error: yaml.reader.ReaderError, text: str, file: str) -> Problem:
    position = error.position if isinstance(error.position, int) else 0
    # The C parser counts bytes.
    before = text.encode()[:position]
    message = f"character {error.character!r} is not allowed: {error.reason}"
    return Problem(path="/", message=message, file=file, line=before.count(b"\n") + 1)

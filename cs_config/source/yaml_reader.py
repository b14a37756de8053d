"""Reader of the text of a configuration: restricted YAML, every name with its line.

Unquoted words follow the core schema of YAML 1.2. PyYAML follows YAML 1.1, in which `NO` (Norway) is false,
`12:30` is 750, `010` is 8 and `1e3` is a text.

The events of the parser are converted to sections in one pass without expansion or recursion, so that the
cost of any text is linear in its length. Anchors, aliases, tags and merge keys are refused: the file contains
every value literally.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from sys import intern
from typing import Any

import yaml

from cs_config.source.sections import Leaf, LeafValue, Section, to_plain
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


#: Deeper than any valid section or description.
MAX_DEPTH = 20
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
    section: Section | None  #: None for a list
    items: list[Any] = field(default_factory=list)
    name: str | None = None  #: name whose value comes next
    name_line: int = 0
    folded: dict[str, str] = field(default_factory=dict)  #: names so far


class EventReader:
    """Builds sections from the events of the parser.

    What is allowed is that of a configuration; readers of other texts override it.
    """

    too_deep = f"nested more than {MAX_DEPTH} deep"
    #: Problem of a text without content; None: allowed.
    nothing: str | None = "there are only comments; a section Resources, Operations or Registry is needed"
    #: Names that are equal after this are the same.
    fold_name = staticmethod(fold)
    #: Thousands of queues use the same words. Those of users are not interned: Python 3.12 keeps them.
    share_word = staticmethod(intern)

    def __init__(self, file: str | None) -> None:
        self.file = file
        self.documents: list[Leaf | Section] = []
        self.problems: list[Problem] = []
        self._stack: list[_Frame] = []
        self._ignored = 0  # depth below a refused entry

    def read(self, text: str) -> None:
        """Read a whole text; TooManyProblemsError if the rest of it was not read."""
        started = 0
        for event in yaml.parse(text, Loader=yaml.CSafeLoader):
            kind = type(event)
            if kind is yaml.ScalarEvent:
                self.read_scalar(event)
            elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
                self.start_collection(event)
            elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                self._end()
            elif kind is yaml.AliasEvent:
                self._alias(event)
            elif kind is yaml.DocumentStartEvent:
                started += 1
                self.start_document(started, event)
        if not started and self.nothing is not None:
            self._stop(self.nothing, None)

    def read_tolerantly(self, text: str) -> None:
        """Read a text up to its first syntax error, which is then among the problems."""
        try:
            self.read(text)
        except TooManyProblemsError:
            pass
        except yaml.YAMLError as error:
            self.problems.append(syntax_problem(error, text, self.file))

    def start_document(self, number: int, event: Any) -> None:
        """Refuse a second document."""
        if number > 1:
            self._stop("a second document begins here, a configuration is one", event)

    def find_misplacement(self, parent: Section | list[Any] | None, *, is_list: bool) -> str | None:
        """Why a list or section may not be below another one, or at the top."""
        if parent is None and is_list:
            return "a list instead of sections; allowed are Resources, Operations, Registry"
        if not isinstance(parent, list):
            return None
        quotes = "" if is_list else "; a text that begins with { stands in quotes"
        return f"a list holds texts, numbers and booleans only{quotes}"

    def refuse_top_value(self, value: LeafValue, event: Any) -> None:
        """Refuse a document that is a single value."""
        seen = "nothing" if value is None else repr(value)[:60]
        self._stop(f"{seen} instead of sections; allowed are Resources, Operations, Registry", event)

    def refuse_decoration(self, event: Any) -> None:
        """Refuse an anchor or a tag."""
        seen = f"anchors (&{event.anchor})" if event.anchor is not None else f"tags ({event.tag})"
        self.report(f"{seen} are not supported: write the value out", event)

    def report(self, message: str, event: Any) -> None:
        """Record a problem at an event."""
        line = event.start_mark.line + 1 if event is not None else None
        self.problems.append(Problem(path=self.path or "/", message=message, file=self.file, line=line))
        if len(self.problems) >= _MAX_PROBLEMS:
            raise TooManyProblemsError

    @property
    def path(self) -> str:
        """The names above the current entry; empty at the top."""
        return "/".join(frame.name for frame in self._stack if frame.name is not None)

    def read_scalar(self, event: Any) -> None:
        """Read a name or a value."""
        if self._ignored:
            return
        frame = self._stack[-1] if self._stack else None
        if event.anchor is not None or event.tag not in (None, "!"):
            self.refuse_decoration(event)
        if frame is not None and frame.section is not None and frame.name is None:
            self._name(frame, frame.section, self.share_word(event.value), event)
        elif frame is None:
            self.refuse_top_value(self.resolve_scalar(event), event)
        else:
            self._add(frame, self.resolve_scalar(event))
        if "\0" in event.value:
            self.report("the character NUL is not allowed", event)

    def resolve_scalar(self, event: Any) -> Scalar | None:
        """The value of a scalar; a problem, and None, if it looks like a number that readers differ on."""
        if not event.implicit[0]:  # quoted, or a block of text
            return self.share_word(str(event.value))
        try:
            return resolve_word(self.share_word(event.value))
        except ValueError as error:
            self.report(str(error), event)
            return None

    def _name(self, frame: _Frame, section: Section, name: str, event: Any) -> None:
        frame.name, frame.name_line = name, event.start_mark.line + 1
        other = frame.folded.setdefault(self.fold_name(name), name)
        first = section.entries.get(name)
        if name == "<<" and event.implicit[0]:
            self.report("merge keys are not supported: write the values out", event)
        elif first is not None:
            self.report(f"named twice, the first time in line {first.line}", event)
        elif other != name:
            self.report(f"named twice, the other time as {other}; case makes no difference", event)

    def _add(self, frame: _Frame, value: Any) -> None:
        """Add a value, list or section to the section or list around it."""
        if frame.section is None:
            frame.items.append(to_plain(value) if isinstance(value, Section) else value)
        elif frame.name is not None:
            entry = value if isinstance(value, Section) else Leaf(value, frame.name_line)
            frame.section.entries.setdefault(frame.name, entry)
            frame.name = None

    def start_collection(self, event: Any) -> None:
        """Begin a list or a section."""
        if len(self._stack) + self._ignored >= MAX_DEPTH:
            self._stop(self.too_deep, event)
        if self._ignored:
            self._ignored += 1
            return
        frame = self._stack[-1] if self._stack else None
        if event.anchor is not None or event.tag not in (None, "!"):
            self.refuse_decoration(event)
        is_list = type(event) is yaml.SequenceStartEvent
        is_name = frame is not None and frame.section is not None and frame.name is None
        parent = None if frame is None else frame.items if frame.section is None else frame.section
        fault = "a name is a text, not a list or section" if is_name else None
        if fault := fault or self.find_misplacement(parent, is_list=is_list):
            self.report(fault, event)
            self._ignored = 1
            return
        line = frame.name_line if frame else 1
        self._stack.append(_Frame(section=None if is_list else Section(line)))

    def _end(self) -> None:
        if self._ignored:
            self._ignored -= 1
            if not self._ignored:
                self._skipped()
            return
        done = self._stack.pop()
        if self._stack:
            self._add(self._stack[-1], done.section or done.items)
        else:
            self.documents.append(done.section or Leaf(done.items, 1))

    def _skipped(self) -> None:
        """Finish a refused entry: if it was a name, its value is refused too."""
        frame = self._stack[-1] if self._stack else None
        if frame is not None and frame.section is not None:
            frame.name = "?" if frame.name is None else None

    def _alias(self, event: Any) -> None:
        if self._ignored:
            return
        self.report(f"aliases (*{event.anchor}) are not supported: write the value out", event)
        frame = self._stack[-1] if self._stack else None
        if frame is not None and frame.section is not None and frame.name is None:
            frame.name, frame.name_line = "?", event.start_mark.line + 1
        elif frame is not None:
            self._add(frame, None)

    def _stop(self, message: str, event: Any) -> None:
        self.report(message, event)
        raise TooManyProblemsError


#: Largest accepted text; a grid of 1,000 queues has 0.4 MB.
MAX_BYTES = 16 * 2**20


def read_yaml(
    source: str | bytes, file: str, make_reader: Callable[[str], EventReader] = EventReader
) -> YamlReading:
    """The sections of a text; with problems, everything else that could be read."""
    reading = YamlReading(file=file, text=source if isinstance(source, str) else "")
    text = _decode(source, reading)
    if text is None:
        return reading
    reading.text = text
    reader = make_reader(file)
    reader.read_tolerantly(text)
    reading.problems += reader.problems
    reading.root = next((each for each in reader.documents if isinstance(each, Section)), reading.root)
    return reading


def _decode(source: str | bytes, reading: YamlReading) -> str | None:
    """The text in Unicode; None, and a problem, if it cannot be decoded or is empty."""
    text, line = "", None
    message: str | None = None
    if len(source) > MAX_BYTES:
        message = f"{len(source)} bytes are too many, allowed are {MAX_BYTES}"
    elif isinstance(source, str):
        text = source
        if not text.isascii() and any("\ud800" <= sign <= "\udfff" for sign in text):
            message = "the text has characters that are not Unicode"
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


def syntax_problem(error: yaml.YAMLError, text: str, file: str | None) -> Problem:
    """The problem of a text that is not YAML."""
    if isinstance(error, yaml.reader.ReaderError):
        position = error.position if isinstance(error.position, int) else 0
        line = text.encode()[:position].count(b"\n") + 1  # the C parser counts bytes
        message = f"character {error.character!r} is not allowed: {error.reason}"
        return Problem(path="/", message=message, file=file, line=line)
    problem, context = getattr(error, "problem", None), getattr(error, "context", None)
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    message = f"not YAML: {', '.join(filter(None, (problem, context)))}"
    if mark is None:
        return Problem(path="/", message=message, file=file)
    excerpt = "".join(text.split("\n")[mark.line : mark.line + 1])[:200] or None
    return Problem(
        path="/", message=message, file=file, line=mark.line + 1, column=mark.column + 1, excerpt=excerpt
    )

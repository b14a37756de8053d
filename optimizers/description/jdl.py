"""Texts of job descriptions: JDL in the ClassAd language, DIRAC's CFG, YAML with the same names.

YAML is read strictly: unquoted words have one meaning, and a name may occur once. JSON is a subset of YAML.

A description in CFG has lines `Name = value`, and the section `Requirements` in braces. Source: RFC #7, "a
new, CFG format based structure", beside the JDL with the same keywords.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum
from functools import partial
from itertools import accumulate
from typing import Any, NoReturn, TypeVar

import yaml

from cs_config.errors import ConfigError
from cs_config.formats import dirac_text
from cs_config.options import keywords
from cs_config.source.sections import Leaf, LeafValue, Section, to_plain
from cs_config.source.yaml_reader import EventReader, resolve_word, syntax_problem
from requirements.classad.classad_files import Attributes, parse_ad
from requirements.classad.syntax_tree import SourceText
from requirements.errors import InvalidInput, InvalidJob, Problem
from requirements.quantities import DETAILS, VERSIONS
from requirements.values import Scalar, Unevaluated, fold
from requirements.written_reals import WrittenReal, keep_text

#: Texts and comments; unterminated ones extend to the end, so that no part is scanned twice.
_TEXT_OR_COMMENT = re.compile(
    r"""(?P<comment>(?m:^[ \t]*\#[^\n]*|//[^\n]*)|/\*(?:.*?\*/|.*))|"(?:[^"\\\n]|\\.)*"?|'[^'\n]*'?""",
    re.DOTALL,
)
_OPTION = re.compile(r"(?m)^[ \t]*[A-Za-z_][\w.]*[ \t]*\+?=(?![=?!])")
_SECTION = re.compile(r"(?m)^[ \t]*[A-Za-z_][\w.]*\s*\{")
_OF_JDL = re.compile(r"=\s*[\[{]")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r'\\(["\\])')
_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"?|[^,"]+|,')
#: Readers of keywords whose value is one text.
_ONE_TEXT = (
    *(keywords.text, keywords.SHORT_TEXT, keywords.FILLED_TEXT, keywords.SHORT_FILLED_TEXT),
    *(keywords.arguments, keywords.version),
)
#: Keywords that are an expression, unless they are a section.
_EXPRESSIONS = frozenset({"requirements", "requirement", "rank"})


def read_cfg(text: str, file: str | None = None) -> Attributes:
    """Parse a CFG; InvalidJob has every problem with its line.

    The value of a keyword that is a text, such as `Arguments`, is the rest of its line. A comma makes other
    values a list; numbers, `true` and `false` are as in YAML, and quotes make a text of anything.
    """
    source = SourceText(text=text, path="description", file=file)
    try:
        root = dirac_text.read_text(source.text, file or "")
    except ConfigError as error:
        reader = _CfgValues(source)
        for each in error.problems:
            reader.report("description" if each.path == "/" else each.path, each.line or 1, each.message)
    else:
        reader = _CfgValues(source)
        values = {name: reader.read(name, entry) for name, entry in root.entries.items()}
    if reader.problems:
        raise InvalidJob(reader.problems)
    return Attributes(values, source, reader.starts)


class _CfgValues:
    """Converts the values of a text, by keyword; collects the problems."""

    def __init__(self, source: SourceText) -> None:
        self._source = source
        self._offsets = [0, *accumulate(map(len, source.text.splitlines(keepends=True)))]
        self.problems: list[Problem] = []
        self.starts: dict[str, int] = {}  #: offset of each keyword

    def report(self, path: str, line: int, message: str) -> None:
        """Add a problem in a line."""
        [problem] = self._source.fault(self._start(line), message).problems
        self.problems.append(replace(problem, path=path))

    def _start(self, line: int) -> int:
        """The offset of the first character of a line that is not blank."""
        start = self._offsets[line - 1]
        text = self._source.text[start : self._offsets[line]]
        return start + len(text) - len(text.lstrip())

    def read(self, name: str, entry: Leaf | Section) -> object:
        """The value of a keyword."""
        keyword = keywords.find_keyword(name)
        self.starts[name] = self._start(entry.line)
        if isinstance(entry, Leaf) and fold(name) in _EXPRESSIONS:
            line, column = self._source.place(self.starts[name])
            text = self._text(name, entry)
            return Unevaluated(text, self._source.file, line, column) if text else None
        if isinstance(entry, Leaf) and keyword is not None and keyword.read in _ONE_TEXT:
            return self._text(name, entry)
        if keyword is None or not keyword.is_list:
            return self._value(name, entry)
        read = self._value(name, entry, are_texts=True)
        # A text in quotes is one member, also with a comma in it.
        return [read] if isinstance(read, str) else read

    def _text(self, path: str, entry: Leaf) -> str:
        """The whole value as one text."""
        written = str(entry.value)
        if quoted := _QUOTED.fullmatch(written):
            return _ESCAPED.sub(r"\1", quoted[1])
        if written.startswith(("[", "{")):
            message = "begins as in JDL, where each value ends with a semicolon; in CFG, lists are a, b, c"
            self.report(path, entry.line, message)
        elif written.endswith(";"):
            message = "ends with a semicolon as in JDL: leave it out, or put the value in quotes"
            self.report(path, entry.line, message)
        return written

    def _value(self, path: str, entry: Leaf | Section, *, are_texts: bool = False) -> object:
        """A text, a number, a boolean, or a list of these; a section as a record."""
        if isinstance(entry, Section):
            return {
                name: self._value(f"{path}/{name}", each, are_texts=are_texts)
                for name, each in entry.entries.items()
            }
        if not _QUOTED.fullmatch(written := str(entry.value)):
            self._text(path, entry)  # reports what is JDL
        items = [""]
        for piece in _PIECE.findall(written):
            if piece == ",":
                items.append("")
            else:
                items[-1] += piece
        read = [self._scalar(path, entry.line, each.strip(), is_text=are_texts) for each in items]
        return read[0] if len(read) == 1 else [each for each in read if each is not None]

    def _scalar(self, path: str, line: int, word: str, *, is_text: bool) -> Scalar | None:
        if quoted := _QUOTED.fullmatch(word):
            return _ESCAPED.sub(r"\1", quoted[1])
        if is_text or not word:
            return word or None
        try:
            value = resolve_word(word)
        except ValueError as error:
            self.report(path, line, f"{error}; in quotes it is a text")
            return None
        return None if value is None else keep_text(value, word)


#: Names and values in one text.
_MOST = 50_000
#: A string counts as one, also one that does not end.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|\w++|[^\w\s]', re.DOTALL)


def count_tokens(text: str) -> int:
    """Words, strings and signs of a text: the work of parsing it, in time by its length."""
    return _TOKEN.subn("", text)[1]


def read_yaml(text: str, file: str | None = None) -> tuple[Mapping[str, object], ...]:
    """Parse descriptions in YAML: a record, a list of records, or several documents of these."""
    reader = _JobReader(text, file)
    try:
        reader.read(text)
    except yaml.YAMLError as error:
        raise InvalidJob([replace(syntax_problem(error, text, file), path="description")]) from None
    jobs: list[Mapping[str, object]] = []
    for content in map(to_plain, reader.documents):
        for job in content if isinstance(content, list) else [content]:
            if not isinstance(job, dict):
                reader.report_at(_NEITHER, 0, 0)
            jobs.append(_keep_versions(job))
    if not jobs:
        raise InvalidJob([Problem(path="description", message="contains no description", file=file)])
    return tuple(jobs)


_NEITHER = "is neither JDL (Name = value;), nor YAML (Name: value), nor CFG (lines of Name = value)"


class _JobReader(EventReader):
    """Reads descriptions as strictly as a configuration, with records in lists; the first problem ends it."""

    too_deep = "nested too deeply"
    nothing = "contains no description"
    share_word = staticmethod(str)

    def __init__(self, text: str, file: str | None) -> None:
        super().__init__(file)
        self._lines = text.splitlines()
        self._values = 0

    def start_document(self, number: int, event: Any) -> None:  # noqa: ARG002
        """Allow several documents."""
        self._count(event, ends=True)

    def find_misplacement(self, parent: Section | list[Any] | None, *, is_list: bool) -> str | None:  # noqa: ARG002
        """Allow lists and records everywhere."""
        return None

    def refuse_top_value(self, value: LeafValue, event: Any) -> None:  # noqa: ARG002
        """Refuse a text that is a single word."""
        self.report_at(_NEITHER, 0, 0)

    def resolve_scalar(self, event: Any) -> Scalar | None:
        """The value of a scalar, with the text of a number that it loses."""
        value = super().resolve_scalar(event)
        return None if value is None else keep_text(value, str(event.value))

    def refuse_decoration(self, event: Any) -> None:
        """Refuse a tag; an anchor without an alias does no harm."""
        if event.anchor is None or event.tag not in (None, "!"):
            super().refuse_decoration(event)

    def read_scalar(self, event: Any) -> None:
        """Read a name or a value."""
        self._count(event)
        super().read_scalar(event)

    def start_collection(self, event: Any) -> None:
        """Begin a list or a record."""
        self._count(event, ends=True)
        super().start_collection(event)

    def _count(self, event: Any, *, ends: bool = False) -> None:
        """Refuse more than anyone writes, before it is built; what has an end of its own counts twice."""
        self._values += 1 + ends
        if self._values > _MOST:
            self.report(f"too long, allowed are {_MOST} names and values", event)

    def report(self, message: str, event: Any) -> None:
        """End with this problem."""
        mark = event.start_mark if event is not None else None
        self.report_at(message, mark.line if mark else 0, mark.column if mark else 0)

    def report_at(self, message: str, line: int, column: int) -> NoReturn:
        """End with a problem at a line and column, both from 0."""
        raise InvalidJob(
            [
                Problem(
                    path=self.path or "description",
                    message=message,
                    file=self.file,
                    line=line + 1,
                    column=column + 1,
                    excerpt=self._lines[line] if line < len(self._lines) else None,
                )
            ]
        )


#: Characters; anything longer is a mistake or an attack.
MOST_TEXT = 1_000_000

_COMMENT = re.compile(r"\s*(?:/\*.*?\*/|//[^\n]*|#[^\n]*)", re.DOTALL)
_ASSIGNMENT = re.compile(r"\s*\[?\s*(?:[A-Za-z_][\w.]*|'[^'\n]*')\s*=")
_EMPTY_AD = re.compile(r"\s*\[\s*;?\s*\]\s*")


def read_descriptions(text: str, file: str | None = None) -> tuple[Mapping[str, object], ...]:
    """Parse the descriptions in a text, one in JDL or CFG or several in YAML or JSON, as keywords to values.

    InvalidJob shows line, column and the line itself.
    """
    text = text.removeprefix("\ufeff")  # which editors of Windows write
    if not text.strip():
        raise InvalidJob([Problem(path="description", message="is empty", file=file)])
    if len(text) > MOST_TEXT:
        message = f"{len(text)} characters are too many, allowed are {MOST_TEXT}"
        raise InvalidJob([Problem(path="description", message=message, file=file)])
    try:
        SourceText(text=text, path="description", file=file).check_characters()
        match find_language(text):
            case Language.CFG:
                return (_keep_versions(read_cfg(text, file)),)
            case Language.JDL:
                return (_keep_versions(parse_ad(text, file, "description", keeps_texts=True)),)
            case Language.YAML:
                return read_yaml(text, file)
    except InvalidInput as invalid:
        raise InvalidJob(invalid.problems) from None


_Record = TypeVar("_Record", bound=dict[str, Any])


def _keep_versions(record: _Record) -> _Record:
    """The description of a text, with versions that are numbers as they are written: 12.10 would be 12.1.

    They are keywords, or fields of a document. JSON of programs has lost the text of such a number before.
    """
    for name, value in record.items():
        if isinstance(value, dict):
            _keep_versions(value)
        elif isinstance(value, WrittenReal) and (fold(name) in VERSIONS or name in _VERSION_FIELDS):
            record[name] = value.text
    return record


#: The last names of fields of documents that are versions.
_VERSION_FIELDS = frozenset(each.field.rpartition("/")[2] for each in DETAILS if each.is_version)


def description_as_json(content: Mapping[str, object]) -> dict[str, object]:
    """A description that was read, as JSON: expressions become their text, and numbers that are texts theirs.

    The text of other numbers is lost: readers of a description look at it once.
    """
    return {name: _plain(value, partial(keywords.is_text, name)) for name, value in content.items()}


def _plain(value: object, is_text: Callable[..., bool], *, is_member: bool = False) -> object:
    if isinstance(value, WrittenReal):
        return value.text if is_text(value, is_member=is_member) else value
    if isinstance(value, Mapping):
        return {name: _plain(each, is_text, is_member=True) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, is_text, is_member=True) for each in value]
    return value.text if isinstance(value, Unevaluated) else value


class Language(Enum):
    """Language of a text with descriptions."""

    CFG = "CFG"
    JDL = "JDL"
    YAML = "YAML"


def find_language(text: str) -> Language:
    """The language of a text, by how it begins.

    CFG has sections in braces, or several lines `Name = value` without semicolons; a single one is JDL, which
    begins with an assignment, too.
    """
    plain = _TEXT_OR_COMMENT.sub(lambda found: "" if found["comment"] else '""', text).lstrip()
    begins_with_option = bool(_OPTION.match(plain))
    if _SECTION.search(plain):
        is_cfg = begins_with_option or bool(_SECTION.match(plain))
    else:
        is_of_jdl = ";" in plain or bool(_OF_JDL.search(plain))
        is_cfg = begins_with_option and not is_of_jdl and len(_OPTION.findall(plain)) > 1
    if is_cfg:
        return Language.CFG
    while comment := _COMMENT.match(text):
        text = text[comment.end() :]
    return Language.JDL if _ASSIGNMENT.match(text) or _EMPTY_AD.fullmatch(text) else Language.YAML

"""Parse the text of job descriptions: JDL in the ClassAd language, DIRAC's CFG, YAML with the same names.

YAML is read strictly: unquoted words have one meaning, and a name may occur once. JSON is a subset of YAML.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

import yaml

from cs_config.source.sections import LeafValue, Section, to_plain
from cs_config.source.yaml_reader import EventReader, syntax_problem
from optimizers.description import cfg
from requirements.classad.classad_files import parse_ad
from requirements.classad.syntax_tree import SourceText
from requirements.errors import InvalidInput, InvalidJob, Problem

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
            jobs.append(job)
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
    if not text.strip():
        raise InvalidJob([Problem(path="description", message="is empty", file=file)])
    if len(text) > MOST_TEXT:
        message = f"{len(text)} characters are too many, allowed are {MOST_TEXT}"
        raise InvalidJob([Problem(path="description", message=message, file=file)])
    try:
        SourceText(text=text, path="description", file=file).check_characters()
    except InvalidInput as invalid:
        raise InvalidJob(invalid.problems) from None
    if cfg.is_cfg(text):
        return (cfg.read_cfg(text, file),)
    return (read_jdl(text, file),) if is_jdl(text) else read_yaml(text, file)


def read_jdl(text: str, file: str | None = None) -> Mapping[str, object]:
    """Parse a JDL: `[ Executable = "a"; … ]`, the brackets may be missing."""
    try:
        return parse_ad(text, file, "description")
    except InvalidInput as invalid:
        raise InvalidJob(invalid.problems) from None


def is_jdl(text: str) -> bool:
    """Whether a text is in the ClassAd language: it begins with an assignment."""
    rest = text.lstrip("\ufeff")
    while comment := _COMMENT.match(rest):
        rest = rest[comment.end() :]
    return bool(_ASSIGNMENT.match(rest) or _EMPTY_AD.fullmatch(rest))

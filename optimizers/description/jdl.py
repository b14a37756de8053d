"""Parse the text of job descriptions: JDL in the ClassAd language, YAML with the same names, or JSON.

YAML is read strictly: unquoted words have one meaning, and a name may occur once. JSON is a subset of YAML.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Protocol

import yaml

from cs_config.source.yaml_reader import resolve_word
from requirements.classad.classad_files import parse_ad
from requirements.classad.source_text import SourceText
from requirements.errors import InvalidInput, InvalidJob, Problem
from requirements.values import fold

#: Nesting depth of lists and records: more than a description needs, less than the stack allows.
_DEEPEST = 20
#: Names, values, lists and records in one text.
_MOST = 50_000


class _JobLoader(yaml.CSafeLoader):
    """Leaves the type of unquoted words to `resolve_word`."""

    yaml_implicit_resolvers = {}  # noqa: RUF012, as its parents have it


def read_yaml(text: str, file: str | None = None) -> tuple[Mapping[str, object], ...]:
    """Parse descriptions in YAML: a record, a list of records, or several documents of these."""
    source = _Source(text, file)
    try:
        _check_volume(source)
        documents = [source.value(node) for node in yaml.compose_all(text, Loader=_JobLoader)]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise source.refusal(error.problem or str(error), mark) from None
    except yaml.YAMLError as error:
        raise source.refusal(str(error), None) from None
    jobs = tuple(job for document in documents for job in _jobs(document, source))
    if not jobs:
        raise source.refusal("contains no description", None)
    return jobs


class _Mark(Protocol):
    """Position in a text, as in PyYAML and its C extension."""

    line: int  #: from 0
    column: int  #: from 0


class _Start:
    """Position of the beginning of a text."""

    line = 0
    column = 0


class _Source:
    """A text with its file name: builds values from its nodes, and errors with line and column."""

    def __init__(self, text: str, file: str | None) -> None:
        self.text = text
        self.file = file

    def refusal(self, message: str, mark: _Mark | None, path: str = "description") -> InvalidJob:
        """Create the error for one position."""
        if mark is None:
            return InvalidJob([Problem(path=path, message=message, file=self.file)])
        lines = self.text.splitlines()
        excerpt = lines[mark.line] if mark.line < len(lines) else None
        problem = Problem(
            path=path,
            message=message,
            file=self.file,
            line=mark.line + 1,
            column=mark.column + 1,
            excerpt=excerpt,
        )
        return InvalidJob([problem])

    def value(self, node: yaml.Node, path: str = "", depth: int = 0) -> object:
        if depth > _DEEPEST:
            raise self.refusal("nested too deeply", node.start_mark, path)
        if isinstance(node, yaml.MappingNode):
            return self._record(node, path, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, f"{path}[{place}]", depth + 1) for place, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _record(self, node: yaml.MappingNode, path: str, depth: int) -> dict[str, object]:
        record: dict[str, object] = {}
        spelled: dict[str, str] = {}
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else ""
            if not name:
                raise self.refusal("a name must be a text", key.start_mark, path or "description")
            if fold(name) in spelled:
                raise self.refusal(
                    f"named twice, the other time as {spelled[fold(name)]}", key.start_mark, name
                )
            spelled[fold(name)] = name
            record[name] = self.value(value, f"{path}/{name}" if path else name, depth + 1)
        return record

    def _scalar(self, node: yaml.Node, path: str) -> object:
        text = str(node.value)
        if node.tag != "tag:yaml.org,2002:str":
            raise self.refusal(f"{node.tag} is not a value of a description", node.start_mark, path)
        if isinstance(node, yaml.ScalarNode) and node.style:
            return text
        try:
            return resolve_word(text)
        except ValueError as error:
            raise self.refusal(str(error), node.start_mark, path) from None


def _check_volume(source: _Source) -> None:
    """Refuse texts that would take seconds to read, or crash the process.

    Aliases can make small texts huge, and descriptions do not need them.
    """
    depth = 0
    for number, event in enumerate(yaml.parse(source.text, Loader=_JobLoader)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):
            raise source.refusal(f"the alias *{event.anchor} is not allowed", event.start_mark)
        if depth > _DEEPEST:
            raise source.refusal("nested too deeply", event.start_mark)
        if number > _MOST:
            raise source.refusal(f"too long, allowed are {_MOST} names and values", event.start_mark)


def _jobs(document: object, source: _Source) -> Iterator[Mapping[str, object]]:
    for item in document if isinstance(document, list) else [document]:
        if not isinstance(item, dict):
            message = "is neither JDL (Name = value;) nor YAML (Name: value)"
            raise source.refusal(message, _Start())
        yield item


#: Characters; anything longer is a mistake or an attack.
MOST_TEXT = 1_000_000

_COMMENT = re.compile(r"\s*(?:/\*.*?\*/|//[^\n]*|#[^\n]*)", re.DOTALL)
_ASSIGNMENT = re.compile(r"\s*\[?\s*(?:[A-Za-z_][\w.]*|'[^'\n]*')\s*=")
_EMPTY_AD = re.compile(r"\s*\[\s*;?\s*\]\s*")


def read_descriptions(text: str, file: str | None = None) -> tuple[Mapping[str, object], ...]:
    """Parse the descriptions in a text, one JDL or several in YAML or JSON, each as keywords to values.

    InvalidJob shows line, column and the line itself.
    """
    if fault := _size_fault(text):
        raise InvalidJob([Problem(path="description", message=fault, file=file)])
    try:
        SourceText(text=text, path="description", file=file).check_characters()
    except InvalidInput as invalid:
        raise InvalidJob(invalid.problems) from None
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


def _size_fault(text: str) -> str | None:
    if not text.strip():
        return "is empty"
    if len(text) > MOST_TEXT:
        return f"{len(text)} characters are too many, allowed are {MOST_TEXT}"
    return None

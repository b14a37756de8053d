"""The parsed text of a configuration: sections and leaves with their lines.

Sections are the input of pydantic models, whose errors become problems with path and line.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import takewhile
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from requirements import input_faults
from requirements.errors import Problem, did_you_mean
from requirements.values import Scalar, fold

#: The value of a name without a section.
LeafValue = Scalar | None | list[Scalar | None]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value with the line of its name."""

    value: LeafValue
    line: int


@dataclass(frozen=True, slots=True)
class Section:
    """A section of named leaves and sections; `line` is that of the section's own name."""

    line: int
    entries: "dict[str, Leaf | Section]" = field(default_factory=dict)

    def section(self, name: str) -> "Section":
        """The section below `name`; an empty one if missing."""
        entry = self.entries.get(name)
        return entry if isinstance(entry, Section) else Section(self.line)

    def leaves(self) -> Iterator[tuple[str, Leaf]]:
        """The entries that are values."""
        return ((name, entry) for name, entry in self.entries.items() if isinstance(entry, Leaf))

    def sections(self) -> "Iterator[tuple[str, Section]]":
        """The entries that are sections."""
        return ((name, entry) for name, entry in self.entries.items() if isinstance(entry, Section))


def as_list(value: object) -> list[Any]:
    """A list as it is, any other value as a list of one."""
    return value if isinstance(value, list) else [value]


def to_plain(entry: Leaf | Section) -> object:
    """The entry without lines: dicts, lists and scalars."""
    if isinstance(entry, Leaf):
        return entry.value
    return {name: to_plain(below) for name, below in entry.entries.items()}


def merge_sections(over: Section, under: Section) -> Section:
    """Merge two sections: `over` wins name by name, in any case of letters; subsections are merged too.

    An empty value removes the one under it.
    """
    spelled = {fold(name): name for name in over.entries}
    entries = {name: entry for name, entry in under.entries.items() if fold(name) not in spelled}
    below = {spelled[fold(name)]: entry for name, entry in under.entries.items() if fold(name) in spelled}
    for name, entry in over.entries.items():
        other = below.get(name)
        if isinstance(entry, Section) and isinstance(other, Section):
            entries[name] = merge_sections(entry, other)
        elif isinstance(entry, Section) or entry.value is not None:
            entries[name] = entry
    return Section(over.line, entries)


def find_line(root: Section, path: tuple[str, ...]) -> int:
    """The line of the deepest name on the path that exists."""
    here = root
    for name in path:
        entry = here.entries.get(name)
        if entry is None:
            break
        if isinstance(entry, Leaf):
            return entry.line
        here = entry
    return here.line


#: A plain tree: names to subtrees, lists and scalars.
Tree = Mapping[str, object]


#: From a line on, the lines are those of a file from another line on; 0: of no file.
OriginRun = tuple[int, str, int]


@dataclass(frozen=True, slots=True)
class LineOrigins:
    """Where each line of a text was first written: edits keep the origins of the lines that they leave."""

    runs: tuple[OriginRun, ...]  #: sorted, the first from line 1 on

    @classmethod
    def from_file(cls, file: str) -> "LineOrigins":
        """Origins of a text that is a file."""
        return cls(((1, file, 1),))

    def find(self, line: int) -> tuple[str, int]:
        """File and line; line 0: an edit outside of files, and the file is the name of its version."""
        first, file, there = self.runs[max(0, bisect_right(self.runs, line, key=lambda run: run[0]) - 1)]
        return file, there + line - first if there else 0

    def follow(self, old: str, new: str, edit: str) -> "LineOrigins":
        """Origins of the text `new`, an edit of the text `old`; `edit` is that of new and changed lines."""
        before, after = old.split("\n"), new.split("\n")
        # Comparing all lines of a large text would take longer than reading it.
        top = _count_equal(before, after)
        bottom = _count_equal(reversed(before[top:]), reversed(after[top:]))
        changed = before[top : len(before) - bottom], after[top : len(after) - bottom]
        runs = list(self._cut(1, top, 1)) if top else []
        for kind, i, _, j, end in SequenceMatcher(None, *changed).get_opcodes():
            if kind == "equal":
                runs += self._cut(top + i + 1, end - j, top + j + 1)
            elif end > j:
                runs.append((top + j + 1, edit, 0))
        if bottom:
            runs += self._cut(len(before) - bottom + 1, bottom, len(after) - bottom + 1)
        return LineOrigins(tuple(_join_runs(runs)))

    def _cut(self, line: int, count: int, first: int) -> Iterator[OriginRun]:
        """The runs of `count` lines from `line` on, moved to the line `first`."""
        starts = {line, *(run[0] for run in self.runs if line < run[0] < line + count)}
        return ((start - line + first, *self.find(start)) for start in sorted(starts))


def _count_equal(some: Iterable[str], others: Iterable[str]) -> int:
    """How many lines are equal at the beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(some, others, strict=False)))


def _join_runs(runs: Sequence[OriginRun]) -> Iterator[OriginRun]:
    """The same without runs that continue the one before."""
    last: OriginRun | None = None
    for run in runs:
        start, file, line = run
        continued = last and file == last[1] and line == (last[2] + start - last[0] if last[2] else 0)
        if not continued:
            yield run
            last = run


def format_origin(file: str, line: int) -> str:
    """The place of a value as text: `resources.yaml:7`, or `version 2`."""
    return f"{file}:{line}" if line else file


Location = tuple[str, ...]

#: Message for a missing option.
MISSING = "this option is needed"


#: Location elements that pydantic adds for a union, and the error types of its members.
_TYPES = {"int": "int", "float": "float", "str": "string", "bool": "bool", "tuple": "tuple"}


def list_problems(
    error: ValidationError,
    model: type[BaseModel],
    section: Section,
    *,
    path: str,
    file: str,
    place: Callable[[Location], Location] = lambda location: location,
) -> Iterator[Problem]:
    """The problems of a section that a model found.

    `place` converts a location in the model to one in the section, where they differ.
    """
    for inside, fault in _single_faults(error):
        location = place(inside)
        yield Problem(
            path="/".join((path, *location)),
            message=_message(fault),
            suggestion=_suggestion(fault["type"], inside, model),
            file=file,
            line=find_line(section, location),
        )


def _single_faults(error: ValidationError) -> Iterator[tuple[Location, Any]]:
    """The errors with their locations; of a union only the errors of its last type."""
    found: dict[tuple[Location, str], Any] = {}
    for fault in error.errors(include_url=False):
        inside = tuple(str(part) for part in fault["loc"])
        member = inside[-1].partition("[")[0] if inside else ""
        is_of_type = _TYPES.get(member) == fault["type"].partition("_")[0]
        found[(inside[:-1], "") if is_of_type else (inside, fault["type"])] = fault
    return ((inside, fault) for (inside, _), fault in found.items())


def _message(fault: Any) -> str:
    if fault["type"] == "extra_forbidden":
        return "unknown option"
    if fault["type"] == "missing":
        return MISSING
    message = str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] == "value_error":
        return message
    is_section = fault["type"] in input_faults.SECTIONS
    allowed = "a section" if is_section else input_faults.describe_allowed(fault)
    return f"{_format_seen(fault['input'])} is not allowed here, allowed is {allowed}"


def _format_seen(raw: object) -> str:
    if isinstance(raw, dict):
        return "a section"
    if isinstance(raw, tuple):
        return f"[{', '.join(str(item) for item in raw)}]"[:80]
    return repr(raw)[:80]


def _suggestion(kind: str, location: Location, model: type[BaseModel]) -> str | None:
    if kind != "extra_forbidden":
        return None
    here = find_model(model, location[:-1])
    names = (field.alias or name for name, field in here.model_fields.items()) if here else ()
    return did_you_mean(location[-1], names)


def find_model(annotation: Any, names: Sequence[str]) -> type[BaseModel] | None:
    """The model of the section at a path below an annotated field; None if there is none."""
    model = annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
    if not names:
        return model
    if model is not None:
        fields = {str(field.alias): field.annotation for field in model.model_fields.values()}
        return find_model(fields.get(names[0]), names[1:])
    return find_model(get_args(annotation)[1], names[1:]) if is_mapping(annotation) else None


def is_mapping(annotation: Any) -> bool:
    """Whether a field is a section whose names are data."""
    origin = get_origin(annotation)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def model_section(section: Section) -> dict[str, object]:
    """A section as model input, its lists as tuples; an option with an empty value counts as not given."""
    found: dict[str, object] = {}
    for name, entry in section.entries.items():
        if isinstance(entry, Section):
            found[name] = model_section(entry)
        elif entry.value is not None:
            found[name] = tuple(entry.value) if isinstance(entry.value, list) else entry.value
    return found

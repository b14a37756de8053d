"""Parser and writer of DIRAC's CFG text, and export of the tree: sections in braces, options with `=`.

Every value in the text is a string, and its consumer decides on the type. Here the type of a known parameter
decides; any other value is read as in YAML, with commas between the items of a list.

The tree is exported in today's layout, its sites grouped by the first part of the name. Values of VOs,
throttles and node attributes become sections that DIRAC ignores; an import reads them again. A node with a
restriction that cannot be represented is disabled, and disabled nodes are left out.

Source: DIRAC's CFG files.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from cs_config.errors import ConfigError
from cs_config.formats import importers
from cs_config.options import keywords
from cs_config.source import yaml_reader
from cs_config.source.sections import Leaf, LeafValue, Section, Tree
from cs_config.tree import parameters
from cs_config.tree.address import SITES
from requirements.errors import Problem
from requirements.values import Scalar, fold

#: Maximum nesting of sections.
_MAX_DEPTH = 50
_MAX_PROBLEMS = 50
_BRACES = "{}"
_PARTS = re.compile("[{}]|[^{}]+")


#: The values of options that are stated again in their sections, in their order, by path.
RepeatedOptions = dict[str, list[Leaf]]


def read_text(text: str, file: str, repeated: RepeatedOptions | None = None) -> Section:
    """The sections of a text, or ConfigError; every value is an unparsed string with the line of its name.

    A value extends to the end of its line, or to a brace if its section begins in the same line. The last of
    repeated options counts, and all are added to `repeated`, without which they are an error; `+=` appends to
    a value after a comma.
    """
    reader = _CfgReader(file=file, repeated=repeated)
    for number, line in enumerate(text.splitlines(), 1):
        reader.take(line.strip(), number)
    reader.end()
    if reader.problems:
        raise ConfigError(reader.problems[:_MAX_PROBLEMS])
    return reader.stack[0][1]


@dataclass(slots=True, kw_only=True)
class _CfgReader:
    file: str
    repeated: RepeatedOptions | None
    stack: list[tuple[str, Section]] = field(default_factory=lambda: [("", Section(1))])
    name: tuple[str, int] | None = None  #: of a section whose brace has not come yet
    problems: list[Problem] = field(default_factory=list)

    def take(self, line: str, number: int) -> None:
        if not line or line.startswith("#"):
            return
        head, equals, value = line.partition("=")
        if equals and not any(brace in head for brace in _BRACES):
            self._option(head, value.strip(), number)
            return
        for part in filter(None, map(str.strip, _PARTS.findall(line))):
            self._part(part, number)

    def end(self) -> None:
        self._no_name_is_left()
        if len(self.stack) > 1:
            self._problem(self.stack[-1][1].line, "the section is not closed: } is missing")

    def _option(self, head: str, value: str, number: int) -> None:
        self._no_name_is_left()
        adds = head.endswith("+")
        name = head.removesuffix("+").strip()
        here = self.stack[-1][1].entries
        before = here.get(name)
        if not name:
            self._problem(number, "an option has a name before =")
        elif isinstance(before, Section):
            self._problem(number, f"{name} is a section already, in line {before.line}")
        elif self.repeated is None and before is not None and not adds:
            self._problem(number, f"{name} is named twice, the first time in line {before.line}")
        elif adds and before is not None and before.value:
            here[name] = Leaf(f"{before.value}, {value}", before.line)
        else:
            here[name] = last = Leaf(value, number)
            if self.repeated is not None and before is not None and not adds:
                self.repeated.setdefault(self._path(name), [before]).append(last)

    def _path(self, *below: str) -> str:
        return "/".join([*(name for name, _ in self.stack if name), *below])

    def _part(self, part: str, number: int) -> None:
        if part == "{":
            self._open(number)
        elif part == "}":
            self._no_name_is_left()
            if len(self.stack) == 1:
                self._problem(number, "} closes nothing")
            else:
                self.stack.pop()
        elif "=" in part:
            head, _, value = part.partition("=")
            self._option(head, value.strip(), number)
        else:
            self._no_name_is_left()
            self.name = part, number

    def _open(self, number: int) -> None:
        if self.name is None:
            self._problem(number, "{ without the name of a section before it")
            self.name = "?", number
        name, line = self.name
        self.name = None
        section = Section(line)
        known = self.stack[-1][1].entries.setdefault(name, section)
        if known is not section:
            self._problem(line, f"{name} is defined twice, the first time in line {known.line}")
        if len(self.stack) > _MAX_DEPTH:
            self._problem(number, f"nested more than {_MAX_DEPTH} deep")
            raise ConfigError(self.problems)
        self.stack.append((name, section))

    def _no_name_is_left(self) -> None:
        if self.name is not None:
            self._problem(
                self.name[1], f"{self.name[0]!r:.60} is neither an option nor a section: no = and no {{"
            )
            self.name = None

    def _problem(self, line: int, message: str) -> None:
        path = self._path() or "/"
        self.problems.append(Problem(path=path, message=message, file=self.file, line=line))


def write_text(tree: Mapping[str, object], indent: str = "") -> Iterator[str]:
    """The lines of a tree whose values are strings, or lists, which are written one item per line."""
    for name, entry in tree.items():
        if isinstance(entry, Mapping):
            yield f"{indent}{name}"
            yield f"{indent}{{"
            yield from write_text(entry, indent + "  ")
            yield f"{indent}}}"
        elif isinstance(entry, list):
            for position, item in enumerate(entry):
                yield f"{indent}{name} {'+' if position else ''}= {item}"
        else:
            yield f"{indent}{name} = {entry}".rstrip()


#: A fraction, and zeros at its end.
_ZEROS = re.compile(r"(\.[0-9]+?)0+$")
_FLAGS = {**dict.fromkeys(keywords.YES, True), **dict.fromkeys(keywords.NO, False)}
_NOT_IN_NAMES = frozenset("={}#/")


def read_value(name: str, text: str, flags: frozenset[str] = frozenset()) -> Scalar | list[Scalar] | None:
    """The parsed value of an option, among `flags` true or false; None if it is empty and without effect."""
    if not text:
        return None
    if name in flags and (flag := _FLAGS.get(text.lower())) is not None:
        return flag
    for value in _candidates(name, text):
        seen = tuple(value) if isinstance(value, list) else value
        if parameters.find_fault(fold(name), seen) is None:  # always None for an unknown name
            return value
    return next(_candidates(name, text))


def _candidates(name: str, text: str) -> Iterator[Scalar | list[Scalar]]:
    if "," in text:
        items = [item.strip() for item in text.split(",") if item.strip()]
        yield [_scalar(name, item) for item in items]
        yield list(items)
    else:
        yield _scalar(name, text)
    if (flag := _FLAGS.get(text.lower())) is not None:
        yield flag
    yield text
    if "," in text:
        yield [_resolve(item) for item in items]
    else:
        yield _resolve(text)


def _scalar(name: str, text: str) -> Scalar:
    """A value as in YAML; a version, and what a number would change, such as 1e3, stays a text.

    Zeros at the end of a fraction change no number, but a version: of well-known software they stay.
    """
    found = _resolve(text)
    is_text = isinstance(found, float) and parameters.is_version(fold(name))
    written = text if parameters.is_like_version(fold(name)) else _ZEROS.sub(r"\1", text)
    return text if is_text or (type(found) in (int, float) and repr(found) != written) else found


def _resolve(text: str) -> Scalar:
    try:
        found = yaml_reader.resolve_word(text)
    except ValueError:
        return text
    return text if found is None else found


def write_value(name: str, value: LeafValue) -> str | list[str] | None:
    """Format a value so that `read_value` restores it; None if it cannot be represented.

    A list is written one item per line; a comma after a single item distinguishes a list from a text. The
    number of a version is written as its shortest text, which is what it becomes.
    """
    if parameters.is_version(fold(name)):
        value = parameters.as_version(value)
    if isinstance(value, list):
        items = ["" if item is None else _text(item) for item in value]
        text: str | list[str] = [f"{items[0]},"] if len(items) == 1 else items
    else:
        text = "" if value is None else _text(value)
    joined = ", ".join(text) if isinstance(text, list) else text
    is_line = joined == joined.strip() and len(joined.splitlines()) == 1
    return text if is_line and repr(read_value(name, joined)) == repr(value) else None


def _text(value: Scalar) -> str:
    return value if isinstance(value, str) else repr(value)


def is_name(name: str) -> bool:
    """Whether a name is valid in CFG text."""
    is_plain = name == name.strip() and len(name.splitlines()) == 1 and not name.endswith("+")
    return is_plain and not _NOT_IN_NAMES.intersection(name)


#: Group of the sites whose name has no dot.
NO_GRID = "DIRAC"
_OFF = f"{importers.ENABLED} = False"
#: Sections that contain one section per name.
_OF_SECTIONS = frozenset({"Sites", "CEs", "Queues", "VOs", "VO", "Groups", "Operations"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedText:
    """An exported text, and losses of the export."""

    text: str
    left_out: tuple[str, ...]  #: a path each, with the reason


def export_dirac(tree: Tree, *, with_disabled: bool = False) -> ExportedText:
    """Export a whole tree.

    DIRAC does not know `Enabled`: sites, CEs and queues without it are left out, unless `with_disabled`.
    """
    writer = _Writer(checks=importers.checks(tree))
    written = writer.section(tree, ())
    resources = written.get("Resources")
    if not with_disabled and isinstance(resources, dict):
        for grid in _sections_of(resources.get("Sites")).values():
            writer.left_out += _remove_disabled(_sections_of(grid), SITES, ("CEs", "Queues"))
    return ExportedText(text="\n".join([*write_text(written), ""]), left_out=tuple(writer.left_out))


@dataclass(slots=True)
class _Writer:
    checks: frozenset[str]  #: folded names of attributes that are expressions about jobs
    left_out: list[str] = field(default_factory=list)
    restricted: set[tuple[str, ...]] = field(default_factory=set)  #: nodes that lost a restriction

    def section(self, tree: Mapping[str, object], names: tuple[str, ...]) -> dict[str, object]:
        """The tree with texts as values."""
        written: dict[str, object] = {}
        for name, entry in tree.items():
            path = (*names, name)
            if not is_name(name):
                self._leave_out(path, entry, "a name with a character that has a meaning there")
            elif path == SITES and isinstance(entry, Mapping):
                written[name] = self._sites(entry)
            elif isinstance(entry, Mapping):
                written[name] = self.section(entry, path)
            elif entry is None and names[-1:] and names[-1] in _OF_SECTIONS:
                written[name] = {}  # a name without anything is an empty section
            else:
                self._option(written, path, entry)  # type: ignore[arg-type]  # what is no section is a value
        if names in self.restricted:
            importers.close(written)
        return written

    def _sites(self, sites: Mapping[str, object]) -> dict[str, object]:
        grids: dict[str, dict[str, object]] = {}
        for site, entry in sites.items():
            grid, dot, _ = site.partition(".")
            below = self.section({site: entry if isinstance(entry, Mapping) else {}}, SITES)
            grids.setdefault(grid if dot else NO_GRID, {}).update(below)
        return dict(grids)

    def _option(self, written: dict[str, object], path: tuple[str, ...], value: LeafValue) -> None:
        text = write_value(path[-1], value)
        if fold(path[-1]) == "vo" and value == []:
            self._leave_out(path, value, f"an empty list admits all VOs there: written as {_OFF}")
        elif importers.states_none(path[-1], value):  # and so restricts nothing
            self.left_out.append(f"{'/'.join(path)}: {value} states no number there")
        elif text is None:
            self._leave_out(path, value, _unsayable_reason(value))
        else:
            written[path[-1]] = text

    def _leave_out(self, path: tuple[str, ...], entry: object, why: str) -> None:
        """Record what is left out, and the node that loses a restriction, unless the value enables it."""
        self.left_out.append(f"{'/'.join(path)}: {why}")
        node = importers.node_of(path)
        inside = path[len(node) :] if node is not None else ()
        if node and entry is not None and any(importers.is_restriction(each, self.checks) for each in inside):
            self.restricted.add(node)
            self.left_out.append(
                f"{'/'.join(node)}/{importers.ENABLED}: {_OFF}, because {path[-1]} is left out"
            )


def _sections_of(entry: object) -> dict[str, object]:
    return entry if isinstance(entry, dict) else {}


def _remove_disabled(
    nodes: dict[str, object], path: tuple[str, ...], below: tuple[str, ...]
) -> Iterator[str]:
    """Remove written nodes with `Enabled = False`, at these levels; tell each."""
    for name, entry in list(nodes.items()):
        node, here = _sections_of(entry), (*path, name)
        if any(
            fold(each) == fold(importers.ENABLED) and str(value) == "False" for each, value in node.items()
        ):
            del nodes[name]
            yield f"{'/'.join(here)}: it is disabled, which DIRAC cannot represent"
        elif below:
            yield from _remove_disabled(_sections_of(node.get(below[0])), (*here, below[0]), below[1:])


def _unsayable_reason(value: LeafValue) -> str:
    if value is None:
        return "an empty value removes nothing there"
    if value == []:
        return "an empty list is not a value there"
    shown = repr(value)
    return f"{shown[:60]} would be read as something else there"

"""Content of `config show`: the tree below a path, or the effective values of a VO with their origins.

Paths are completed to existing names, and to names that have a meaning at that position.
"""

import ast
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

from pydantic import BaseModel

from cs_config import validate
from cs_config.editing import patch
from cs_config.editing.patch import find_entry
from cs_config.errors import PathNotFound
from cs_config.options import place_limits, registry
from cs_config.options.operations import DEFAULTS
from cs_config.options.options import DeclaredName, VoOptions
from cs_config.source import sections
from cs_config.source.diff import ABSENT, format_line
from cs_config.source.sections import Leaf, LeafValue, Section, Tree, format_origin, merge_sections
from cs_config.tree import inheritance, parameters, resources
from cs_config.tree.address import NODES, SITES
from cs_config.tree.configuration import Configuration
from cs_config.tree.inheritance import Parameter
from cs_config.tree.throttle import Throttle
from requirements.errors import did_you_mean
from requirements.values import Value, fold

#: Section names before the name of a site, a CE, a queue.
_KINDS = ("Sites", "CEs", "Queues")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownLine:
    """One displayed value."""

    path: str  #: below the requested path
    value: Value | LeafValue
    origin: str  #: level and place: `CE VOs/cms, resources.yaml:41`
    places: tuple[str, ...] = ()  #: paths from the top where it is written; several for a united set

    def __str__(self) -> str:
        return format_line(self.path, self.value)

    def as_json(self) -> Mapping[str, object]:
        """The line as JSON."""
        value = list(self.value) if isinstance(self.value, tuple) else self.value
        return {"path": self.path, "value": value, "origin": self.origin}


def list_lines(
    config: Configuration, path: str = "", vo: str | None = None, *, inherited: bool = False
) -> tuple[ShownLine, ...]:
    """All lines of `iterate_lines`."""
    return tuple(iterate_lines(config, path, vo, inherited=inherited))


def iterate_lines(
    config: Configuration, path: str = "", vo: str | None = None, *, inherited: bool = False
) -> Iterator[ShownLine]:
    """The values at and below a path from the top, or the address of a site, CE or queue.

    With a VO (empty: none in particular) the effective values: parameters of a site, CE or queue; under
    `Operations` the options of the VO over the defaults. `inherited`: those of a queue also without a VO.
    """
    names = split_path(config, path)
    if vo is None and inherited and is_queue(config, path):
        vo = ""
    if vo is not None:
        if names[:2] == SITES and len(names) in NODES:
            return _effective(config, names, vo)
        if names[:1] == ("Operations",):
            return _options(config, names, vo)
    return _lines_below(_entry(config.root, names), "", config, "/".join(names))


def split_path(config: Configuration, path: str) -> tuple[str, ...]:
    """The names of a path from the top, also for the address of a site, CE or queue."""
    names = tuple(name for name in path.split("/") if name)
    if 0 < len(names) <= len(_KINDS) and names[0] not in config.root.entries and names[0] in config.sites:
        return ("Resources", *(each for pair in zip(_KINDS, names, strict=False) for each in pair))
    return names


def is_queue(config: Configuration, path: str) -> bool:
    """Whether a path is a queue's."""
    names = split_path(config, path)
    return len(names) == max(NODES) and "/".join(names) in config.nodes


def require_visible(config: Configuration, path: str, sees: Callable[[tuple[str, ...]], bool]) -> None:
    """Raise PathNotFound unless there is something at a path; what is not seen is treated as not there."""
    _entry(config.root, split_path(config, path), sees)


def _entry(
    root: Section, names: tuple[str, ...], sees: Callable[[tuple[str, ...]], bool] = lambda _: True
) -> Leaf | Section:
    here: Leaf | Section = root
    for depth, name in enumerate(names):
        above = names[:depth]
        known = here.entries if isinstance(here, Section) else {}
        if name not in known or not sees((*above, name)):
            suggestion = did_you_mean(name, [each for each in known if sees((*above, each))])
            raise PathNotFound("/".join(names), "/".join((*above, suggestion)) if suggestion else None)
        here = known[name]
    return here


def _lines_below(entry: Leaf | Section, path: str, config: Configuration, top: str) -> Iterator[ShownLine]:
    if isinstance(entry, Leaf):
        place = "/".join(filter(None, (top, path)))
        origin = format_origin(*config.origins.find(entry.line))
        yield ShownLine(path=path, value=entry.value, origin=origin, places=(place,))
        return
    for name, each in entry.entries.items():
        yield from _lines_below(each, f"{path}/{name}" if path else name, config, top)


def _effective(config: Configuration, names: tuple[str, ...], vo: str) -> Iterator[ShownLine]:
    if "/".join(names) not in config.nodes:
        _entry(config.root, names)
        raise PathNotFound("/".join(names))
    levels = tuple(config.nodes["/".join(names[:depth])] for depth in NODES if depth <= len(names))
    parameters = inheritance.effective_parameters(levels, fold(vo))
    for name, parameter in sorted(parameters.items(), key=lambda item: fold(item[0])):
        places = tuple(part.path for part in parameter.parts or (parameter,))
        yield ShownLine(path=name, value=parameter.value, origin=describe_origin(parameter), places=places)
    if vo and not inheritance.is_usable(levels, fold(vo)):
        yield ShownLine(path="(usable)", value=False, origin=f"not enabled, or not for {vo}")


def describe_origin(parameter: Parameter) -> str:
    """The origin of a parameter; of a united set, all origins."""
    parts = parameter.parts or (parameter,)
    return "; ".join(f"{part.level}, {format_origin(part.file, part.line)}" for part in parts)


def _options(config: Configuration, names: tuple[str, ...], vo: str) -> Iterator[ShownLine]:
    section = config.root.section("Operations")
    own = next((below for name, below in section.sections() if fold(name) == fold(vo)), Section(section.line))
    inside = names[2:] if len(names) > 1 and fold(names[1]) in (fold(vo), fold(DEFAULTS)) else names[1:]
    tops = [DEFAULTS, *(name for name, _ in section.sections() if fold(name) == fold(vo))]
    for line in _lines_below(_entry(merge_sections(own, section.section(DEFAULTS)), inside), "", config, ""):
        yield replace(line, places=_place(config, tops, (*inside, *filter(None, line.path.split("/")))))


def _place(config: Configuration, tops: Sequence[str], names: tuple[str, ...]) -> tuple[str, ...]:
    """Where an option is written: the VO's own value takes precedence over the default."""
    paths = [("Operations", top, *names) for top in tops]
    written = [path for path in paths if find_entry(config.tree, path) is not ABSENT]
    return ("/".join(written[-1]),) if written else ()


#: Maximum number of results.
_MOST = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """An existing or possible path, from the top."""

    path: str  #: a section's path ends in `/`
    meaning: str = ""  #: description for people


def complete_path(tree: Tree, written: str, vos: Collection[str]) -> list[Completion]:
    """Complete a partly typed path, in any case of letters, in the tree that members of the VOs see."""
    *names, begun = written.lstrip("/").split("/")
    found = dict(_existing_names(tree, names))
    for name, meaning in _meaningful(tuple(names), vos):
        known = next((each for each in found if fold(each.rstrip("/")) == fold(name.rstrip("/"))), name)
        found[known] = found.get(known) or meaning
    matching = [name for name in found if fold(name).startswith(fold(begun))]
    return [Completion(path="/".join((*names, name)), meaning=found[name]) for name in matching[:_MOST]]


def _existing_names(tree: Tree, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    entry = patch.find_entry(tree, tuple(names))
    for name, below in entry.items() if isinstance(entry, dict) else ():
        yield f"{name}/" if isinstance(below, dict) else name, ""


def _meaningful(names: tuple[str, ...], vos: Collection[str]) -> Iterator[tuple[str, str]]:
    if not names:
        yield from ((f"{each}/", "") for each in validate.TOP)
    elif names == SITES[:1]:
        yield "Sites/", ""
    elif names[:2] == SITES and len(names) > 2:
        yield from _node_names(names, vos)
    elif names[0] == "Operations":
        yield from _option_names(names[1:], vos)
    elif names[0] == "Registry":
        yield from _fields(sections.find_model(registry.Registry, names[1:]))


def _node_names(names: tuple[str, ...], vos: Collection[str]) -> Iterator[tuple[str, str]]:
    if (kind := NODES.get(len(names))) is not None:
        yield from ((f"{each}/", "") for each in resources.BELOW[kind])
        yield from _parameters()
    elif names[-1] == "VOs":
        yield from ((f"{each}/", "values for this VO only") for each in sorted(vos))
    elif names[-2] == "VOs":
        yield from _parameters()
    elif names[-1] == "Throttle":
        yield from _fields(Throttle)
    elif names[-1] == "Floors":
        yield from ((vo, "cores that it has at least, or a part such as 30%") for vo in sorted(vos))
    elif names[-1] in ("RunningLimit", "MatchingDelay"):
        yield from ((f"{each}/", "limits by its values") for each in place_limits.ATTRIBUTES)


def _parameters() -> Iterator[tuple[str, str]]:
    return ((each.name, f"{each.meaning}: {each.allowed}") for each in parameters.KNOWN)


def _option_names(names: tuple[str, ...], vos: Collection[str]) -> Iterator[tuple[str, str]]:
    if not names:
        yield from ((f"{each}/", "") for each in (DEFAULTS, *sorted(vos)))
    elif names[1:2] == ("JobDescription",) and len(names) == 3:
        yield from _fields(DeclaredName)
    else:
        # Declared names are directly in the section.
        fields = _fields(sections.find_model(VoOptions, names[1:]))
        yield from (each for each in fields if each[0] != "Declared/")


def _fields(model: type[BaseModel] | None) -> Iterator[tuple[str, str]]:
    if model is None:
        return
    meanings = read_docstrings(model)
    for name, field in model.model_fields.items():
        is_section = sections.find_model(field.annotation, ()) or sections.is_mapping(field.annotation)
        yield f"{field.alias}/" if is_section else str(field.alias), meanings.get(name, "")


@cache
def read_docstrings(model: type[BaseModel]) -> Mapping[str, str]:
    """The text below each field of a model.

    Read when it is needed: pydantic's `use_attribute_docstrings` reads it at import, which took 0.2 s of each
    command that reads the configuration.
    """
    body = ast.parse(inspect.getsource(model)).body[0].body  # type: ignore[attr-defined]
    return {
        field.target.id: inspect.cleandoc(str(below.value.value))
        for field, below in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
    }

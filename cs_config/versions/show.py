"""Content of `config show`, and completion of its paths.

Shown is the tree below a path, or the effective values of a VO with their origins. A path is completed by
existing names, and by names that have a meaning at that position.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from cs_config import validate
from cs_config.errors import PathNotFound
from cs_config.options import registry
from cs_config.options.operations import DEFAULTS
from cs_config.options.options import DeclaredName, VoOptions
from cs_config.source.sections import Leaf, LeafValue, Section, Tree, merge_sections
from cs_config.tree import inheritance, parameters, resources
from cs_config.tree.configuration import Configuration
from cs_config.tree.throttle import Throttle
from cs_config.versions.diff import ABSENT
from cs_config.versions.patch import find_entry
from requirements.errors import did_you_mean
from requirements.values import Value, fold

_SITES = ("Resources", "Sites")
#: Section names before the name of a site, a CE, a queue.
_KINDS = ("Sites", "CEs", "Queues")
#: Name of the level by the length of its path.
_LEVELS = {3: "Site", 5: "CE", 7: "Queue"}
#: Maximum number of completions.
_MOST_COMPLETIONS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownLine:
    """One displayed value."""

    path: str  #: below the requested path
    value: Value | LeafValue
    origin: str  #: level and place: `CE VOs/cms, resources.yaml:41`
    places: tuple[str, ...] = ()  #: paths from the top where it is written; several for a united set

    def __str__(self) -> str:
        return f"{self.path} = {format_value(self.value)}"

    def as_json(self) -> Mapping[str, object]:
        """The line as JSON."""
        value = list(self.value) if isinstance(self.value, tuple) else self.value
        return {"path": self.path, "value": value, "origin": self.origin}


def format_value(value: Value | LeafValue) -> str:
    """A value as written in the file."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(format_value(item) for item in value)}]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def list_lines(config: Configuration, path: str = "", vo: str | None = None) -> tuple[ShownLine, ...]:
    """The values at and below a path from the top, or the address of a site, CE or queue.

    With a VO (empty: none in particular) the effective values: parameters of a site, CE or queue; under
    `Operations` the options of the VO over the defaults.
    """
    names = split_path(config, path)
    if vo is not None:
        if names[:2] == _SITES and len(names) in _LEVELS:
            return tuple(_effective(config, names, vo))
        if names[:1] == ("Operations",):
            return tuple(_options(config, names, vo))
    return tuple(_lines_below(_entry(config.root, names), "", config, "/".join(names)))


def split_path(config: Configuration, path: str) -> tuple[str, ...]:
    """The names of a path from the top, also for the address of a site, CE or queue."""
    names = tuple(name for name in path.split("/") if name)
    if 0 < len(names) <= len(_KINDS) and names[0] not in config.root.entries and names[0] in config.sites:
        return ("Resources", *(each for pair in zip(_KINDS, names, strict=False) for each in pair))
    return names


def is_queue(config: Configuration, path: str) -> bool:
    """Whether a path is a queue's."""
    names = split_path(config, path)
    return _LEVELS.get(len(names)) == "Queue" and "/".join(names) in config.nodes


def _entry(root: Section, names: tuple[str, ...]) -> Leaf | Section:
    here: Leaf | Section = root
    for depth, name in enumerate(names):
        known = here.entries if isinstance(here, Section) else {}
        if name not in known:
            suggestion = did_you_mean(name, known)
            raise PathNotFound(
                "/".join(names), "/".join((*names[:depth], suggestion)) if suggestion else None
            )
        here = known[name]
    return here


def _lines_below(entry: Leaf | Section, path: str, config: Configuration, top: str) -> Iterator[ShownLine]:
    if isinstance(entry, Leaf):
        place = "/".join(filter(None, (top, path)))
        yield ShownLine(path=path, value=entry.value, origin=f"{config.file}:{entry.line}", places=(place,))
        return
    for name, each in entry.entries.items():
        yield from _lines_below(each, f"{path}/{name}" if path else name, config, top)


def _effective(config: Configuration, names: tuple[str, ...], vo: str) -> Iterator[ShownLine]:
    if "/".join(names) not in config.nodes:
        _entry(config.root, names)
        raise PathNotFound("/".join(names))
    levels = [config.nodes["/".join(names[:depth])] for depth in _LEVELS if depth <= len(names)]
    effective = inheritance.effective_parameters(levels, fold(vo))
    for name, parameter in sorted(effective.items(), key=lambda item: fold(item[0])):
        parts = parameter.parts or (parameter,)  # of a united set, all
        origin = "; ".join(f"{part.level}, {part.file}:{part.line}" for part in parts)
        places = tuple(part.path for part in parts)
        yield ShownLine(path=name, value=parameter.value, origin=origin, places=places)
    if vo and not inheritance.is_usable(levels, fold(vo)):
        yield ShownLine(path="(usable)", value=False, origin=f"not enabled, or not for {vo}")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """An existing or possible path, from the top."""

    path: str  #: a section's path ends in `/`
    meaning: str = ""  #: description for people


def complete_path(tree: Tree, written: str, vos: Collection[str]) -> list[Completion]:
    """Complete a partly typed path, in any case of letters, in the tree that members of the VOs see."""
    *names, begun = written.lstrip("/").split("/")
    entry = find_entry(tree, names)
    content = entry.items() if isinstance(entry, dict) else ()
    found = {f"{name}/" if isinstance(below, dict) else name: "" for name, below in content}
    for name, meaning in _meaningful(tuple(names), vos):
        known = next((each for each in found if fold(each.rstrip("/")) == fold(name.rstrip("/"))), name)
        found[known] = found.get(known) or meaning
    matching = [name for name in found if fold(name).startswith(fold(begun))]
    return [
        Completion(path="/".join((*names, name)), meaning=found[name])
        for name in matching[:_MOST_COMPLETIONS]
    ]


def _meaningful(names: tuple[str, ...], vos: Collection[str]) -> Iterator[tuple[str, str]]:
    if not names:
        yield from ((f"{each}/", "") for each in validate.TOP)
    elif names == _SITES[:1]:
        yield "Sites/", ""
    elif names[:2] == _SITES and len(names) > 2:
        yield from _node_names(names, vos)
    elif names[0] == "Operations":
        yield from _option_names(names[1:], vos)
    elif names[0] == "Registry":
        yield from _fields(_model_at(registry.RegistryOptions, names[1:]))


def _node_names(names: tuple[str, ...], vos: Collection[str]) -> Iterator[tuple[str, str]]:
    if (kind := _LEVELS.get(len(names))) is not None:
        yield from ((f"{each}/", "") for each in resources.BELOW[kind])
        yield from _parameters()
    elif names[-1] == "VOs":
        yield from ((f"{each}/", "values for this VO only") for each in sorted(vos))
    elif names[-2] == "VOs":
        yield from _parameters()
    elif names[-1] == "Throttle":
        yield from _fields(Throttle)


def _parameters() -> Iterator[tuple[str, str]]:
    return ((each.name, f"{each.meaning}: {each.allowed}") for each in parameters.KNOWN)


def _option_names(names: tuple[str, ...], vos: Collection[str]) -> Iterator[tuple[str, str]]:
    if not names:
        yield from ((f"{each}/", "") for each in (DEFAULTS, *sorted(vos)))
    elif names[1:2] == ("JobDescription",) and len(names) == 3:
        yield from _fields(DeclaredName)
    else:
        # Declared names are directly in the section.
        yield from (each for each in _fields(_model_at(VoOptions, names[1:])) if each[0] != "Declared/")


def _model_at(annotation: Any, names: tuple[str, ...]) -> type[BaseModel] | None:
    """The model of the section at a path below an annotated field; None if there is none."""
    model = _model_in(annotation)
    if not names:
        return model
    if model is not None:
        fields = {str(field.alias): field.annotation for field in model.model_fields.values()}
        return _model_at(fields.get(names[0]), names[1:])
    return _model_at(get_args(annotation)[1], names[1:]) if _is_mapping(annotation) else None


def _model_in(annotation: Any) -> type[BaseModel] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _fields(model: type[BaseModel] | None) -> Iterator[tuple[str, str]]:
    for field in model.model_fields.values() if model is not None else ():
        is_section = _model_in(field.annotation) is not None or _is_mapping(field.annotation)
        yield f"{field.alias}/" if is_section else str(field.alias), field.description or ""


def _is_mapping(annotation: Any) -> bool:
    origin = get_origin(annotation)
    return isinstance(origin, type) and issubclass(origin, Mapping)

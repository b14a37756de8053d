"""Completion of configuration paths: existing names, and names that have a meaning at that position."""

import ast
import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from pydantic import BaseModel

from cs_config import validate
from cs_config.options import place_limits, registry
from cs_config.options.operations import DEFAULTS
from cs_config.options.options import DeclaredName, VoOptions
from cs_config.source import models
from cs_config.source.sections import Tree
from cs_config.tree import parameters, resources
from cs_config.tree.address import NODES, SITES
from cs_config.tree.throttle import Throttle
from cs_config.versions import patch
from requirements.values import fold

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
        yield from _fields(models.find_model(registry.Registry, names[1:]))


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
        fields = _fields(models.find_model(VoOptions, names[1:]))
        yield from (each for each in fields if each[0] != "Declared/")


def _fields(model: type[BaseModel] | None) -> Iterator[tuple[str, str]]:
    if model is None:
        return
    meanings = read_docstrings(model)
    for name, field in model.model_fields.items():
        is_section = models.find_model(field.annotation, ()) or models.is_mapping(field.annotation)
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

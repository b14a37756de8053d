"""Importers of files of other systems, and the merge of what they read over the current tree.

An importer translates files to our layout and calls `merge_import`. Importers are found by the entry point
`pilotage.formats`; ours are there like anybody's.

Imported values win, everything else stays. Values that our tree does not allow are dropped and reported among
the notes. A node that loses a restriction this way is disabled; where there is no node to disable, the import
is refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Protocol

from cs_config import validate
from cs_config.errors import ConfigError, one_problem
from cs_config.formats import restrictions
from cs_config.source import models, yaml_writer
from cs_config.source.sections import Tree
from cs_config.tree.configuration import Configuration
from cs_config.versions import diff, proposals
from cs_config.versions.diff import ABSENT
from cs_config.versions.proposals import Proposal
from requirements.errors import Problem
from requirements.values import fold

#: Group of the entry points of importers.
GROUP = "pilotage.formats"
#: Maximum validation passes: each removal may uncover other errors.
_ROUNDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedConfiguration:
    """A configuration with the import merged into it, and what could not be imported."""

    proposal: Proposal
    notes: tuple[Problem, ...]


class Importer(Protocol):
    """Proposes the changes that files of another system would make in the configuration."""

    def __call__(
        self, config: Configuration, files: Mapping[str, str], *, site: str | None = None
    ) -> ImportedConfiguration:
        """Read texts by file name; `site` is that of CEs whose site the files do not name.

        Raises ConfigError or InvalidInput if the files cannot be read, or if they restrict jobs in a way that
        cannot be imported.
        """
        ...


def installed_formats() -> Sequence[str]:
    """The names of the formats with an installed importer."""
    return sorted({point.name for point in entry_points(group=GROUP)})


def load_importer(format_name: str) -> Importer:
    """The importer of a format; a `ValueError` tells why it cannot be used. No other one is loaded."""
    points = entry_points(group=GROUP, name=format_name)
    if not points:
        names = ", ".join(installed_formats())
        raise ValueError(f"{format_name}: no such format is installed, only {names}")
    try:
        importer: Importer = next(iter(points)).load()
    except Exception as error:  # other people's code
        raise ValueError(f"{format_name}: its importer cannot be loaded: {error}") from error
    return importer


def require_one(files: Mapping[str, str], site: str | None) -> tuple[str, str]:
    """Name and text of the file, for a format whose configuration is one file that names its sites."""
    if len(files) != 1 or site is not None:
        raise one_problem(", ".join(files), "allowed is one file, and no site: it names its sites itself")
    return next(iter(files.items()))


def merge_import(
    config: Configuration,
    tree: dict[str, object],
    notes: list[Problem],
    file: str,
    places: Mapping[str, tuple[str, int]] = MappingProxyType({}),
) -> ImportedConfiguration:
    """Merge a tree into the current configuration, without values that are not allowed.

    ABSENT in the tree removes a value. `places`: file and line of values by path, where these are known.
    Raises ConfigError if the result is wrong for a reason that is not in the tree, or if the tree restricts
    jobs in a way that cannot be imported.
    """
    overlay = _Overlay(under=config.tree, tree=tree, notes=notes, file=file, places=places)
    overlay.drop_duplicates()
    for _ in range(_ROUNDS):
        whole = merge_trees(config.tree, tree)
        text = config.source
        if not diff.is_equal(whole, dict(config.tree)):
            text = yaml_writer.edit_text(config.source, config.tree, whole)
        found = validate.report(text, proposals.API, config.version)
        if found.configuration is not None:
            return ImportedConfiguration(proposal=proposals.propose_text(config, text), notes=tuple(notes))
        if not overlay.drop_invalid(found.errors):
            raise ConfigError(found.errors)
    raise ConfigError(found.errors)


@dataclass(slots=True, kw_only=True)
class _Overlay:
    """Drops invalid values from a tree, and disables nodes that lose a restriction."""

    under: Tree  #: the current configuration
    tree: dict[str, object]  #: modified
    notes: list[Problem]
    file: str
    places: Mapping[str, tuple[str, int]]
    checks: frozenset[str] = frozenset()  #: folded names of attributes that are expressions about jobs

    def __post_init__(self) -> None:
        """Collect the names of checks before any are removed."""
        self.checks = restrictions.checks(self.tree) | restrictions.checks(self.under)

    def drop_duplicates(self) -> None:
        """Drop names that differ from another one beside them in case only: one of them is ineffective."""
        for path, section, name, first in list(_duplicates(self.tree, ())):
            if name not in section:  # closing the node for another name replaced `Enabled`
                continue
            removed = section.pop(name)
            message = f"not carried over: named twice, the other time as {first}; case makes no difference"
            problem = Problem(path="/".join((*path, name)), message=message)
            is_closed = self._lose((*path, first), removed, problem)
            node = restrictions.node_of((*path, first))
            if node is not None and not is_closed and restrictions.restricts(removed):
                self._close(node, problem.path)  # the first one stays, and would be open

    def drop_invalid(self, errors: Sequence[Problem]) -> bool:
        """Drop the values that errors point at; return whether there were any."""
        found = False
        for error in errors:
            names = error.path.split("/")
            if error.message == models.MISSING:  # the rest of its section has no effect
                names.pop()
            if (taken := _remove_path(self.tree, names)) is not None:
                found = True
                path, removed = taken
                self._forget_expression(path)
                meant = f", did you mean {error.suggestion}?" if error.suggestion else ""
                message = f"not carried over: {error.message}{meant}"
                problem = Problem(path="/".join(path), message=message, suggestion=error.suggestion)
                self._lose(path, removed, problem)
        return found

    def _forget_expression(self, path: tuple[str, ...]) -> None:
        """Drop the name of a removed value from the list of `Expressions` beside it."""
        beside = find_section(self.tree, path[:-1]) or {}
        if isinstance(listed := beside.get("Expressions"), list):
            left = [name for name in listed if fold(str(name)) != fold(path[-1])]
            beside["Expressions"] = left or ABSENT

    def _lose(self, names: tuple[str, ...], removed: object, problem: Problem) -> bool:
        """Record a dropped value and disable its node if the value restricts it: returns whether it did."""
        node = restrictions.node_of(names)
        meant = problem.suggestion or ""
        file, line = self.places.get(problem.path, (self.file, None))
        problem = replace(problem, suggestion=None, file=file, line=line)
        if node is None and names[0] == "Operations" and _restricts_jobs(names, removed, meant, problem):
            problem = replace(problem, message=f"{problem.message}; without it more jobs would be allowed")
            raise ConfigError([problem])
        self.notes.append(problem)
        if names == node and not isinstance(removed, Mapping):
            return self._lose_value(names, removed, problem)
        if node is None or not self._is_restriction(names, len(node), removed, meant):
            return False
        self._close(node, problem.path)
        return True

    def _lose_value(self, names: tuple[str, ...], removed: object, problem: Problem) -> bool:
        """Drop a value in the place of a node, such as `VO` beside queues, from the enclosing node."""
        if names[-2] != "VOs" and not restrictions.restricts_directly({names[-1]: removed}):
            return False
        around = restrictions.node_of(names[:-2])
        if around is None:
            message = f"{problem.message}; it would restrict all of them: set it at each"
            raise ConfigError([replace(problem, message=message)])
        self._close(around, problem.path)
        return True

    def _is_restriction(self, names: tuple[str, ...], depth: int, removed: object, meant: str) -> bool:
        if len(names) == depth:  # a missing node is open to no VO; a VO's values are dropped with it
            return names[-2] == "VOs" and restrictions.restricts_directly(removed)
        named = (*names[depth:], meant)
        return restrictions.restricts_directly(removed) or any(
            restrictions.is_restriction(each, self.checks) for each in named
        )

    def _close(self, names: tuple[str, ...], lost: str) -> None:
        node = find_section(self.tree, names)
        if node is not None:
            restrictions.close(node, find_section(self.under, names))
            message = (
                f"closed, {restrictions.ENABLED}: false, because {lost} restricts it and is not carried over"
            )
            self.notes.append(Problem(path="/".join(names), message=message, file=self.file))


def _restricts_jobs(names: tuple[str, ...], removed: object, meant: str, problem: Problem) -> bool:
    """Whether dropped options of the operations kept jobs out."""
    named = (*names[2:], meant)
    if restrictions.restricts_jobs(names[-1], removed) or any(
        restrictions.restricts_jobs(each, None) for each in named
    ):
        return True
    is_option = bool(meant) or "unknown option" not in problem.message
    return is_option and "limits" in map(fold, names[2:])


def _duplicates(
    section: dict[str, object], path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], dict[str, object], str, str]]:
    """Each second spelling of a name, with its section and the first spelling."""
    first: dict[str, str] = {}
    for name, entry in section.items():
        if first.setdefault(fold(name), name) != name:
            yield path, section, name, first[fold(name)]
        elif isinstance(entry, dict):
            yield from _duplicates(entry, (*path, name))


def find_section(tree: Tree, names: Sequence[str]) -> dict[str, object] | None:
    """The section at a path, whose names may differ in case; None if missing."""
    here: object = tree
    for wanted in names:
        known = here if isinstance(here, Mapping) else {}
        name = next((each for each in known if fold(each) == fold(wanted)), None)
        here = None if name is None else known[name]
    return here if isinstance(here, dict) else None


def merge_trees(under: Mapping[str, object], over_it: Mapping[str, object]) -> dict[str, object]:
    """Both merged; existing names keep their spelling."""
    merged = dict(under)
    spelled = {fold(name): name for name in under}
    for name, entry in over_it.items():
        here = spelled.get(fold(name), name)
        below = merged.get(here)
        if isinstance(entry, dict):
            section = merge_trees(below if isinstance(below, dict) else {}, entry)
            if section or not entry or here in merged:  # removals make no section
                merged[here] = section
        elif entry is ABSENT:
            merged.pop(here, None)
        else:
            merged[here] = entry
    return merged


def _remove_path(tree: dict[str, object], names: Sequence[str]) -> tuple[tuple[str, ...], object] | None:
    """Remove a path; return the removed path, as far as it exists, and its value."""
    here: object = tree
    above: list[tuple[dict[str, object], str]] = []
    for depth, wanted in enumerate(names):
        known = here if isinstance(here, dict) else {}
        spelled = {fold(name): name for name in known}
        # A foreign name may contain a slash.
        name = spelled.get(fold(wanted)) or spelled.get(fold("/".join(names[depth:])))
        if name is None:
            break
        above.append((known, name))
        here = known[name]
    if len(above) < len(names) and (not above or isinstance(here, dict)):
        return None
    section, name = above[-1]
    del section[name]
    return tuple(name for _, name in above), here

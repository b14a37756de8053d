"""Importers of files of other systems, and the merge of what they read over the current tree.

An importer translates files to our layout and calls `merge_import`. Importers are found by the entry point
`pilotage.formats`; ours are there like anybody's.

Imported values win, everything else stays. Values that our tree does not allow are dropped and reported among
the notes. An import that dropped a restriction (a parameter that keeps VOs or jobs out) would open a node
that its source keeps closed. So a node that loses a restriction this way gets `Enabled: false`, until someone
corrects the source or the tree; where there is no node to disable, the import is refused.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from math import floor
from types import MappingProxyType
from typing import Final, Protocol

from cs_config import validate
from cs_config.editing import proposals
from cs_config.editing.proposals import Proposal
from cs_config.errors import ConfigError, one_problem
from cs_config.options.options import SHIPPED_JOB_TYPES
from cs_config.source import diff, sections, yaml_writer
from cs_config.source.diff import ABSENT
from cs_config.source.sections import Tree, as_list
from cs_config.tree import address, admission, glue, parameters
from cs_config.tree.configuration import Configuration
from requirements.errors import Problem, format_count
from requirements.values import fold

ENABLED: Final = "Enabled"
#: Folded names of parameters and sections that restrict access.
_ACCESS: Final = admission.ACCESS | {"vos", "enabled", "requiredtag"}
#: Folded names of those that limit a rate or a number.
_AMOUNTS: Final = frozenset({"throttle", "runninglimit", "matchingdelay", "maxtotaljobs", "maxwaitingjobs"})
#: Options, folded, by which other systems restrict access and which our tree does not have.
_FOREIGN: Final = frozenset(
    {
        *("allowedvo", "allowedvos", "supportedvo", "supportedvos", "community", "communities"),
        *("bannedvo", "bannedvos", "banned", "allowedgroups", "bannedgroups", "bannedusers"),
        *("owner", "ownerdn", "ownergroup", "ownergroups", "jobtype", "jobtypes", "bannedjobtypes"),
        *("submitpool", "submitpools", "pilottype", "status", "sitestatus", "state", "maskstatus"),
    }
)
_STATES: Final = frozenset({"status", "sitestatus", "state", "maskstatus"})
_OPEN: Final = frozenset({"active", "production", "ok", "up", "online", "enabled", "allowed", "true", "yes"})
#: Options of operations that restrict jobs; an installation without them accepts more jobs.
_OF_OPERATIONS: Final = frozenset({"allowedjobtypes", "runninglimit", "matchingdelay"})


def is_restriction(name: str, checks: frozenset[str] = frozenset()) -> bool:
    """Whether a parameter or section of this name, or of a check (folded), restricts its node."""
    return keeps_out(name) or fold(name) in _AMOUNTS or fold(name) in checks


def keeps_out(name: str) -> bool:
    """Whether a parameter of this name decides which VOs or jobs are admitted."""
    return fold(name) in _ACCESS


def is_restriction_of_ad(name: str, checks: frozenset[str] = frozenset()) -> bool:
    """Whether an attribute of this name restricts the queue of a CE ad."""
    return is_restriction(name, checks) or names_vos(name) or fold(name) == fold(glue.RULES)


def is_foreign(name: str, value: object) -> bool:
    """Whether another system's option of this name may restrict access.

    Exceptions are a status that means "in operation", and a `JobType` that names types of job managers: here
    it means that a job manager serves the queue.
    """
    folded = fold(name)
    if folded not in _FOREIGN or isinstance(value, dict):
        return False
    if folded == "jobtype":
        return not {fold(str(each)) for each in as_list(value)} <= set(SHIPPED_JOB_TYPES)
    return folded not in _STATES or fold(str(value)) not in _OPEN


def states_none(name: str, value: object) -> bool:
    """Whether a parameter is a limit or size with a number that systems write where there is none."""
    zero = parameters.find_zero(fold(name))
    if zero is None or isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return (value == 0 and zero is parameters.Zero.STATES_NONE) or glue.is_placeholder(floor(value))


def names_vos(name: str) -> bool:
    """Whether another system's option of this name lists allowed or forbidden VOs or users."""
    folded = fold(name)
    return folded in _FOREIGN and folded.startswith(("allowed", "banned", "supported"))


def restricts_directly(section: object) -> bool:
    """Whether a section has a restriction of its own, not only in sections below."""
    return isinstance(section, Mapping) and any(
        is_restriction(name) or is_foreign(name, value) for name, value in section.items()
    )


def restricts(section: object) -> bool:
    """Whether a section has a restriction, or one below it."""
    below = section.values() if isinstance(section, Mapping) else ()
    return restricts_directly(section) or any(map(restricts, below))


def restricts_jobs(name: str, entry: object) -> bool:
    """Whether an entry of the operations, or one below it, keeps jobs out."""
    below = entry.items() if isinstance(entry, Mapping) else ()
    return fold(name) in _OF_OPERATIONS or any(restricts_jobs(each, inner) for each, inner in below)


def checks(section: object) -> frozenset[str]:
    """Folded names of all that `Checks` at and below a section lists."""
    found: set[str] = set()
    for name, entry in section.items() if isinstance(section, Mapping) else ():
        if isinstance(entry, Mapping):
            found |= checks(entry)
        elif fold(name) == admission.CHECKS:
            found |= {fold(str(each)) for each in as_list(entry)}
    return frozenset(found)


def node_of(names: Sequence[str]) -> tuple[str, ...] | None:
    """The path of the site, CE or queue, or of its VO section, that contains a path, if any."""
    depth = address.node_depth(names)
    if depth and len(names) >= depth + 2 and names[depth] == "VOs":
        depth += 2
    return tuple(names[:depth]) or None


def nodes(
    section: object, path: tuple[str, ...] = address.SITES, below: Sequence[str] = ("CEs", "Queues")
) -> Iterator[tuple[tuple[str, ...], dict[str, object]]]:
    """Every site, CE and queue below all sites, and every VO there, with its path."""
    for name, node in section.items() if isinstance(section, dict) else ():
        if not isinstance(node, dict):
            continue
        here = (*path, name)
        yield here, node
        if path[-1] != "VOs":
            yield from nodes(node.get("VOs"), (*here, "VOs"), ())
        if below:
            yield from nodes(node.get(below[0]), (*here, below[0]), below[1:])


def close(node: dict[str, object], under: object = None) -> None:
    """Disable a node of an import, also for VOs for which it, or the node `under` it, is enabled."""
    _switch_off(node)
    own = node.get("VOs")
    before = under.get("VOs") if isinstance(under, Mapping) else None
    enabled = [
        name
        for vos in (own, before)
        for name, settings in (vos.items() if isinstance(vos, Mapping) else ())
        if isinstance(settings, Mapping) and any(fold(each) == fold(ENABLED) for each in settings)
    ]
    for name in dict.fromkeys(enabled):
        vos = node.setdefault("VOs", {})
        below = vos.setdefault(name, {}) if isinstance(vos, dict) else None
        if isinstance(below, dict):
            _switch_off(below)


def _switch_off(node: dict[str, object]) -> None:
    for name in [name for name in node if fold(name) == fold(ENABLED)]:
        del node[name]
    node[ENABLED] = False


#: Group of the entry points of importers.
GROUP = "pilotage.formats"
#: Maximum validation passes: each removal may uncover other errors.
_ROUNDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedConfiguration:
    """A configuration with the import merged into it, and what could not be imported."""

    proposal: Proposal
    notes: tuple[Problem, ...]


def list_left_out(keys: Iterable[str], file: str) -> list[Problem]:
    """A note for each key of a file without an equivalent in our layout, with the number of its places."""
    return [
        Problem(path=f"{key:.100}", message=f"not carried over ({format_count(number, 'place')})", file=file)
        for key, number in sorted(Counter(keys).items())
    ]


def find_place(places: Mapping[str, tuple[str, int]], path: str) -> tuple[str, int] | None:
    """File and line of a value or section, else of the nearest section around it that has them."""
    while path and path not in places:
        path = path.rpartition("/")[0]
    return places.get(path)


def lists_vos(config: Configuration, place: address.QueueAddress) -> bool:
    """Whether the tree lists VOs at this queue itself, and not only above it."""
    parameter = config.levels[place][-1].plain.get("vo") if config.knows(place) else None
    return parameter is not None and parameter.value != ()


def note_closed(config: Configuration, place: address.QueueAddress) -> Iterator[Problem]:
    """A note on a queue that its source has open, and that is closed here and stays so.

    Someone may have closed it here by hand, such as to drain it, or an earlier import: only a source that has
    our option itself switches a queue on.
    """
    enabled = config.levels[place][-1].plain.get(fold(ENABLED)) if config.knows(place) else None
    if enabled is not None and enabled.value is False:
        path = f"{place.path}/{ENABLED}"
        message = f"stays false, although it is open there: pilotage config set --remove {path} opens it"
        yield Problem(path=path, message=message)


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


def keep_versions(section: dict[str, object]) -> None:
    """Replace versions that were read as numbers, here and below, by their shortest texts."""
    for name, entry in section.items():
        if isinstance(entry, dict):
            keep_versions(entry)
        elif parameters.is_version(fold(name)):
            section[name] = parameters.as_version(entry)


def merge_import(
    config: Configuration,
    tree: dict[str, object],
    notes: list[Problem],
    file: str,
    places: Mapping[str, tuple[str, int]] = MappingProxyType({}),
) -> ImportedConfiguration:
    """Merge a tree into the current configuration, without values that are not allowed.

    ABSENT in the tree removes a value. `places`: file and line of values and sections by path, where known.
    Raises ConfigError if the result is wrong for a reason that is not in the tree, or if the tree restricts
    jobs in a way that cannot be imported.
    """
    keep_versions(find_section(tree, address.SITES) or {})
    overlay = _Overlay(under=config.tree, tree=tree, notes=notes, file=file, places=places)
    overlay.drop_duplicates()
    for _ in range(_ROUNDS):
        whole = merge_trees(config.tree, tree)
        text = config.source
        if not diff.is_equal(whole, dict(config.tree)):
            text = yaml_writer.edit_text(config.source, config.tree, whole)
        found = validate.report(text, proposals.API, config.version, kept=config.kept_values)
        if found.configuration is not None:
            return ImportedConfiguration(proposal=proposals.propose_text(config, text), notes=tuple(notes))
        if not overlay.drop_invalid(found.errors):
            break
    raise ConfigError([overlay.locate(each) for each in found.errors])


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
        self.checks = checks(self.tree) | checks(self.under)

    def drop_duplicates(self) -> None:
        """Drop names that differ from another one beside them in case only: one of them is ineffective."""
        for path, section, name, first in list(_duplicates(self.tree, ())):
            if name not in section:  # closing the node for another name replaced `Enabled`
                continue
            removed = section.pop(name)
            message = f"not carried over: named twice, the other time as {first}; case makes no difference"
            problem = Problem(path="/".join((*path, name)), message=message)
            is_closed = self._lose((*path, first), removed, problem)
            node = node_of((*path, first))
            if node is not None and not is_closed and restricts(removed):
                self._close(node, problem.path)  # the first one stays, and would be open

    def drop_invalid(self, errors: Sequence[Problem]) -> bool:
        """Drop the values that errors point at; return whether there were any."""
        found = False
        for error in errors:
            names = error.path.split("/")
            if error.message == sections.MISSING:  # the rest of its section has no effect
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

    def locate(self, problem: Problem) -> Problem:
        """The problem with its place in the imported file, instead of that in the merged text."""
        file, line = find_place(self.places, problem.path) or (self.file, None)
        return replace(problem, file=file, line=line)

    def _forget_expression(self, path: tuple[str, ...]) -> None:
        """Drop the name of a removed value from the list of `Expressions` beside it."""
        beside = find_section(self.tree, path[:-1]) or {}
        if isinstance(listed := beside.get("Expressions"), list):
            left = [name for name in listed if fold(str(name)) != fold(path[-1])]
            beside["Expressions"] = left or ABSENT

    def _lose(self, names: tuple[str, ...], removed: object, problem: Problem) -> bool:
        """Record a dropped value and disable its node if the value restricts it: returns whether it did."""
        node = node_of(names)
        meant = problem.suggestion or ""
        problem = replace(self.locate(problem), suggestion=None)
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
        if names[-2] != "VOs" and not restricts_directly({names[-1]: removed}):
            return False
        around = node_of(names[:-2])
        if around is None:
            message = f"{problem.message}; it would restrict all of them: set it at each"
            raise ConfigError([replace(problem, message=message)])
        self._close(around, problem.path)
        return True

    def _is_restriction(self, names: tuple[str, ...], depth: int, removed: object, meant: str) -> bool:
        if len(names) == depth:  # a missing node is open to no VO; a VO's values are dropped with it
            return names[-2] == "VOs" and restricts_directly(removed)
        named = (*names[depth:], meant)
        return restricts_directly(removed) or any(is_restriction(each, self.checks) for each in named)

    def _close(self, names: tuple[str, ...], lost: str) -> None:
        node = find_section(self.tree, names)
        if node is not None:
            close(node, find_section(self.under, names))
            message = f"closed, {ENABLED}: false, because {lost} restricts it and is not carried over"
            self.notes.append(self.locate(Problem(path="/".join(names), message=message)))


def _restricts_jobs(names: tuple[str, ...], removed: object, meant: str, problem: Problem) -> bool:
    """Whether dropped options of the operations kept jobs out."""
    named = (*names[2:], meant)
    if restricts_jobs(names[-1], removed) or any(restricts_jobs(each, None) for each in named):
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
    path = tuple(name for _, name in above)
    for (around, emptied), depth in zip(above[-2::-1], range(len(path) - 1, 0, -1), strict=True):
        if around[emptied] or not _is_without_meaning(path[:depth]):
            break
        del around[emptied]
    return path, here


def _is_without_meaning(section: tuple[str, ...]) -> bool:
    """Whether a section that is empty states nothing: no site, CE, queue, VO, user or group."""
    is_of_node = section[:2] == address.SITES and node_of(section) not in (None, section)
    return section[0] == "Operations" or (is_of_node and section[-1] not in ("CEs", "Queues", "VOs"))

"""Reader of `Resources`: the levels of every queue, compatible platforms, problems."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from cs_config.options import place_limits
from cs_config.options.place_limits import MatchingDelay, RunningLimit
from cs_config.source import sections
from cs_config.source.sections import Leaf, LineOrigins, Section, as_list, model_section
from cs_config.tree import admission, node_attributes
from cs_config.tree.address import NAME, NAME_ALLOWED, QueueAddress
from cs_config.tree.inheritance import NODE_ATTRIBUTES, Level, Parameter, Settings
from cs_config.tree.parameters import ParameterReader
from cs_config.tree.throttle import Throttle
from requirements.errors import Problem, did_you_mean
from requirements.values import fold

LimitReader = Callable[[str, Mapping[str, object]], Iterable[RunningLimit | MatchingDelay]]
#: Sections about the nodes behind queues; also allowed for single VOs.
_OF_NODES = {
    NODE_ATTRIBUTES: node_attributes.read_attributes,
    node_attributes.FORWARDING: node_attributes.read_forwarding,
}
#: Sections of limits by kind of job, with their readers; delays and floors are of whole sites.
OF_LIMITS: Mapping[str, LimitReader] = {
    "RunningLimit": place_limits.read_limits_at,
    "MatchingDelay": place_limits.read_delays_at,
    "Floors": place_limits.read_floors_at,
}
#: The sections that each level may have, its children first.
BELOW = {
    "Site": ("CEs", "VOs", "Throttle", *OF_LIMITS, *_OF_NODES),
    "CE": ("Queues", "VOs", "Throttle", "RunningLimit", *_OF_NODES),
    "Queue": ("VOs", "Throttle", *_OF_NODES),
}
#: Sections that no parameter may be named like, by folded name.
_STRUCTURE = {fold(name): name for name in ("Sites", *chain.from_iterable(BELOW.values()))}


#: The settings of single VOs at nearly all nodes: none.
_NO_VOS: Mapping[str, Settings] = MappingProxyType({})


def read_resources(
    root: Section, file: str, *, text: str, origins: LineOrigins, declared: frozenset[str]
) -> "ResourceReader":
    """Read all sites of a text; folded names that the operations declare are never misspellings."""
    sites = root.section("Resources").section("Sites")
    checks = admission.DEFAULT_CHECKS.union(_checks(sites))
    parameters = ParameterReader(file=file, text=text, origins=origins, declared=declared, checks=checks)
    reader = ResourceReader(parameters=parameters)
    reader.read_sites(sites)
    return reader


def _checks(section: Section) -> Iterator[str]:
    for name, entry in section.entries.items():
        if isinstance(entry, Section):
            yield from _checks(entry)
        elif fold(name) == admission.CHECKS:
            yield from (fold(str(each)) for each in as_list(entry.value))


@dataclass(slots=True, kw_only=True)
class ResourceReader:
    """The valid part of the tree that was read."""

    parameters: ParameterReader  #: with the VOs and all problems
    #: The levels of each queue, from the site down.
    queues: dict[QueueAddress, tuple[Level, Level, Level]] = field(default_factory=dict)
    nodes: dict[str, Level] = field(default_factory=dict)  #: every site, CE and queue by its path
    #: Of sites, CEs and queues that have one, by `Site/CE/Queue`.
    throttles: dict[str, Throttle] = field(default_factory=dict)
    limits: list[RunningLimit | MatchingDelay] = field(default_factory=list)  #: by kind, of sites and CEs

    def read_sites(self, section: Section) -> None:
        """Read the section of all sites."""
        path = "Resources/Sites"
        for site, node in self._nodes(section, path, "site"):
            site_path = f"{path}/{site}"
            level = self._level(node, site_path, "Site", site)
            for ce, ce_node in self._nodes(node.entries.get("CEs"), f"{site_path}/CEs", "CE"):
                ce_path = f"{site_path}/CEs/{ce}"
                ce_level = self._level(ce_node, ce_path, "CE", f"{site}/{ce}")
                queues = ce_node.entries.get("Queues")
                for queue, queue_node in self._nodes(queues, f"{ce_path}/Queues", "queue"):
                    queue_path = f"{ce_path}/Queues/{queue}"
                    queue_level = self._level(queue_node, queue_path, "Queue", f"{site}/{ce}/{queue}")
                    address = QueueAddress(site=site, ce=ce, queue=queue)
                    self.queues[address] = (level, ce_level, queue_level)

    def _nodes(self, entry: Leaf | Section | None, path: str, kind: str) -> Iterator[tuple[str, Section]]:
        """The named sections of one kind; a name without content is an empty section."""
        if isinstance(entry, Leaf) and entry.value is not None:
            self.parameters.error(path, entry.line, f"a section of {kind} names is needed here")
        for name, below in entry.entries.items() if isinstance(entry, Section) else ():
            if not NAME.fullmatch(name):
                message = f"{name!r} is not a valid name of a {kind}, allowed are {NAME_ALLOWED}"
                self.parameters.error(f"{path}/{name}", below.line, message)
            elif isinstance(below, Section):
                yield name, below
            elif below.value is None:
                yield name, Section(below.line)
            else:
                message = f"{below.value!r} is a value, a {kind} is a section of parameters"
                self.parameters.error(f"{path}/{name}", below.line, message)

    def _level(self, node: Section, path: str, level: str, scope: str) -> Level:
        plain, by_vo = self._settings(node, path, level, BELOW[level]), _NO_VOS
        for name, entry in node.entries.items():
            if name == "VOs":
                by_vo = self._read_vos(entry, f"{path}/{name}", level)
            elif name == "Throttle":
                self._read_throttle(entry, f"{path}/{name}", scope)
            elif name in OF_LIMITS and name in BELOW[level]:
                self._read_limits(entry, path, scope, name)
        found = self.nodes[path] = Level(path=path, plain=plain, by_vo=by_vo)
        return found

    def _settings(self, section: Section, path: str, level: str, allowed: tuple[str, ...]) -> Settings:
        """The parameters of a node, or of a VO there, and then what it states about its nodes."""
        found: dict[str, Parameter | None] = {}
        # Values of VOs named like another section were parameters in 1.0: stored versions may have them.
        reserved = _STRUCTURE if level in BELOW else frozenset(map(fold, allowed))
        for name, entry in section.entries.items():
            if name in allowed:
                continue
            if isinstance(entry, Section) or fold(name) in reserved:
                self._refuse_level(name, entry.line, f"{path}/{name}", allowed)
            else:
                self.parameters.read(found, name, entry, path=path, level=level)
        for name, read in _OF_NODES.items():
            if (stated := section.entries.get(name)) is not None:
                read(found, stated, self.parameters, path=path, level=level)
        return found

    def _refuse_level(self, name: str, line: int, path: str, allowed: tuple[str, ...]) -> None:
        """Report a section that is unknown, misspelled or out of place."""
        message = f"unknown level, allowed here are {', '.join(allowed)}"
        right = _STRUCTURE.get(fold(name))
        if right is None:
            message += " and parameters with a value"
            self.parameters.error(path, line, message, did_you_mean(name, allowed))
        elif right in allowed:
            self.parameters.error(path, line, "unknown level", right)
        else:
            self.parameters.error(path, line, message)

    def _read_throttle(self, entry: Leaf | Section, path: str, scope: str) -> None:
        if isinstance(entry, Section):
            try:
                self.throttles[scope] = Throttle.model_validate(model_section(entry))
            except ValidationError as error:
                wrong = sections.list_problems(error, Throttle, entry, path=path, file=self.parameters.file)
                self.parameters.errors.extend(wrong)
        elif entry.value is not None:
            message = "a section is needed here: {Policy: level0, MaxSubmittingJobs: 5}"
            self.parameters.error(path, entry.line, message)

    def _read_limits(self, entry: Leaf | Section, path: str, scope: str, name: str) -> None:
        path = f"{path}/{name}"
        if isinstance(entry, Section):
            try:
                self.limits += list(OF_LIMITS[name](scope, model_section(entry)))
            except ValueError as error:
                self.parameters.error(path, entry.line, str(error))
        elif entry.value is not None:
            example = "{biomed: 200, atlas: 30%}" if name == "Floors" else "{JobType: {Merge: 50}}"
            self.parameters.error(path, entry.line, f"a section is needed here: {example}")

    def _read_vos(self, entry: Leaf | Section, path: str, level: str) -> Mapping[str, Settings]:
        by_vo: dict[str, Settings] = {}
        for vo, section in self._nodes(entry, path, "VO"):
            self.parameters.vos.add(fold(vo))
            of_vo = f"{level} VOs/{vo}"
            by_vo[fold(vo)] = self._settings(section, f"{path}/{vo}", of_vo, tuple(_OF_NODES))
        return by_vo or _NO_VOS


_PLATFORMS = "Resources/Computing/OSCompatibility"


def read_platforms(root: Section, file: str) -> tuple[dict[str, tuple[str, ...]], list[Problem]]:
    """The platforms that the nodes of each platform can run, and the problems of the section."""
    section = root.section("Resources").section("Computing").section("OSCompatibility")
    found: dict[str, tuple[str, ...]] = {}
    problems: list[Problem] = []
    for name, entry in section.entries.items():
        listed: list[Any] = [None] if isinstance(entry, Section) else as_list(entry.value)
        if all(isinstance(each, str) for each in listed):
            found[name] = tuple(listed)
        else:
            message = "a list of the platforms that its nodes can run is needed here: [one, two]"
            problems.append(Problem(path=f"{_PLATFORMS}/{name}", message=message, file=file, line=entry.line))
    return found, problems

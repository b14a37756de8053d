"""Reader of `Resources`: the levels of every queue, compatible platforms, problems."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
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
#: Sections of limits by kind of job, with their readers; delays are of whole sites.
_RUNNING_LIMIT: Mapping[str, LimitReader] = {"RunningLimit": place_limits.read_limits_at}
_OF_LIMITS: Mapping[str, LimitReader] = {**_RUNNING_LIMIT, "MatchingDelay": place_limits.read_delays_at}
#: The sections that each level may have, its children first.
BELOW = {
    "Site": ("CEs", "VOs", "Throttle", *_OF_LIMITS, *_OF_NODES),
    "CE": ("Queues", "VOs", "Throttle", *_RUNNING_LIMIT, *_OF_NODES),
    "Queue": ("VOs", "Throttle", *_OF_NODES),
}
_STRUCTURE = ("Sites", "CEs", "Queues", "VOs", "Throttle", *_OF_LIMITS, *_OF_NODES)
_STRUCTURE_FOLDED = {fold(name): name for name in _STRUCTURE}


#: The settings of single VOs at nearly all nodes: none.
_NO_VOS: Mapping[str, Settings] = MappingProxyType({})


def read_resources(
    root: Section, file: str, *, origins: LineOrigins, declared: frozenset[str]
) -> "ResourceReader":
    """Read all sites; folded names that the operations declare are never misspellings."""
    sites = root.section("Resources").section("Sites")
    checks = admission.DEFAULT_CHECKS.union(_checks(sites))
    parameters = ParameterReader(file=file, origins=origins, declared=declared, checks=checks)
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
            level = self._level(node, site_path, "Site")
            self._throttle(node, site_path, site)
            self._read_limits(node, site_path, site, _OF_LIMITS)
            for ce, ce_node in self._children(node, site_path, "CEs"):
                ce_path = f"{site_path}/CEs/{ce}"
                ce_level = self._level(ce_node, ce_path, "CE")
                self._throttle(ce_node, ce_path, f"{site}/{ce}")
                self._read_limits(ce_node, ce_path, f"{site}/{ce}", _RUNNING_LIMIT)
                for queue, queue_node in self._children(ce_node, ce_path, "Queues"):
                    queue_level = self._level(queue_node, f"{ce_path}/Queues/{queue}", "Queue")
                    address = QueueAddress(site=site, ce=ce, queue=queue)
                    self._throttle(queue_node, f"{ce_path}/Queues/{queue}", str(address))
                    self.queues[address] = (level, ce_level, queue_level)

    def _children(self, node: Section, path: str, name: str) -> Iterator[tuple[str, Section]]:
        entry = node.entries.get(name)
        kind = "CE" if name == "CEs" else "queue"
        if isinstance(entry, Section):
            yield from self._nodes(entry, f"{path}/{name}", kind)
        elif entry is not None and entry.value is not None:
            self.parameters.error(f"{path}/{name}", entry.line, f"a section of {kind} names is needed here")

    def _nodes(self, section: Section, path: str, kind: str) -> Iterator[tuple[str, Section]]:
        """The named sections of one kind; a name without content is an empty section."""
        for name, entry in section.entries.items():
            below = f"{path}/{name}"
            if not NAME.fullmatch(name):
                self.parameters.error(
                    below, entry.line, f"{name!r} is not a valid name of a {kind}, allowed are {NAME_ALLOWED}"
                )
            elif isinstance(entry, Section):
                yield name, entry
            elif entry.value is None:
                yield name, Section(entry.line)
            else:
                message = f"{entry.value!r} is a value, a {kind} is a section of parameters"
                self.parameters.error(below, entry.line, message)

    def _level(self, node: Section, path: str, level: str) -> Level:
        plain: dict[str, Parameter | None] = {}
        for name, entry in node.entries.items():
            if fold(name) in _STRUCTURE_FOLDED:
                self._structure(name, entry, path, level)
            elif isinstance(entry, Section):
                allowed = ", ".join(BELOW[level])
                message = f"unknown level, allowed here are {allowed} and parameters with a value"
                suggestion = did_you_mean(name, BELOW[level])
                self.parameters.error(f"{path}/{name}", entry.line, message, suggestion)
            else:
                self.parameters.read(plain, name, entry, path=path, level=level)
        self._read_node_sections(plain, node, path, level)
        found = Level(path=path, plain=plain, by_vo=self._read_vo_sections(node, path, level))
        self.nodes[path] = found
        return found

    def _read_node_sections(
        self, into: dict[str, Parameter | None], section: Section, path: str, level: str
    ) -> None:
        for name, read in _OF_NODES.items():
            if (entry := section.entries.get(name)) is not None:
                read(into, entry, self.parameters, path=path, level=level)

    def _throttle(self, node: Section, path: str, scope: str) -> None:
        entry = node.entries.get("Throttle")
        if isinstance(entry, Section):
            try:
                self.throttles[scope] = Throttle.model_validate(model_section(entry))
            except ValidationError as error:
                wrong = sections.list_problems(
                    error, Throttle, entry, path=f"{path}/Throttle", file=self.parameters.file
                )
                self.parameters.errors.extend(wrong)
        elif entry is not None and entry.value is not None:
            message = "a section is needed here: {Policy: level0, MaxSubmittingJobs: 5}"
            self.parameters.error(f"{path}/Throttle", entry.line, message)

    def _read_limits(self, node: Section, path: str, scope: str, readers: Mapping[str, LimitReader]) -> None:
        for name, read in readers.items():
            entry = node.entries.get(name)
            if isinstance(entry, Section):
                try:
                    found = list(read(scope, model_section(entry)))
                except ValueError as error:
                    self.parameters.error(f"{path}/{name}", entry.line, str(error))
                else:
                    self.limits += found
            elif entry is not None and entry.value is not None:
                message = "a section is needed here: {JobType: {Merge: 50}}"
                self.parameters.error(f"{path}/{name}", entry.line, message)

    def _read_vo_sections(self, node: Section, path: str, level: str) -> Mapping[str, Settings]:
        entry = node.entries.get("VOs")
        if entry is None:
            return _NO_VOS
        if isinstance(entry, Leaf):
            if entry.value is not None:
                self.parameters.error(f"{path}/VOs", entry.line, "a section of VO names is needed here")
            return {}
        by_vo: dict[str, Settings] = {}
        for vo, section in self._nodes(entry, f"{path}/VOs", "VO"):
            self.parameters.vos.add(fold(vo))
            by_vo[fold(vo)] = self._settings_of_vo(section, f"{path}/VOs/{vo}", f"{level} VOs/{vo}")
        return by_vo

    def _settings_of_vo(self, section: Section, path: str, level: str) -> Settings:
        settings: dict[str, Parameter | None] = {}
        for name, entry in section.entries.items():
            if name in _OF_NODES:
                continue
            if isinstance(entry, Section) or fold(name) in map(fold, _OF_NODES):
                message = f"unknown level, a VO has parameters, {' and '.join(_OF_NODES)} only"
                meant = did_you_mean(name, _OF_NODES)
                self.parameters.error(f"{path}/{name}", entry.line, message, meant)
            else:
                self.parameters.read(settings, name, entry, path=path, level=level)
        self._read_node_sections(settings, section, path, level)
        return settings

    def _structure(self, name: str, entry: Leaf | Section, path: str, level: str) -> None:
        """Check the name of a structural section: spelling and position."""
        right = _STRUCTURE_FOLDED[fold(name)]
        if right not in BELOW[level]:
            message = f"unknown level, allowed here are {', '.join(BELOW[level])}"
            self.parameters.error(f"{path}/{name}", entry.line, message)
        elif name != right:
            self.parameters.error(f"{path}/{name}", entry.line, "unknown level", right)


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

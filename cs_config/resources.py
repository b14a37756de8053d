"""Reading `Resources/Sites`: the levels of every queue, and all that is wrong with them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from cs_config import known_parameters
from cs_config.address import QueueAddress
from cs_config.levels import Level, Parameter, Settings
from cs_config.names import NAME, NAME_ALLOWED
from cs_config.sections import Leaf, Section
from requirements.errors import InvalidInput
from requirements.problem import Problem
from requirements.suggestion import did_you_mean
from requirements.values import Value, as_value, fold

#: The sections that each level may have, its children first.
_BELOW = {"Site": ("CEs", "VOs"), "CE": ("Queues", "VOs"), "Queue": ("VOs",)}
_STRUCTURE = ("Sites", "CEs", "Queues", "VOs")
_STRUCTURE_FOLDED = {fold(name): name for name in _STRUCTURE}


@dataclass(slots=True, kw_only=True)
class Resources:
    """What the tree says, as far as it is right."""

    queues: dict[QueueAddress, tuple[Level, Level, Level]] = field(default_factory=dict)
    vos: set[str] = field(default_factory=set)  #: named in VO lists and VOs sections, lower case
    errors: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)


def read(root: Section, file: str, *, declared: frozenset[str]) -> Resources:
    """All sites.

    Args:
        root: The whole text.
        file: Where it was read from.
        declared: Folded names that the operations declare: they are meant as they are spelled.
    """
    reader = _Reader(file=file, declared=declared, found=Resources())
    reader.sites(root.section("Resources").section("Sites"))
    return reader.found


@dataclass(slots=True, kw_only=True)
class _Reader:
    file: str
    declared: frozenset[str]
    found: Resources
    _warned: set[str] = field(default_factory=set)

    def sites(self, section: Section) -> None:
        path = "Resources/Sites"
        for site, node in self._nodes(section, path, "site"):
            site_path = f"{path}/{site}"
            level = self._level(node, site_path, "Site")
            for ce, ce_node in self._children(node, site_path, "CEs"):
                ce_path = f"{site_path}/CEs/{ce}"
                ce_level = self._level(ce_node, ce_path, "CE")
                for queue, queue_node in self._children(ce_node, ce_path, "Queues"):
                    queue_level = self._level(queue_node, f"{ce_path}/Queues/{queue}", "Queue")
                    address = QueueAddress(site=site, ce=ce, queue=queue)
                    self.found.queues[address] = (level, ce_level, queue_level)

    def _children(self, node: Section, path: str, name: str) -> Iterator[tuple[str, Section]]:
        entry = node.entries.get(name)
        kind = "CE" if name == "CEs" else "queue"
        if isinstance(entry, Section):
            yield from self._nodes(entry, f"{path}/{name}", kind)
        elif entry is not None and entry.value is not None:
            self._error(f"{path}/{name}", entry.line, f"a section of {kind} names is needed here")

    def _nodes(self, section: Section, path: str, kind: str) -> Iterator[tuple[str, Section]]:
        """The named sections of one kind; a name without anything is an empty section."""
        for name, entry in section.entries.items():
            below = f"{path}/{name}"
            if not NAME.fullmatch(name):
                self._error(below, entry.line, f"{name!r} is no name of a {kind}, allowed are {NAME_ALLOWED}")
            elif isinstance(entry, Section):
                yield name, entry
            elif entry.value is None:
                yield name, Section(entry.line)
            else:
                message = f"{entry.value!r} is a value, a {kind} is a section of parameters"
                self._error(below, entry.line, message)

    def _level(self, node: Section, path: str, level: str) -> Level:
        plain: dict[str, Parameter | None] = {}
        for name, entry in node.entries.items():
            folded = fold(name)
            if folded in _STRUCTURE_FOLDED:
                self._structure(name, entry, path, level)
            elif isinstance(entry, Section):
                self._unknown_section(name, entry, path, level)
            else:
                self._parameter(plain, name, folded, entry, path, level)
        return Level(path=path, plain=plain, by_vo=self._by_vo(node, path, level))

    def _by_vo(self, node: Section, path: str, level: str) -> Mapping[str, Settings]:
        entry = node.entries.get("VOs")
        if entry is None:
            return {}
        if isinstance(entry, Leaf):
            if entry.value is not None:
                self._error(f"{path}/VOs", entry.line, "a section of VO names is needed here")
            return {}
        by_vo: dict[str, Settings] = {}
        for vo, section in self._nodes(entry, f"{path}/VOs", "VO"):
            self.found.vos.add(fold(vo))
            by_vo[fold(vo)] = self._settings_of_vo(section, f"{path}/VOs/{vo}", f"{level} VOs/{vo}")
        return by_vo

    def _settings_of_vo(self, section: Section, path: str, level: str) -> Settings:
        settings: dict[str, Parameter | None] = {}
        for name, entry in section.entries.items():
            if isinstance(entry, Section):
                self._error(f"{path}/{name}", entry.line, "unknown level, a VO has parameters only")
            else:
                self._parameter(settings, name, fold(name), entry, path, level)
        return settings

    def _structure(self, name: str, entry: Leaf | Section, path: str, level: str) -> None:
        """A name of our own structure: rightly spelled, and at its place?"""
        right = _STRUCTURE_FOLDED[fold(name)]
        if right in _BELOW[level]:
            if name != right:
                self._error(f"{path}/{name}", entry.line, "unknown level", right)
            return
        allowed = ", ".join(_BELOW[level])
        self._error(f"{path}/{name}", entry.line, f"unknown level, allowed here are {allowed}")

    def _unknown_section(self, name: str, entry: Section, path: str, level: str) -> None:
        allowed = _BELOW[level]
        message = f"unknown level, allowed here are {', '.join(allowed)} and parameters with a value"
        self._error(f"{path}/{name}", entry.line, message, did_you_mean(name, allowed))

    def _parameter(
        self,
        settings: dict[str, Parameter | None],
        name: str,
        folded: str,
        entry: Leaf,
        path: str,
        level: str,
    ) -> None:
        below = f"{path}/{name}"
        if not name.strip() or name != name.strip() or "/" in name or not name.isprintable():
            self._error(below, entry.line, f"{name!r} is no name of a parameter")
            return
        self._check_name(name, folded, below, entry.line)
        if entry.value is None:
            settings[folded] = None
            return
        value = self._value(entry, below, folded)
        if value is None:
            return
        if folded == "vo":
            self._remember_vos(value)
        settings[folded] = Parameter(
            name=name, value=value, level=level, path=below, file=self.file, line=entry.line
        )

    def _value(self, entry: Leaf, path: str, folded: str) -> Value | None:
        raw = entry.value
        if isinstance(raw, list):
            try:
                value = as_value(raw, path)
            except InvalidInput as error:
                for problem in error.problems:
                    self._error(problem.path, entry.line, problem.message)
                return None
        else:
            assert raw is not None  # noqa: S101  (for the type checker: its callers look)
            value = raw
        if fault := known_parameters.fault(folded, value):
            self._error(path, entry.line, fault)
            return None
        return value

    def _check_name(self, name: str, folded: str, path: str, line: int) -> None:
        if known_parameters.is_known(folded) or folded in self.declared:
            return
        meant = known_parameters.meant(name)
        if meant is None:
            return
        suggestion, surely = meant
        if surely:
            self._error(path, line, "unknown parameter", suggestion)
        elif folded not in self._warned:
            self._warned.add(folded)
            message = "not a parameter that the system knows (kept as the site's own)"
            problem = Problem(path=path, message=message, suggestion=suggestion, file=self.file, line=line)
            self.found.warnings.append(problem)

    def _remember_vos(self, value: Value) -> None:
        names = value if isinstance(value, tuple) else (value,)
        self.found.vos.update(fold(str(name)) for name in names)

    def _error(self, path: str, line: int, message: str, suggestion: str | None = None) -> None:
        problem = Problem(path=path, message=message, suggestion=suggestion, file=self.file, line=line)
        self.found.errors.append(problem)

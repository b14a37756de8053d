"""Import of GLUE 2 from an LDAP server such as a BDII: computing shares become queues (LDIF).

What changes from minute to minute (numbers of jobs, states of endpoints) is left out: it is advertised, by
`ldif.read_counts`. Shares with one mapping queue at one CE are one queue; where they differ, the values are
those of their VOs.

Source: OGF GFD.147 (GLUE 2.0) and GFD.218 (its rendering in LDAP).
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from cs_config.errors import one_problem
from cs_config.formats import importers, ldif
from cs_config.formats.importers import ImportedConfiguration
from cs_config.formats.ldif import LdapEntry
from cs_config.source.diff import ABSENT
from cs_config.source.sections import Tree
from cs_config.tree import glue
from cs_config.tree.address import NAME
from cs_config.tree.configuration import Configuration
from requirements.errors import Problem
from requirements.values import fold

#: Attributes by which shares refer to entries, or entries to a share.
_ENDPOINT: Final = "GLUE2EndpointID"
_SERVICE: Final = "GLUE2ServiceID"
_ENVIRONMENT: Final = "GLUE2ResourceID"
_POLICY: Final = "GLUE2MappingPolicyShareForeignKey"
_GRID: Final = "LCG"
#: Types of CEs by words in `GLUE2EndpointInterfaceName`.
_CE_TYPES: Final = {
    "arcrest": "AREX",
    "gridftpjob": "ARC",
    "htcondorce": "HTCondorCE",
    "cream": "CREAM",
}
#: Number parameters of a share; the first that it has counts.
_NUMBERS: Final = {
    "CPUTime": ("MaxCPUTime",),  # s
    "maxWallClockTime": ("MaxWallTime",),  # s
    "MaxRAM": ("MaxMainMemory", "GuaranteedMainMemory"),  # MB
    "NumberOfProcessors": ("MaxSlotsPerJob",),
}
_TIMES: Final = frozenset({"CPUTime", "maxWallClockTime"})
#: Attributes of nodes, by the names of ours.
_OF_NODES: Final = {
    "Architecture": "Platform",
    "CPUModel": "CPUModel",
    "OSName": "OSName",
    "OSVersion": "OSVersion",
}
_OF_SERVICE: Final = ("GLUE2ShareServiceForeignKey", "GLUE2ComputingShareComputingServiceForeignKey")
#: Attributes of shares with the ids of their endpoints, and of their execution environments, folded.
_OF_ENDPOINTS: Final = ("glue2computingsharecomputingendpointforeignkey", "glue2shareendpointforeignkey")
_OF_ENVIRONMENTS: Final = (
    "glue2computingshareexecutionenvironmentforeignkey",
    "glue2shareresourceforeignkey",
)
_NAMES: Final = re.compile(r"^([\w-]+):", re.MULTILINE)
_DAY: Final = 86400  # s
_PLATFORMS: Final = {"amd64": "x86_64", "x86-64": "x86_64", "arm64": "aarch64"}
_UNSTATED: Final = frozenset({"", "undefined", "undefinedvalue", "unknown", "other"})
_VO_RULE: Final = re.compile(r"(?:vo:)?([A-Za-z0-9._-]+)", re.IGNORECASE)
_ALL: Final = fold("ALL")


def propose_glue2(
    config: Configuration, files: Mapping[str, str], *, site: str | None = None
) -> ImportedConfiguration:
    """Merge the computing shares into the current configuration.

    A CE that the tree has stays at its site; else `site`, else `LCG.` and the name of the admin domain.
    A share of none is left out.
    """
    notes: list[Problem] = []
    entries = [entry for file, text in files.items() for entry in ldif.read_ldif(text, file)]
    if not (shares := ldif.list_class(entries, "ComputingShare")):
        raise one_problem(", ".join(files), "it has no GLUE2ComputingShare")
    known = {fold(address.ce): address.site for address in config.addresses}
    index = _Index(entries)
    queues: defaultdict[tuple[str, str, str], list[LdapEntry]] = defaultdict(list)
    for share in shares:
        host = index.host(share)
        queue = ldif.read_first(share, "GLUE2ComputingShareMappingQueue") or index.name(share)
        place = known.get(fold(host)) or site or index.site(share)
        if host and all(NAME.fullmatch(each) for each in (place, host, queue)):
            queues[place, host, queue].append(share)
        else:
            message = "not carried over: it needs an endpoint with a host, a queue and an admin domain"
            notes.append(_note(f"share {index.name(share)!r:.80}", message, share))
    sites: dict[str, Any] = {}
    places: dict[str, tuple[str, int]] = {}
    for (place, host, queue), its in sorted(queues.items()):
        ce = sites.setdefault(place, {"CEs": {}})["CEs"].setdefault(host, {"Queues": {}})
        if kind := next((kind for each in its if (kind := index.ce_type(each))), None):
            ce["CEType"] = kind
        elif interfaces := sorted({name for each in its for name in index.list_interfaces(each)}):
            message = f"no CEType: its interfaces are of no known kind: {', '.join(interfaces):.200}"
            notes.append(_note(f"{place}/{host}/{queue}", message, its[0]))
        ce["Queues"][queue] = found = _read_queue(its, index, f"{place}/{host}/{queue}", notes)
        names = ("Resources", "Sites", place, "CEs", host, "Queues", queue)
        places["/".join(names)] = its[0].file, its[0].line
        notes += _list_hiding(importers.find_section(config.tree, (*names, "VOs")) or {}, found, names)
    files_read = ", ".join(files)
    spelled = {fold(name): name for text in files.values() for name in _NAMES.findall(text)}
    left_out = (spelled.get(name, name) for each in entries for name in _left_out(each))
    notes += importers.list_left_out(left_out, files_read)
    return importers.merge_import(config, {"Resources": {"Sites": sites}}, notes, files_read, places)


def _note(path: str, message: str, share: LdapEntry) -> Problem:
    """A note with the line where a share begins."""
    return Problem(path=path, message=message, file=share.file, line=share.line)


def _left_out(entry: LdapEntry) -> Iterator[str]:
    """Attributes that are not read, and those whose value states nothing."""
    unread = {name for name, _ in entry.list_unread()} - {"dn"}
    yield from unread
    for theirs in _NUMBERS.values():
        used = next((each for each in theirs if ldif.read_number(entry, each)), None)
        for name in (f"GLUE2ComputingShare{each}" for each in theirs if each != used):
            values = () if fold(name) in unread else entry.get(fold(name), ())
            yield from (f"{name} = {value:.60}" for value in values)
    for name in (f"GLUE2ExecutionEnvironment{each}" for each in _OF_NODES.values()):
        value = ldif.read_first(entry, name)
        if fold(name) in entry.keys() - unread and fold(value) in _UNSTATED:
            yield f"{name} = {value}"


def _read_queue(
    shares: Sequence[LdapEntry], index: "_Index", path: str, notes: list[Problem]
) -> dict[str, Any]:
    """The parameters of a queue, and those of VOs whose shares differ."""
    found: dict[str, Any] = {}
    if name := ldif.read_first(shares[0], "GLUE2ComputingShareMappingQueue"):
        found["BatchQueue"] = name
    by_vos: list[tuple[Sequence[str], Mapping[str, int]]] = []
    is_closed = False
    for share in shares:
        vos, others = index.vos(share)
        numbers = _read_numbers(share)
        by_vos.append((vos, in_seconds := _read_minutes(numbers)))
        for each in (each for each in numbers if numbers[each] != in_seconds[each]):
            message = f"{each}: {numbers[each]} is read as minutes, {in_seconds[each]} s"
            notes.append(_note(path, message, share))
        if others:
            notes.append(_note(path, glue.explain_others(others), share))
        is_closed = is_closed or glue.has_denial(others)
    found["VO"] = [] if is_closed else sorted({vo for vos, _ in by_vos for vo in vos})
    if not found["VO"] and not is_closed:
        notes.append(_note(path, "no policy names a VO: no VO is admitted, VO: []", shares[0]))
    _add_numbers(found, by_vos)
    for name, values in index.node_values(shares).items():
        if len(values) == 1:
            found[name] = values[0]
            found.setdefault("NodeAttributes", {})[name] = ABSENT
        else:
            found[name] = ABSENT
            found.setdefault("NodeAttributes", {})[name] = values
    return found


def _add_numbers(queue: dict[str, Any], by_vos: Sequence[tuple[Sequence[str], Mapping[str, int]]]) -> None:
    """Add numbers of shares: those of all, and where these differ, the smallest of each VO.

    Nothing is removed: a number that is there may be a limit that an administrator has set.
    """
    for name in _NUMBERS:
        stated = {numbers.get(name) for _, numbers in by_vos}
        if stated == {None}:
            continue
        if len(stated) == 1:
            queue[name] = stated.pop()
            continue
        for vos, numbers in by_vos:
            for vo in vos if name in numbers else ():
                own = queue.setdefault("VOs", {}).setdefault(vo, {})
                own[name] = min(own.get(name, numbers[name]), numbers[name])


def _list_hiding(vos: Tree, queue: Mapping[str, Any], names: Sequence[str]) -> Iterator[Problem]:
    """Notes on numbers of VOs in the configuration that hide those of the queue."""
    for vo, values in vos.items():
        for given, value in values.items() if isinstance(values, dict) else ():
            name = next((each for each in _NUMBERS if fold(each) == fold(given)), None)
            published = queue.get(name) if name else None
            if published is not None and value != published:
                message = (
                    f"stays {value}, although {published} is published for all VOs; remove it if it is old"
                )
                yield Problem(path="/".join((*names, "VOs", vo, given)), message=message)


def _read_numbers(share: LdapEntry) -> dict[str, int]:
    stated = {ours: [ldif.read_number(share, each) for each in theirs] for ours, theirs in _NUMBERS.items()}
    first = ((ours, next(filter(None, values), None)) for ours, values in stated.items())
    return {ours: value for ours, value in first if value is not None}


def _read_minutes(numbers: Mapping[str, int]) -> Mapping[str, int]:
    """The numbers of a share with times in seconds: some information providers publish minutes.

    Minutes are whole half days, such as 2880, if that is no whole number of hours in seconds. One time that
    looks so tells the unit of the other, too, as far as it is below half a day in seconds.
    """
    times = {name: value for name, value in numbers.items() if name in _TIMES and value < _DAY // 2}
    if not any(value % (_DAY // 2 // 60) == 0 and value % 3600 for value in times.values()):
        return numbers
    return {**numbers, **{name: value * 60 for name, value in times.items()}}


class _Index:
    """Entries by the attribute by which they and shares refer to each other, domain and value."""

    def __init__(self, entries: Sequence[LdapEntry]) -> None:
        endpoints = ldif.list_class(entries, "ComputingEndpoint") or ldif.list_class(entries, "Endpoint")
        services = ldif.list_class(entries, "ComputingService") or ldif.list_class(entries, "Service")
        self._entries: defaultdict[tuple[str, str, str], list[LdapEntry]] = defaultdict(list)
        for name, of_class in (
            (_ENDPOINT, endpoints),
            (_SERVICE, services),
            (_ENVIRONMENT, ldif.list_class(entries, "ExecutionEnvironment")),
            (_POLICY, ldif.list_class(entries, "MappingPolicy")),
        ):
            for entry in of_class:
                for read, values in entry.items():
                    if read == fold(name):
                        self._entries[name, self.domain(entry), values[0]].append(entry)

    def _referred(self, name: str, share: LdapEntry, key: str) -> Sequence[LdapEntry]:
        """The entries of the share's domain, and those of no domain, with this id under a name.

        Two domains may use the same id.
        """
        found = [each for of in (self.domain(share), "") for each in self._entries.get((name, of, key), ())]
        for each in found:
            each.get(fold(name))  # only now it is read
        return found

    def name(self, share: LdapEntry) -> str:
        return ldif.read_first(share, "GLUE2ShareID")

    @staticmethod
    def domain(entry: LdapEntry) -> str:
        """The admin domain in the distinguished name."""
        found = re.search(r"(?:^|,)\s*GLUE2DomainID=([^,]+)", ldif.read_first(entry, "dn"), re.IGNORECASE)
        return found[1].strip() if found else ""

    def site(self, share: LdapEntry) -> str:
        """Called after its admin domain, else that of its service: a CE publishes itself below none."""
        stated = next((each for each in self._domains(share) if fold(each) not in _UNSTATED), "")
        return stated and f"{_GRID}.{stated}"

    def _domains(self, share: LdapEntry) -> Iterator[str]:
        yield self.domain(share)
        for name in _OF_SERVICE:
            for service in self._referred(_SERVICE, share, ldif.read_first(share, name)):
                yield ldif.read_first(service, "GLUE2ServiceAdminDomainForeignKey").rpartition(":")[2]

    def _endpoints_of(self, share: LdapEntry) -> Iterator[LdapEntry]:
        keys = (key for name in _OF_ENDPOINTS for key in share.get(name, ()))
        return (each for key in keys for each in self._referred(_ENDPOINT, share, key))

    def host(self, share: LdapEntry) -> str:
        """The host of its first endpoint, else the one that its service is named after."""
        for each in self._endpoints_of(share):
            try:
                if host := urlsplit(ldif.read_first(each, "GLUE2EndpointURL")).hostname:
                    return host
            except ValueError:
                continue
        service = ldif.read_first(share, "GLUE2ShareServiceForeignKey").partition("_")[0]
        return service.lower() if "." in service else ""

    def list_interfaces(self, share: LdapEntry) -> list[str]:
        """The interfaces of its endpoints."""
        stated = (ldif.read_first(each, "GLUE2EndpointInterfaceName") for each in self._endpoints_of(share))
        return list(filter(None, stated))

    def ce_type(self, share: LdapEntry) -> str | None:
        """The kind of its CE; None: no interface says it."""
        names = [*map(fold, self.list_interfaces(share))]
        return next((kind for word, kind in _CE_TYPES.items() if any(word in each for each in names)), None)

    def vos(self, share: LdapEntry) -> tuple[list[str], list[str]]:
        """The VOs that its policies admit, and the rules that name no VO."""
        vos: dict[str, None] = {}
        others: list[str] = []
        for policy in self._referred(_POLICY, share, self.name(share)):
            for rule in policy.get("glue2policyrule", ()):
                found = _VO_RULE.fullmatch(rule)
                if found is None or fold(found[1]) == _ALL or glue.has_denial([rule]):
                    others.append(rule)
                else:
                    vos[found[1].lower()] = None
        return list(vos), others

    def node_values(self, shares: Iterable[LdapEntry]) -> dict[str, list[str]]:
        """The values of node attributes in the execution environments of these shares."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for share in shares:
            for key in (key for name in _OF_ENVIRONMENTS for key in share.get(name, ())):
                for node in self._referred(_ENVIRONMENT, share, key):
                    for ours, theirs in _OF_NODES.items():
                        value = ldif.read_first(node, f"GLUE2ExecutionEnvironment{theirs}")
                        if fold(value) not in _UNSTATED:
                            platform = _PLATFORMS.get(fold(value), value)
                            found[ours].add(platform if ours == "Architecture" else value)
        return {name: sorted(values) for name, values in found.items()}

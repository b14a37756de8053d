"""Downtimes as feeds of other systems state them: GOCDB's XML, and XML or YAML of OSG's topology.

Sources: `get_downtime` and `get_downtime_nested_services` of GOCDB's programmatic interface; `rgdowntime` and
the files `*_downtime.yaml` of OSG's topology, which name resources in place of hosts.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeAlias
from xml.etree import ElementTree as Xml

import yaml

from cs_config.errors import one_problem

#: Collections of YAML inside one another; a feed has three.
_DEEPEST: Final = 10
#: Bytes before an XML document: white space and byte order marks.
_BEFORE_XML: Final = b" \r\n\t\xef\xbb\xbf\xff\xfe\0"
OUTAGE: Final = "OUTAGE"
WARNING: Final = "WARNING"
#: Severities of OSG's topology with which nothing, or nearly nothing, works.
_OUTAGES: Final = frozenset({"outage", "severe"})
#: Such as `Oct 18, 2018 13:00 PM UTC` and `Mar 20, 2026 13:00 +0000`: the hour counts to 24 in both.
_TIME: Final = re.compile(
    r"(\w{3}) +(\d{1,2}), +(\d{4}) +(\d{1,2}:\d\d)(?::\d\d)?(?: *[AP]M)?(?: *(UTC|GMT|[+-]\d\d:?\d\d))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedEntry:
    """A downtime of one service."""

    source_id: str
    host: str  #: or the name of the resource
    service: str  #: its type
    begins: datetime
    ends: datetime
    severity: str  #: OUTAGE or WARNING
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DowntimeFeed:
    """A feed."""

    source: str  #: `gocdb` or `osg`
    entries: tuple[FeedEntry, ...]
    unreadable: Mapping[str, str]  #: ids of entries that cannot be read, and why


#: An entry's id, and what reads the downtimes of its services; ValueError: it cannot be read.
_Found: TypeAlias = tuple[str, Callable[[str], Iterator[FeedEntry]]]


def read_feed(content: bytes, file: str) -> DowntimeFeed:
    """The downtimes of a feed, in the encoding that it declares.

    ConfigError if it is none, or has anything unknown around its entries, as the answer to another question
    has: a feed states all that is planned, so what is missing there counts as cancelled.
    """
    if not content.lstrip(_BEFORE_XML).startswith(b"<"):
        return _collect(file, "osg", _list_yaml(content, file))
    try:
        root = Xml.fromstring(content.lstrip())  # noqa: S314  (expat bounds entities)
    except (Xml.ParseError, LookupError, ValueError) as error:  # the latter two: of encodings
        raise one_problem(file, f"not XML: {error}") from error
    if root.tag in ("results", "ROOT"):  # of today, and of GOCDB's first release
        return _collect(file, "gocdb", _list_gocdb(root, file))
    if root.tag == "Downtimes":
        return _collect(file, "osg", _list_osg_xml(root, file))
    raise one_problem(file, f"<{root.tag}>: neither downtimes of GOCDB nor of OSG's topology")


def _collect(file: str, source: str, found: Iterable[_Found]) -> DowntimeFeed:
    entries: list[FeedEntry] = []
    unreadable: dict[str, str] = {}
    for key, read in found:
        if not key:
            raise one_problem(file, "an entry without an id, by which its former statement would be found")
        try:
            entries += list(read(key))
        except ValueError as error:
            unreadable[key] = str(error)
    return DowntimeFeed(source=source, entries=tuple(entries), unreadable=unreadable)


def _list_gocdb(root: Xml.Element, file: str) -> Iterator[_Found]:
    for element in _list_known(root, ("DOWNTIME", "meta"), file):
        if element.tag == "DOWNTIME":
            yield element.get("PRIMARY_KEY") or element.get("ID") or "", partial(_read_gocdb, element)
        elif _has_more(element):
            raise one_problem(file, "a page of a longer feed: the rest would count as cancelled")


def _has_more(meta: Xml.Element) -> bool:
    """Whether GOCDB has further pages; the last one may have a link to an empty one, and is not full."""
    numbers = [_text(meta, name) for name in ("count", "max_page_size")]
    is_full = not all(map(str.isdecimal, numbers)) or int(numbers[0]) >= int(numbers[1])
    return is_full and any(link.get("rel") == "next" for link in meta.iter("link"))


def _list_osg_xml(root: Xml.Element, file: str) -> Iterator[_Found]:
    for part in _list_known(root, ("PastDowntimes", "CurrentDowntimes", "FutureDowntimes"), file):
        for element in _list_known(part, ("Downtime",), file):
            yield _text(element, "ID"), partial(_read_osg_xml, element)


def _list_known(parent: Xml.Element, names: Collection[str], file: str) -> Iterator[Xml.Element]:
    """The elements of one that has no others than these, and no text; ConfigError."""
    for element in parent:
        if element.tag not in names:
            unknown = f"<{element.tag}> in <{parent.tag}>"
            raise one_problem(
                file, f"{unknown:.200}: no feed of downtimes, which has {', '.join(names)} there"
            )
    if text := "".join([parent.text or "", *(each.tail or "" for each in parent)]).strip():
        raise one_problem(file, f"{text!r:.100} in <{parent.tag}>: no feed of downtimes")
    yield from parent


def _read_gocdb(element: Xml.Element, key: str) -> Iterator[FeedEntry]:
    for service in element.findall("SERVICES/SERVICE") or [element]:
        if not (host := _text(service, "HOSTNAME")):
            raise ValueError("it names no host, as those of a whole site: plan it by hand")
        yield FeedEntry(
            source_id=key,
            host=host,
            service=_require("SERVICE_TYPE", _text(service, "SERVICE_TYPE")),
            begins=_read_seconds("START_DATE", _text(element, "START_DATE")),
            ends=_read_seconds("END_DATE", _text(element, "END_DATE")),
            severity=_read_severity(_text(element, "SEVERITY")),
            reason=_text(element, "DESCRIPTION"),
        )


def _read_severity(text: str) -> str:
    severity = text.upper()
    if severity not in (OUTAGE, WARNING):
        raise ValueError(f"SEVERITY: {text!r:.100} is neither {OUTAGE} nor {WARNING}")
    return severity


def _read_seconds(name: str, text: str) -> datetime:
    try:
        return datetime.fromtimestamp(int(text), UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise ValueError(f"{name}: {text!r:.100} is no time in seconds since 1970") from error


def _read_osg_xml(element: Xml.Element, key: str) -> Iterator[FeedEntry]:
    host = _text(element, "ResourceFQDN") or _text(element, "ResourceName")
    fields = {name: _text(element, name) for name in ("StartTime", "EndTime", "Severity", "Description")}
    services = [(each.text or "").strip() for each in element.iterfind("Services/Service/Name")]
    return _read_osg(key, fields, host, services)


def _list_yaml(content: bytes, file: str) -> Iterator[_Found]:
    try:
        _check_yaml(content)
        stated = yaml.load(content, Loader=yaml.CBaseLoader)  # noqa: S506  (all values are texts)
    except yaml.YAMLError as error:
        raise one_problem(file, f"neither XML nor YAML: {error}") from error
    if not isinstance(stated, list):
        of_cric = (
            "; CRIC's JSON names no hosts: import what GOCDB and OSG state" if content[:1] == b"{" else ""
        )
        raise one_problem(file, f"no list of downtimes{of_cric}")
    for each in stated:
        if not isinstance(each, dict):
            raise one_problem(file, f"{each!r:.100} is no downtime")
        yield str(each.get("ID") or ""), partial(_read_osg_yaml, each)


def _check_yaml(content: bytes) -> None:
    """Refuse aliases, by which a short text states a long one, and depths that no feed has."""
    depth = 0
    for event in yaml.parse(content, Loader=yaml.CBaseLoader):
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError(f"an alias, which no feed has, {event.start_mark}")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise yaml.YAMLError(f"more than {_DEEPEST} levels {event.start_mark}")


def _read_osg_yaml(stated: Mapping[str, Any], key: str) -> Iterator[FeedEntry]:
    services = stated.get("Services")
    return _read_osg(
        key, stated, str(stated.get("ResourceName") or ""), services if isinstance(services, list) else []
    )


def _read_osg(
    key: str, stated: Mapping[str, Any], host: str, services: Collection[object]
) -> Iterator[FeedEntry]:
    if not services:
        raise ValueError("it names no service")
    severity = _require("Severity", str(stated.get("Severity") or "").strip())
    for service in services:
        yield FeedEntry(
            source_id=key,
            host=_require("ResourceName", host),
            service=str(service),
            begins=_read_time("StartTime", str(stated.get("StartTime") or "")),
            ends=_read_time("EndTime", str(stated.get("EndTime") or "")),
            severity=OUTAGE if severity.lower() in _OUTAGES else WARNING,
            reason=str(stated.get("Description") or "").strip(),
        )


def _read_time(name: str, text: str) -> datetime:
    """A time; without a zone it is UTC, as OSG's own programs read it."""
    problem = f"{name}: {text!r:.100} is no time such as 'Mar 20, 2026 13:00 +0000'"
    found = _TIME.fullmatch(text.strip())
    if found is None:
        raise ValueError(problem)
    month, day, year, time, zone = found.groups()
    zone = "+0000" if zone in ("UTC", "GMT", None) else zone
    try:
        return datetime.strptime(f"{month} {day} {year} {time} {zone}", "%b %d %Y %H:%M %z")
    except ValueError as error:
        raise ValueError(problem) from error


def _require(name: str, value: str) -> str:
    if not value:
        raise ValueError(f"it has no {name}")
    return value


def _text(element: Xml.Element, name: str) -> str:
    return (element.findtext(name) or "").strip()

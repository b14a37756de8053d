"""Downtimes as feeds of other systems state them: GOCDB's XML, and XML or YAML of OSG's topology.

Sources: `get_downtime` and `get_downtime_nested_services` of GOCDB's programmatic interface; `rgdowntime` and
the files `*_downtime.yaml` of OSG's topology, which name resources in place of hosts.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from xml.etree import ElementTree as Xml

import yaml

from cs_config.errors import one_problem

#: Collections of YAML inside one another; a feed has three.
_DEEPEST: Final = 10
OUTAGE: Final = "OUTAGE"
WARNING: Final = "WARNING"
#: Severities of OSG's topology with which nothing, or nearly nothing, works.
_OUTAGES: Final = frozenset({"outage", "severe"})
#: Such as `Oct 18, 2018 13:00 PM UTC` and `Mar 20, 2026 13:00 +0000`: the hour counts to 24 in both.
_TIME: Final = re.compile(
    r"(\w{3}) +(\d{1,2}), +(\d{4}) +(\d{1,2}:\d\d)(?::\d\d)?(?: *[AP]M)? *(UTC|GMT|[+-]\d\d:?\d\d)", re.ASCII
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
    notes: tuple[str, ...]  #: entries that cannot be read


def read_feed(text: str, file: str) -> DowntimeFeed:
    """The downtimes of a feed; ConfigError if it is none."""
    if not text.lstrip("\ufeff \r\n\t").startswith("<"):
        return _collect("osg", _list_yaml(text, file))
    try:
        root = Xml.fromstring(text.strip("\ufeff \r\n\t"))  # noqa: S314  (expat bounds entities)
    except Xml.ParseError as error:
        raise one_problem(file, f"not XML: {error}") from error
    if root.tag in ("results", "ROOT"):  # of today, and of GOCDB's first release
        return _collect("gocdb", ((each, _read_gocdb) for each in root.iter("DOWNTIME")))
    if root.tag == "Downtimes":
        return _collect("osg", ((each, _read_osg_xml) for each in root.iter("Downtime")))
    raise one_problem(file, f"<{root.tag}>: neither downtimes of GOCDB nor of OSG's topology")


def _collect(source: str, found: Any) -> DowntimeFeed:
    entries: list[FeedEntry] = []
    notes: list[str] = []
    for element, read in found:
        try:
            entries += read(element)
        except (KeyError, TypeError, ValueError, OverflowError, OSError) as error:  # OSError: of times
            notes.append(f"an entry cannot be read: {error}")
    return DowntimeFeed(source=source, entries=tuple(entries), notes=tuple(notes))


def _read_gocdb(element: Xml.Element) -> Iterator[FeedEntry]:
    key = element.get("PRIMARY_KEY") or element.get("ID") or ""
    for service in element.findall("SERVICES/SERVICE") or [element]:
        if not (host := _text(service, "HOSTNAME")):
            raise ValueError(f"{key}: it names no host, as those of a whole site: plan it by hand")
        yield FeedEntry(
            source_id=key,
            host=host,
            service=_text(service, "SERVICE_TYPE"),
            begins=datetime.fromtimestamp(int(_text(element, "START_DATE")), UTC),
            ends=datetime.fromtimestamp(int(_text(element, "END_DATE")), UTC),
            severity=OUTAGE if _text(element, "SEVERITY").upper() == OUTAGE else WARNING,
            reason=_text(element, "DESCRIPTION"),
        )


def _read_osg_xml(element: Xml.Element) -> Iterator[FeedEntry]:
    host = _text(element, "ResourceFQDN") or _text(element, "ResourceName")
    fields = {
        name: _text(element, name) for name in ("ID", "StartTime", "EndTime", "Severity", "Description")
    }
    for service in element.iterfind("Services/Service/Name"):
        yield _read_osg(fields, host, (service.text or "").strip())


def _list_yaml(text: str, file: str) -> Iterator[Any]:
    try:
        _check_yaml(text)
        stated = yaml.load(text, Loader=yaml.CBaseLoader)  # noqa: S506  (all values are texts)
    except yaml.YAMLError as error:
        raise one_problem(file, f"neither XML nor YAML: {error}") from error
    if not isinstance(stated, list):
        of_cric = "; CRIC's JSON names no hosts: import what GOCDB and OSG state" if text[:1] == "{" else ""
        raise one_problem(file, f"no list of downtimes{of_cric}")
    return ((each, _read_osg_yaml) for each in stated)


def _check_yaml(text: str) -> None:
    """Refuse aliases, by which a short text states a long one, and depths that no feed has."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CBaseLoader):
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError(f"an alias, which no feed has, {event.start_mark}")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise yaml.YAMLError(f"more than {_DEEPEST} levels {event.start_mark}")


def _read_osg_yaml(stated: Mapping[str, Any]) -> Iterator[FeedEntry]:
    for service in stated["Services"]:
        yield _read_osg(stated, str(stated["ResourceName"]), str(service))


def _read_osg(stated: Mapping[str, Any], host: str, service: str) -> FeedEntry:
    return FeedEntry(
        source_id=str(stated["ID"]),
        host=host,
        service=service,
        begins=_read_time(str(stated["StartTime"])),
        ends=_read_time(str(stated["EndTime"])),
        severity=OUTAGE if str(stated["Severity"]).strip().lower() in _OUTAGES else WARNING,
        reason=str(stated.get("Description") or "").strip(),
    )


def _read_time(text: str) -> datetime:
    found = _TIME.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r:.100} is no time")
    month, day, year, time, zone = found.groups()
    zone = "+0000" if zone in ("UTC", "GMT") else zone
    return datetime.strptime(f"{month} {day} {year} {time} {zone}", "%b %d %Y %H:%M %z")


def _text(element: Xml.Element, name: str) -> str:
    return (element.findtext(name) or "").strip()

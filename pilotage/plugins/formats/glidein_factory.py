"""Import of the entries of a glidein factory, from its XML or from the YAML that the XML is generated from.

An entry becomes a queue of its name, behind the CE that its gatekeeper names, at `OSG.<Site>.<country>`. A
text that is in our form already, as the grid of the examples, is imported unchanged. An entry with a
restriction that our tree cannot represent is disabled.

Source: glideinWMS (`<entry>` elements), the OSG's YAML (site, gatekeeper, entry).
"""

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from xml.etree import ElementTree as Xml

from cs_config.errors import ConfigError, one_problem
from cs_config.formats import importers
from cs_config.formats.importers import ImportedConfiguration
from cs_config.source import yaml_reader
from cs_config.source.sections import to_plain
from cs_config.source.yaml_reader import EventReader
from cs_config.tree import parameters
from cs_config.tree.address import NAME, QueueAddress
from cs_config.tree.configuration import Configuration
from requirements.errors import Problem
from requirements.values import Scalar, fold

_HOST: Final = re.compile(r"(?:\w+://)?([^:/\s]+)")
#: The end of a gatekeeper, `ce.example.org ce.example.org:9619` or `https://ce.example.org:443/arex`.
_ENDPOINT: Final = re.compile(r"(?:^|[\s/])([\w.-]+:(\d+))(?:/\S*)?\s*$")
#: Ports that need not be named.
_USUAL_PORTS: Final = ("9619", "443")
_RSL_QUEUE: Final = re.compile(r"\(\s*queue\s*=\s*([^()\s]+)\s*\)")
#: The section with the attributes of an entry.
_ATTRIBUTES: Final = "attrs"
#: The attribute that lists the allowed VOs.
_VOS: Final = "GLIDEIN_Supported_VOs"


@dataclass(frozen=True, slots=True, kw_only=True)
class FactoryEntry:
    """An entry of a factory: a batch queue to which it submits glideins."""

    name: str
    site: str = ""  #: default, if no attribute names another
    host: str = ""  #: host of its gatekeeper
    endpoint: str = ""  #: host and port, where the port is not the usual one
    grid_type: str = ""
    enabled: str = "True"  #: as written
    queue: str = ""  #: of the batch system
    attributes: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)  #: `glideins` in total, and those `idle`
    unread: tuple[str, ...] = ()  #: possible restrictions that cannot be read, each with its value

    def attribute(self, name: str) -> str:
        """The value of an attribute, whose name is compared without case; empty if missing."""
        return next((value for each, value in self.attributes.items() if fold(each) == fold(name)), "")


def read_entries(text: str, file: str) -> list[FactoryEntry]:
    """The entries of a text; ConfigError if it has none."""
    entries = list(_read_xml(text, file) if text.lstrip().startswith("<") else _read_yaml(text, file))
    if not entries:
        raise one_problem(file, "no entries: not a configuration of a glidein factory")
    return entries


def _read_xml(text: str, file: str) -> Iterator[FactoryEntry]:
    try:
        root = Xml.fromstring(text)  # noqa: S314  (an operator's own file; expat bounds entities)
    except Xml.ParseError as error:
        raise one_problem(file, f"not XML: {error}") from error
    for element in root.iter("entry"):
        host = _HOST.match(element.get("gatekeeper", ""))
        queue = _RSL_QUEUE.search(element.get("rsl", ""))
        most = element.find("config/max_jobs/per_entry")
        attributes = [
            (each.get("name", ""), each.get("value", "").strip()) for each in element.findall("attrs/attr")
        ]
        frontends = [each.get("name", "") for each in element.iter("allow_frontend")]
        yield FactoryEntry(
            name=element.get("name", ""),
            host=host.group(1) if host else "",
            endpoint=_unusual_endpoint(element.get("gatekeeper", "")),
            grid_type=element.get("gridtype", ""),
            enabled=element.get("enabled", "True"),
            queue=queue.group(1) if queue else "",
            attributes=dict(attributes),
            limits={} if most is None else most.attrib,
            unread=(
                *(f"allow_frontend {name}" for name in frontends),
                *_ambiguous_attributes(attributes),
                *(
                    f"{each.get('name')} is an expression"
                    for each in element.findall("attrs/attr")
                    if each.get("type") == "expr" and fold(each.get("name", "")) == fold(_VOS)
                ),
            ),
        )


def _unusual_endpoint(gatekeeper: str) -> str:
    found = _ENDPOINT.search(gatekeeper)
    return found[1] if found is not None and found[2] not in _USUAL_PORTS else ""


def _read_yaml(text: str, file: str) -> Iterator[FactoryEntry]:
    for site, gatekeepers in _sections(read_tree(text, file)):
        for host, entries in _sections(gatekeepers):
            for name, entry in _sections(entries):
                yield _entry(site, host, name, entry)


class _FactoryReader(EventReader):
    """Keeps the words of attributes and versions that YAML reads as real numbers: 9.10 would be 9.1."""

    def resolve_scalar(self, event: Any) -> Scalar | None:
        """The value of a scalar, or the text of a real number that is meant as one."""
        value, names = super().resolve_scalar(event), self.path.split("/")
        is_text = _ATTRIBUTES in names or parameters.is_version(fold(names[-1]))
        return str(event.value) if isinstance(value, float) and is_text else value


def read_tree(text: str, file: str) -> dict[str, object]:
    """The tree of a text in YAML, or ConfigError."""
    reading = yaml_reader.read_yaml(text, file, _FactoryReader)
    if reading.problems:
        raise ConfigError(tuple(reading.problems))
    tree = to_plain(reading.root)
    return tree if isinstance(tree, dict) else {}


def _entry(site: str, host: str, name: str, entry: Mapping[str, object]) -> FactoryEntry:
    attributes = entry.get(_ATTRIBUTES) or {}
    submit = entry.get("submit_attrs")
    queue = submit.get("+queue", "") if isinstance(submit, dict) else ""
    limits = dict(_sections(entry.get("limits"))).get("entry", {})
    known = attributes.items() if isinstance(attributes, dict) else ()
    frontends = entry.get("allow_frontends")
    return FactoryEntry(
        name=name,
        site=site,
        host=host,
        grid_type=str(entry.get("gridtype") or ""),
        enabled=str(entry.get("enabled", True)),
        queue=html.unescape(str(queue or "")).strip('"'),
        attributes={each: _text(_value(about)) for each, about in known if about is not None},
        limits={each: _text(number) for each, number in limits.items()},
        unread=(
            *((f"allow_frontends {frontends!r:.60}",) if frontends else ()),
            *(() if isinstance(attributes, dict) else (f"attrs {attributes!r:.60}",)),
        ),
    )


def _value(about: object) -> object:
    """The value of an attribute, from its section or plain; a list becomes comma-separated."""
    value = about.get("value") if isinstance(about, dict) else about
    return ",".join(map(_text, value)) if isinstance(value, list) else value


def _ambiguous_attributes(attributes: Sequence[tuple[str, str]]) -> Iterator[str]:
    first: dict[str, str] = {}
    for name, value in attributes:
        if first.setdefault(fold(name), value) != value:
            yield f"{name} has two values"


def _sections(entry: object) -> Iterator[tuple[str, dict[str, object]]]:
    for name, below in entry.items() if isinstance(entry, dict) else ():
        if isinstance(below, dict):
            yield name, below


def _text(value: object) -> str:
    return "" if value is None else str(value).strip()


_GRID: Final = "OSG"
#: Types of CEs by `gridtype`.
_CE_TYPES: Final = {"condor": "HTCondorCE", "arc": "AREX", "nordugrid": "ARC", "cream": "CREAM"}
#: Attributes that correspond to a numeric parameter.
_NUMBERS: Final = {
    "GLIDEIN_CPUS": "NumberOfProcessors",
    "GLIDEIN_MaxMemMBs": "MaxRAM",
    "GLIDEIN_Max_Walltime": "maxWallClockTime",
}
_LIMIT_PARAMETERS: Final = {"glideins": "MaxTotalJobs", "idle": "MaxWaitingJobs"}
_CMS_SITE: Final = "GLIDEIN_CMSSite"
_SITE: Final = "GLIDEIN_Site"
_COUNTRY: Final = "GLIDEIN_Country"
_SYSTEM: Final = "GLIDEIN_REQUIRED_OS"
#: A condition on jobs, in the factory's own language.
_START: Final = "GLIDEIN_Entry_Start"
_DOWNTIME: Final = "GLIDEIN_In_Downtime"
_SEPARATORS: Final = re.compile(r"[\s,]+")
#: Attributes that are imported in another way, or are informational.
_READ: Final = frozenset(map(fold, (*_NUMBERS, _VOS, _CMS_SITE, _SITE, _COUNTRY, _SYSTEM, _DOWNTIME)))


def propose_factory(
    config: Configuration, files: Mapping[str, str], *, site: str | None = None
) -> ImportedConfiguration:
    """Merge the entries of a factory into the current configuration; entries name their sites."""
    file, text = importers.require_one(files, site)
    if any(line.startswith("Resources:") for line in text.splitlines()):  # in our form already
        return importers.merge_import(config, read_tree(text, file), [], file)
    notes: list[Problem] = []
    sites: dict[str, Any] = {}
    for entry in read_entries(text, file):
        _add(sites, entry, notes, file, config)
    return importers.merge_import(config, {"Resources": {"Sites": sites}}, notes, file)


def _add(
    sites: dict[str, Any], entry: FactoryEntry, notes: list[Problem], file: str, config: Configuration
) -> None:
    def note(message: str, name: str = entry.name) -> None:
        notes.append(Problem(path=f"entry {name}", message=message, file=file))

    site = entry.attribute(_SITE) or entry.site
    country = entry.attribute(_COUNTRY).lower()
    address = (".".join(filter(None, (_GRID, site, country))), entry.host, entry.name)
    if not site or not all(NAME.fullmatch(each) for each in address):
        note("not carried over: it needs a name, a gatekeeper and GLIDEIN_Site", f"{entry.name!r:.80}")
        return
    level = sites.setdefault(address[0], {"Name": site, "CEs": {}})
    if country:
        level["Country"] = country.upper()
    queues = level["CEs"].setdefault(entry.host, {"Queues": {}})["Queues"]
    is_again = entry.name in queues
    queues[entry.name] = queue = dict(_parameters(entry))
    for message in _unread(entry):
        note(message)
    if reasons := [*_reasons(entry), *(["it is defined twice"] if is_again else [])]:
        importers.close(queue)
        closed = f"closed, {importers.ENABLED}: false, restrictions that cannot be imported"
        note(f"{closed}: {'; '.join(reasons)}")
    place = QueueAddress(site=address[0], ce=entry.host, queue=entry.name)
    if not entry.attribute(_VOS) and not _has_vos(config, place):
        queue["VO"] = []
        note(f"no VO in {_VOS}: no VO is admitted, VO: []")


def _unread(entry: FactoryEntry) -> Iterator[str]:
    names = sorted(e for e in entry.attributes if fold(e) not in _READ and fold(e).startswith("glidein_"))
    if names:
        yield f"not carried over: {', '.join(names)}"
    for name in _NUMBERS:
        if (value := entry.attribute(name)) and not value.isdecimal():
            yield f"not carried over: {name} is {value!r:.60}, allowed is a whole number"


def _reasons(entry: FactoryEntry) -> Iterator[str]:
    """Restrictions of the entry that our tree cannot represent."""
    if entry.enabled.strip().lower() not in ("true", "false"):
        yield f"enabled {entry.enabled!r:.60}"
    for name in _LIMIT_PARAMETERS:
        if not (number := entry.limits.get(name, "0")).isdecimal():
            yield f"{name} {number!r:.60}"
    yield from entry.unread
    for name in (_START, _DOWNTIME):
        if (value := entry.attribute(name)) and (name, value.lower()) != (_DOWNTIME, "false"):
            yield f"{name} is {value!r:.60}"


def _has_vos(config: Configuration, place: QueueAddress) -> bool:
    """Whether the tree lists VOs at this queue itself."""
    parameter = config.levels[place][-1].plain.get("vo") if config.knows(place) else None
    return parameter is not None and parameter.value != ()


def _parameters(entry: FactoryEntry) -> Iterator[tuple[str, object]]:
    kind = _CE_TYPES.get(entry.grid_type, entry.grid_type)
    texts = {"CEType": kind, "Endpoint": entry.endpoint, "BatchQueue": entry.queue}
    yield from ((name, text) for name, text in texts.items() if text)
    for theirs, ours in _NUMBERS.items():
        if entry.attribute(theirs).isdecimal():
            yield ours, int(entry.attribute(theirs))
    if vos := entry.attribute(_VOS):
        yield "VO", [each.lower() for each in _SEPARATORS.split(vos) if each]
    systems = (each.strip() for each in entry.attribute(_SYSTEM).split(","))
    if listed := [each for each in systems if each]:
        yield "OS", listed
    if cms_site := entry.attribute(_CMS_SITE):
        yield "VOs", {"cms": {"SiteName": cms_site}}
    for theirs, ours in _LIMIT_PARAMETERS.items():
        if (number := entry.limits.get(theirs, "")).isdecimal():
            yield ours, int(number)
    yield "Enabled", entry.enabled.strip().lower() == "true"

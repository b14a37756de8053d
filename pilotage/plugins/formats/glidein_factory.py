"""Import of the entries of a glidein factory, from its XML or from the YAML that the XML is generated from.

An entry becomes a queue of its name, behind the CE that its gatekeeper names, at `OSG.<Site>.<country>`. A
text that is in our form already, as the grid of the examples, is imported unchanged. An entry with a
restriction that our tree cannot represent is disabled.

Source: glideinWMS (`<entry>` elements, `OSG_autoconf`), the OSG's YAML: site, gatekeeper, entry; of today
site, gatekeeper, section, entry, with fields common to the entries of a site. Of several files in YAML those
with entries `DEFAULT_ENTRY` state what the entries of the others lack: what a CE publishes in that section,
and at `DEFAULT_SITE` what is so of all.
"""

import html
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from pilotage.plugins.formats import gatekeepers
from requirements.errors import Problem
from requirements.values import Scalar, fold

_RSL_QUEUE: Final = re.compile(r"\(\s*queue\s*=\s*([^()\s]+)\s*\)")
#: The end of a gatekeeper of CREAM, `ce.example.org:8443/cream-pbs-long` or, as HTCondor has it,
#: `https://ce.example.org:8443/ce-cream/services/CREAM2 pbs long`.
_CREAM_QUEUE: Final = re.compile(r"(?:/cream-\w+-|/services/CREAM2?\s+\w+\s+)(\S+)\s*$")
#: The section with the attributes of an entry, and that with those of its glideins' submission.
_ATTRIBUTES: Final = "attrs"
_SUBMIT: Final = "submit_attrs"
#: Sections of an entry: where none of them is, a section holds entries.
_LIMITS: Final = "limits"
_OF_ENTRY: Final = frozenset({_ATTRIBUTES, _SUBMIT, _LIMITS, "allow_frontends"})
#: Of a site: what each of its entries has, if it has no other.
_COMMON: Final = "common_entry_fields"
#: The name of entries that state what others lack, and the site with what is so of all.
_DEFAULT: Final = "DEFAULT_ENTRY"
_OF_ALL_SITES: Final = "DEFAULT_SITE"
#: What an entry in YAML is, if it says nothing else.
_USUAL_TYPE: Final = "condor"
#: Values of an attribute: of several files the second is put before the first.
_VALUES: Final = ("append_value", "value")
#: Numbers of glideins, in total and idle, as our parameters.
_LIMIT_PARAMETERS: Final = {"glideins": "MaxTotalJobs", "idle": "MaxWaitingJobs"}
_RSL: Final = "rsl"
#: Of an entry: the address of its CE, where it is another one than that whose section it stands in.
_GATEKEEPER: Final = "gatekeeper"
_YAML_READ: Final = frozenset({*_OF_ENTRY, "gridtype", "enabled", _GATEKEEPER})
#: Attributes of elements that are read, by tag.
_XML_READ: Final = {
    "entry": ("name", "gatekeeper", "gridtype", "enabled", _RSL),
    "attr": ("name", "value"),
    "submit_attr": ("name", "value"),
    "allow_frontend": ("name",),
    "per_entry": tuple(_LIMIT_PARAMETERS),
}
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
    queue: str = ""  #: of the batch system, where it is no attribute
    attributes: Mapping[str, str] = field(default_factory=dict)
    submit: Mapping[str, str] = field(default_factory=dict)  #: attributes of the submission of glideins
    limits: Mapping[str, str] = field(default_factory=dict)  #: `glideins` in total, and those `idle`
    unread: tuple[str, ...] = ()  #: possible restrictions that cannot be read, each with its value
    left_out: tuple[str, ...] = ()  #: keys beside all these

    def attribute(self, name: str) -> str:
        """The value of an attribute, whose name is compared without case; empty if missing."""
        every = (*self.attributes.items(), *self.submit.items())
        return next((value for each, value in every if fold(each) == fold(name)), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Factory:
    """What a text says of a factory."""

    entries: Sequence[FactoryEntry]
    left_out: Sequence[str] = ()  #: keys that belong to no entry


def read_factory(files: Mapping[str, str]) -> Factory:
    """The entries of texts by file name; ConfigError if they have none."""
    of_xml = {file for file, text in files.items() if text.lstrip().startswith("<")}
    found = [_read_xml(files[file], file) for file in of_xml]
    if trees := [read_tree(text, file) for file, text in files.items() if file not in of_xml]:
        found.append(_read_yaml(trees))
    entries = [entry for each in found for entry in each.entries]
    if not entries:
        raise one_problem(", ".join(files), "no entries: not a configuration of a glidein factory")
    return Factory(entries=entries, left_out=[key for each in found for key in each.left_out])


def _read_xml(text: str, file: str) -> Factory:
    try:
        root = Xml.fromstring(text)  # noqa: S314  (an operator's own file; expat bounds entities)
    except Xml.ParseError as error:
        raise one_problem(file, f"not XML: {error}") from error
    entries = list(_list_xml(root))
    for each in (each for each in root.iter() if each.find("entry") is not None):
        each[:] = [below for below in each if below.tag != "entry"]
    of_all = [f"attrs/{each.get('name', '')}" for each in root.iter("attr")]
    return Factory(entries=entries, left_out=[*_other_attributes(root), *of_all])


def _list_xml(root: Xml.Element) -> Iterator[FactoryEntry]:
    for element in root.iter("entry"):
        gatekeeper = element.get("gatekeeper", "")
        most = element.find("config/max_jobs/per_entry")
        attributes = _list_attributes(element.findall("attrs/attr"))
        submit = _list_attributes(element.iter("submit_attr"))
        frontends = [each.get("name", "") for each in element.iter("allow_frontend")]
        yield FactoryEntry(
            name=element.get("name", ""),
            host=gatekeepers.find_host(gatekeeper),
            endpoint=_find_endpoint(gatekeeper),
            grid_type=element.get("gridtype", ""),
            enabled=element.get("enabled", "True"),
            queue=_queue_of(element.get(_RSL, "")) or _queue_of_cream(gatekeeper),
            attributes=dict(attributes),
            submit=dict(submit),
            limits={} if most is None else most.attrib,
            unread=(
                *(f"allow_frontend {name}" for name in frontends),
                *_ambiguous_attributes([*attributes, *submit]),
                *(
                    f"{each.get('name')} is an expression"
                    for each in element.findall("attrs/attr")
                    if each.get("type") == "expr" and fold(each.get("name", "")) == fold(_VOS)
                ),
            ),
            left_out=(
                *_other_attributes(element),
                *([_RSL] if _is_beyond_queue(element.get(_RSL, "")) else []),
            ),
        )


def _queue_of(rsl: str) -> str:
    found = _RSL_QUEUE.search(rsl)
    return found[1] if found else ""


def _queue_of_cream(gatekeeper: str) -> str:
    found = _CREAM_QUEUE.search(gatekeeper)
    return found[1] if found else ""


def _find_endpoint(gatekeeper: str) -> str:
    return gatekeepers.find_endpoint(_CREAM_QUEUE.sub("", gatekeeper))


def _is_beyond_queue(rsl: str) -> bool:
    """Whether it states more than the queue."""
    return bool(_RSL_QUEUE.sub("", rsl).strip())


def _other_attributes(element: Xml.Element) -> Iterator[str]:
    """What is not read of an element and those in it, as `tag/attribute`."""
    for each in element.iter():
        yield from (f"{each.tag}/{name}" for name in each.attrib if name not in _XML_READ.get(each.tag, ()))


def _list_attributes(elements: Iterable[Xml.Element]) -> list[tuple[str, str]]:
    return [(each.get("name", ""), each.get("value", "").strip().strip('"')) for each in elements]


def _read_yaml(trees: Sequence[Mapping[str, object]]) -> Factory:
    left_out: list[str] = []
    stated = [each for tree in trees for each in _list_stated(tree, left_out)]
    of_all: dict[str, object] = {}
    published: dict[tuple[str, ...], dict[str, object]] = {}
    if len(trees) > 1:
        for names, entry in stated:
            if names[-1] == _DEFAULT and names[0] == _OF_ALL_SITES:
                of_all = entry
            elif names[-1] == _DEFAULT:
                published[names[:-1]] = entry
        stated = [(names, entry) for names, entry in stated if names[-1] != _DEFAULT]
    found = []
    for names, entry in stated:
        below = importers.merge_trees(of_all, published.get(names[:-1], {}))
        found.append(_entry(names[0], names[1], names[-1], importers.merge_trees(below, entry)))
    used = {names[:-1] for names, _ in stated}
    left_out += ("/".join((*names, _DEFAULT)) for names in published if names not in used)
    return Factory(entries=found, left_out=left_out)


def _list_stated(
    tree: Mapping[str, object], left_out: list[str]
) -> Iterator[tuple[tuple[str, ...], dict[str, object]]]:
    """The entries of a tree by site, gatekeeper, section (empty if there is none) and name."""
    left_out += (f"{name}, a value" for name in _values(tree))
    for site, hosts in _sections(tree):
        left_out += (f"{site}/{name}, a value" for name in _values(hosts))
        common = dict(_sections(hosts)).get(_COMMON, {})
        for host, entries in _sections(hosts):
            if host != _COMMON:
                left_out += (f"{site}/{host}/{name}, a value" for name in _values(entries))
                for section, name, entry in _list_entries(entries):
                    yield (site, host, section, name), importers.merge_trees(common, entry)


def _values(section: Mapping[str, object]) -> Iterator[str]:
    return (name for name, below in section.items() if not _is_section(below))


def _list_entries(gatekeeper: Mapping[str, object]) -> Iterator[tuple[str, str, dict[str, object]]]:
    """The entries of a gatekeeper with their sections, also those in its sections, where one may be empty."""
    for name, below in _sections(gatekeeper):
        if below and _OF_ENTRY.isdisjoint(below) and all(_is_section(each) for each in below.values()):
            for inner, entry in below.items():
                yield name, inner, entry if isinstance(entry, dict) else {}
        else:
            yield "", name, below


def _is_section(value: object) -> bool:
    return value is None or isinstance(value, dict)


class _FactoryReader(EventReader):
    """Keeps the words of attributes and versions that YAML reads as real numbers: 9.10 would be 9.1."""

    def resolve_scalar(self, event: Any) -> Scalar | None:
        """The value of a scalar, or the text of a real number that is meant as one."""
        value, names = super().resolve_scalar(event), self.path.split("/")
        is_text = not {_ATTRIBUTES, _SUBMIT}.isdisjoint(names) or parameters.is_version(fold(names[-1]))
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
    submit = entry.get(_SUBMIT)
    submitted = submit.items() if isinstance(submit, dict) else ()
    limits = dict(_sections(entry.get(_LIMITS))).get("entry", {})
    known = attributes.items() if isinstance(attributes, dict) else ()
    frontends = entry.get("allow_frontends")
    gatekeeper = _text(entry.get(_GATEKEEPER))
    return FactoryEntry(
        name=name,
        site=site,
        host=gatekeepers.find_host(gatekeeper) or host,
        endpoint=_find_endpoint(gatekeeper),
        grid_type=str(entry.get("gridtype") or _USUAL_TYPE),
        enabled=str(entry.get("enabled", True)),
        queue=_queue_of(str(entry.get(_RSL) or "")) or _queue_of_cream(gatekeeper),
        attributes={each: _text(_value(about)) for each, about in known if about is not None},
        submit={each: html.unescape(_text(value)).strip('"') for each, value in submitted},
        limits={each: _text(number) for each, number in limits.items()},
        unread=(
            *((f"allow_frontends {frontends!r:.60}",) if frontends else ()),
            *(() if isinstance(attributes, dict) else (f"attrs {attributes!r:.60}",)),
        ),
        left_out=tuple(_other_keys(entry)),
    )


def _other_keys(entry: Mapping[str, object]) -> Iterator[str]:
    """What is not read of an entry, as `section/key`; `*` stands for the names of attributes."""
    for name, below in entry.items():
        if name == _ATTRIBUTES:
            others = (about.keys() - _VALUES for _, about in _sections(below))
            yield from (f"{name}/*/{key}" for keys in others for key in keys)
        elif name == _LIMITS:
            for level, numbers in below.items() if isinstance(below, dict) else ():
                if level == "entry" and isinstance(numbers, dict):
                    yield from (f"{name}/{level}/{key}" for key in numbers if key not in _LIMIT_PARAMETERS)
                else:
                    yield f"{name}/{level}"
        elif name not in _YAML_READ and (name != _RSL or _is_beyond_queue(str(below))):
            yield name


def _value(about: object) -> object:
    """The value of an attribute, from its section or plain; several become comma-separated."""
    values = [about.get(name) for name in _VALUES] if isinstance(about, dict) else [about]
    stated = [each for each in values if each is not None]
    if len(stated) == 1 and not isinstance(stated[0], list):
        return stated[0]
    return ",".join(_text(item) for each in stated for item in (each if isinstance(each, list) else [each]))


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
#: Attributes of a numeric parameter, each with its unit in ours; the first that is a number counts.
_NUMBERS: Final = {
    "NumberOfProcessors": {
        "GLIDEIN_CPUS": 1,
        "+xcount": 1,
        "request_cpus": 1,
        "RequestCpus": 1,
        "GLIDEIN_ESTIMATED_CPUS": 1,
    },
    "MaxRAM": {"GLIDEIN_MaxMemMBs": 1, "+maxMemory": 1, "request_memory": 1},
    "maxWallClockTime": {"GLIDEIN_Max_Walltime": 1, "+maxWallTime": 60},
    "GPUs": {"Request_GPUs": 1},
}
#: Attributes with the queue of the batch system; the first that is stated counts.
_QUEUES: Final = ("+queue", "batch_queue", "+remote_queue")
_WHOLE_NODE: Final = "+WantWholeNode"
#: Resources of a glidein, `GPUs,2,type=main`.
_SLOTS: Final = "GLIDEIN_Resource_Slots"
_GPUS: Final = re.compile(r"GPUs\s*,\s*(\d+)(?:\s*,\s*type\s*=\s*main)?\s*", re.IGNORECASE)
_CMS_SITE: Final = "GLIDEIN_CMSSite"
_SITE: Final = "GLIDEIN_Site"
_COUNTRY: Final = "GLIDEIN_Country"
_SYSTEM: Final = "GLIDEIN_REQUIRED_OS"
_ARCHITECTURE: Final = "GLIDEIN_ARCH"
#: What these two are if they say nothing.
_UNSTATED: Final = frozenset({"", "any", "default", "auto"})
#: A condition on jobs, in the factory's own language.
_START: Final = "GLIDEIN_Entry_Start"
_DOWNTIME: Final = "GLIDEIN_In_Downtime"
_SEPARATORS: Final = re.compile(r"[\s,]+")
#: Attributes that are imported in another way, or are informational.
_READ: Final = frozenset(
    map(
        fold,
        (
            *(name for each in _NUMBERS.values() for name in each),
            *_QUEUES,
            _WHOLE_NODE,
            _VOS,
            _CMS_SITE,
            _SITE,
            _COUNTRY,
            _SYSTEM,
            _ARCHITECTURE,
            *(_START, _DOWNTIME),  # restrictions
        ),
    )
)


def propose_factory(
    config: Configuration, files: Mapping[str, str], *, site: str | None = None
) -> ImportedConfiguration:
    """Merge the entries of a factory into the current configuration; entries name their sites."""
    file = ", ".join(files)
    if site is not None:
        raise one_problem(file, "no site is allowed: a factory names its sites itself")
    ours = [name for name, text in files.items() if _is_our_form(text)]
    if ours and len(files) > 1:
        raise one_problem(ours[0], "a tree in the form of this system is imported alone")
    if ours:
        return importers.merge_import(config, read_tree(files[file], file), [], file)
    notes: list[Problem] = []
    sites: dict[str, Any] = {}
    factory = read_factory(files)
    for entry in factory.entries:
        _add(sites, entry, notes, file, config)
    of_entries = [key for entry in factory.entries for key in _left_out(entry)]
    notes += importers.list_left_out([*factory.left_out, *of_entries], file)
    return importers.merge_import(config, {"Resources": {"Sites": sites}}, notes, file)


def _is_our_form(text: str) -> bool:
    return any(line.startswith("Resources:") for line in text.splitlines())


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
    if not entry.attribute(_VOS) and not importers.lists_vos(config, place):
        queue["VO"] = []
        note(f"no VO in {_VOS}: no VO is admitted, VO: []")


def _unread(entry: FactoryEntry) -> Iterator[str]:
    for parameter, sources in _NUMBERS.items():
        for name in sources if _find_number(entry, parameter) is None else ():
            if value := entry.attribute(name):
                yield f"{name} is not carried over: {value!r:.60} is no amount"
    if (value := entry.attribute(_WHOLE_NODE)) and fold(value) not in ("true", "false"):
        yield f"not carried over: {_WHOLE_NODE} is {value!r:.60}, allowed is true or false"


def _left_out(entry: FactoryEntry) -> Iterator[str]:
    """The keys of an entry without an equivalent."""
    read = _READ | ({fold(_SLOTS)} if _GPUS.fullmatch(entry.attribute(_SLOTS)) else set())
    yield from entry.left_out
    for section, stated in {_ATTRIBUTES: entry.attributes, _SUBMIT: entry.submit}.items():
        yield from (f"{section}/{name}" for name, value in stated.items() if fold(name) not in read)
    for parameter, sources in _NUMBERS.items():
        if (used := _find_number(entry, parameter)) is not None:
            values = {name: entry.attribute(name) for name, unit in sources.items()}
            others = (each for each, value in values.items() if value and value != str(used // sources[each]))
            yield from (f"{each} = {values[each]:.60}" for each in others)
    for name in (*_QUEUES, _SYSTEM, _ARCHITECTURE):
        value = entry.attribute(name)
        is_used = value == _find_queue(entry) if name in _QUEUES else fold(value) not in _UNSTATED
        if value and not is_used:
            yield f"{name} = {value:.60}"


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


def _find_number(entry: FactoryEntry, parameter: str) -> int | None:
    """The number that an entry states for a parameter, in our unit; 0 and 999999 state no limit."""
    for name, unit in _NUMBERS[parameter].items():
        if (number := gatekeepers.read_limit(entry.attribute(name))) is not None:
            return number * unit
    slots = _GPUS.fullmatch(entry.attribute(_SLOTS)) if parameter == "GPUs" else None
    return int(slots[1]) if slots else None


def _find_queue(entry: FactoryEntry) -> str:
    """The queue of the batch system; empty if the entry states none."""
    return next(filter(None, map(entry.attribute, _QUEUES)), entry.queue)


def _parameters(entry: FactoryEntry) -> Iterator[tuple[str, object]]:
    kind = _CE_TYPES.get(entry.grid_type, entry.grid_type)
    architecture = entry.attribute(_ARCHITECTURE)
    texts = {
        "CEType": kind,
        "Endpoint": entry.endpoint,
        "BatchQueue": _find_queue(entry),
        "Architecture": "" if fold(architecture) in _UNSTATED else architecture,
    }
    yield from ((name, text) for name, text in texts.items() if text)
    numbers = ((name, _find_number(entry, name)) for name in _NUMBERS)
    yield from ((name, number) for name, number in numbers if number is not None)
    if fold(entry.attribute(_WHOLE_NODE)) == "true":
        yield "WholeNode", True
    if vos := entry.attribute(_VOS):
        yield "VO", list(dict.fromkeys(each.lower() for each in _SEPARATORS.split(vos) if each))
    systems = (each.strip() for each in entry.attribute(_SYSTEM).split(","))
    if listed := [each for each in systems if fold(each) not in _UNSTATED]:
        yield "OS", listed
    if cms_site := entry.attribute(_CMS_SITE):
        yield "VOs", {"cms": {"SiteName": cms_site}}
    for theirs, ours in _LIMIT_PARAMETERS.items():
        if (number := entry.limits.get(theirs, "")).isdecimal():
            yield ours, int(number)
    yield "Enabled", entry.enabled.strip().lower() == "true"

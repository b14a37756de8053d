"""Import of the entries of a glidein factory, from its XML or from the YAML that the XML is generated from.

An entry becomes a queue of its name, behind the CE that its gatekeeper names, at `OSG.<Site>.<country>`. A
text that is in our form already, as the grid of the examples, is imported unchanged. An entry with a
restriction that our tree cannot represent is disabled.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from cs_config.errors import one_problem
from cs_config.formats import importers
from cs_config.formats.importers import ImportedConfiguration
from cs_config.tree.address import NAME, NAME_ALLOWED, QueueAddress
from cs_config.tree.configuration import Configuration
from pilotage.plugins.formats import gatekeepers
from pilotage.plugins.formats.factory_files import entries, xml_entries, yaml_entries
from pilotage.plugins.formats.factory_files.entries import (
    COUNT,
    LIMIT_PARAMETERS,
    SYSTEM,
    VOS,
    WHOLE_NODE,
    Factory,
    FactoryEntry,
)
from requirements.errors import Problem
from requirements.values import fold

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
        entries.ESTIMATE: 1,
    },
    "MaxRAM": {"GLIDEIN_MaxMemMBs": 1, "+maxMemory": 1, "request_memory": 1},
    "maxWallClockTime": {"GLIDEIN_Max_Walltime": 1, "+maxWallTime": 60},
    "GPUs": {"Request_GPUs": 1},
}
#: Attributes with the queue of the batch system; the first that is stated counts.
_QUEUES: Final = ("+queue", "batch_queue", "+remote_queue")
#: Resources of a glidein, `ioslot,1;GPUs,2,type=main`: after a name these fields, in their places or named.
_SLOTS: Final = "GLIDEIN_Resource_Slots"
_FIELDS: Final = ("number", "memory", "type", "disk")
_GPUS: Final = re.compile(r"[0-9]{1,9}")
_CMS_SITE: Final = "GLIDEIN_CMSSite"
_SITE: Final = "GLIDEIN_Site"
_COUNTRY: Final = "GLIDEIN_Country"
_ARCHITECTURE: Final = "GLIDEIN_ARCH"
#: What system and architecture are if they say nothing.
_ANY: Final = frozenset({"any", "default", "auto"})
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
            WHOLE_NODE,
            _SLOTS,
            VOS,
            _CMS_SITE,
            _SITE,
            _COUNTRY,
            SYSTEM,
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
        return importers.merge_import(config, yaml_entries.read_tree(files[file], file), [], file)
    notes: list[Problem] = []
    sites: dict[str, Any] = {}
    factory = read_factory(files)
    for entry in factory.entries:
        _add(sites, entry, notes, file, config)
    of_entries = [key for entry in factory.entries for key in _left_out(entry)]
    notes += importers.list_left_out([*factory.left_out, *of_entries], file)
    return importers.merge_import(config, {"Resources": {"Sites": sites}}, notes, file)


def read_factory(files: Mapping[str, str]) -> Factory:
    """The entries of texts by file name; ConfigError if they have none."""
    found, trees = [], []
    for file, text in files.items():
        if text.lstrip().startswith("<"):
            found.append(xml_entries.read_xml(text, file))
        else:
            trees.append(yaml_entries.read_tree(text, file))
    if trees:
        found.append(yaml_entries.read_yaml(trees))
    listed = [entry for each in found for entry in each.entries]
    if not listed:
        message = (
            "no entries but DEFAULT_ENTRY: not a configuration of a glidein factory, or not all of its files"
        )
        raise one_problem(", ".join(files), message)
    return Factory(entries=listed, left_out=[key for each in found for key in each.left_out])


def _is_our_form(text: str) -> bool:
    return any(line.startswith("Resources:") for line in text.splitlines())


def _add(
    sites: dict[str, Any], entry: FactoryEntry, notes: list[Problem], file: str, config: Configuration
) -> None:
    def note(message: str, name: str = entry.name) -> None:
        notes.append(Problem(path=f"entry {name}", message=message, file=file))

    site = entry.attribute(_SITE) or entry.site
    country = entry.attribute(_COUNTRY).lower()
    address = ".".join(filter(None, (_GRID, site, country)))
    stated = {"name": entry.name, "gatekeeper": entry.host, _SITE: site}
    if fault := _find_fault(stated) or _find_fault({"site": address}):
        note(f"not carried over: {fault}", f"{entry.name!r:.80}")
        return
    level = sites.setdefault(address, {"Name": site, "CEs": {}})
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
    place = QueueAddress(site=address, ce=entry.host, queue=entry.name)
    if importers.ENABLED not in queue:
        notes += importers.note_closed(config, place)
    if not entry.attribute(VOS) and not importers.lists_vos(config, place):
        queue["VO"] = []
        note(f"no VO in {VOS}: no VO is admitted, VO: []")


def _find_fault(stated: Mapping[str, str]) -> str | None:
    """What is missing of the names of an entry's place, each by what it is, or not allowed as a name here."""
    if missing := [what for what, name in stated.items() if not name]:
        return f"it has {', '.join(f'no {what}' for what in missing)}"
    wrong = (f"{what} {name!r:.160}" for what, name in stated.items() if not NAME.fullmatch(name))
    return next((f"its {each} is not allowed, allowed are {NAME_ALLOWED}" for each in wrong), None)


def _unread(entry: FactoryEntry) -> Iterator[str]:
    for parameter, sources in _NUMBERS.items():
        for name in sources if _find_number(entry, parameter) is None else ():
            if value := entry.attribute(name):
                yield f"{name} is not carried over: {value!r:.60} is no amount"
    if (value := entry.attribute(WHOLE_NODE)) and fold(value) not in ("true", "false"):
        yield f"{WHOLE_NODE} is not carried over: {value!r:.60}, allowed is true or false"


def _left_out(entry: FactoryEntry) -> Iterator[str]:
    """The keys of an entry without an equivalent."""
    yield from entry.left_out
    limits = (each for each in entry.limits.items() if _is_no_limit(*each))
    yield from (f"{name} = {number}" for name, number in limits)
    for section, stated in {entries.ATTRIBUTES: entry.attributes, entries.SUBMIT: entry.submit}.items():
        yield from (f"{section}/{name}" for name, value in stated.items() if fold(name) not in _READ)
    for parameter, sources in _NUMBERS.items():
        if (used := _find_number(entry, parameter)) is not None:
            values = {name: entry.attribute(name) for name, unit in sources.items()}
            others = (each for each, value in values.items() if value and value != str(used // sources[each]))
            yield from (f"{each} = {values[each]:.60}" for each in others)
    gpus = _find_number(entry, "GPUs")
    for described, number in _list_gpus(entry).items():
        if number is None or number != gpus:
            yield f"{_SLOTS} = {described:.60}"
            continue
        for name, value in _read_fields(described).items():
            if name != "number" and value != "main":
                yield f"{_SLOTS}/{name} = {value:.60}"
    are_used = {
        **{name: entry.attribute(name) == _find_queue(entry) for name in _QUEUES},
        SYSTEM: bool(_list_values(entry, SYSTEM)),
        _ARCHITECTURE: len(_list_values(entry, _ARCHITECTURE)) == 1,
    }
    for name, is_used in are_used.items():
        if (value := entry.attribute(name)) and not is_used:
            yield f"{name} = {value:.60}"


def _is_no_limit(name: str, number: str) -> bool:
    """Whether a limit is a number that stands for none, as 999999."""
    is_count = name in LIMIT_PARAMETERS and COUNT.fullmatch(number)
    return bool(is_count) and importers.states_none(LIMIT_PARAMETERS[name], int(number))


def _reasons(entry: FactoryEntry) -> Iterator[str]:
    """Restrictions of the entry that our tree cannot represent."""
    if entry.enabled.strip().lower() not in ("true", "false"):
        yield f"enabled {entry.enabled!r:.60}"
    for name in LIMIT_PARAMETERS:
        if not COUNT.fullmatch(number := entry.limits.get(name, "0")):
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
    described = _list_gpus(entry).values() if parameter == "GPUs" else ()
    return next((number for number in described if number is not None), None)


def _list_gpus(entry: FactoryEntry) -> dict[str, int | None]:
    """The GPUs in each description of resources; None for other resources, or an open number."""
    described = filter(None, map(str.strip, entry.attribute(_SLOTS).split(";")))
    return {each: _read_gpus(each) for each in described}


def _read_gpus(described: str) -> int | None:
    number = _read_fields(described).get("number", "")
    is_of_gpus = fold(described.partition(",")[0].strip()) == "gpus"
    return int(number) if is_of_gpus and _GPUS.fullmatch(number) else None


def _read_fields(described: str) -> dict[str, str]:
    """The fields that a description of resources states; those in their places have no names."""
    found: dict[str, str] = {}
    for field, part in zip(_FIELDS, described.split(",", len(_FIELDS))[1:], strict=False):
        name, _, value = part.rpartition("=")
        if stated := value.strip():
            found[fold(name.strip()) or field] = fold(stated)
    return found


def _list_values(entry: FactoryEntry, name: str) -> list[str]:
    """The values of an attribute, between commas; none where any will do."""
    values = list(filter(None, map(str.strip, entry.attribute(name).split(","))))
    return [] if any(fold(each) in _ANY for each in values) else values


def _find_queue(entry: FactoryEntry) -> str:
    """The queue of the batch system; empty if the entry states none."""
    return next(filter(None, map(entry.attribute, _QUEUES)), entry.queue)


def _parameters(entry: FactoryEntry) -> Iterator[tuple[str, object]]:
    kind = _CE_TYPES.get(entry.grid_type, entry.grid_type)
    architectures = _list_values(entry, _ARCHITECTURE)
    texts = {
        "CEType": kind,
        "Endpoint": entry.endpoint,
        "BatchQueue": _find_queue(entry),
        "Architecture": architectures[0] if len(architectures) == 1 else "",
    }
    yield from ((name, text) for name, text in texts.items() if text)
    numbers = ((name, _find_number(entry, name)) for name in _NUMBERS)
    yield from ((name, number) for name, number in numbers if number is not None)
    if fold(entry.attribute(WHOLE_NODE)) == "true":
        yield "WholeNode", True
    if vos := entry.attribute(VOS):
        yield "VO", list(dict.fromkeys(each.lower() for each in _SEPARATORS.split(vos) if each))
    if systems := _list_values(entry, SYSTEM):
        yield "OS", systems
    if cms_site := entry.attribute(_CMS_SITE):
        yield "VOs", {"cms": {"SiteName": cms_site}}
    for theirs, ours in LIMIT_PARAMETERS.items():
        if COUNT.fullmatch(number := entry.limits.get(theirs, "")) and not _is_no_limit(theirs, number):
            yield ours, int(number)
    if entry.enabled.strip().lower() != "true":
        yield importers.ENABLED, False

"""What the entries of a glidein factory, as that of the Open Science Grid, would change in the tree.

An entry becomes a queue of its name, behind the CE that its gatekeeper names, at `OSG.<Site>.<country>`.
What is in our form already, as the grid of the examples, is taken as it is. An entry with a restriction that
has no place here is closed.
Source: glideinWMS.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from cs_config import factory_entries, overlay, restrictions, source
from cs_config.address import QueueAddress
from cs_config.configuration import Configuration
from cs_config.errors import ConfigError
from cs_config.factory_entries import Entry
from cs_config.names import NAME
from cs_config.overlay import Imported
from cs_config.sections import plain
from requirements.problem import Problem
from requirements.values import fold

_GRID: Final = "OSG"
#: Kinds of CEs by `gridtype`.
_CE_TYPES: Final = {"condor": "HTCondorCE", "arc": "AREX", "nordugrid": "ARC", "cream": "CREAM"}
#: Attributes that are a number of ours.
_NUMBERS: Final = {
    "GLIDEIN_CPUS": "NumberOfProcessors",
    "GLIDEIN_MaxMemMBs": "MaxRAM",
    "GLIDEIN_Max_Walltime": "maxWallClockTime",
}
_LIMITS: Final = {"glideins": "MaxTotalJobs", "idle": "MaxWaitingJobs"}
_VOS: Final = factory_entries.SUPPORTED_VOS
_CMS_SITE: Final = "GLIDEIN_CMSSite"
_SITE: Final = "GLIDEIN_Site"
_COUNTRY: Final = "GLIDEIN_Country"
_SYSTEM: Final = "GLIDEIN_REQUIRED_OS"
#: A condition of what may come, in the words of the factory.
_START: Final = "GLIDEIN_Entry_Start"
_DOWNTIME: Final = "GLIDEIN_In_Downtime"
_SEPARATORS: Final = re.compile(r"[\s,]+")
#: Attributes that are said in another way, or are for people of the factory.
_READ: Final = frozenset(map(fold, (*_NUMBERS, _VOS, _CMS_SITE, _SITE, _COUNTRY, _SYSTEM, _DOWNTIME)))


def propose(config: Configuration, text: str, file: str) -> Imported:
    """The configuration in force with the entries of a factory in it.

    Raises:
        ConfigError: The text is no such configuration.
    """
    if (tree := _ours(text, file)) is not None:
        return overlay.over(config, tree, [], file)
    notes: list[Problem] = []
    sites: dict[str, Any] = {}
    for entry in factory_entries.read(text, file):
        _add(sites, entry, notes, file, config)
    return overlay.over(config, {"Resources": {"Sites": sites}}, notes, file)


def _ours(text: str, file: str) -> dict[str, object] | None:
    """The tree of a text that is in our form; None: it is not."""
    if not any(line.startswith("Resources:") for line in text.splitlines()):
        return None
    reading = source.read(text, file)
    if reading.problems:
        raise ConfigError(tuple(reading.problems))
    tree = plain(reading.root)
    return tree if isinstance(tree, dict) else None


def _add(sites: dict[str, Any], entry: Entry, notes: list[Problem], file: str, config: Configuration) -> None:
    site = entry.attribute(_SITE) or entry.site
    country = entry.attribute(_COUNTRY).lower()
    address = (".".join(filter(None, (_GRID, site, country))), entry.host, entry.name)
    if not site or not all(NAME.fullmatch(each) for each in address):
        message = "not carried over: it needs a name, a gatekeeper and GLIDEIN_Site"
        notes.append(Problem(path=f"entry {entry.name!r:.80}", message=message, file=file))
        return
    level = sites.setdefault(address[0], {"Name": site, "CEs": {}})
    if country:
        level["Country"] = country.upper()
    queues = level["CEs"].setdefault(entry.host, {"Queues": {}})["Queues"]
    is_again = entry.name in queues
    queues[entry.name] = queue = dict(_parameters(entry))
    place = QueueAddress(site=address[0], ce=entry.host, queue=entry.name)
    notes += (Problem(path=f"entry {entry.name}", message=each, file=file) for each in _unread(entry))
    if reasons := [*_reasons(entry), *(["it stands twice"] if is_again else [])]:
        restrictions.close(queue)
        message = f"closed, {restrictions.ENABLED}: false, what keeps somebody out has no place here: "
        notes.append(Problem(path=f"entry {entry.name}", message=message + "; ".join(reasons), file=file))
    if not entry.attribute(_VOS) and not _has_vos(config, place):
        queue["VO"] = []
        message = f"it names no VO in {_VOS}: nobody may come, VO: []"
        notes.append(Problem(path=f"entry {entry.name}", message=message, file=file))


def _unread(entry: Entry) -> Iterator[str]:
    names = sorted(e for e in entry.attributes if fold(e) not in _READ and fold(e).startswith("glidein_"))
    if names:
        yield f"not carried over: {', '.join(names)}"
    for name in _NUMBERS:
        if (value := entry.attribute(name)) and not value.isdecimal():
            yield f"not carried over: {name} is {value!r:.60}, allowed is a whole number"


def _reasons(entry: Entry) -> Iterator[str]:
    """What of the entry keeps somebody out and cannot be said here."""
    yield from entry.unread
    for name in (_START, _DOWNTIME):
        if (value := entry.attribute(name)) and (name, value.lower()) != (_DOWNTIME, "false"):
            yield f"{name} is {value!r:.60}"


def _has_vos(config: Configuration, place: QueueAddress) -> bool:
    """Whether the tree lists VOs at this queue itself."""
    parameter = config.levels[place][-1].plain.get("vo") if config.knows(place) else None
    return parameter is not None and parameter.value != ()


def _parameters(entry: Entry) -> Iterator[tuple[str, object]]:
    if entry.grid_type:
        yield "CEType", _CE_TYPES.get(entry.grid_type, entry.grid_type)
    for theirs, ours in _NUMBERS.items():
        if entry.attribute(theirs).isdecimal():
            yield ours, int(entry.attribute(theirs))
    if vos := entry.attribute(_VOS):
        yield "VO", [each.lower() for each in _SEPARATORS.split(vos) if each]
    if systems := _items(entry.attribute(_SYSTEM)):
        yield "OS", systems
    if cms_site := entry.attribute(_CMS_SITE):
        yield "VOs", {"cms": {"SiteName": cms_site}}
    if entry.queue:
        yield "BatchQueue", entry.queue
    for theirs, number in entry.limits.items():
        yield _LIMITS[theirs], number
    yield "Enabled", entry.is_enabled


def _items(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]

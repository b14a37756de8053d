"""What the entries of a glidein factory, as that of the Open Science Grid, would change in the tree.

An entry becomes a queue of its name, behind the CE that its gatekeeper names, at `OSG.<Site>.<country>`.
What is in our form already, as the grid of the examples, is taken as it is.
Source: glideinWMS.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from cs_config import factory_entries, overlay, source
from cs_config.configuration import Configuration
from cs_config.errors import ConfigError
from cs_config.factory_entries import Entry
from cs_config.names import NAME
from cs_config.overlay import Imported
from cs_config.sections import plain
from requirements.problem import Problem

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
_VOS: Final = "GLIDEIN_Supported_VOs"
_CMS_SITE: Final = "GLIDEIN_CMSSite"
_SITE: Final = "GLIDEIN_Site"
_COUNTRY: Final = "GLIDEIN_Country"
_SYSTEM: Final = "GLIDEIN_REQUIRED_OS"
#: Attributes that are said in another way, or are for people of the factory.
_READ: Final = frozenset({*_NUMBERS, _VOS, _CMS_SITE, _SITE, _COUNTRY, _SYSTEM})


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
        _add(sites, entry, notes, file)
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


def _add(sites: dict[str, Any], entry: Entry, notes: list[Problem], file: str) -> None:
    site = entry.attributes.get(_SITE, "") or entry.site
    country = entry.attributes.get(_COUNTRY, "").lower()
    address = (".".join(filter(None, (_GRID, site, country))), entry.host, entry.name)
    if not site or not all(NAME.fullmatch(each) for each in address):
        message = "not carried over: it needs a name, a gatekeeper and GLIDEIN_Site"
        notes.append(Problem(path=f"entry {entry.name!r:.80}", message=message, file=file))
        return
    level = sites.setdefault(address[0], {"Name": site, "CEs": {}})
    if country:
        level["Country"] = country.upper()
    queues = level["CEs"].setdefault(entry.host, {"Queues": {}})["Queues"]
    queues[entry.name] = dict(_parameters(entry))
    unread = sorted(each for each in entry.attributes if each not in _READ and each.startswith("GLIDEIN_"))
    if unread:
        message = f"not carried over: {', '.join(unread)}"
        notes.append(Problem(path=f"entry {entry.name}", message=message, file=file))


def _parameters(entry: Entry) -> Iterator[tuple[str, object]]:
    said: Mapping[str, str] = entry.attributes
    if entry.grid_type:
        yield "CEType", _CE_TYPES.get(entry.grid_type, entry.grid_type)
    for theirs, ours in _NUMBERS.items():
        if said.get(theirs, "").isdecimal():
            yield ours, int(said[theirs])
    if vos := _items(said.get(_VOS, "")):
        yield "VO", [each.lower() for each in vos]
    if systems := _items(said.get(_SYSTEM, "")):
        yield "OS", systems
    if cms_site := said.get(_CMS_SITE, ""):
        yield "VOs", {"cms": {"SiteName": cms_site}}
    if entry.queue:
        yield "BatchQueue", entry.queue
    for theirs, number in entry.limits.items():
        yield _LIMITS[theirs], number
    yield "Enabled", entry.is_enabled


def _items(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]

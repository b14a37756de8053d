"""What the entries of a glidein factory, as that of the Open Science Grid, would change in the tree.

An entry becomes a queue of its name, behind the CE that its gatekeeper names, at `OSG.<Site>.<country>`.
Source: glideinWMS.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from xml.etree import ElementTree as Xml

from cs_config import overlay
from cs_config.configuration import Configuration
from cs_config.errors import one_problem
from cs_config.names import NAME
from cs_config.overlay import Imported
from requirements.problem import Problem

_GRID: Final = "OSG"
#: Kinds of CEs by `gridtype`.
_CE_TYPES: Final = {"condor": "HTCondorCE", "arc": "AREX", "nordugrid": "ARC", "cream": "CREAM"}
_HOST: Final = re.compile(r"(?:\w+://)?([^:/\s]+)")
#: Attributes that are a number of ours.
_NUMBERS: Final = {
    "GLIDEIN_CPUS": "NumberOfProcessors",
    "GLIDEIN_MaxMemMBs": "MaxRAM",
    "GLIDEIN_Max_Walltime": "maxWallClockTime",
}
_VOS: Final = "GLIDEIN_Supported_VOs"
_CMS_SITE: Final = "GLIDEIN_CMSSite"
_SITE: Final = "GLIDEIN_Site"
_COUNTRY: Final = "GLIDEIN_Country"
_SYSTEM: Final = "GLIDEIN_REQUIRED_OS"
_QUEUE: Final = re.compile(r"\(\s*queue\s*=\s*([^()\s]+)\s*\)")
#: Attributes that are said in another way, or are for people of the factory.
_READ: Final = frozenset({*_NUMBERS, _VOS, _CMS_SITE, _SITE, _COUNTRY, _SYSTEM})


def propose(config: Configuration, text: str, file: str) -> Imported:
    """The configuration in force with the entries of a factory in it.

    Raises:
        ConfigError: The text is no such configuration.
    """
    try:
        root = Xml.fromstring(text)  # noqa: S314  (an operator's own file; expat bounds entities)
    except Xml.ParseError as error:
        raise one_problem(file, f"not XML: {error}") from error
    entries = list(root.iter("entry"))
    if not entries:
        raise one_problem(file, "there is no <entry>: it is no configuration of a glidein factory")
    notes: list[Problem] = []
    sites: dict[str, Any] = {}
    for entry in entries:
        _add(sites, entry, notes, file)
    return overlay.over(config, {"Resources": {"Sites": sites}}, notes, file)


def _add(sites: dict[str, Any], entry: Xml.Element, notes: list[Problem], file: str) -> None:
    attributes = dict(_attributes(entry))
    name = entry.get("name", "")
    host = _HOST.match(entry.get("gatekeeper", ""))
    ce = host.group(1) if host else ""
    site = attributes.get(_SITE, "")
    country = attributes.get(_COUNTRY, "").lower()
    address = (_site_name(site, country), ce, name)
    if not site or not all(NAME.fullmatch(each) for each in address):
        message = "not carried over: it needs a name, a gatekeeper and GLIDEIN_Site"
        notes.append(Problem(path=f"entry {name!r:.80}", message=message, file=file))
        return
    level = sites.setdefault(address[0], {"Name": site, "CEs": {}})
    if country:
        level["Country"] = country.upper()
    queues = level["CEs"].setdefault(ce, {"Queues": {}})["Queues"]
    queues[name] = dict(_parameters(entry, attributes))
    unread = sorted(each for each in attributes if each not in _READ and each.startswith("GLIDEIN_"))
    if unread:
        message = f"not carried over: {', '.join(unread)}"
        notes.append(Problem(path=f"entry {name}", message=message, file=file))


def _site_name(site: str, country: str) -> str:
    return ".".join(filter(None, (_GRID, site, country)))


def _attributes(entry: Xml.Element) -> Iterator[tuple[str, str]]:
    for each in entry.findall("attrs/attr"):
        yield each.get("name", ""), each.get("value", "").strip()


def _parameters(entry: Xml.Element, attributes: Mapping[str, str]) -> Iterator[tuple[str, object]]:
    grid_type = entry.get("gridtype", "")
    if grid_type:
        yield "CEType", _CE_TYPES.get(grid_type, grid_type)
    for theirs, ours in _NUMBERS.items():
        if attributes.get(theirs, "").isdecimal():
            yield ours, int(attributes[theirs])
    if vos := [each.strip().lower() for each in attributes.get(_VOS, "").split(",") if each.strip()]:
        yield "VO", vos
    if system := attributes.get(_SYSTEM, ""):
        yield "OS", [each.strip() for each in system.split(",") if each.strip()]
    if cms_site := attributes.get(_CMS_SITE, ""):
        yield "VOs", {"cms": {"SiteName": cms_site}}
    if queue := _QUEUE.search(entry.get("rsl", "")):
        yield "BatchQueue", queue.group(1)
    yield from _limits(entry)
    yield "Enabled", entry.get("enabled", "True").lower() == "true"


def _limits(entry: Xml.Element) -> Iterator[tuple[str, int]]:
    most = entry.find("config/max_jobs/per_entry")
    for theirs, ours in (("glideins", "MaxTotalJobs"), ("idle", "MaxWaitingJobs")):
        number = "" if most is None else most.get(theirs, "")
        if number.isdecimal():
            yield ours, int(number)

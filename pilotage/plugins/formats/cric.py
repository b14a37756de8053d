"""Import of PanDA queues from CRIC's JSON: each compute element of a PanDA queue becomes a queue of its name.

A PanDA queue that is not `online`, or a part of it that is not `ACTIVE`, is closed (`Enabled: false`), as is
one with a restriction that our tree cannot represent.

Source: the answer of `api/atlas/pandaqueue/query/?json`, by names of queues, and the `queuedata.json` of one
queue that pilots get; units as the ARC Control Tower and Harvester read them.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from cs_config.errors import one_problem
from cs_config.formats import importers
from cs_config.formats.foreign_fields import ForeignFields
from cs_config.formats.importers import ImportedConfiguration
from cs_config.tree.address import NAME, QueueAddress
from cs_config.tree.configuration import Configuration
from pilotage.plugins.formats import gatekeepers
from requirements.errors import Problem
from requirements.values import fold

#: Fields of a PanDA queue, or of a compute element of one.
_Fields = ForeignFields[object]

_GRID: Final = "LCG"
#: The field with the compute elements.
_ELEMENTS: Final = "queues"
#: Types of CEs by flavour, folded.
_CE_TYPES: Final = {"htcondor-ce": "HTCondorCE", "arc-ce": "ARC", "cream-ce": "CREAM"}
#: Numbers of a PanDA queue as our parameters, each in the same unit: MB and s.
_NUMBERS: Final = {
    "corecount": "NumberOfProcessors",
    "maxrss": "MaxRAM",
    "maxwdir": "MaxScratch",
    "maxtime": "maxWallClockTime",
}
#: Limits of a compute element, in minutes.
_CPU_MINUTES: Final = "ce_queue_maxcputime"
_WALL_MINUTES: Final = "ce_queue_maxwctime"
#: Fields with the name of the site; the first that is stated counts.
_SITES: Final = ("rc_site", "gocname", "atlas_site")
_NAMES: Final = ("name", "nickname", "panda_resource", "siteid")
_VO: Final = "vo_name"
_VIRTUAL: Final = "is_virtual"
#: What the states of a queue and of what is above it are when it takes jobs, folded.
_OPEN_STATES: Final = {
    **dict.fromkeys(("state", "site_state", "rc_site_state", "ce_state"), "active"),
    **dict.fromkeys(("ce_status", "ce_queue_status"), "production"),
    "status": "online",
}
#: Fields that admit only some jobs, users or nodes.
_RESTRICTIONS: Final = ("accesscontrol", "allowedgroups", "allowednode")


def propose_cric(
    config: Configuration, files: Mapping[str, str], *, site: str | None = None
) -> ImportedConfiguration:
    """Merge PanDA queues into the current configuration.

    A CE that the tree has stays at its site; else `site`, else `LCG.` and the name of the resource centre.
    """
    notes: list[Problem] = []
    sites: dict[str, Any] = {}
    left_out: list[str] = []
    known = {fold(address.ce): address.site for address in config.addresses}
    for file, text in files.items():
        for name, queue in _read_queues(text, file):
            elements = [each for each in _list_elements(queue) if isinstance(each, ForeignFields)]
            if reason := _find_obstacle(queue, elements):
                notes.append(Problem(path=f"queue {name:.80}", message=f"not carried over: {reason}"))
                continue
            of_queue = _first(queue, _SITES)
            hosts = Counter(gatekeepers.find_host(_text(each, "ce_endpoint")) for each in elements)
            for element in elements:
                host = gatekeepers.find_host(_text(element, "ce_endpoint"))
                of_host = f"-{_text(element, 'ce_queue_name')}" if hosts[host] > 1 else ""
                place = known.get(fold(host)) or site or f"{_GRID}.{of_queue}"
                address = QueueAddress(site=place, ce=host, queue=f"{name}{of_host}")
                notes += _add(sites, address, queue, element, config)
            left_out += _left_out(queue, elements)
    read = ", ".join(files)
    notes += importers.list_left_out(left_out, read)
    return importers.merge_import(config, {"Resources": {"Sites": sites}}, notes, read)


def _read_queues(text: str, file: str) -> Iterator[tuple[str, _Fields]]:
    """The PanDA queues of a text by name: of all, or the one that the text is about."""
    try:
        found = json.loads(text, object_hook=ForeignFields)
    except (ValueError, RecursionError) as error:
        raise one_problem(file, f"not JSON: {error}") from error
    is_object = isinstance(found, ForeignFields)
    if is_object and not isinstance(found.get(_ELEMENTS), dict) and (name := _first(found, _NAMES)):
        found = {name: found}
    if not isinstance(found, dict) or not any(_looks_like_queue(each) for each in found.values()):
        raise one_problem(file, "no PanDA queues: a JSON object by their names, as pandaqueue/query/?json")
    return (
        (name, queue if isinstance(queue, ForeignFields) else ForeignFields())
        for name, queue in found.items()
    )


def _looks_like_queue(value: object) -> bool:
    return isinstance(value, dict) and not {_ELEMENTS, *_NAMES, *_SITES}.isdisjoint(value)


def _list_elements(queue: _Fields) -> list[object]:
    stated = queue.get(_ELEMENTS)
    return stated if isinstance(stated, list) else []


def _find_obstacle(queue: _Fields, elements: list[_Fields]) -> str | None:
    """Why a PanDA queue cannot be a queue here, if so."""
    if queue.get(_VIRTUAL) is True:
        return "it is virtual, what other queues inherit from"
    return None if elements else "it has no compute element"


def _add(
    sites: dict[str, Any], address: QueueAddress, queue: _Fields, element: _Fields, config: Configuration
) -> Iterator[Problem]:
    """Add the queue of a compute element to the sites; notes on it."""
    path = f"queue {address.queue:.80} at {address.ce:.80}"
    names = (address.site, address.ce, address.queue)
    if not all(NAME.fullmatch(each) for each in names):
        message = "not carried over: it needs a name, an endpoint with a host, and a site"
        yield Problem(path=path, message=message)
        return
    ce = sites.setdefault(address.site, {"CEs": {}})["CEs"].setdefault(address.ce, {"Queues": {}})
    if address.queue in ce["Queues"]:
        yield Problem(path=path, message="not carried over: this compute element is stated twice")
        return
    ce["Queues"][address.queue] = found = dict(_parameters(queue, element))
    if reasons := [*_reasons(queue), *_reasons(element)]:
        importers.close(found)
        yield Problem(path=path, message=f"closed, {importers.ENABLED}: false: {'; '.join(reasons)}")
    else:
        yield from importers.note_closed(config, address)
    if not _text(queue, _VO) and not importers.lists_vos(config, address):
        found["VO"] = []
        yield Problem(path=path, message=f"no VO in {_VO}: no VO is admitted, VO: []")


def _parameters(queue: _Fields, element: _Fields) -> Iterator[tuple[str, object]]:
    flavour, endpoint = _text(element, "ce_flavour"), _text(element, "ce_endpoint")
    kind = _CE_TYPES.get(fold(flavour), flavour)
    texts = {
        "CEType": "AREX" if kind == "ARC" and endpoint.startswith("https:") else kind,
        "Endpoint": gatekeepers.find_endpoint(endpoint),
        "BatchQueue": _text(element, "ce_queue_name"),
    }
    yield from ((name, text) for name, text in texts.items() if text)
    for theirs, ours in _NUMBERS.items():
        if number := _number(queue, theirs):
            yield ours, number
    if not _number(queue, "maxtime") and (minutes := _number(element, _WALL_MINUTES)):
        yield "maxWallClockTime", minutes * 60
    if minutes := _number(element, _CPU_MINUTES):
        yield "maxCPUTime", minutes
    if vo := _text(queue, _VO):
        yield "VO", [vo.lower()]


def _reasons(fields: _Fields) -> Iterator[str]:
    """Why a queue takes no jobs, or not those of all."""
    for name, is_open in _OPEN_STATES.items():
        if _states_something(state := fields.get(name)) and fold(str(state).strip()) != is_open:
            yield f"{name} is {state!r:.60}"
    for name in _RESTRICTIONS:
        if _states_something(value := fields.get(name)):
            yield f"{name} is {value!r:.60}"


def _left_out(queue: _Fields, elements: list[_Fields]) -> Iterator[str]:
    """Fields that are not read, and those whose value is not used."""
    yield from (name for name in _list_unread(queue) if name != _NAMES[0])
    yield from (f"{_ELEMENTS} = {each!s:.60}" for each in _list_elements(queue) if each not in elements)
    yield from (f"{name} = {queue[name]!s:.60}" for name in _NUMBERS if _is_unused(queue, name))
    for element in elements:
        unread = list(_list_unread(element))
        yield from (f"{_ELEMENTS}/{name}" for name in unread)
        for name in (_CPU_MINUTES, _WALL_MINUTES):
            if name not in unread and _is_unused(element, name):
                yield f"{_ELEMENTS}/{name} = {element[name]!s:.60}"


def _list_unread(fields: _Fields) -> Iterator[str]:
    return (name for name, value in fields.list_unread() if _states_something(value))


def _is_unused(fields: _Fields, name: str) -> bool:
    return _states_something(fields.get(name)) and not _number(fields, name)


def _states_something(value: object) -> bool:
    return value is not None and value not in ("", [], {})


def _number(fields: _Fields, name: str) -> int | None:
    """A whole number, also in a text; None if it is missing, or states no limit as 0 and 999999 do."""
    value = fields.get(name)
    is_number = isinstance(value, int | str) and not isinstance(value, bool)
    return gatekeepers.read_limit(str(value)) if is_number else None


def _first(fields: _Fields, names: tuple[str, ...]) -> str:
    return next(filter(None, (_text(fields, name) for name in names)), "")


def _text(fields: _Fields, name: str) -> str:
    value = fields.get(name)
    return value.strip() if isinstance(value, str) else ""

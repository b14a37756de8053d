"""Entries in the XML of a glidein factory, as its elements `<entry>` state them.

Source: glideinWMS, doc/factory/configuration.html.
"""

from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from functools import reduce
from typing import Final
from xml.etree import ElementTree as Xml

from cs_config.errors import one_problem
from pilotage.plugins.formats import gatekeepers
from pilotage.plugins.formats.factory_files import entries
from pilotage.plugins.formats.factory_files.entries import COUNT, Factory, FactoryEntry
from requirements.values import fold

#: Elements with entries that have what it states, and their attribute with its name.
_SET: Final = "entry_set"
_ALIAS: Final = "alias"
#: Attributes of elements that are read, by tag.
_XML_READ: Final = {
    "entry": ("name", "gatekeeper", "gridtype", "enabled", entries.RSL),
    "attr": ("name", "value"),
    "submit_attr": ("name", "value"),
    "allow_frontend": ("name",),
    "per_entry": tuple(entries.LIMIT_PARAMETERS),
}


def read_xml(text: str, file: str) -> Factory:
    """The entries of a text in XML, or ConfigError."""
    try:
        root = Xml.fromstring(text)  # noqa: S314  (an operator's own file; expat bounds entities)
    except Xml.ParseError as error:
        raise one_problem(file, f"not XML: {error}") from error
    found = list(_list_xml(root))
    for each in [each for each in root.iter(_SET) if each.find(".//entry") is not None]:
        each[:] = []
        each.attrib = {_ALIAS: each.get(_ALIAS, "")}
    for each in (each for each in root.iter() if each.find("entry") is not None):
        each[:] = [below for below in each if below.tag != "entry"]
    of_all = [f"attrs/{each.get('name', '')}" for each in root.iter("attr")]
    return Factory(entries=found, left_out=[*_other_attributes(root), *of_all])


def _list_xml(root: Xml.Element) -> Iterator[FactoryEntry]:
    sets = {entry: each for each in root.iter(_SET) for entry in each.iter("entry")}
    for entry in root.iter("entry"):
        element = _merge(entry, _share(sets[entry])) if entry in sets else entry
        gatekeeper = element.get("gatekeeper", "")
        most = element.find("config/max_jobs/per_entry")
        attributes = _list_attributes(element.findall("attrs/attr"))
        submit = _list_attributes(element.iter("submit_attr"))
        frontends = [each.get("name", "") for each in element.iter("allow_frontend")]
        yield FactoryEntry(
            name=element.get("name", ""),
            host=gatekeepers.find_host(gatekeeper),
            endpoint=entries.find_endpoint(gatekeeper),
            grid_type=element.get("gridtype", ""),
            enabled=element.get("enabled", "True"),
            queue=entries.find_queue(element.get(entries.RSL, ""), gatekeeper),
            attributes=dict(attributes),
            submit=dict(submit),
            limits={} if most is None else most.attrib,
            unread=(
                *(f"allow_frontend {name}" for name in frontends),
                *_ambiguous_attributes([*attributes, *submit]),
                *(
                    f"{each.get('name')} is an expression"
                    for each in element.findall("attrs/attr")
                    if each.get("type") == "expr" and fold(each.get("name", "")) == fold(entries.VOS)
                ),
            ),
            left_out=(
                *_other_attributes(element),
                *([entries.RSL] if entries.is_beyond_queue(element.get(entries.RSL, "")) else []),
            ),
        )


def _share(entry_set: Xml.Element) -> Xml.Element:
    """What a set states for each of its entries: limits are divided among them, as by glideinWMS."""
    number = len(list(entry_set.iter("entry")))
    stated = {name: value for name, value in entry_set.attrib.items() if name not in ("name", _ALIAS)}
    share = Xml.Element("entry", stated)
    share.extend(deepcopy(each) for each in entry_set if each.tag != "entries")
    for limits in share.iter("per_entry"):
        limits.attrib = {
            name: str(int(value) // number) if COUNT.fullmatch(value) else value
            for name, value in limits.items()
        }
    return share


def _merge(own: Xml.Element, under: Xml.Element) -> Xml.Element:
    """An entry, or an element in it, with what its set states beside it; what is disabled there stays so."""
    merged = Xml.Element(own.tag, {**under.attrib, **own.attrib})
    merged.text = own.text
    if fold(under.get("enabled", "True")) != "true":
        merged.set("enabled", under.get("enabled", ""))
    for each in own:
        merged.append(reduce(_merge, (below for below in under if _key(below) == _key(each)), each))
    stated = {_key(each) for each in own}
    merged.extend(each for each in under if _key(each) not in stated)
    return merged


def _key(element: Xml.Element) -> tuple[str, str]:
    """What tells an element from those beside it: the kind, and the name if it is one of a list."""
    return element.tag, fold(element.get("name", ""))


def _other_attributes(element: Xml.Element) -> Iterator[str]:
    """What is not read of an element and those in it, as `tag/attribute`, or `tag` of one with a text."""
    for each in element.iter():
        if (each.text or "").strip():
            yield each.tag
        yield from (f"{each.tag}/{name}" for name in each.attrib if name not in _XML_READ.get(each.tag, ()))


def _list_attributes(elements: Iterable[Xml.Element]) -> list[tuple[str, str]]:
    return [(each.get("name", ""), entries.strip_quotes(each.get("value", "").strip())) for each in elements]


def _ambiguous_attributes(attributes: Sequence[tuple[str, str]]) -> Iterator[str]:
    first: dict[str, str] = {}
    for name, value in attributes:
        if first.setdefault(fold(name), value) != value:
            yield f"{name} has two values"

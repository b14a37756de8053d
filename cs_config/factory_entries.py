"""The entries of a glidein factory, as its XML or as the YAML that its XML is made from.

Source: glideinWMS (`<entry>` elements), the OSG's YAML (site, gatekeeper, entry).
"""

import html
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final
from xml.etree import ElementTree as Xml

from cs_config import source
from cs_config.errors import ConfigError, one_problem
from cs_config.sections import plain

_HOST: Final = re.compile(r"(?:\w+://)?([^:/\s]+)")
_RSL_QUEUE: Final = re.compile(r"\(\s*queue\s*=\s*([^()\s]+)\s*\)")
_LIMITS: Final = ("glideins", "idle")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A place to which a factory sends glideins."""

    name: str
    site: str = ""  #: if no attribute says another
    host: str = ""  #: of its gatekeeper
    grid_type: str = ""
    is_enabled: bool = True
    queue: str = ""  #: of the batch system
    attributes: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)  #: `glideins` there, and those `idle`


def read(text: str, file: str) -> list[Entry]:
    """The entries of a text.

    Raises:
        ConfigError: It cannot be read, or has none.
    """
    entries = list(_of_xml(text, file) if text.lstrip().startswith("<") else _of_yaml(text, file))
    if not entries:
        raise one_problem(file, "there is no entry: it is no configuration of a glidein factory")
    return entries


def _of_xml(text: str, file: str) -> Iterator[Entry]:
    try:
        root = Xml.fromstring(text)  # noqa: S314  (an operator's own file; expat bounds entities)
    except Xml.ParseError as error:
        raise one_problem(file, f"not XML: {error}") from error
    for element in root.iter("entry"):
        host = _HOST.match(element.get("gatekeeper", ""))
        queue = _RSL_QUEUE.search(element.get("rsl", ""))
        most = element.find("config/max_jobs/per_entry")
        yield Entry(
            name=element.get("name", ""),
            host=host.group(1) if host else "",
            grid_type=element.get("gridtype", ""),
            is_enabled=_is_true(element.get("enabled", "True")),
            queue=queue.group(1) if queue else "",
            attributes={
                each.get("name", ""): each.get("value", "").strip() for each in element.findall("attrs/attr")
            },
            limits=_limits({} if most is None else most.attrib),
        )


def _of_yaml(text: str, file: str) -> Iterator[Entry]:
    reading = source.read(text, file)
    if reading.problems:
        raise ConfigError(tuple(reading.problems))
    tree = plain(reading.root)
    for site, gatekeepers in _sections(tree):
        for host, entries in _sections(gatekeepers):
            for name, entry in _sections(entries):
                yield _entry(site, host, name, entry)


def _entry(site: str, host: str, name: str, said: Mapping[str, object]) -> Entry:
    attributes = dict(_sections(said.get("attrs")))
    submit = said.get("submit_attrs")
    queue = submit.get("+queue", "") if isinstance(submit, dict) else ""
    limits = dict(_sections(said.get("limits"))).get("entry", {})
    return Entry(
        name=name,
        site=site,
        host=host,
        grid_type=str(said.get("gridtype") or ""),
        is_enabled=_is_true(str(said.get("enabled", True))),
        queue=html.unescape(str(queue or "")).strip('"'),
        attributes={each: _text(about.get("value")) for each, about in attributes.items()},
        limits=_limits({each: _text(number) for each, number in limits.items()}),
    )


def _sections(entry: object) -> Iterator[tuple[str, dict[str, object]]]:
    for name, below in entry.items() if isinstance(entry, dict) else ():
        if isinstance(below, dict):
            yield name, below


def _text(value: object) -> str:
    return "" if value is None else str(value).strip()


def _is_true(text: str) -> bool:
    return text.strip().lower() == "true"


def _limits(said: Mapping[str, str]) -> dict[str, int]:
    return {name: int(said[name]) for name in _LIMITS if said.get(name, "").isdecimal()}

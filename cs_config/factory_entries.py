"""The entries of a glidein factory, as its XML or as the YAML that its XML is made from.

Source: glideinWMS (`<entry>` elements), the OSG's YAML (site, gatekeeper, entry).
"""

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from xml.etree import ElementTree as Xml

from cs_config import source
from cs_config.errors import ConfigError, one_problem
from cs_config.sections import plain
from requirements.values import fold

_HOST: Final = re.compile(r"(?:\w+://)?([^:/\s]+)")
_RSL_QUEUE: Final = re.compile(r"\(\s*queue\s*=\s*([^()\s]+)\s*\)")
#: The attribute with the VOs that may come.
SUPPORTED_VOS: Final = "GLIDEIN_Supported_VOs"
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
    unread: tuple[str, ...] = ()  #: what may keep somebody out and cannot be read, each with its value

    def attribute(self, name: str) -> str:
        """The value of an attribute, whose name is compared without case; empty: there is none."""
        return next((value for each, value in self.attributes.items() if fold(each) == fold(name)), "")


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
        attributes = [
            (each.get("name", ""), each.get("value", "").strip()) for each in element.findall("attrs/attr")
        ]
        limits = {} if most is None else most.attrib
        enabled = element.get("enabled", "True")
        frontends = [each.get("name", "") for each in element.iter("allow_frontend")]
        yield Entry(
            name=element.get("name", ""),
            host=host.group(1) if host else "",
            grid_type=element.get("gridtype", ""),
            is_enabled=_is_true(enabled),
            queue=queue.group(1) if queue else "",
            attributes=dict(attributes),
            limits=_limits(limits),
            unread=(
                *_unread_flag(enabled),
                *_unread_limits(limits),
                *(f"allow_frontend {name}" for name in frontends),
                *_said_twice(attributes),
                *(
                    f"{each.get('name')} is an expression"
                    for each in element.findall("attrs/attr")
                    if each.get("type") == "expr" and fold(each.get("name", "")) == fold(SUPPORTED_VOS)
                ),
            ),
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
    attributes = said.get("attrs") or {}
    submit = said.get("submit_attrs")
    queue = submit.get("+queue", "") if isinstance(submit, dict) else ""
    limits = dict(_sections(said.get("limits"))).get("entry", {})
    numbers = {each: _text(number) for each, number in limits.items()}
    enabled = str(said.get("enabled", True))
    known = attributes.items() if isinstance(attributes, dict) else ()
    frontends = said.get("allow_frontends")
    return Entry(
        name=name,
        site=site,
        host=host,
        grid_type=str(said.get("gridtype") or ""),
        is_enabled=_is_true(enabled),
        queue=html.unescape(str(queue or "")).strip('"'),
        attributes={each: _text(_value(about)) for each, about in known if about is not None},
        limits=_limits(numbers),
        unread=(
            *_unread_flag(enabled),
            *_unread_limits(numbers),
            *((f"allow_frontends {frontends!r:.60}",) if frontends else ()),
            *(() if isinstance(attributes, dict) else (f"attrs {attributes!r:.60}",)),
        ),
    )


def _value(about: object) -> object:
    """The value of an attribute, which stands in a section of it, or by itself; a list with commas."""
    value = about.get("value") if isinstance(about, dict) else about
    return ",".join(map(_text, value)) if isinstance(value, list) else value


def _unread_flag(enabled: str) -> Iterator[str]:
    if enabled.strip().lower() not in ("true", "false"):
        yield f"enabled {enabled!r:.60}"


def _unread_limits(said: Mapping[str, str]) -> Iterator[str]:
    yield from (f"{name} {said[name]!r:.60}" for name in _LIMITS if not said.get(name, "0").isdecimal())


def _said_twice(attributes: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Attributes that have two values."""
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


def _is_true(text: str) -> bool:
    return text.strip().lower() == "true"


def _limits(said: Mapping[str, str]) -> dict[str, int]:
    return {name: int(said[name]) for name in _LIMITS if said.get(name, "").isdecimal()}

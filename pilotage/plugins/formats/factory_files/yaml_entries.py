"""Entries in the YAML from which the OSG generates the XML of its glidein factory.

Sites have gatekeepers, and these entries: in files of today in sections, and with fields that are common to
the entries of a site. Of several files those with entries `DEFAULT_ENTRY` state what the entries of others
lack: what a CE publishes in that section, and at `DEFAULT_SITE` what is so of all.

Source: glideinWMS, factory/tools/OSG_autoconf.py and lib/config_util.py.
"""

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from cs_config.errors import ConfigError
from cs_config.formats import importers
from cs_config.source import yaml_reader
from cs_config.source.sections import to_plain
from cs_config.source.yaml_reader import EventReader
from cs_config.tree import parameters
from pilotage.plugins.formats import gatekeepers
from pilotage.plugins.formats.factory_files import entries
from pilotage.plugins.formats.factory_files.entries import ATTRIBUTES, SUBMIT, Factory, FactoryEntry
from requirements.values import Scalar, fold

#: Sections of an entry: where none of them is, a section holds entries.
_LIMITS: Final = "limits"
_OF_ENTRY: Final = frozenset({ATTRIBUTES, SUBMIT, _LIMITS, "allow_frontends"})
#: Of a site: what each of its entries has, if it has no other.
_COMMON: Final = "common_entry_fields"
#: The name of entries that state what others lack, and the site with what is so of all.
_DEFAULT: Final = "DEFAULT_ENTRY"
_OF_ALL_SITES: Final = "DEFAULT_SITE"
#: What an entry in YAML is, if it says nothing else.
_USUAL_TYPE: Final = "condor"
#: Values of an attribute: of several files the second is put before the first.
_VALUES: Final = ("append_value", "value")
#: Of an entry: the address of its CE, where it is another one than that whose section it stands in.
_GATEKEEPER: Final = "gatekeeper"
_YAML_READ: Final = frozenset({*_OF_ENTRY, "gridtype", "enabled", _GATEKEEPER})


def read_yaml(trees: Sequence[Mapping[str, object]]) -> Factory:
    """The entries of trees, of which some may state what the entries of others lack."""
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
        for host, gatekeeper in _sections(hosts):
            if host != _COMMON:
                left_out += (f"{site}/{host}/{name}, a value" for name in _values(gatekeeper))
                for section, name, entry in _list_entries(gatekeeper):
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
        is_text = not {ATTRIBUTES, SUBMIT}.isdisjoint(names) or parameters.is_version(fold(names[-1]))
        return str(event.value) if isinstance(value, float) and is_text else value


def read_tree(text: str, file: str) -> dict[str, object]:
    """The tree of a text in YAML, or ConfigError."""
    reading = yaml_reader.read_yaml(text, file, _FactoryReader)
    if reading.problems:
        raise ConfigError(tuple(reading.problems))
    tree = to_plain(reading.root)
    return tree if isinstance(tree, dict) else {}


def _entry(site: str, host: str, name: str, entry: Mapping[str, object]) -> FactoryEntry:
    attributes = entry.get(ATTRIBUTES) or {}
    submit = entry.get(SUBMIT)
    submitted = submit.items() if isinstance(submit, dict) else ()
    limits = dict(_sections(entry.get(_LIMITS))).get("entry", {})
    known = attributes.items() if isinstance(attributes, dict) else ()
    frontends = entry.get("allow_frontends")
    gatekeeper = _text(entry.get(_GATEKEEPER))
    return FactoryEntry(
        name=name,
        site=site,
        host=gatekeepers.find_host(gatekeeper) or host,
        endpoint=entries.find_endpoint(gatekeeper),
        grid_type=str(entry.get("gridtype") or _USUAL_TYPE),
        enabled=str(entry.get("enabled", True)),
        queue=entries.find_queue(_text(entry.get(entries.RSL)), gatekeeper),
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
        if name == ATTRIBUTES:
            others = (about.keys() - _VALUES for _, about in _sections(below))
            yield from (f"{name}/*/{key}" for keys in others for key in keys)
        elif name == _LIMITS:
            for level, numbers in below.items() if isinstance(below, dict) else ():
                if level == "entry" and isinstance(numbers, dict):
                    yield from (
                        f"{name}/{level}/{key}" for key in numbers if key not in entries.LIMIT_PARAMETERS
                    )
                else:
                    yield f"{name}/{level}"
        elif name not in _YAML_READ and (name != entries.RSL or entries.is_beyond_queue(str(below))):
            yield name


def _value(about: object) -> object:
    """The value of an attribute, from its section or plain; several become comma-separated."""
    values = [about.get(name) for name in _VALUES] if isinstance(about, dict) else [about]
    stated = [each for each in values if each is not None]
    if len(stated) == 1 and not isinstance(stated[0], list):
        return stated[0]
    return ",".join(_text(item) for each in stated for item in (each if isinstance(each, list) else [each]))


def _sections(entry: object) -> Iterator[tuple[str, dict[str, object]]]:
    for name, below in entry.items() if isinstance(entry, dict) else ():
        if isinstance(below, dict):
            yield name, below


def _text(value: object) -> str:
    return "" if value is None else str(value).strip()

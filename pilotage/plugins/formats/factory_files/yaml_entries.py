"""Entries in the YAML from which the OSG generates the XML of its glidein factory.

Sites have gatekeepers, and these entries: in files of today in sections, and with fields that are common to
the entries of a site. Entries `DEFAULT_ENTRY` are no queues: they state what the others lack, also those of
other files: what a CE publishes in that section, and at `DEFAULT_SITE` what is so of all, or of those in
sections of that name.

Source: glideinWMS, factory/tools/OSG_autoconf.py and lib/config_util.py.
"""

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
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
#: The name of entries that state what others lack, and the site with what is so at all sites.
_DEFAULT: Final = "DEFAULT_ENTRY"
_OF_ALL_SITES: Final = "DEFAULT_SITE"
#: What an entry in YAML is, if it says nothing else.
_USUAL_TYPE: Final = "condor"
#: Values of an attribute: of several files the second is put before the first.
_VALUES: Final = ("append_value", "value")
#: Of an entry: the address of its CE, where it is another one than that whose section it stands in.
_GATEKEEPER: Final = "gatekeeper"
_YAML_READ: Final = frozenset({*_OF_ENTRY, "gridtype", "enabled", _GATEKEEPER})
#: Levels of limits: where an entry states the second alone, it is the first as well.
_ENTRY: Final = "entry"
_OF_FRONTENDS: Final = "frontend"
#: What all entries have, and the generator overwrites: the system with `any`,
_OVERWRITTEN: Final = {ATTRIBUTES: frozenset({fold(entries.SYSTEM)})}
#: and the size of a whole node, with what the node has.
_CPUS: Final = "GLIDEIN_CPUS"
_XCOUNT: Final = "+xcount"
_SIZES: Final = {
    ATTRIBUTES: frozenset(map(fold, (_CPUS, "GLIDEIN_MaxMemMBs"))),
    SUBMIT: frozenset(map(fold, (_XCOUNT, "+maxMemory"))),
}
#: The processors of a whole node of which nothing states them.
_ESTIMATED: Final = {ATTRIBUTES: {entries.ESTIMATE: {"value": 32}}}
#: Where the generator has a least number of idle glideins, whatever their percentage.
_LEAST_IDLE: Final = 10
_PERCENTAGE: Final = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,12})?")


def read_yaml(trees: Sequence[Mapping[str, object]]) -> Factory:
    """The entries of trees, of which some may state what the entries of others lack."""
    left_out: list[str] = []
    stated = [each for tree in trees for each in _list_stated(tree, left_out)]
    of_all: dict[str, dict[str, object]] = {}  # by section
    published: dict[tuple[str, ...], dict[str, object]] = {}
    for names, entry in stated:
        if names[-1] == _DEFAULT and names[0] == _OF_ALL_SITES:
            of_all[names[2]] = importers.merge_trees(of_all.get(names[2], {}), entry)
        elif names[-1] == _DEFAULT:
            published[names[:-1]] = entry
    found = []
    for names, entry in stated:
        if names[0] != _OF_ALL_SITES and names[-1] != _DEFAULT:
            of_ce = published.get(names[:-1], {})
            above = importers.merge_trees(of_ce, entry)
            defaults = importers.merge_trees(of_all.get("", {}), of_all.get(names[2], {}))
            whole = importers.merge_trees(_defaults_of(above, defaults, is_published=bool(of_ce)), above)
            found.append(_entry(names[0], names[1], names[-1], whole))
    systems = (_find(dict(_sections(each)).get(ATTRIBUTES, {}), entries.SYSTEM) for each in of_all.values())
    overwritten = (_text(_value(each)) for each in systems if each)
    left_out += (f"{_OF_ALL_SITES}: {entries.SYSTEM} = {each:.60}" for each in overwritten)
    used = {names[:-1] for names, _ in stated if names[-1] != _DEFAULT}
    unused = of_all.keys() - {"", *(section for _, _, section in used)}
    left_out += (f"{_OF_ALL_SITES}/{section}/{_DEFAULT}" for section in sorted(unused))
    left_out += ("/".join(filter(None, (*names, _DEFAULT))) for names in published if names not in used)
    return Factory(entries=found, left_out=left_out)


def _defaults_of(
    entry: Mapping[str, object], of_all: Mapping[str, object], *, is_published: bool
) -> dict[str, object]:
    """What all entries have, for this one: the generator decides some of it by what the entry states.

    Where the CE is not known to publish anything, an estimate of processors tells of a whole node.
    """
    sections = dict(_sections(entry))
    attributes, submit = sections.get(ATTRIBUTES, {}), sections.get(SUBMIT, {})
    defaults = _without(of_all, _OVERWRITTEN)
    is_whole = fold(_text(_find(submit, entries.WHOLE_NODE))) == "true"
    is_estimated = _find(attributes, entries.ESTIMATE) is not None and not is_published
    if of_all and (is_whole or is_estimated):
        defaults = _without(defaults, _SIZES)
        cpus = (_value(_find(attributes, _CPUS)), _find(submit, _XCOUNT))
        if all(gatekeepers.read_limit(_text(each)) is None for each in cpus):
            defaults = importers.merge_trees(defaults, _ESTIMATED)
    limits = sections.get(_LIMITS, {})
    if _OF_FRONTENDS in limits and _ENTRY not in limits:
        defaults = importers.merge_trees(defaults, {_LIMITS: {_ENTRY: limits[_OF_FRONTENDS]}})
    return defaults


def _without(tree: Mapping[str, object], names: Mapping[str, frozenset[str]]) -> dict[str, object]:
    """A tree without these (folded) names in its sections."""
    return {
        section: {name: about for name, about in below.items() if fold(name) not in names.get(section, ())}
        if isinstance(below, dict)
        else below
        for section, below in tree.items()
    }


def _find(section: Mapping[str, object], wanted: str) -> object:
    """A value by its name in any case of letters; None if missing."""
    return next((value for name, value in section.items() if fold(name) == fold(wanted)), None)


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
                for section, name, entry in _list_entries(gatekeeper, f"{site}/{host}", left_out):
                    yield (site, host, section, name), importers.merge_trees(common, entry)


def _values(section: Mapping[str, object]) -> Iterator[str]:
    return (name for name, below in section.items() if not _is_section(below))


def _list_entries(
    gatekeeper: Mapping[str, object], path: str, left_out: list[str]
) -> Iterator[tuple[str, str, dict[str, object]]]:
    """The entries of a gatekeeper with their sections, also those in its sections, where one may be empty."""
    for name, below in _sections(gatekeeper):
        if _has_entries(below):
            left_out += (f"{path}/{name}/{each}, a value" for each in _values(below))
            for inner, entry in below.items():
                if _is_section(entry):
                    yield name, inner, entry if isinstance(entry, dict) else {}
        else:
            yield "", name, below


def _has_entries(section: Mapping[str, object]) -> bool:
    """Whether a section below a gatekeeper is one of entries, and no entry itself."""
    if not section or not _YAML_READ.isdisjoint(section):
        return False
    is_known = any(not _YAML_READ.isdisjoint(entry) for _, entry in _sections(section))
    return is_known or all(map(_is_section, section.values()))


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
    limits = dict(_sections(entry.get(_LIMITS))).get(_ENTRY, {})
    known = attributes.items() if isinstance(attributes, dict) else ()
    frontends = entry.get("allow_frontends")
    gatekeeper = _text(entry.get(_GATEKEEPER)) or host
    return FactoryEntry(
        name=name,
        site=site,
        host=gatekeepers.find_host(gatekeeper),
        endpoint=entries.find_endpoint(gatekeeper),
        grid_type=str(entry.get("gridtype") or _USUAL_TYPE),
        enabled=str(entry.get("enabled", True)),
        queue=entries.find_queue(_unescape(entry.get(entries.RSL)), gatekeeper),
        attributes={each: _unescape(_value(about)) for each, about in known if about is not None},
        submit={each: _unescape(value) for each, value in submitted},
        limits=_count_limits(limits),
        unread=(
            *((f"allow_frontends {frontends!r:.60}",) if frontends else ()),
            *(() if isinstance(attributes, dict) else (f"attrs {attributes!r:.60}",)),
        ),
        left_out=tuple(_other_keys(entry)),
    )


def _count_limits(limits: Mapping[str, object]) -> dict[str, str]:
    """The limits of an entry as numbers: that of idle glideins is stated as a percentage of all."""
    counts = {name: _text(number) for name, number in limits.items() if number is not None}
    total, percentage = counts.get(entries.TOTAL, ""), counts.get(entries.IDLE, "")
    if _PERCENTAGE.fullmatch(percentage):
        del counts[entries.IDLE]
        if entries.COUNT.fullmatch(total):
            share = int(int(total) * Decimal(percentage) / 100)
            counts[entries.IDLE] = str(min(max(share, _LEAST_IDLE), int(total)))
    return counts


def _other_keys(entry: Mapping[str, object]) -> Iterator[str]:
    """What is not read of an entry, as `section/key`; `*` stands for the names of attributes."""
    for name, below in entry.items():
        if name == ATTRIBUTES:
            others = (about.keys() - _VALUES for _, about in _sections(below))
            yield from (f"{name}/*/{key}" for keys in others for key in keys)
        elif name in (SUBMIT, _LIMITS) and below is not None and not isinstance(below, dict):
            yield f"{name} = {below!s:.60}"
        elif name == _LIMITS:
            for level, numbers in below.items() if isinstance(below, dict) else ():
                if level == _ENTRY and isinstance(numbers, dict):
                    read = entries.LIMIT_PARAMETERS if numbers.get(entries.TOTAL) is not None else ()
                    yield from (f"{name}/{level}/{key}" for key in numbers if key not in read)
                else:
                    yield f"{name}/{level}"
        elif name not in _YAML_READ and (name != entries.RSL or entries.is_beyond_queue(_unescape(below))):
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


def _unescape(value: object) -> str:
    """A text that the generator writes into XML as it is, without quotes around it."""
    return entries.strip_quotes(html.unescape(_text(value)))


def _text(value: object) -> str:
    return "" if value is None else str(value).strip()

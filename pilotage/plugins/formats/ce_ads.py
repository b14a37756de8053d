"""Import and export of CE ads: ClassAds that describe a batch queue, as published by gLite.

Form: `[ id = "host:2119/queue"; update_time = …; expiry_time = …; info = [ … ] ]`, or an ad whose attributes
are beside these four instead of in `info`. The id is that of the CE and, after the slash, of the queue.

Exported ads contain the parameters of a queue and the GLUE names derived from them. Derived names are listed
under `Derived`, so that an import of the ads gives the original tree.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from cs_config.errors import PathNotFound
from cs_config.formats import importers
from cs_config.source.sections import as_list
from cs_config.tree import admission, glue, inheritance
from cs_config.tree.address import NAME, NAME_ALLOWED, QueueAddress
from cs_config.tree.configuration import Configuration
from requirements.classad import classad_files
from requirements.classad.classad_files import AdEntry, WrittenAd
from requirements.classad.parser import read_expression
from requirements.classad.syntax_tree import KEYWORDS, SourceText
from requirements.errors import InvalidInput, Problem
from requirements.values import Scalar, Value, fold

ID, INFO, SITE, DERIVED = "id", "info", "Site", "Derived"
#: Attributes about the ad itself; all others describe the queue.
HEADERS = (ID, inheritance.UPDATE_TIME, inheritance.EXPIRY_TIME, INFO, SITE, DERIVED)
#: The parameter that lists other parameters whose text is an expression.
EXPRESSIONS = "Expressions"
#: Attributes that identify CE and queue in an ad without `id`.
_OTHER_IDS = ("GlueCEUniqueID", "CEid")
#: Attributes that name the site; the last is a list of `name=value`.
_SITES = (SITE, "GlueSiteUniqueID", "GlueSiteName")
_FOREIGN_KEY, _OF_SITE = "GlueForeignKey", "GlueSiteUniqueID="


def list_expressions(values: Mapping[str, Value]) -> frozenset[str]:
    """Folded names of those parameters of a queue, given by folded name, whose text is an expression."""
    listed = inheritance.as_tuple(values.get(fold(EXPRESSIONS), ()))
    return admission.EXPRESSIONS | admission.list_checks(values).keys() | {fold(str(name)) for name in listed}


@dataclass(frozen=True, slots=True, kw_only=True)
class CeAd:
    """One CE ad, as read."""

    ce: str
    queue: str
    site: str | None  #: None: not stated
    times: Mapping[str, int | float]  #: `update_time` and `expiry_time`, those that are stated
    attributes: tuple[AdEntry, ...]  #: about the queue, without derived ones
    line: int

    @property
    def id(self) -> str:
        """The id as information systems write it."""
        return f"{self.ce}/{self.queue}"


def read_ads(text: str, file: str) -> tuple[CeAd, ...]:
    """The CE ads of a text; InvalidInput has a problem with its line for each ad that is none."""
    found: list[CeAd] = []
    problems: list[Problem] = []
    for written in classad_files.read_ad_file(text, file):
        try:
            found.append(_read_ad(written, file))
        except InvalidInput as error:
            problems += error.problems
    problems += _find_repeated(found, file)
    if problems:
        raise InvalidInput(problems)
    return tuple(found)


def _read_ad(written: WrittenAd, file: str) -> CeAd:
    outside = {fold(entry.name): entry for entry in written.entries}
    info = outside.pop(fold(INFO), None)
    headers = {name: outside.pop(fold(name)) for name in HEADERS if fold(name) in outside}
    inside = {fold(entry.name): entry for entry in info.entries} if info else {}
    reader = _AdReader(file=file, line=written.line, headers=headers, attributes=outside | inside)
    ce, queue = reader.address()
    times = dict(reader.times())
    for name in outside.keys() & inside.keys():
        reader.problem(outside[name], f"{outside[name].name} is both in {INFO} and outside it")
    if info is not None and not isinstance(info.value, dict):
        reader.problem(info, f"{INFO} is {info.text:.40}, it has to be an ad: [ name = value; … ]")
    if reader.problems:
        raise InvalidInput(reader.problems)
    return CeAd(
        ce=ce,
        queue=queue,
        site=reader.site(),
        times=times,
        attributes=tuple(entry for name, entry in (inside | outside).items() if name not in reader.derived()),
        line=written.line,
    )


@dataclass(slots=True, kw_only=True)
class _AdReader:
    file: str
    line: int
    headers: Mapping[str, AdEntry]
    attributes: Mapping[str, AdEntry]
    path: str = "CE ad"
    problems: list[Problem] = field(default_factory=list)

    def problem(self, entry: AdEntry | None, message: str) -> None:
        line = self.line if entry is None else entry.line
        self.problems.append(Problem(path=self.path, message=message, file=self.file, line=line))

    def address(self) -> tuple[str, str]:
        """CE and queue; a missing or malformed id is a problem."""
        others = (self.attributes.get(fold(name)) for name in _OTHER_IDS)
        entry = self.headers.get(ID) or next((each for each in others if each is not None), None)
        if entry is None:
            self.problem(None, f'it has no {ID}, which names CE and queue: {ID} = "host:2119/queue"')
            return "", ""
        if not isinstance(entry.value, str):
            self.problem(entry, f'{entry.name} is {entry.text:.60}, it has to be a text: "host:2119/queue"')
            return "", ""
        self.path = f"CE ad {entry.value[:200]}"
        ce, slash, queue = entry.value.partition("/")
        if not slash:
            self.problem(entry, f'{entry.name} has no slash between CE and queue: "host:2119/queue"')
        elif wrong := [name for name in (ce, queue) if not NAME.fullmatch(name)]:
            message = f"{wrong[0][:200]!r} is not a valid name of a CE or queue, allowed are {NAME_ALLOWED}"
            self.problem(entry, message)
        return ce, queue

    def times(self) -> Iterator[tuple[str, int | float]]:
        """The times that are numbers; any other value is a problem."""
        for name in (inheritance.UPDATE_TIME, inheritance.EXPIRY_TIME):
            entry = self.headers.get(name)
            if entry is None:
                continue
            value = entry.value
            if entry.fault is not None:
                self.problem(entry, f"{name}: {entry.fault}")
            elif isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
                yield name, value
            else:
                self.problem(entry, f"{name} is {entry.text:.60}, allowed is a number of seconds, 0 or more")

    def site(self) -> str | None:
        """The site that the ad names, if any."""
        entries = (self.headers.get(name) or self.attributes.get(fold(name)) for name in _SITES)
        named = [entry.value for entry in entries if entry is not None and isinstance(entry.value, str)]
        foreign = self.attributes.get(fold(_FOREIGN_KEY))
        keys = (key for key in as_list(foreign.value if foreign else None) if isinstance(key, str))
        named += [key[len(_OF_SITE) :] for key in keys if fold(key).startswith(fold(_OF_SITE))]
        return next(iter(named), None)

    def derived(self) -> frozenset[str]:
        """Folded names added by the exporter. A listed restriction counts only if it is really derived."""
        entry = self.headers.get(DERIVED)
        names = entry.value if entry is not None else None
        listed = {fold(str(name)) for name in names} if isinstance(names, list) else set()
        following = glue.following(self.attributes.keys())
        return frozenset(
            name for name in listed if name in following or not importers.is_restriction_of_ad(name)
        )


def _find_repeated(ads: list[CeAd], file: str) -> Iterator[Problem]:
    """Second ads of a queue: it would be ambiguous which one counts."""
    first: dict[str, CeAd] = {}
    for ad in ads:
        other = first.setdefault(fold(ad.id), ad)
        if other is not ad and fold(other.site or "") == fold(ad.site or ""):
            message = f"defined twice, the first time in line {other.line}"
            yield Problem(path=f"CE ad {ad.id}", message=message, file=file, line=ad.line)


_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_ESCAPED = re.compile(r'[\x00-\x1f\x7f"\\]')


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedAds:
    """Exported ads, and losses of the export."""

    text: str
    queues: tuple[QueueAddress, ...]
    left_out: tuple[str, ...]  #: paths of parameters that an ad cannot represent
    narrowed: tuple[str, ...]  #: queues, each with the excluded VOs: an ad has no values of single VOs


def export_ads(config: Configuration, path: str = "", vo: str = "") -> ExportedAds:
    """The ads of all queues at and below a path, with the effective parameters of a VO (empty: of none).

    `config` with expired values: an ad states its own expiry. `path` may be an address; empty: everything.
    """
    queues = tuple(_queues_below(config, path))
    if not queues:
        raise PathNotFound(path or "Resources/Sites", config.suggest(path))
    left_out = tuple(
        f"{queue}/{name}"
        for queue in queues
        for name, each in config.parameters(queue, vo).items()
        if each.node_attribute is not None
    )
    excluded = {queue: () if vo else tuple(_excluded_vos(config, queue)) for queue in queues}
    text = "".join(_format_ad(config, queue, vo, excluded[queue]) for queue in queues)
    narrowed = tuple(f"{queue}: {', '.join(vos)}" for queue, vos in excluded.items() if vos)
    return ExportedAds(text=text, queues=queues, left_out=left_out, narrowed=narrowed)


def _excluded_vos(config: Configuration, queue: QueueAddress) -> Iterator[str]:
    """VOs that the queue restricts by values of their own, which an ad for all VOs cannot represent."""
    for vo in sorted(config.vos):
        own = (name for level in config.levels[queue] for name in level.by_vo.get(vo, {}))
        if any(map(importers.keeps_out, own)):
            yield vo


def _restrictions(
    config: Configuration, queue: QueueAddress, vo: str, excluded: tuple[str, ...]
) -> Iterator[tuple[str, Value]]:
    """Extra attributes that keep the ad as restrictive as the tree."""
    levels = config.levels[queue]
    if not inheritance.is_enabled(levels, vo):  # any level may disable the queue, not only the nearest
        yield importers.ENABLED, False
    if excluded:
        plain = config.values(queue, "").items()
        listed = next((value for name, value in plain if fold(name) == "vo"), None)
        vos = tuple(sorted(config.vos)) if listed is None else tuple(map(str, inheritance.as_tuple(listed)))
        yield "VO", tuple(each for each in vos if fold(each) not in excluded)


def _queues_below(config: Configuration, path: str) -> Iterator[QueueAddress]:
    names = [name for name in path.split("/") if name]
    if names[:2] == ["Resources", "Sites"]:
        names = [name for place, name in enumerate(names[2:]) if place % 2 == 0]
    for queue in config.addresses:
        if [queue.site, queue.ce, queue.queue][: len(names)] == names:
            yield queue


def _format_ad(config: Configuration, queue: QueueAddress, vo: str, excluded: tuple[str, ...]) -> str:
    narrower = dict(_restrictions(config, queue, vo, excluded))
    folded = set(map(fold, narrower))
    values = config.values(queue, vo)
    stated = {name: value for name, value in values.items() if fold(name) not in folded} | narrower
    parameters = {fold(name): each for name, each in config.parameters(queue, vo).items()}
    own = set(map(fold, stated))
    derived = {name: value for name, value in glue.build_ad(stated, queue).items() if fold(name) not in own}
    headers: dict[str, Value] = {ID: f"{queue.ce}/{queue.queue}", SITE: queue.site}
    headers |= {
        name: parameters[name].value for name in sorted(inheritance.TIMES, reverse=True) if name in parameters
    }
    if derived:
        headers[DERIVED] = tuple(derived)
    expressions = list_expressions({fold(name): value for name, value in stated.items()})
    info = {name: value for name, value in {**stated, **derived}.items() if name != EXPRESSIONS}
    lines = [f"  {_name(name)} = {_format_value(value)};" for name, value in headers.items()]
    inside: list[str] = []
    for name, value in info.items():
        is_expression = isinstance(value, str) and fold(name) in expressions and _is_expression(value)
        inside.append(f"    {_name(name)} = {value if is_expression else _format_value(value)};")
    return "\n".join(["[", *lines, f"  {INFO} = [", *inside, "  ]", "]", ""])


def _is_expression(text: str) -> bool:
    try:
        read_expression(SourceText(text=text, path=""))
    except InvalidInput:
        return False
    return True


def _format_value(value: Value) -> str:
    if isinstance(value, tuple):
        return f"{{ {', '.join(map(_scalar, value))} }}" if value else "{ }"
    return _scalar(value)


def _scalar(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{_escaped(value)}"' if isinstance(value, str) else repr(value)


def _name(name: str) -> str:
    if _IDENTIFIER.fullmatch(name) and name.lower() not in KEYWORDS:
        return name
    return "'" + _escaped(name).replace("'", r"\047") + "'"


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda sign: f"\\{ord(sign[0]):03o}", text)

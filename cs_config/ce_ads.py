"""CE ads: what gLite's information systems say of a batch queue, as a ClassAd.

`[ id = "host:2119/queue"; update_time = …; expiry_time = …; info = [ … ] ]`, or an ad whose attributes
stand beside these four. The id is the one of the CE and, behind the slash, of the queue.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cs_config import admission, freshness, glue, inheritance, restrictions
from cs_config.names import NAME, NAME_ALLOWED
from requirements import ad_files
from requirements.ad_files import Entry, WrittenAd
from requirements.errors import InvalidInput
from requirements.problem import Problem
from requirements.values import Value, fold

ID, INFO, SITE, DERIVED = "id", "info", "Site", "Derived"
#: What an ad says about itself; everything else is about the queue.
HEADERS = (ID, freshness.UPDATE_TIME, freshness.EXPIRY_TIME, INFO, SITE, DERIVED)
#: The parameter that names others whose text is an expression.
EXPRESSIONS = "Expressions"
#: Where an ad without `id` names its CE and queue.
_OTHER_IDS = ("GlueCEUniqueID", "CEid")
#: Where an ad names its site; the last is a list of `name=value`.
_SITES = (SITE, "GlueSiteUniqueID", "GlueSiteName")
_FOREIGN_KEY, _OF_SITE = "GlueForeignKey", "GlueSiteUniqueID="


def expressions(values: Mapping[str, Value]) -> frozenset[str]:
    """Folded names of the parameters of a queue whose text is an expression.

    Args:
        values: Of the queue, by folded name.
    """
    listed = inheritance.as_tuple(values.get(fold(EXPRESSIONS), ()))
    return admission.EXPRESSIONS | admission.checks(values).keys() | {fold(str(name)) for name in listed}


@dataclass(frozen=True, slots=True, kw_only=True)
class CeAd:
    """What one ad says."""

    ce: str
    queue: str
    site: str | None  #: None: it does not say
    times: Mapping[str, int | float]  #: `update_time` and `expiry_time`, as far as it says them
    attributes: tuple[Entry, ...]  #: about the queue, without those that merely follow from others
    line: int

    @property
    def id(self) -> str:
        """As information systems write it."""
        return f"{self.ce}/{self.queue}"


def read(text: str, file: str) -> tuple[CeAd, ...]:
    """The CE ads of a text.

    Raises:
        InvalidInput: No ClassAds, or with every ad that is none of a CE, each with its line.
    """
    found: list[CeAd] = []
    problems: list[Problem] = []
    for written in ad_files.read(text, file):
        try:
            found.append(_read(written, file))
        except InvalidInput as error:
            problems += error.problems
    problems += _again(found, file)
    if problems:
        raise InvalidInput(problems)
    return tuple(found)


def _read(written: WrittenAd, file: str) -> CeAd:
    said = {fold(entry.name): entry for entry in written.entries}
    info = said.pop(fold(INFO), None)
    headers = {name: said.pop(fold(name)) for name in HEADERS if fold(name) in said}
    inside = {fold(entry.name): entry for entry in info.entries} if info else {}
    reader = _Reader(file=file, line=written.line, headers=headers, attributes=said | inside)
    ce, queue = reader.address()
    times = dict(reader.times())
    for name in said.keys() & inside.keys():
        reader.problem(said[name], f"{said[name].name} stands in {INFO} and beside it")
    if info is not None and not isinstance(info.value, dict):
        reader.problem(info, f"{INFO} is {info.text:.40}, it has to be an ad: [ name = value; … ]")
    if reader.problems:
        raise InvalidInput(reader.problems)
    return CeAd(
        ce=ce,
        queue=queue,
        site=reader.site(),
        times=times,
        attributes=tuple(entry for name, entry in (inside | said).items() if name not in reader.derived()),
        line=written.line,
    )


class _Reader:
    """Reads what an ad says about itself, and gathers what is wrong with it."""

    def __init__(
        self, *, file: str, line: int, headers: Mapping[str, Entry], attributes: Mapping[str, Entry]
    ) -> None:
        self.problems: list[Problem] = []
        self._file = file
        self._line = line
        self._headers = headers
        self._attributes = attributes
        self._path = "CE ad"

    def problem(self, entry: Entry | None, message: str) -> None:
        line = self._line if entry is None else entry.line
        self.problems.append(Problem(path=self._path, message=message, file=self._file, line=line))

    def address(self) -> tuple[str, str]:
        """CE and queue; a problem if there is no good id."""
        others = (self._attributes.get(fold(name)) for name in _OTHER_IDS)
        entry = self._headers.get(ID) or next((each for each in others if each is not None), None)
        if entry is None:
            self.problem(None, f'it has no {ID}, which names CE and queue: {ID} = "host:2119/queue"')
            return "", ""
        if not isinstance(entry.value, str):
            self.problem(entry, f'{entry.name} is {entry.text:.60}, it has to be a text: "host:2119/queue"')
            return "", ""
        self._path = f"CE ad {entry.value[:200]}"
        ce, slash, queue = entry.value.partition("/")
        if not slash:
            self.problem(entry, f'{entry.name} has no slash between CE and queue: "host:2119/queue"')
        elif wrong := [name for name in (ce, queue) if not NAME.fullmatch(name)]:
            message = f"{wrong[0][:200]!r} is no name of a CE or queue, allowed are {NAME_ALLOWED}"
            self.problem(entry, message)
        return ce, queue

    def times(self) -> Iterator[tuple[str, int | float]]:
        """The times that are numbers; a problem for others."""
        for name in (freshness.UPDATE_TIME, freshness.EXPIRY_TIME):
            entry = self._headers.get(name)
            if entry is None:
                continue
            value = entry.value
            if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
                yield name, value
            else:
                self.problem(entry, f"{name} is {entry.text:.60}, allowed is a number of seconds, 0 or more")

    def site(self) -> str | None:
        """The site that the ad names; None if it names none."""
        entries = (self._headers.get(name) or self._attributes.get(fold(name)) for name in _SITES)
        named = [entry.value for entry in entries if entry is not None and isinstance(entry.value, str)]
        return next(iter([*named, *self._foreign_sites()]), None)

    def _foreign_sites(self) -> Iterator[str]:
        entry = self._attributes.get(fold(_FOREIGN_KEY))
        keys = entry.value if entry is not None else None
        for key in keys if isinstance(keys, list) else [keys]:
            if isinstance(key, str) and fold(key).startswith(fold(_OF_SITE)):
                yield key[len(_OF_SITE) :]

    def derived(self) -> frozenset[str]:
        """Folded names that the exporter added, since they follow; of restrictions only such as do."""
        entry = self._headers.get(DERIVED)
        names = entry.value if entry is not None else None
        listed = {fold(str(name)) for name in names} if isinstance(names, list) else set()
        following = glue.following(self._attributes.keys())
        return frozenset(
            name for name in listed if name in following or not restrictions.is_restriction_of_ad(name)
        )


def _again(ads: list[CeAd], file: str) -> Iterator[Problem]:
    """Ads of the same queue: which one would count?"""
    first: dict[str, CeAd] = {}
    for ad in ads:
        other = first.setdefault(fold(ad.id), ad)
        if other is not ad and fold(other.site or "") == fold(ad.site or ""):
            message = f"stands twice, the first time in line {other.line}"
            yield Problem(path=f"CE ad {ad.id}", message=message, file=file, line=ad.line)

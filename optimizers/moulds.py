"""Descriptions of one mould: equal but for what each job has for itself, so read and checked once.

What comes out of a mould is what reading the whole text gives: a mould that could say anything else is not
made, and a value that is wrong is left to the reading of the whole text, which tells what is wrong and where.
"""

from collections import OrderedDict, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Final

from cs_config import keywords
from cs_config.configuration import Configuration
from cs_config.keywords import Keyword
from cs_config.operations import operations
from cs_config.options import Operations
from optimizers import cuts, jdl, members, own_side, parametric
from optimizers import description as descriptions
from optimizers.cuts import Cut, Form, Value
from optimizers.member import Member
from optimizers.members import Submitted
from optimizers.submitter import Submitter
from requirements.errors import InvalidInput, NotAllowed
from taskqueue import placeholders

#: Moulds that are kept; one is some ten kilobytes.
_MOST_KEPT: Final = 2000
#: Moulds that the texts of a submission are tried in before they are cut themselves.
_MOST_TRIED: Final = 64
#: Stands for a number when a mould is made.
_SOME_NUMBER: Final = 900_000_001


@dataclass(frozen=True, slots=True, kw_only=True)
class Mould:
    """What descriptions have in common, and where each puts something of its own."""

    form: Form
    source: str  #: the text, with placeholders
    submitted: Submitted  #: its body has placeholders; of its one member the values are of no meaning
    keywords: tuple[Keyword, ...]  #: that each has for itself
    options: Operations

    def cast(self, values: Sequence[Value]) -> Member | None:
        """The job of the text with these values; None: one is not as it should be."""
        own = list(zip(self.keywords, values, strict=True))
        [member] = self.submitted.members
        read = descriptions.read_own(member.description, own, self.options)
        if read is None:
            return None
        made = Member(description=member.description, own=read, parameters=None)
        if any(descriptions.grid_job_problems(made.description, made.arguments, self.options)):
            return None
        parameters: dict[str, object] = {}
        for keyword, value in own:
            stated = descriptions.as_json(keyword, read[keyword.attribute])
            parameters[f"{keyword.name}="] = stated
            if stated != value:
                parameters[f"{keyword.name}=="] = value
        return replace(made, parameters=parameters)


class Moulds:
    """Those of one configuration; safe in several threads."""

    def __init__(self, config: Configuration) -> None:
        self.config = config
        self._known: OrderedDict[Hashable, Mould | None] = OrderedDict()
        self._lock = Lock()

    def of(self, cut: Cut, submitter: Submitter, archive: str | None) -> Mould | None:
        """The mould that a text came out of; None: it has to be read as a whole."""
        key = submitter, archive, cut.form
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        made = _make(cut, submitter, self.config, archive)
        with self._lock:
            self._known[key] = made
            if len(self._known) > _MOST_KEPT:
                self._known.popitem(last=False)
        return made


class Casting:
    """What the texts of one submission are, many of which come out of few moulds."""

    def __init__(self, moulds: Moulds, submitter: Submitter, archive: str | None) -> None:
        self._moulds = moulds
        self._submitter = submitter
        self._archive = archive
        self._used: deque[Mould] = deque(maxlen=_MOST_TRIED)

    def cast(self, text: str) -> tuple[Mould, Member] | None:
        """The job of a text and the mould of it; None: it has to be read as a whole."""
        for mould in self._used:
            if (values := mould.form.values(text)) is not None:
                return _cast(mould, values)
        cut = cuts.cut(text)
        if cut is None or (made := self._moulds.of(cut, self._submitter, self._archive)) is None:
            return None
        self._used.appendleft(made)
        return _cast(made, cut.values)


def _cast(mould: Mould, values: Sequence[Value]) -> tuple[Mould, Member] | None:
    member = mould.cast(values)
    return None if member is None else (mould, member)


_latest: list[Moulds] = []


def of_configuration(config: Configuration) -> Moulds:
    """Those of this configuration, shared by all submissions to the process while it is current."""
    for known in _latest:
        if known.config is config:
            return known
    made = Moulds(config)
    _latest[:] = [made]
    return made


def _make(cut: Cut, submitter: Submitter, config: Configuration, archive: str | None) -> Mould | None:
    """Read the text with values of ours, which have to come out where they were put in."""
    form = cut.form
    values = {name: _stand_in(name, kind) for name, kind in form.openings}
    if len(values) < len(form.openings):
        return None  # a keyword twice: one of the two stands in a comment
    text = form.join([placeholders.as_written(values[name]) for name, _ in form.openings])
    try:
        [raw] = jdl.read(text)
        if not _came_out(values, raw) or parametric.is_parametric(raw) or own_side.is_asked(raw):
            return None
        [submitted] = members.expand(raw, submitter, config, archive)
    except (InvalidInput, NotAllowed, ValueError):
        return None
    places = {name: f"%({name}=)s" for name in values}
    return Mould(
        form=form,
        source=form.join([places[name] for name, _ in form.openings]),
        submitted=replace(submitted, body={**submitted.body, **places}),
        keywords=tuple(keywords.BY_NAME[name] for name, _ in form.openings),
        options=operations(config, submitted.whose.vo),
    )


def _stand_in(name: str, kind: type) -> Value:
    """A value that stands nowhere else: any of its kind would have led to the same."""
    if kind is int:
        return _SOME_NUMBER
    return [f"/%({name}=)s"] if kind is list else f"/%({name}=)s"


def _came_out(values: Mapping[str, Value], raw: Mapping[str, object]) -> bool:
    found = {keyword.name: value for name, value in raw.items() if (keyword := keywords.find(name))}
    return all(
        type(found.get(name)) is type(value) and found[name] == value for name, value in values.items()
    )

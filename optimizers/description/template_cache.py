"""Cutting out of a JDL what each job has for itself: texts that are equal beside that are read once.

What is cut out is of plain form: a text without escapes, a number, a list of such texts. Whether a cut is
where it seems to be, and not in a comment or in another text, is not known here: `moulds` makes sure.

Descriptions of one mould: equal but for what each job has for itself, so read and checked once.

What comes out of a mould is what reading the whole text gives: a mould that could say anything else is not
made, and a value that is wrong is left to the reading of the whole text, which tells what is wrong and where.
"""

import re
from collections import OrderedDict, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Final

from cs_config.options import keywords
from cs_config.options.keywords import Keyword
from cs_config.options.operations import options_for
from cs_config.options.options import VoOptions
from cs_config.tree.configuration import Configuration
from optimizers.description import description, expansion, jdl, parametric
from optimizers.description import description as descriptions
from optimizers.description.expansion import JobMember, SharedDescription
from optimizers.submit.submitter import Submitter
from requirements.errors import InvalidInput, NotAllowed
from requirements.values import fold
from taskqueue.jobs import descriptions as jobs_descriptions

#: What the texts of one submission often differ in, as far as it is of plain form.
_OPEN: Final = keywords.OPEN - {"ExecutionEnvironment"}
_BY_SPELLING: Final = {
    fold(spelling): keyword.name
    for keyword in keywords.KEYWORDS
    if keyword.name in _OPEN
    for spelling in (keyword.name, *keyword.also)
}

#: No escapes, no end of line, nothing that cannot be shown or stored.
_PLAIN: Final = r'"[^"\\\x00-\x1f\x7f-\x9f\ud800-\udfff]+"'
_NUMBER: Final = "(?:0|[1-9][0-9]{0,8})"
_LIST: Final = rf"\{{{_PLAIN}(?:, {_PLAIN})*\}}"
_WRITTEN: Final = {str: re.compile(_PLAIN), int: re.compile(_NUMBER), list: re.compile(_LIST)}
_OWN_VALUE: Final = re.compile(
    rf"([\n;\[]\s*(?:{'|'.join(_BY_SPELLING)})\s*=\s*)({_PLAIN}|{_NUMBER}|{_LIST})(?=\s*;)",
    re.IGNORECASE,
)
_NAME: Final = re.compile(r"[A-Za-z]+")
#: Characters; longer texts are rare and take what they take.
_LONGEST: Final = 100_000

Value = str | int | list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTemplate:
    """What is left of a text."""

    pieces: tuple[str, ...]  #: one more than there are openings
    openings: tuple[tuple[str, type], ...]  #: the keyword that each value belongs to, and what it is

    def values(self, text: str) -> tuple[Value, ...] | None:
        """What a text of this form has in its openings; None: it is of another."""
        first, *others = self.pieces
        if not text.startswith(first) or not text.endswith(others[-1]) or _is_odd(text):
            return None
        values: list[Value] = []
        at = len(first)
        for (_, kind), piece in zip(self.openings, others, strict=True):
            written = _WRITTEN[kind].match(text, at)
            if written is None or not text.startswith(piece, written.end()):
                return None
            values.append(_value(written[0]))
            at = written.end() + len(piece)
        return tuple(values) if at == len(text) else None

    def join(self, written: Sequence[str]) -> str:
        """The text with these in its openings."""
        return "".join(part for pair in zip(self.pieces, (*written, ""), strict=True) for part in pair)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitText:
    """A text taken apart."""

    form: TextTemplate
    values: tuple[Value, ...]


def split_text(text: str) -> SplitText | None:
    """The text without what its job has for itself; None: it has nothing, or of no plain form."""
    if _is_odd(text):
        return None
    parts = _OWN_VALUE.split(f"\n{text}")
    if len(parts) == 1:
        return None
    values = tuple(map(_value, parts[2::3]))
    names = (_BY_SPELLING[_NAME.search(lead)[0].lower()] for lead in parts[1::3])  # type: ignore[index]
    first, *others = map("".join, zip(parts[0::3], (*parts[1::3], ""), strict=True))
    openings = tuple((name, type(value)) for name, value in zip(names, values, strict=True))
    return SplitText(form=TextTemplate(pieces=(first[1:], *others), openings=openings), values=values)


def _is_odd(text: str) -> bool:
    return len(text) > _LONGEST or "=)s" in text


def _value(written: str) -> Value:
    if written[0] == "{":
        return written[2:-2].split('", "')
    return written[1:-1] if written[0] == '"' else int(written)


#: Moulds that are kept; one is some ten kilobytes.
_MOST_KEPT: Final = 2000
#: Moulds that the texts of a submission are tried in before they are cut themselves.
_MOST_TRIED: Final = 64
#: Stands for a number when a mould is made.
_SOME_NUMBER: Final = 900_000_001


@dataclass(frozen=True, slots=True, kw_only=True)
class DescriptionTemplate:
    """What descriptions have in common, and where each puts something of its own."""

    form: TextTemplate
    source: str  #: the text, with placeholders
    submitted: SharedDescription  #: its body has placeholders; of its one member the values are of no meaning
    keywords: tuple[Keyword, ...]  #: that each has for itself
    options: VoOptions

    def fill(self, values: Sequence[Value]) -> JobMember | None:
        """The job of the text with these values; None: one is not as it should be."""
        own = list(zip(self.keywords, values, strict=True))
        [member] = self.submitted.members
        read = descriptions.read_own(member.description, own, self.options)
        if read is None:
            return None
        made = JobMember(description=member.description, own=read, parameters=None)
        if any(descriptions.grid_job_problems(made.description, made.arguments, self.options)):
            return None
        parameters: dict[str, object] = {}
        for keyword, value in own:
            stated = descriptions.keyword_as_json(keyword, read[keyword.attribute])
            parameters[f"{keyword.name}="] = stated
            if stated != value:
                parameters[f"{keyword.name}=="] = value
        return replace(made, parameters=parameters)


class TemplateCache:
    """Those of one configuration; safe in several threads."""

    def __init__(self, config: Configuration) -> None:
        self.config = config
        self._known: OrderedDict[Hashable, DescriptionTemplate | None] = OrderedDict()
        self._lock = Lock()

    def find(self, cut: SplitText, submitter: Submitter, archive: str | None) -> DescriptionTemplate | None:
        """The mould that a text came out of; None: it has to be read as a whole."""
        key = submitter, archive, cut.form
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        made = _make_template(cut, submitter, self.config, archive)
        with self._lock:
            self._known[key] = made
            if len(self._known) > _MOST_KEPT:
                self._known.popitem(last=False)
        return made


class TemplateMatcher:
    """What the texts of one submission are, many of which come out of few moulds."""

    def __init__(self, moulds: TemplateCache, submitter: Submitter, archive: str | None) -> None:
        self._moulds = moulds
        self._submitter = submitter
        self._archive = archive
        self._used: deque[DescriptionTemplate] = deque(maxlen=_MOST_TRIED)

    def fill(self, text: str) -> tuple[DescriptionTemplate, JobMember] | None:
        """The job of a text and the mould of it; None: it has to be read as a whole."""
        for mould in self._used:
            if (values := mould.form.values(text)) is not None:
                return _fill_template(mould, values)
        cut = split_text(text)
        if cut is None or (made := self._moulds.find(cut, self._submitter, self._archive)) is None:
            return None
        self._used.appendleft(made)
        return _fill_template(made, cut.values)


def _fill_template(
    mould: DescriptionTemplate, values: Sequence[Value]
) -> tuple[DescriptionTemplate, JobMember] | None:
    member = mould.fill(values)
    return None if member is None else (mould, member)


_latest: list[TemplateCache] = []


def template_cache_of(config: Configuration) -> TemplateCache:
    """Those of this configuration, shared by all submissions to the process while it is current."""
    for known in _latest:
        if known.config is config:
            return known
    made = TemplateCache(config)
    _latest[:] = [made]
    return made


def _make_template(
    cut: SplitText, submitter: Submitter, config: Configuration, archive: str | None
) -> DescriptionTemplate | None:
    """Read the text with values of ours, which have to come out where they were put in."""
    form = cut.form
    values = {name: _placeholder(name, kind) for name, kind in form.openings}
    if len(values) < len(form.openings):
        return None  # a keyword twice: one of the two stands in a comment
    text = form.join([jobs_descriptions.format_jdl_value(values[name]) for name, _ in form.openings])
    try:
        [raw] = jdl.read_descriptions(text)
        if not _is_recovered(values, raw) or parametric.is_parametric(raw) or description.refers_to_own(raw):
            return None
        [submitted] = expansion.expand_description(raw, submitter, config, archive)
    except (InvalidInput, NotAllowed, ValueError):
        return None
    places = {name: f"%({name}=)s" for name in values}
    return DescriptionTemplate(
        form=form,
        source=form.join([places[name] for name, _ in form.openings]),
        submitted=replace(submitted, body={**submitted.body, **places}),
        keywords=tuple(keywords.BY_NAME[name] for name, _ in form.openings),
        options=options_for(config, submitted.whose.vo),
    )


def _placeholder(name: str, kind: type) -> Value:
    """A value that stands nowhere else: any of its kind would have led to the same."""
    if kind is int:
        return _SOME_NUMBER
    return [f"/%({name}=)s"] if kind is list else f"/%({name}=)s"


def _is_recovered(values: Mapping[str, Value], raw: Mapping[str, object]) -> bool:
    found = {keyword.name: value for name, value in raw.items() if (keyword := keywords.find_keyword(name))}
    return all(
        type(found.get(name)) is type(value) and found[name] == value for name, value in values.items()
    )

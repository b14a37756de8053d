"""Cache of description templates: JDL texts that differ only in a few values are parsed and checked once.

A JDL is split into a constant template and per-job values of plain form: a text without escapes, a number, a
list of such texts. The split works on text, so a value may turn out to be part of a comment or of another
text; `_make_template` parses the template with placeholders to exclude that.

A template gives the same result as parsing the whole text: otherwise it is not created. Invalid values are
left to the parser of the whole text, which reports the problem and its position.
"""

import re
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from cs_config.cache import Cache, derived
from cs_config.options import keywords
from cs_config.options.keywords import Keyword
from cs_config.options.operations import options_for
from cs_config.options.options import VoOptions
from cs_config.tree.configuration import Configuration
from optimizers.description import description as descriptions
from optimizers.description import jdl, parametric
from optimizers.description.parametric import JobMember, SharedDescription
from optimizers.submit.submitter import Submitter
from requirements.errors import InvalidInput, NotAllowed
from requirements.values import fold
from taskqueue.jobs import placeholders

#: Keywords that often differ between the texts of one submission and have values of plain form.
_OPEN: Final = keywords.OPEN - {"ExecutionEnvironment"}
_BY_SPELLING: Final = {
    fold(spelling): keyword.name
    for keyword in keywords.KEYWORDS
    if keyword.name in _OPEN
    for spelling in (keyword.name, *keyword.also)
}

#: No escapes, no line ends, no characters that cannot be displayed or stored.
_PLAIN: Final = r'"[^"\\\x00-\x1f\x7f-\x9f\ud800-\udfff]+"'
_NUMBER: Final = "(?:0|[1-9][0-9]{0,8})"
_LIST: Final = rf"\{{{_PLAIN}(?:, {_PLAIN})*\}}"
_WRITTEN: Final = {str: re.compile(_PLAIN), int: re.compile(_NUMBER), list: re.compile(_LIST)}
_OWN_VALUE: Final = re.compile(
    rf"([\n;\[]\s*(?:{'|'.join(_BY_SPELLING)})\s*=\s*)({_PLAIN}|{_NUMBER}|{_LIST})(?=\s*;)",
    re.IGNORECASE,
)
_NAME: Final = re.compile(r"[A-Za-z]+")
#: Characters; longer texts are rare and not worth caching.
_LONGEST: Final = 100_000

Value = str | int | list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTemplate:
    """A text without its per-job values."""

    pieces: tuple[str, ...]  #: the texts around the values: one more than there are slots
    slots: tuple[tuple[str, type], ...]  #: keyword and type of each value

    def values(self, text: str) -> tuple[Value, ...] | None:
        """Return the values of a text with this template; None: it has another template."""
        first, *others = self.pieces
        if not text.startswith(first) or not text.endswith(others[-1]) or _is_odd(text):
            return None
        values: list[Value] = []
        at = len(first)
        for (_, kind), piece in zip(self.slots, others, strict=True):
            written = _WRITTEN[kind].match(text, at)
            if written is None or not text.startswith(piece, written.end()):
                return None
            values.append(_value(written[0]))
            at = written.end() + len(piece)
        return tuple(values) if at == len(text) else None

    def join(self, written: Sequence[str]) -> str:
        """Return the text with these values."""
        return "".join(part for pair in zip(self.pieces, (*written, ""), strict=True) for part in pair)


def split_text(text: str) -> tuple[TextTemplate, tuple[Value, ...]] | None:
    """Split a text into template and values; None: it has no per-job values of plain form."""
    if _is_odd(text):
        return None
    parts = _OWN_VALUE.split(f"\n{text}")
    if len(parts) == 1:
        return None
    values = tuple(map(_value, parts[2::3]))
    names = (_BY_SPELLING[_NAME.search(lead)[0].lower()] for lead in parts[1::3])  # type: ignore[index]
    first, *others = map("".join, zip(parts[0::3], (*parts[1::3], ""), strict=True))
    slots = tuple((name, type(value)) for name, value in zip(names, values, strict=True))
    return TextTemplate(pieces=(first[1:], *others), slots=slots), values


def _is_odd(text: str) -> bool:
    return len(text) > _LONGEST or "=)s" in text


def _value(written: str) -> Value:
    if written[0] == "{":
        return written[2:-2].split('", "')
    return written[1:-1] if written[0] == '"' else int(written)


#: Cached templates, and their bytes; one usually takes about ten kilobytes.
_MOST_KEPT: Final = 2000
MOST_BYTES: Final = 64 << 20
#: Recently used templates that are tried on a text before it is split, which takes as long as to try twenty.
_MOST_TRIED: Final = 16
#: Placeholder for a number while a template is parsed.
_SOME_NUMBER: Final = 900_000_001


@dataclass(frozen=True, slots=True, kw_only=True)
class DescriptionTemplate:
    """A parsed and checked description, with the keywords whose values each job fills in."""

    form: TextTemplate
    source: str  #: the text, with placeholders
    submitted: SharedDescription  #: its body has placeholders; the values of its one member are meaningless
    keywords: tuple[Keyword, ...]  #: keywords of the per-job values
    options: VoOptions

    def fill(self, values: Sequence[Value]) -> JobMember | None:
        """Create the job with these values; None: one is invalid."""
        own = dict(zip((keyword.name for keyword in self.keywords), values, strict=True))
        [member] = self.submitted.members
        read = descriptions.read_own(member.description, own, self.options)
        if read is None:
            return None
        made = JobMember(description=member.description, own=read, parameters=None)
        if any(descriptions.grid_job_problems(made.description, made.own, self.options)):
            return None
        parameters: dict[str, object] = {}
        for keyword, value in zip(self.keywords, values, strict=True):
            stated = keywords.as_json(keyword, read[keyword.attribute])
            parameters[f"{keyword.name}="] = stated
            if stated != value:
                parameters[f"{keyword.name}=="] = value
        return replace(made, parameters=parameters)


@derived
def _template_cache(_config: Configuration) -> Cache[Hashable, DescriptionTemplate | None]:
    """Templates by submitter, archive and text; None: the text has to be parsed as a whole."""
    return Cache(_MOST_KEPT, measure=_measure, most=MOST_BYTES)


def _measure(key: Hashable, _: object) -> int:
    return 4000 + 8 * len(str(key))


class TemplateMatcher:
    """Matches the texts of one submission with their templates, of which there are usually few."""

    def __init__(self, config: Configuration, submitter: Submitter, archive: str | None) -> None:
        self._config = config
        self._submitter = submitter
        self._archive = archive
        self._used: deque[DescriptionTemplate] = deque(maxlen=_MOST_TRIED)

    def fill(self, text: str) -> tuple[DescriptionTemplate, JobMember] | None:
        """Return the template and the job of a text; None: it has to be parsed as a whole."""
        found = self._split(text)
        if found is None or (member := found[0].fill(found[1])) is None:
            return None
        return found[0], member

    def _split(self, text: str) -> tuple[DescriptionTemplate, tuple[Value, ...]] | None:
        for used in self._used:
            if (values := used.form.values(text)) is not None:
                return used, values
        if (parts := split_text(text)) is None:
            return None
        form, values = parts
        template = _template_cache(self._config).get(
            (self._submitter, self._archive, form),
            lambda: _make_template(form, self._submitter, self._config, self._archive),
        )
        if template is None:
            return None
        self._used.appendleft(template)
        return template, values


def _make_template(
    form: TextTemplate, submitter: Submitter, config: Configuration, archive: str | None
) -> DescriptionTemplate | None:
    """Parse the template with placeholder values, which must be found again where they were put."""
    values = {name: _placeholder(name, kind) for name, kind in form.slots}
    if len(values) < len(form.slots):
        return None  # a repeated keyword: one of the two is in a comment
    text = form.join([placeholders.format_jdl_value(values[name]) for name, _ in form.slots])
    try:
        [raw] = jdl.read_descriptions(text)
        split = parametric.split_description(raw)
        if not _is_recovered(values, raw) or split.parameters or split.refers_to_own:
            return None
        [submitted] = parametric.expand_description(split, submitter, config, archive)
    except (InvalidInput, NotAllowed, ValueError):
        return None
    places = {name: f"%({name}=)s" for name in values}
    return DescriptionTemplate(
        form=form,
        source=form.join([places[name] for name, _ in form.slots]),
        submitted=replace(submitted, body={**submitted.body, **places}),
        keywords=tuple(keywords.BY_NAME[name] for name, _ in form.slots),
        options=options_for(config, submitted.whose.vo),
    )


def _placeholder(name: str, kind: type) -> Value:
    """Return a unique value of the given type."""
    if kind is int:
        return _SOME_NUMBER
    return [f"/%({name}=)s"] if kind is list else f"/%({name}=)s"


def _is_recovered(values: Mapping[str, Value], raw: Mapping[str, object]) -> bool:
    found = {keyword.name: value for name, value in raw.items() if (keyword := keywords.find_keyword(name))}
    return all(
        type(found.get(name)) is type(value) and found[name] == value for name, value in values.items()
    )

"""Languages of batch systems for conditions on nodes, as data; a new batch system is a new table entry.

A vocabulary lists the forms of a language and how they are written as arguments of its submit command, never
as shell text. The site's mapping (`site_mapping`) assigns attributes to words.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction


class ConditionForm(StrEnum):
    """Kind of condition on a node; its text contains `{word}` and `{value}`."""

    MIN = "min"  #: has at least
    ABOVE = "above"  #: has more than
    MAX = "max"  #: has at most
    BELOW = "below"  #: has less than
    EQUAL = "equal"  #: has this text
    NOT_EQUAL = "not_equal"  #: has another text
    FEATURE = "feature"  #: has the feature named by the word
    NO_FEATURE = "no_feature"  #: does not have it


#: Convertible units by quantity, in multiples of the smallest.
UNITS: Mapping[str, Mapping[str, Fraction]] = {
    "memory": {unit: Fraction(1024**power) for power, unit in enumerate(("B", "kB", "MB", "GB", "TB"))},
    "time": {"s": Fraction(1), "min": Fraction(60), "h": Fraction(3600), "d": Fraction(86_400)},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemForm:
    """Conditions listed in one option, all of which must hold: a second option may override the first."""

    arguments: tuple[str, ...]  #: of the submit command; one of them contains `{items}`
    between: str = ","
    forms: Mapping[ConditionForm, str] = field(
        default_factory=dict
    )  #: for words that the vocabulary does not list
    either: str | None = None  #: separator of alternative texts


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedForm:
    """Conditions combined in one expression."""

    arguments: tuple[str, ...]  #: of the submit command; one of them contains `{expression}`
    forms: Mapping[ConditionForm, str]
    and_: str
    or_: str | None = None  #: None: not in the language; otherwise parentheses are supported, too


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionForm:
    """A word with its own option, which requests nodes that have at least the value."""

    arguments: tuple[str, ...] | None = None  #: None: written as an item, or in the expression
    item: str | None = None  #: form as an item, if it differs from other words
    unit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Language of one batch system for conditions on nodes."""

    name: str
    words: Mapping[str, OptionForm]  #: built-in words, with their units
    items: ItemForm | None = None
    joined: JoinedForm | None = None
    word: re.Pattern[str]  #: allowed words of a site
    text: re.Pattern[str]  #: allowed texts in comparisons
    fractions: bool = False  #: whether numbers may have fractions


_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)
_QUOTED = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+@ -]*", re.ASCII)

SLURM = Vocabulary(
    name="Slurm",
    words={
        "mem": OptionForm(arguments=("--mem={value}M",), unit="MB"),
        "tmp": OptionForm(arguments=("--tmp={value}M",), unit="MB"),
        "time": OptionForm(arguments=("--time={value}",), unit="min"),
        "mincpus": OptionForm(arguments=("--mincpus={value}",)),
    },
    items=ItemForm(arguments=("--gres={items}",), forms={ConditionForm.MIN: "{word}:{value}"}),
    joined=JoinedForm(
        arguments=("--constraint={expression}",), forms={ConditionForm.FEATURE: "{word}"}, and_="&", or_="|"
    ),
    word=_PLAIN,
    text=_PLAIN,
)
GRID_ENGINE = Vocabulary(
    name="GridEngine",
    words={
        **dict.fromkeys(
            ("mem_free", "mem_total", "virtual_free", "h_vmem", "s_vmem", "h_rss", "s_rss", "h_data"),
            OptionForm(item="{word}={value}M", unit="MB"),
        ),
        **dict.fromkeys(("h_rt", "s_rt", "h_cpu", "s_cpu"), OptionForm(unit="s")),
    },
    items=ItemForm(
        arguments=("-l", "{items}"),
        forms={
            ConditionForm.MIN: "{word}={value}",
            ConditionForm.EQUAL: "{word}={value}",
            # Not `=FALSE`: it would exclude hosts where the feature is not defined.
            ConditionForm.FEATURE: "{word}=TRUE",
        },
        either="|",
    ),
    word=_IDENTIFIER,
    text=_PLAIN,
)
PBS = Vocabulary(
    name="PBS",
    words={
        **dict.fromkeys(
            ("mem", "vmem", "pmem", "pvmem", "file"), OptionForm(item="{word}={value}mb", unit="MB")
        ),
        **dict.fromkeys(("walltime", "cput", "pcput"), OptionForm(unit="s")),
    },
    items=ItemForm(arguments=("-l", "{items}"), forms={ConditionForm.MIN: "{word}={value}"}),
    joined=JoinedForm(
        arguments=("-l", "nodes=1:{expression}"), forms={ConditionForm.FEATURE: "{word}"}, and_=":"
    ),
    word=_IDENTIFIER,
    text=_PLAIN,
)
LSF = Vocabulary(
    name="LSF",
    words={
        **dict.fromkeys(("mem", "swp", "tmp", "maxmem", "maxswp", "maxtmp"), OptionForm(unit="MB")),
        "ncpus": OptionForm(),
    },
    joined=JoinedForm(
        arguments=("-R", "select[{expression}]"),
        forms={
            ConditionForm.MIN: "{word}>={value}",
            ConditionForm.ABOVE: "{word}>{value}",
            ConditionForm.MAX: "{word}<={value}",
            ConditionForm.BELOW: "{word}<{value}",
            ConditionForm.EQUAL: "{word}=={value}",
            ConditionForm.NOT_EQUAL: "{word}!={value}",
            ConditionForm.FEATURE: "{word}",
            ConditionForm.NO_FEATURE: "!{word}",
        },
        and_=" && ",
        or_=" || ",
    ),
    word=_IDENTIFIER,
    text=_IDENTIFIER,
    fractions=True,
)
HTCONDOR = Vocabulary(
    name="HTCondor",
    words={"Memory": OptionForm(unit="MB"), "Disk": OptionForm(unit="kB"), "Cpus": OptionForm()},
    joined=JoinedForm(
        arguments=("-append", "requirements = {expression}"),
        forms={
            ConditionForm.MIN: "TARGET.{word} >= {value}",
            ConditionForm.ABOVE: "TARGET.{word} > {value}",
            ConditionForm.MAX: "TARGET.{word} <= {value}",
            ConditionForm.BELOW: "TARGET.{word} < {value}",
            ConditionForm.EQUAL: 'TARGET.{word} == "{value}"',
            ConditionForm.NOT_EQUAL: 'TARGET.{word} != "{value}"',
            ConditionForm.FEATURE: "TARGET.{word} =?= true",
            ConditionForm.NO_FEATURE: "TARGET.{word} =!= true",
        },
        and_=" && ",
        or_=" || ",
    ),
    word=_IDENTIFIER,
    text=_QUOTED,
    fractions=True,
)

#: By name in the configuration.
VOCABULARIES: Mapping[str, Vocabulary] = {
    each.name: each for each in (SLURM, GRID_ENGINE, PBS, LSF, HTCONDOR)
}


#: Texts in place of the placeholders of arguments: no line ends, macros (`$`), brackets or paths.
_NUMBER = r"[0-9]+(\.[0-9]+)?"
_CONDITIONS = r"""[A-Za-z0-9_.<>=!&|()?"+@:, -]{1,4000}"""
_PLACEHOLDERS = {"{value}": _NUMBER, "{items}": _CONDITIONS, "{expression}": _CONDITIONS}


def are_flags(arguments: Sequence[str]) -> bool:
    """Whether arguments are in the language of a batch system, so that a submit command may get them.

    A site checks so what it receives: other arguments could name files or programs of its head node.
    """
    return any(_are_written(arguments, vocabulary) for vocabulary in VOCABULARIES.values())


def _are_written(arguments: Sequence[str], vocabulary: Vocabulary) -> bool:
    rest = list(arguments)
    while rest:
        length = next((len(each) for each in _templates(vocabulary) if _fits(rest, each)), 0)
        if not length:
            return False
        del rest[:length]
    return True


def _templates(vocabulary: Vocabulary) -> Iterator[tuple[str, ...]]:
    yield from (each.arguments for each in vocabulary.words.values() if each.arguments)
    for form in (vocabulary.items, vocabulary.joined):
        if form is not None:
            yield form.arguments


def _fits(arguments: Sequence[str], template: tuple[str, ...]) -> bool:
    return len(arguments) >= len(template) and all(
        re.fullmatch(_pattern(each), argument, re.ASCII)
        for argument, each in zip(arguments, template, strict=False)
    )


def _pattern(template: str) -> str:
    parts = re.split(r"(\{\w+\})", template)
    return "".join(_PLACEHOLDERS.get(part) or re.escape(part) for part in parts)

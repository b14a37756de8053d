"""What the languages of batch systems can say about nodes, as data; a new batch system is a new table entry.

A vocabulary says which forms a language has and how they are written, as arguments of its submit command:
never shell text. Which attribute is which word is the site's mapping (`site_mapping`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction


class Form(StrEnum):
    """Something that can be said of a node; `{word}` and `{value}` stand in its text."""

    MIN = "min"  #: has at least
    ABOVE = "above"  #: has more than
    MAX = "max"  #: has at most
    BELOW = "below"  #: has less than
    EQUAL = "equal"  #: has this text
    NOT_EQUAL = "not_equal"  #: has another text
    FEATURE = "feature"  #: has the feature that is the word
    NO_FEATURE = "no_feature"  #: has it not


#: The units that are converted, by what they measure, in their smallest.
UNITS: Mapping[str, Mapping[str, Fraction]] = {
    "memory": {unit: Fraction(1024**power) for power, unit in enumerate(("B", "kB", "MB", "GB", "TB"))},
    "time": {"s": Fraction(1), "min": Fraction(60), "h": Fraction(3600), "d": Fraction(86_400)},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """Things said one by one, all of which must hold: gathered in one option, since a second one may win."""

    arguments: tuple[str, ...]  #: of the submit command; `{items}` stands in one of them
    between: str = ","
    forms: Mapping[Form, str] = field(default_factory=dict)  #: of words that the vocabulary does not list
    either: str | None = None  #: between texts of which one is enough


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Things said in one expression."""

    arguments: tuple[str, ...]  #: of the submit command; `{expression}` stands in one of them
    forms: Mapping[Form, str]
    and_: str
    or_: str | None = None  #: None: the language has none; with it there are parentheses


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """An option with a meaning of its own, which holds for nodes that have at least so much."""

    arguments: tuple[str, ...] | None = None  #: None: it is said as an item, or in the expression
    item: str | None = None  #: how, if unlike the other words
    unit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What one batch system's language can say."""

    name: str
    words: Mapping[str, Word]  #: the words that it knows by itself, with their units
    items: Items | None = None
    joined: Joined | None = None
    word: re.Pattern[str]  #: what a word of a site may be
    text: re.Pattern[str]  #: what a text that is compared may be
    fractions: bool = False  #: whether numbers may have some


_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)
_QUOTED = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+@ -]*", re.ASCII)

SLURM = Vocabulary(
    name="Slurm",
    words={
        "mem": Word(arguments=("--mem={value}M",), unit="MB"),
        "tmp": Word(arguments=("--tmp={value}M",), unit="MB"),
        "time": Word(arguments=("--time={value}",), unit="min"),
        "mincpus": Word(arguments=("--mincpus={value}",)),
    },
    items=Items(arguments=("--gres={items}",), forms={Form.MIN: "{word}:{value}"}),
    joined=Joined(
        arguments=("--constraint={expression}",), forms={Form.FEATURE: "{word}"}, and_="&", or_="|"
    ),
    word=_PLAIN,
    text=_PLAIN,
)
GRID_ENGINE = Vocabulary(
    name="GridEngine",
    words={
        **dict.fromkeys(
            ("mem_free", "mem_total", "virtual_free", "h_vmem", "s_vmem", "h_rss", "s_rss", "h_data"),
            Word(item="{word}={value}M", unit="MB"),
        ),
        **dict.fromkeys(("h_rt", "s_rt", "h_cpu", "s_cpu"), Word(unit="s")),
    },
    items=Items(
        arguments=("-l", "{items}"),
        forms={
            Form.MIN: "{word}={value}",
            Form.EQUAL: "{word}={value}",
            # Not `=FALSE`: a host of which nothing is said would be left out.
            Form.FEATURE: "{word}=TRUE",
        },
        either="|",
    ),
    word=_IDENTIFIER,
    text=_PLAIN,
)
PBS = Vocabulary(
    name="PBS",
    words={
        **dict.fromkeys(("mem", "vmem", "pmem", "pvmem", "file"), Word(item="{word}={value}mb", unit="MB")),
        **dict.fromkeys(("walltime", "cput", "pcput"), Word(unit="s")),
    },
    items=Items(arguments=("-l", "{items}"), forms={Form.MIN: "{word}={value}"}),
    joined=Joined(arguments=("-l", "nodes=1:{expression}"), forms={Form.FEATURE: "{word}"}, and_=":"),
    word=_IDENTIFIER,
    text=_PLAIN,
)
LSF = Vocabulary(
    name="LSF",
    words={
        **dict.fromkeys(("mem", "swp", "tmp", "maxmem", "maxswp", "maxtmp"), Word(unit="MB")),
        "ncpus": Word(),
    },
    joined=Joined(
        arguments=("-R", "select[{expression}]"),
        forms={
            Form.MIN: "{word}>={value}",
            Form.ABOVE: "{word}>{value}",
            Form.MAX: "{word}<={value}",
            Form.BELOW: "{word}<{value}",
            Form.EQUAL: "{word}=={value}",
            Form.NOT_EQUAL: "{word}!={value}",
            Form.FEATURE: "{word}",
            Form.NO_FEATURE: "!{word}",
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
    words={"Memory": Word(unit="MB"), "Disk": Word(unit="kB"), "Cpus": Word()},
    joined=Joined(
        arguments=("-append", "requirements = {expression}"),
        forms={
            Form.MIN: "TARGET.{word} >= {value}",
            Form.ABOVE: "TARGET.{word} > {value}",
            Form.MAX: "TARGET.{word} <= {value}",
            Form.BELOW: "TARGET.{word} < {value}",
            Form.EQUAL: 'TARGET.{word} == "{value}"',
            Form.NOT_EQUAL: 'TARGET.{word} != "{value}"',
            Form.FEATURE: "TARGET.{word} =?= true",
            Form.NO_FEATURE: "TARGET.{word} =!= true",
        },
        and_=" && ",
        or_=" || ",
    ),
    word=_IDENTIFIER,
    text=_QUOTED,
    fractions=True,
)

#: By name, as a site writes it.
VOCABULARIES: Mapping[str, Vocabulary] = {
    each.name: each for each in (SLURM, GRID_ENGINE, PBS, LSF, HTCONDOR)
}

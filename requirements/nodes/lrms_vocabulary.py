"""Languages of batch systems for conditions on nodes, as data; a new batch system is a new table entry.

A vocabulary lists the forms of a language and how they are written as arguments of its submit command, never
as shell text. The site's mapping (`site_mapping`) assigns attributes to words. A site may state one of
its own as data (`parse_vocabulary`).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction

from requirements.errors import InvalidInput, Problem, did_you_mean


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
    KIND = "kind"  #: its GPUs are of the kind named by the word


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
    #: Arguments of one condition, with `{word}` and `{value}`; they may be repeated, and all hold.
    separate: Mapping[ConditionForm, tuple[str, ...]] = field(default_factory=dict)
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
    items=ItemForm(
        arguments=("--gres={items}",),
        # As many as the slot has: the submission takes the larger number.
        forms={ConditionForm.MIN: "{word}:{value}", ConditionForm.KIND: "gpu:{word}:1"},
    ),
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
    words={
        "Memory": OptionForm(unit="MB"),
        "Disk": OptionForm(unit="kB"),
        "Cpus": OptionForm(),
        # Not of the whole machine, as `Disk` is, but what a slot gets of it.
        "RequestDisk": OptionForm(arguments=("-append", "request_disk = {value}"), unit="kB"),
    },
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

#: Flags of a CE are runtime environments, which its administrators name.
ARC = Vocabulary(
    name="ARC",
    words={},
    separate={ConditionForm.FEATURE: ("{word}",)},
    word=re.compile(r"[A-Za-z0-9][A-Za-z0-9._+/-]*", re.ASCII),
    text=_PLAIN,
)

#: By name in the configuration.
VOCABULARIES: Mapping[str, Vocabulary] = {
    each.name: each for each in (SLURM, GRID_ENGINE, PBS, LSF, HTCONDOR, ARC)
}
#: Of submit commands: a runtime environment would be the name of a file there.
OF_COMMANDS: tuple[Vocabulary, ...] = (SLURM, GRID_ENGINE, PBS, LSF, HTCONDOR)


#: Texts in place of the placeholders of arguments: no line ends, macros (`$`), brackets or paths.
_NUMBER = r"[0-9]+(\.[0-9]+)?"
_CONDITIONS = r"""[A-Za-z0-9_.<>=!&|()?"+@:, -]{1,4000}"""


def are_flags(arguments: Sequence[str], vocabularies: Sequence[Vocabulary] = OF_COMMANDS) -> bool:
    """Whether arguments are in one of these languages, so that a submit command may get them.

    A site checks so what it receives: other arguments could name files or programs of its head node.
    """
    return not arguments or (
        all(map(is_balanced, arguments))
        and any(_are_written(arguments, vocabulary) for vocabulary in vocabularies)
    )


def is_balanced(expression: str) -> bool:
    """Whether parentheses and quotation marks are closed, so that in parentheses it keeps its meaning.

    Others are joined with it: `a) || (b` would make the site's own condition one of two choices.
    """
    depth = 0
    for part in re.sub(r'"(?:[^"\\]|\\.)*"', "", expression):
        depth += (part == "(") - (part == ")")
        if depth < 0 or part == '"':
            return False
    return depth == 0


def _are_written(arguments: Sequence[str], vocabulary: Vocabulary) -> bool:
    patterns = list(_patterns(vocabulary))
    rest = list(arguments)
    while rest:
        length = next((len(each) for each in patterns if _fits(rest, each)), 0)
        if not length:
            return False
        del rest[:length]
    return True


def _patterns(vocabulary: Vocabulary) -> Iterator[tuple[str, ...]]:
    """For each way to write a condition, the patterns of its arguments."""
    of_forms = {"{value}": _NUMBER, "{items}": _CONDITIONS, "{expression}": _CONDITIONS}
    templates = [each.arguments for each in vocabulary.words.values() if each.arguments]
    templates += [form.arguments for form in (vocabulary.items, vocabulary.joined) if form is not None]
    yield from (tuple(_pattern(each, of_forms) for each in template) for template in templates)
    word, text = vocabulary.word.pattern, vocabulary.text.pattern
    for form, template in vocabulary.separate.items():
        value = text if form in _OF_TEXTS else _NUMBER
        yield tuple(_pattern(each, {"{word}": word, "{value}": value}) for each in template)


def _fits(arguments: Sequence[str], patterns: tuple[str, ...]) -> bool:
    return len(arguments) >= len(patterns) and all(
        re.fullmatch(pattern, argument, re.ASCII)
        for argument, pattern in zip(arguments, patterns, strict=False)
    )


def _pattern(template: str, placeholders: Mapping[str, str]) -> str:
    parts = re.split(r"(\{\w+\})", template)
    return "".join(f"(?:{placeholders[part]})" if part in placeholders else re.escape(part) for part in parts)


_OF_TEXTS = frozenset({ConditionForm.EQUAL, ConditionForm.NOT_EQUAL})
_OF_WORDS = frozenset({ConditionForm.FEATURE, ConditionForm.NO_FEATURE, ConditionForm.KIND})
#: Arguments of one condition, and characters of each, in a vocabulary of a site.
_MOST_ARGUMENTS, _LONGEST_ARGUMENT = 5, 200


def parse_vocabulary(raw: object, path: str = "Vocabulary") -> Vocabulary:
    """Parse a vocabulary: a name, or `{Forms: {min: ["-l", "{word}={value}"]}, Units: {mem: MB}}`.

    `InvalidInput` with every problem.
    """
    if not isinstance(raw, Mapping):
        if isinstance(raw, str) and raw in VOCABULARIES:
            return VOCABULARIES[raw]
        message = f"{raw!r:.60} is not a vocabulary, allowed are {', '.join(VOCABULARIES)}, or a section"
        raise InvalidInput(
            [Problem(path=path, message=message, suggestion=did_you_mean(str(raw), VOCABULARIES))]
        )
    problems = [
        Problem(path=f"{path}/{name}", message="unknown, allowed are Forms, Units")
        for name in raw
        if name not in ("Forms", "Units")
    ]
    forms, units = raw.get("Forms"), raw.get("Units", {})
    if not isinstance(forms, Mapping) or not forms:
        problems.append(Problem(path=f"{path}/Forms", message="allowed is {min: [arguments], feature: …}"))
        forms = {}
    if not isinstance(units, Mapping):
        problems.append(Problem(path=f"{path}/Units", message="allowed is {word: unit}"))
        units = {}
    problems += _form_problems(forms, f"{path}/Forms")
    known = [unit for of_quantity in UNITS.values() for unit in of_quantity]
    problems += [
        Problem(path=f"{path}/Units/{word}", message=f"{unit!r:.60}, allowed are {', '.join(known)}")
        for word, unit in units.items()
        if unit not in known
    ]
    if problems:
        raise InvalidInput(problems)
    return Vocabulary(
        name="this vocabulary",
        words={str(word): OptionForm(unit=unit) for word, unit in units.items()},
        separate={ConditionForm(form): tuple(arguments) for form, arguments in forms.items()},
        word=_PLAIN,
        text=_PLAIN,
    )


def _form_problems(forms: Mapping[object, object], path: str) -> Iterator[Problem]:
    allowed = ", ".join(ConditionForm)
    for form, arguments in forms.items():
        below = f"{path}/{form}"
        if form not in list(ConditionForm):
            meant = did_you_mean(str(form), list(ConditionForm))
            yield Problem(path=below, message=f"unknown, allowed are {allowed}", suggestion=meant)
        elif not isinstance(arguments, list | tuple) or not 1 <= len(arguments) <= _MOST_ARGUMENTS:
            yield Problem(path=below, message=f"allowed is a list of 1 to {_MOST_ARGUMENTS} arguments")
        elif not all(isinstance(each, str) and _is_argument(each) for each in arguments):
            message = f"an argument is 1 to {_LONGEST_ARGUMENT} printable characters"
            yield Problem(path=below, message=message)
        else:
            needed = {"{word}"} if form in _OF_WORDS else {"{word}", "{value}"}
            parts = re.split(r"(\{word\}|\{value\})", " ".join(arguments))
            if set(parts[1::2]) != needed or any(brace in "".join(parts[::2]) for brace in "{}"):
                message = f"needs {' and '.join(sorted(needed))}, and no other braces"
                yield Problem(path=below, message=message)


def _is_argument(text: str) -> bool:
    return 0 < len(text) <= _LONGEST_ARGUMENT and text.isprintable()

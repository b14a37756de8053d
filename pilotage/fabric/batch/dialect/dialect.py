"""Dialects: batch systems as data, with templates for commands and patterns for their output.

Templates are lists of words, with names in braces, and are never passed to a shell. Patterns are RE2's, `^`
and `$` match at lines; their named groups are the results. Dialects for common systems are included; a site
may change them where its own system differs.

Some options of a submission may be given only once, but are set by a slot and by the flags of its jobs. Then
both values are passed on, and of two amounts the larger, so that flags never reduce a slot. What flags state
in other words, which cannot be compared, takes the place of what is requested.
"""

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib import resources
from string import Formatter
from typing import Annotated, Any, Final, Literal

import yaml
from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from pilotage.fabric.file_section import FileSection
from requirements.classad import restrictions
from requirements.errors import InvalidInput
from requirements.nodes.lrms_vocabulary import OF_COMMANDS, Vocabulary, parse_vocabulary

#: How two values of an option become one: the larger amount; Slurm's features, `a&b`; its items, `gpu:2,ssd`;
#: Grid Engine's parallel environment and its number of slots, which are two words.
Merge = Literal["larger", "limit", "features", "items", "slots"]


class JoinedOption(FileSection):
    """An option whose several arguments are joined into one, such as `-l` for PBS."""

    option: str = Field(min_length=1)
    between: str = Field(default=",", min_length=1)
    #: Names whose values have parts, with what stands between them: of the same amounts in two values the
    #: larger holds, and other parts add up. Of names without parts the larger amount holds, else the last.
    parts: dict[str, str] = Field(default_factory=dict)
    unless: str | None = None  #: nothing is joined where this word is among the others


_AMOUNT = re.compile(r"(\d+)([kmgtp]?)(i?b)?", re.ASCII | re.IGNORECASE)
#: Source: sbatch(1), --time: minutes, minutes:seconds, hours:minutes:seconds, each after days and a dash.
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<parts>\d+(?::\d+){0,2})", re.ASCII)
_SIZES = {"k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
#: Batch systems take a size without a unit as megabytes.
_NO_UNIT = 2


def larger(before: str, after: str, *, unit: int = 60) -> str:
    """The larger of two sizes or times, whatever their units; of other values the one that is stated last.

    A number alone is a time of so many seconds (`unit`): Slurm's are minutes.
    """
    for measure in (_size, partial(_seconds, unit=unit)):
        one, two = measure(before), measure(after)
        if one is not None and two is not None:
            return before if one > two else after
    return after


def _size(text: str) -> int | None:
    """Bytes; None: it is no size."""
    found = _AMOUNT.fullmatch(text)
    return None if found is None else int(found[1]) << 10 * _SIZES.get(found[2].lower(), _NO_UNIT)


def _seconds(text: str, *, unit: int = 60) -> int | None:
    """Seconds of a time; None: it is none."""
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    parts = [int(part) for part in found["parts"].split(":")]
    # With days, and with three parts, hours come first; else minutes.
    units: tuple[int, ...] = (3600, 60, 1) if found["days"] or len(parts) == len((3600, 60, 1)) else (60, 1)
    if len(parts) == 1 and not found["days"]:
        units = (unit,)
    total = sum(part * each for part, each in zip(parts, units, strict=False))
    return int(found["days"] or 0) * 86_400 + total


def join_option(words: Sequence[str], joined: JoinedOption) -> list[str]:
    """The words with the option once, after all others.

    Of `-l nodes=1:ppn=4 -l mem=2gb -l nodes=1:ppn=2:ssd` comes `-l nodes=1:ppn=4:ssd,mem=2gb` where `nodes`
    has parts.
    """
    if joined.unless in words:
        return list(words)
    rest, arguments = _take_options(words, joined.option)
    values: dict[str, str] = {}
    for item in (item for argument in arguments for item in argument.split(joined.between)):
        name, sign, value = item.partition("=")
        if name in values:
            before, between = values[name].removeprefix("="), joined.parts.get(name)
            value = larger(before, value, unit=1) if between is None else _add_parts(before, value, between)
        values[name] = sign + value
    if not values:
        return rest
    return [*rest, joined.option, joined.between.join(name + value for name, value in values.items())]


def _take_options(words: Sequence[str], option: str) -> tuple[list[str], list[str]]:
    rest: list[str] = []
    arguments: list[str] = []
    remaining = iter(words)
    for word in remaining:
        if word == option:
            arguments += [next(remaining, "")]
        elif word.startswith(option) and "=" in word:  # -lmem=2gb
            arguments += [word.removeprefix(option)]
        else:
            rest.append(word)
    return rest, arguments


def _add_parts(before: str, value: str, between: str) -> str:
    """All parts of two values, each amount once: `1:ppn=4` and `2:ppn=1:ssd` are `2:ppn=4:ssd`.

    Several groups of nodes (`1:ppn=4+2:ppn=8`) stand alone; a node or property that is named first needs no
    number.
    """
    if groups := [each for each in (value, before) if "+" in each]:
        return groups[0]
    values = [each.split(between) for each in (before, value)]
    found = {parts[0]: "" for parts in values if "=" not in parts[0] and not parts[0].isdecimal()}
    is_named = bool(found)
    for part in itertools.chain.from_iterable(values):
        name, sign, amount = part.rpartition("=")
        if not sign and not part.isdecimal():
            found[part] = ""
        elif sign or not is_named:  # a number alone: how many
            name += sign
            found[name] = larger(found.get(name, amount), amount)
    return between.join(name + amount for name, amount in found.items())


def merge_options(
    words: Iterable[str], merged: Mapping[str, Merge], short: Mapping[str, str] | None = None
) -> list[str]:
    """The words; of an option given several times one, at the first place, with all values.

    Args:
        words: An option may be `--time=60`, `--time 60`, `-t 60`, `-t60` or the beginning of its
            long name, where no other of `merged` has it, such as `--tim=60`. Of slots it is `-pe smp 4`.
        merged: How two values of an option become one, by its long name.
        short: Long names of those options by their short ones.
    """
    found: dict[str, str] = {}
    for number, word in enumerate(_spell_out(words, merged, short or {})):
        option, sign, value = word.partition("=")
        if not sign or option not in merged:
            found[f"{number}"] = word
        elif option in found:
            before = found[option].removeprefix(f"{option}=")
            found[option] = f"{option}={_MERGE[merged[option]](before, value)}"
        else:
            found[option] = word
    return [word for name, each in found.items() for word in _split_slots(name, each, merged)]


def _split_slots(option: str, word: str, merged: Mapping[str, Merge]) -> Sequence[str]:
    """The words of an option: three of `-pe=smp 4`, else the one."""
    is_of_slots = merged.get(option) == "slots"
    return [option, *word.removeprefix(f"{option}=").split(" ", 1)] if is_of_slots else [word]


def _spell_out(words: Iterable[str], merged: Mapping[str, Merge], short: Mapping[str, str]) -> Iterator[str]:
    """The words, with the options to be merged as `--option=value`."""
    remaining = iter(words)
    for word in remaining:
        name, sign, value = word.partition("=")
        if merged.get(word) == "slots":
            yield f"{word}={next(remaining, '')} {next(remaining, '')}"
        elif option := _find_option(name, merged, short):
            yield f"{option}={value if sign else next(remaining, '')}"
        elif (name := word[:2]) in short:
            yield f"{short[name]}={word[2:]}"
        else:
            yield word


def _find_option(name: str, merged: Collection[str], short: Mapping[str, str]) -> str | None:
    """The long name of an option to be merged, of which `name` may be an abbreviation."""
    if name in merged:
        return name
    is_long = name.startswith("--") and len(name) > 2
    meant = [option for option in merged if is_long and option.startswith(name)]
    return meant[0] if len(meant) == 1 else short.get(name)


def _all_features(before: str, after: str) -> str:
    return before if before == after else f"{_in_brackets(before)}&{_in_brackets(after)}"


def _in_brackets(expression: str) -> str:
    return f"({expression})" if "|" in expression and "(" not in expression else expression


def _all_items(before: str, after: str) -> str:
    """Each item once, and nothing of any kind where kinds are stated: Slurm refuses `gpu:2,gpu:a100:1`.

    One kind takes the larger number.
    """
    counts: dict[str, str] = {}
    for item in f"{before},{after}".split(","):
        name, _, count = item.rpartition(":")
        if not count.isdecimal():
            name, count = item, "1"
        counts[name] = larger(counts.get(name, count), count)
    for name in list(counts):
        if kinds := [each for each in counts if each.startswith(f"{name}:")]:
            of_any_kind = counts.pop(name)
            if len(kinds) == 1:
                counts[kinds[0]] = larger(counts[kinds[0]], of_any_kind)
    return ",".join(f"{name}:{count}" for name, count in counts.items())


def _higher_limit(before: str, value: str) -> str:
    """The larger amount; 0, which lifts the limit, is above all others."""
    lifted = (each for each in (before, value) if 0 in (_size(each), _seconds(each)))
    return next(lifted, larger(before, value))


def _more_slots(before: str, value: str) -> str:
    """The environment that is stated last, with the larger number; a range, as `4-8`, that is stated last."""
    environment, _, number = value.rpartition(" ")
    return f"{environment} {larger(before.rpartition(' ')[2], number)}"


_MERGE: Mapping[Merge, Callable[[str, str], str]] = {
    "larger": larger,
    "limit": _higher_limit,
    "features": _all_features,
    "items": _all_items,
    "slots": _more_slots,
}


#: A word that stands for several: the references of the jobs that are to be ended.
REFERENCES: Final = "{references}"
#: What every word of a submission may name, and besides what those of one resource may.
_OF_JOB = frozenset({"name", "stamp", "queue", "directory", "script", "quoted_script", "cores"})
_OF_RESOURCE: Mapping[str, frozenset[str]] = {
    "memory": frozenset({"memory", "memory_per_core"}),
    "wall_time": frozenset({"wall_time", "wall_minutes"}),
    "gpus": frozenset({"gpus"}),
    "about": frozenset({"about"}),
    "exclude": frozenset({"nodes"}),
}
_OF_AMOUNTS: Final = frozenset(
    {"queue", "cores", "used", "free", "full", "down", "running", "waiting", "closed"}
)
#: Words of the query of the accounting: a word with it names the jobs, separated by commas.
NAMES_OF_JOBS: Final = "{names}"


def _pattern(text: str) -> str:
    if (why := restrictions.refusal(text, "m")) is not None:
        raise ValueError(why)
    return text


def _name(text: str) -> str:
    if _placeholders(text) != ["stamp"]:
        raise ValueError("a job's name has to hold {stamp}, once, and nothing else in braces")
    return text


def _placeholders(word: str) -> list[str]:
    """The names in braces of a word."""
    try:
        parts = list(Formatter().parse(word))
    except ValueError as error:
        raise ValueError(f"{word!r}: {error}; a brace that is meant is written twice") from None
    for _, name, form, conversion in parts:
        if name is not None and (form or conversion or not name.isidentifier()):
            raise ValueError(f"{word!r}: only plain names may stand in braces")
    return [name for _, name, _, _ in parts if name is not None]


def _check(words: tuple[str, ...], allowed: frozenset[str]) -> tuple[str, ...]:
    for word in words:
        for name in _placeholders(word):
            if name not in allowed:
                choice = ", ".join(sorted(allowed)) or "none"
                raise ValueError(f"{word!r}: {{{name}}} is not known, allowed are {choice}")
    return words


Pattern = Annotated[str, Field(min_length=1), AfterValidator(_pattern)]
Words = tuple[Annotated[str, Field(min_length=1, max_length=1000, pattern=r"^[^\x00\n]+$")], ...]
Command = Annotated[Words, Field(min_length=1)]


def _groups(*patterns: str) -> frozenset[str]:
    return frozenset(name for each in patterns for name in restrictions.compiled(each, "m").groupindex)


class InvalidDialect(InvalidInput):
    """The dialect of a batch system is invalid."""

    code = "config_error"


#: Settings of a submission that are about resources.
Resource = Literal["cores", "several_cores", "memory", "wall_time", "gpus", "whole_node"]


class SubmitCommand(FileSection):
    """How a job is submitted: the command, what is asked for, flags, and the script last."""

    command: Command
    cores: Words = ()
    several_cores: Words = ()  #: only where more than one is requested
    memory: Words = ()
    wall_time: Words = ()
    gpus: Words = ()
    whole_node: Words = ()
    about: Words = ()  #: where administrators see what a job is for: `VO=cms;Owner=ada;Job=17`
    dry_run: Words = ()  #: flags with which a job is only checked, not submitted; none: there are no such
    exclude: Words = ()  #: where it is not to run: `{nodes}`, separated by commas; none: there is no way
    script: Words = ("{script}",)
    #: By settings of resources, flags that state the same in other words: then the setting is left out.
    replaced: dict[Resource, Pattern] = Field(default_factory=dict)
    joined: JoinedOption | None = None
    merged: dict[str, Merge] = Field(default_factory=dict)  #: options `--name=value` that may be given once
    short: dict[str, str] = Field(default_factory=dict)  #: their long names by their short ones, `-t`
    reference: Pattern  #: with a group `reference`, in what a submission says

    @field_validator(
        *("command", "cores", "several_cores", "memory", "wall_time", "gpus", "whole_node", "about"),
        *("dry_run", "exclude", "script"),
    )
    @classmethod
    def _names_what_is_known(cls, words: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        return _check(words, _OF_JOB | _OF_RESOURCE.get(info.field_name or "", frozenset()))

    @field_validator("reference")
    @classmethod
    def _has_its_group(cls, pattern: str) -> str:
        if _groups(pattern) != {"reference"}:
            raise ValueError("it has to have a group (?P<reference>…) and no other one")
        return pattern


class Excuse(FileSection):
    """An exit status with a message that does not count as a failure of a command."""

    statuses: tuple[Annotated[int, Field(ge=1, le=255)], ...] = Field(
        default=(), max_length=255
    )  #: none: any
    said: Pattern  #: in what was said on the standard error, else on the standard output


class RecordSource(FileSection):
    """A command whose output consists of records."""

    command: Command
    record: Pattern | None = None  #: where a record begins; none: each line is one
    patterns: tuple[Pattern, ...] = Field(min_length=1)  #: looked for in each record
    ignore: Pattern | None = None  #: lines before and between records, such as headings
    end: Pattern | None = None  #: in every answer that is whole; none: what breaks off cannot be recognised
    excuse: Excuse | None = None

    @field_validator("command")
    @classmethod
    def _has_known_places(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        return _check(words, frozenset())


#: What a word for a job's state may mean; how one that *ended* did is said by its status, else by its marks.
Meaning = Literal["waiting", "running", "done", "failed", "killed", "ended", "unknown"]


class ListingCommand(RecordSource):
    """Command that lists all our jobs: groups `reference`, `name`, `state`; optionally further ones."""

    states: dict[str, Meaning] = Field(min_length=1)  #: by the system's word
    otherwise: Meaning = "unknown"  #: of words that are not among them
    kill_failed: bool = False  #: jobs that failed stay listed until they are deleted

    @field_validator("patterns")
    @classmethod
    def _find_what_is_needed(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        found = _groups(*patterns)
        needed, more = {"reference", "name", "state"}, {"exit", "message", "node"}
        if not needed <= found <= needed | more:
            raise ValueError(
                f"the groups are {', '.join(sorted(found)) or 'none'}; there have to be"
                f" {', '.join(sorted(needed))}, and may be {', '.join(sorted(more))}"
            )
        return patterns


class AccountingCommand(ListingCommand):
    """Command for jobs that have left the listing; a failure of it means that there is no accounting."""

    @field_validator("command")
    @classmethod
    def _has_known_places(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        return _check(words, frozenset({"names"}))


class Amounts(RecordSource):
    """Source of queue amounts: each record is about one `queue` (or several: `a,b`), or about all of them.

    A word instead of a number in `running` or `waiting` counts as one job.
    """

    @field_validator("patterns")
    @classmethod
    def _find_amounts(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        found = _groups(*patterns)
        if not found or not found <= _OF_AMOUNTS:
            raise ValueError(
                f"the groups are {', '.join(sorted(found)) or 'none'}; allowed are"
                f" {', '.join(sorted(_OF_AMOUNTS))}"
            )
        return patterns


class KillCommand(FileSection):
    """Command that kills jobs; the word `{references}` is replaced by the references of all of them."""

    command: Command
    excuse: Excuse | None = None  #: what is said of jobs that are not there any more

    @field_validator("command")
    @classmethod
    def _names_references(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        if words.count(REFERENCES) != 1:
            raise ValueError(f"one word has to be {REFERENCES}")
        _check(words, frozenset({"references"}))
        return words


class Elsewhere(FileSection):
    """What would send jobs where the listing does not look, and nobody would follow or end them."""

    flags: Pattern  #: in a flag of the submit command
    variables: tuple[str, ...] = ()  #: of the environment
    instead: str = Field(min_length=1)  #: what to do, for messages

    def check(self, flags: Iterable[str], environment: Collection[str] = ()) -> None:
        """Refuse what would send jobs there.

        Raises:
            ValueError: It is among the flags or variables.
        """
        found = [each for each in flags if restrictions.compiled(self.flags, "m").search(each)]
        found += [each for each in self.variables if each in environment]
        if found:
            raise ValueError(
                f"{found[0]}: only the submission would go there, not the commands that list and end jobs: "
                f"{self.instead}"
            )


class Dialect(FileSection):
    """Definition of a batch system."""

    name: Annotated[str, AfterValidator(_name)] = "{stamp}"  #: what a job is called
    submit: SubmitCommand
    listing: ListingCommand
    accounting: AccountingCommand | None = None
    kill: KillCommand
    capacity: tuple[Amounts, ...] = ()
    #: Waiting and running jobs of everybody, for the throttle of a site; none: `capacity` has them.
    counts: tuple[Amounts, ...] = ()
    #: In what a submission prints that was refused for good.
    refused: Pattern | None = None
    #: In what one prints that may have arrived, beside the usual words for trouble on the way. Where it is
    #: stated, a failure for any other reason is a refusal; else only what `refused` finds is one.
    uncertain: Pattern | None = None
    #: Of the flags that it takes from the service: a name, or as in the queue's `Forwarding`; none: any name.
    vocabulary: str | dict[str, Any] | None = None
    #: Variables of the environment that its commands do not get; those in the settings of the system stay.
    unset: tuple[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], ...] = ()
    elsewhere: Elsewhere | None = None  #: what is refused; null: nothing

    @field_validator("vocabulary")
    @classmethod
    def _is_vocabulary(cls, stated: object) -> object:
        if stated is not None:
            try:
                parse_vocabulary(stated)
            except InvalidInput as error:
                raise ValueError(str(error)) from None
        return stated

    def check_place(self, flags: Iterable[str], environment: Collection[str] = ()) -> None:
        """Raise a `ValueError` for what would send jobs where its listing does not look."""
        if self.elsewhere is not None:
            self.elsewhere.check(flags, environment)

    @property
    def languages(self) -> tuple[Vocabulary, ...]:
        """The vocabularies of the flags that it takes."""
        return OF_COMMANDS if self.vocabulary is None else (parse_vocabulary(self.vocabulary),)


def merge_dialect(whole: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Data with changes: sections are gone into, everything else is replaced."""
    result = dict(whole)
    for name, value in changes.items():
        before = result.get(name)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            result[name] = merge_dialect(before, value)
        else:
            result[name] = value
    return result


#: The kinds of batch systems that come with a dialect.
SHIPPED: Final = ("gridengine", "lsf", "pbs", "slurm")


@cache
def shipped_content(name: str) -> Mapping[str, Any]:
    """Content of a shipped dialect, as it could stand in a file of a site."""
    file = resources.files(__package__) / "shipped" / f"{name}.yaml"
    said: Mapping[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return said


def shipped_dialect(name: str) -> Dialect:
    """A shipped dialect as it is."""
    return Dialect.model_validate(shipped_content(name))

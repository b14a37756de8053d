"""Dialects: batch systems as data, with templates for commands and patterns for their output.

Templates are lists of words, with names in braces, and are never passed to a shell. Patterns are RE2's, `^`
and `$` match at lines; their named groups are the results. Dialects for common systems are included; a site
may change them where its own system differs.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from importlib import resources
from string import Formatter
from typing import Annotated, Any, Final, Literal

import yaml
from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from pilotage.fabric.batch.dialect.options import JoinedOption, Merge
from pilotage.fabric.batch.forbidden import WHY, ForbiddenFlags, Kind, Pattern, check_submission
from pilotage.fabric.file_section import FileSection
from requirements.classad import restrictions
from requirements.errors import InvalidInput
from requirements.nodes.lrms_vocabulary import OF_COMMANDS, Vocabulary, parse_vocabulary

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
    #: Flags and variables that are refused; null: that kind is not.
    forbidden: dict[Kind, ForbiddenFlags | None] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _states_kinds_below(cls, said: object) -> object:
        stated = said if isinstance(said, dict) else {}
        for kind in WHY:
            if kind in stated:
                raise ValueError(
                    f"{kind}: a kind of forbidden flags, which stands in forbidden: {{{kind}: …}}"
                )
        return said

    @field_validator("vocabulary")
    @classmethod
    def _is_vocabulary(cls, stated: object) -> object:
        if stated is not None:
            try:
                parse_vocabulary(stated)
            except InvalidInput as error:
                raise ValueError(str(error)) from None
        return stated

    def check_submission(
        self, flags: Iterable[str], environment: Collection[str] = (), *, queue: str = ""
    ) -> None:
        """Raise a `ValueError` for forbidden flags, names of variables and names of queues."""
        check_submission(self.forbidden, flags, environment, queue=queue)

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

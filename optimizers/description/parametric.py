"""Parametric jobs, many from one description with `Parameters`; expansion of any description into its jobs.

Source: DIRAC's parametric jobs.

The parts of a parametric job that do not depend on the members' values are parsed once. An input sandbox is
an archive that was uploaded before, identified by the digest of its content.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from cs_config.options import keywords
from cs_config.options.operations import options_for
from cs_config.options.options import VoOptions
from cs_config.tree.configuration import Configuration
from optimizers.description import description as descriptions
from optimizers.description import jdl
from optimizers.description.description import JobDescription
from optimizers.submit.submitter import Ownership, Submitter, resolve_ownership
from requirements.classad.classad_files import Unevaluated
from requirements.errors import InvalidJob, Problem
from requirements.values import MAX_INTEGER, as_number, fold, normal_number, text_fault
from taskqueue.jobs import placeholders

_LISTS = "parameters"
_NUMBERS = {"parameterstart": 0, "parameterstep": 1, "parameterfactor": 1}
#: Characters of a formatted number.
_MOST_DIGITS = 24

#: Value of a parameter for one member.
MemberValue = str | list[str]
#: Values of one member by placeholder: `s` for `%s`, `n` for `%n`, `A` for `%(A)s`.
MemberValues = dict[str, MemberValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """Size of a submission, computed before any job is created."""

    jobs: int = 0
    characters: int = 0  #: of all jobs' texts with placeholders, after filling these
    longest: int = 0  #: the same for the largest job
    values: int = 0  #: values, and placeholders in them, that are read for each job anew
    #: Requirements and Rank that are expressions without own values of a job: equal ones are read once.
    expressions: frozenset[str] = frozenset()
    varied_tokens: int = 0  #: words, strings and signs of expressions that are read for each job anew

    def __add__(self, other: "Volume") -> "Volume":
        return Volume(
            jobs=self.jobs + other.jobs,
            characters=self.characters + other.characters,
            longest=max(self.longest, other.longest),
            values=self.values + other.values,
            expressions=self.expressions | other.expressions,
            varied_tokens=self.varied_tokens + other.varied_tokens,
        )

    @property
    def expression_tokens(self) -> int:
        """Words, strings and signs in the expressions, as often as they are read."""
        return self.varied_tokens + sum(map(jdl.count_tokens, self.expressions))


def volume(raw: Mapping[str, object]) -> Volume:
    """Return the size that a description declares, valid or not: an upper bound for `expand_parameters`."""
    columns = {
        name: value for keyword, value in raw.items() for head, name in [_split(keyword)] if head == _LISTS
    }
    if not columns:
        read = descriptions.list_expressions(raw)
        if descriptions.refers_to_own(raw):
            return Volume(jobs=1, varied_tokens=sum(map(jdl.count_tokens, read)))
        return Volume(jobs=1, expressions=frozenset(read))
    sizes = {name: _measure(column) for name, column in columns.items()}
    jobs = max(each.jobs for each in sizes.values())
    sizes.setdefault("n", _measure(jobs))
    template = without_parameters(raw)
    fixed, uses = placeholders.count_places(template)
    filled = [(number, sizes[name]) for name, number in uses.items() if name in sizes]
    more = sum(number * (size.values - size.jobs) for number, size in filled)  # items of lists
    texts = set(descriptions.list_expressions(template))
    refers = fixed > 0 and descriptions.refers_to_own(template)
    varied = {text for text in texts if refers or "%" in text}
    return Volume(
        jobs=jobs,
        characters=jobs * fixed + sum(number * size.characters for number, size in filled),
        longest=fixed + sum(number * size.longest for number, size in filled),
        values=jobs * (count_values(choose_varied(template)) + uses.total()) + more,
        expressions=frozenset(texts - varied),
        varied_tokens=sum(_count_varied_tokens(text, columns, jobs) for text in varied),
    )


def _count_varied_tokens(text: str, columns: Mapping[str, object], jobs: int) -> int:
    """Words, strings and signs of an expression that each job reads, with those of the job's values in it."""
    _, uses = placeholders.count_places(text)
    filled = (number * _count_column(columns.get(name), jobs) for name, number in uses.items())
    return jobs * jdl.count_tokens(text) + sum(filled)


def _count_column(column: object, jobs: int) -> int:
    """Words, strings and signs in the values of a parameter as parts of an expression."""
    if isinstance(column, list | tuple):
        return sum(
            jdl.count_tokens(placeholders.format_value(value)) if isinstance(value, str | list | tuple) else 1
            for value in column
        )
    return jobs


def choose_varied(template: Mapping[str, object]) -> Mapping[str, object]:
    """The part of a template that is read for each job: open keywords with placeholders, or all of it."""
    found = {name: value for name, value in template.items() if has_place(value)}
    is_open = all(
        (keyword := keywords.find_keyword(name)) and keyword.name in keywords.OPEN for name in found
    )
    return found if not found or (is_open and not descriptions.refers_to_own(template)) else template


def has_place(value: object) -> bool:
    """Whether a value may hold a placeholder."""
    return "%" in json.dumps(value, default=str)


def count_values(value: object) -> int:
    """Values in a record or list, at any depth."""
    if isinstance(value, Mapping):
        return sum(map(count_values, value.values()))
    return sum(map(count_values, value)) if isinstance(value, list | tuple) else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _ColumnSize:
    """Size of the values of a parameter, an upper bound."""

    jobs: int  #: number of values, one for each job
    characters: int
    longest: int  #: characters of the longest
    values: int  #: with the items of those that are lists


def _measure(column: object) -> _ColumnSize:
    if isinstance(column, list | tuple):
        each = [_count_characters(value) for value in column]
        items = sum(len(value) for value in column if isinstance(value, list | tuple))
        return _ColumnSize(
            jobs=len(each), characters=sum(each), longest=max(each, default=0), values=len(each) + items
        )
    number = as_number(column) if isinstance(column, str | int | float) else None
    is_count = isinstance(number, int | float) and not isinstance(number, bool) and number > 0
    jobs = int(min(number, MAX_INTEGER)) if is_count else 0  # type: ignore[type-var, arg-type]
    return _ColumnSize(jobs=jobs, characters=jobs * _MOST_DIGITS, longest=_MOST_DIGITS, values=jobs)


def _count_characters(value: object) -> int:
    if isinstance(value, list | tuple):
        return sum(map(_count_characters, value)) + len(value) + 2
    return len(value) if isinstance(value, str) else _MOST_DIGITS


def is_parametric(raw: Mapping[str, object]) -> bool:
    """Whether a description makes many jobs."""
    return any(_split(name)[0] == _LISTS for name in raw)


def without_parameters(raw: Mapping[str, object]) -> dict[str, object]:
    """Return the description that all members share, with its placeholders.

    An expression of another keyword with a percent sign has its form in JSON, where placeholders are filled.
    """
    shared = ((name, value) for name, value in raw.items() if _split(name)[0] not in {_LISTS, *_NUMBERS})
    return {
        name: {descriptions.EXPRESSION: value.text}
        if isinstance(value, Unevaluated) and "%" in value.text and keywords.find_keyword(name) is None
        else value
        for name, value in shared
    }


def expand_parameters(raw: Mapping[str, object], *, most: int) -> list[MemberValues]:
    """Return the values of each member of a parametric job, in order; InvalidJob has every problem.

    `Parameters` is a list of values, or a number of members whose values start at `ParameterStart` and
    continue with value × `ParameterFactor` + `ParameterStep`. `Parameters.A` is the same for `%(A)s`. `%n`
    is the number of the member, from 0, with leading zeros so that names sort.
    """
    reader = _Reader(most=most, problems=[])
    columns = {name: reader.column(name, raw) for name in reader.names(raw)}
    lengths = {name: len(column) for name, column in columns.items() if column}
    if len(set(lengths.values())) > 1:  # it would be unclear which values belong together
        shown = ", ".join(f"{name} has {length}" for name, length in sorted(lengths.items()))
        reader.problem("Parameters", f"all need the same number of values, but {shown}")
    if reader.problems:
        raise InvalidJob(reader.problems)
    count = max(map(len, columns.values()))
    width = len(str(count - 1))
    numbered = ((f"{row:0{width}d}", row) for row in range(count))
    return [
        {"n": number, **{name: column[row] for name, column in columns.items()}} for number, row in numbered
    ]


def _split(keyword: str) -> tuple[str, str]:
    """Split `Parameters.A` into ("parameters", "A"); the unnamed parameter is `s`, after its placeholder."""
    head, _, name = keyword.partition(".")
    return fold(head), name or "s"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    most: int
    problems: list[Problem]

    def names(self, raw: Mapping[str, object]) -> list[str]:
        """Return the names of the parameters; a start or step without its list is a problem."""
        split = [(keyword, *_split(keyword)) for keyword in raw]
        names = [name for _, head, name in split if head == _LISTS]
        for keyword, head, name in split:
            if head in _NUMBERS and name not in names:
                suffix = "" if name == "s" else f".{name}"
                self.problem(keyword, f"has no effect without Parameters{suffix}")
        for name in {name for name in names if names.count(name) > 1}:
            self.problem("Parameters", f"{name} is named twice")
        return sorted(set(names))

    def column(self, name: str, raw: Mapping[str, object]) -> Sequence[MemberValue]:
        """Return the values of one parameter, one for each member."""
        stated = {
            _split(keyword)[0]: (keyword, raw[keyword]) for keyword in raw if _split(keyword)[1] == name
        }
        keyword, value = stated.pop(_LISTS)
        if isinstance(value, list | tuple):
            return self._values(keyword, value)
        count = self._number(keyword, value)
        if not isinstance(count, int) or count < 1:
            self.problem(keyword, f"{_format_seen(value)}, allowed is a list or a number of jobs, at least 1")
            return []
        if count > self.most:
            return self._too_many(keyword, count)
        numbers = {
            name: self._number(*stated[name]) if name in stated else default
            for name, default in _NUMBERS.items()
        }
        start, step, factor = numbers.values()
        return list(self._progression(keyword, count, start=start, step=step, factor=factor))

    def _values(self, keyword: str, values: list[object] | tuple[object, ...]) -> Sequence[MemberValue]:
        if not values:
            self.problem(keyword, "the list is empty, so there would be no job")
        if len(values) > self.most:
            return self._too_many(keyword, len(values))
        named = [(f"{keyword}[{place}]", value) for place, value in enumerate(values)]
        return [
            [self._text(f"{path}[{place}]", item) for place, item in enumerate(value)]
            if isinstance(value, list | tuple)
            else self._text(path, value)
            for path, value in named
        ]

    def _text(self, path: str, value: object) -> str:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            self.problem(path, f"{_format_seen(value)}, allowed is a text, a number, or a list of these")
            return ""
        shown = str(value)  # as stated: only the steps of a progression are rounded
        if isinstance(value, float) and float(short := f"{value:.12g}") == value:
            shown = short
        if fault := text_fault(shown):
            self.problem(path, fault)
        return shown

    def _number(self, keyword: str, value: object) -> int | float:
        if isinstance(value, str):
            value = as_number(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.problem(keyword, f"{_format_seen(value)} is not a number")
            return 0
        return normal_number(value)

    def _progression(
        self, keyword: str, count: int, *, start: float, step: float, factor: float
    ) -> Iterator[str]:
        value = start
        for _ in range(count):
            if not abs(value) <= MAX_INTEGER:
                self.problem(keyword, "its values grow beyond what every program can hold")
                return
            number = normal_number(value)
            yield f"{number:.12g}" if isinstance(number, float) else str(number)
            value = value * factor + step

    def _too_many(self, keyword: str, count: int) -> list[str]:
        self.problem(keyword, f"{count} jobs are too many, allowed are {self.most} (MaxParametricJobs)")
        return []

    def problem(self, path: str, message: str) -> None:
        self.problems.append(Problem(path=path, message=message))


def _format_seen(value: object) -> str:
    return value.text if isinstance(value, Unevaluated) else repr(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMember:
    """One job of a description, with the values that differ from the shared description."""

    description: JobDescription
    own: Mapping[str, Any] = field(default_factory=dict)  #: its own values, by attribute
    parameters: (
        placeholders.Parameters | None
    )  #: values for the placeholders of the shared body; None: it has none

    @property
    def whole(self) -> JobDescription:
        """The shared description with the job's own values."""
        return replace(self.description, **self.own) if self.own else self.description

    @property
    def arguments(self) -> str:
        """The job's own arguments, or the shared ones."""
        return str(self.own.get("arguments", self.description.arguments))

    @property
    def own_body(self) -> dict[str, object]:
        """The job's own values as in a stored description."""
        own = [(keywords.BY_ATTRIBUTE[attribute], value) for attribute, value in self.own.items()]
        return {keyword.name: keywords.as_json(keyword, value) for keyword, value in own}


def template_members(
    template: Mapping[str, object], expanded: Sequence[MemberValues], options: VoOptions
) -> Iterator[JobMember]:
    """Yield the jobs of a shared description with placeholders; InvalidJob is about the first invalid one."""
    if not has_place(template):
        same = descriptions.parse_description(template, options)
        yield from (JobMember(description=same, parameters=values) for values in expanded)
        return
    model = _read_member(template, expanded[0], options)
    found = choose_varied(template)
    # Those with placeholders; if they also affect other keywords, each job is read as a whole.
    varied = {
        keyword.name: (keyword, value)
        for name, value in found.items()
        if found is not template and (keyword := keywords.find_keyword(name))
    }
    with_places = {name: value for name, (_, value) in varied.items()}
    for values in expanded:
        own: Mapping[str, object] | None = None
        if varied:
            filled = placeholders.fill_placeholders(with_places, values)
            own = descriptions.read_own(
                model, [(keyword, filled[name]) for name, (keyword, _) in varied.items()], options
            )
        description = model if own is not None else _read_member(template, values, options)
        yield JobMember(description=description, own=own or {}, parameters=values)


def is_same_for_all(body: Mapping[str, object], members: Sequence[JobMember]) -> bool:
    """Whether the body, filled with the values of each member, equals the description of that member."""
    first = members[0]
    own = frozenset(keywords.BY_ATTRIBUTE[attribute].name for attribute in first.own)
    rest = {name: value for name, value in body.items() if name not in own}
    if has_place(rest) or any(
        each.description is not first.description or each.own.keys() != first.own.keys() for each in members
    ):
        return all(
            placeholders.fill_placeholders(body, each.parameters) == descriptions.stored_body(each.whole)
            for each in members
        )
    read = descriptions.stored_body(first.description)
    if rest != {name: value for name, value in read.items() if name not in own}:
        return False
    varied = {name: value for name, value in body.items() if name not in rest}
    return all(placeholders.fill_placeholders(varied, each.parameters) == each.own_body for each in members)


def _read_member(template: Mapping[str, object], values: MemberValues, options: VoOptions) -> JobDescription:
    try:
        return descriptions.parse_description(placeholders.fill_placeholders(template, values), options)
    except InvalidJob as invalid:
        shown = ", ".join(f"{name}={value}" for name, value in sorted(values.items()))
        raise InvalidJob(
            [
                replace(problem, message=f"{problem.message} (in the job with {shown})")
                for problem in invalid.problems
            ]
        ) from None


#: As returned by `POST /sandboxes`; DIRAC adds the prefix `SB:`.
_REFERENCE = re.compile(r"(?:SB:)?sha256:(?P<digest>[0-9a-f]{64})", re.IGNORECASE)


def _find_archive(description: JobDescription, sent_along: str | None) -> str | None:
    """Return the digest of a job's archive: the one it names, else `sent_along`, that of the submission."""
    sent = _REFERENCE.fullmatch((sent_along or "").strip())
    named = [found for entry in description.input_sandbox if (found := _REFERENCE.fullmatch(entry.strip()))]
    files = [entry for entry in description.input_sandbox if not entry.upper().startswith("LFN:")]
    wrong = ""
    if sent_along and sent is None:
        wrong = f"{sent_along!r} is not a sandbox reference, which is sha256: and 64 hexadecimal digits"
    elif len(named) > 1:
        wrong = "names more than one archive"
    elif files and not named and not sent_along:
        wrong = (
            f"{', '.join(files[:3])}: not uploaded; send an archive to /sandboxes and name its reference, "
            "or use `pilotage job submit`"
        )
    if wrong:
        raise InvalidJob([Problem(path="InputSandbox", message=wrong)])
    archive = named[0] if named else sent
    return archive["digest"].lower() if archive else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedDescription:
    """Jobs that share a stored description."""

    body: Mapping[str, object]  #: with placeholders
    sandbox: str | None  #: digest
    whose: Ownership
    members: Sequence[JobMember]
    is_own: bool = False  #: of one job of a parametric description, with its values instead of placeholders


def expand_description(
    raw: Mapping[str, object], submitter: Submitter, config: Configuration, archive: str | None
) -> list[SharedDescription]:
    """Expand one description into its jobs, grouped by the stored description that they can share.

    `archive` is the sandbox of the whole submission. InvalidJob has the problems of the first invalid job.
    """
    try:
        whose = resolve_ownership(raw, submitter, config)
    except InvalidJob as invalid:
        raise InvalidJob([*invalid.problems, *_other_problems(raw, config)]) from None
    options = options_for(config, whose.vo)
    template = without_parameters(raw)
    members = list(_expand_members(raw, template, options))
    archives: dict[int, str | None] = {}  # by the description that jobs have in common
    for member in members:
        if id(member.description) not in archives:
            archives[id(member.description)] = _find_archive(member.description, archive)
        if unfit := list(descriptions.grid_job_problems(member.description, member.arguments, options)):
            raise InvalidJob(unfit)
    shared = [
        (body, groupby(some, key=lambda each: (archives[id(each.description)], each.description.rank)))
        for body, some in _bundles(template, members, options)
    ]
    return [
        SharedDescription(
            body=body, sandbox=sandbox, whose=whose, members=list(alike), is_own=len(shared) > 1
        )
        for body, groups in shared
        for (sandbox, _), alike in groups
    ]


def _other_problems(raw: Mapping[str, object], config: Configuration) -> Sequence[Problem]:
    """Those of a description whose owner is unknown."""
    try:
        list(_expand_members(raw, without_parameters(raw), options_for(config, None)))
    except InvalidJob as invalid:
        return invalid.problems
    return ()


def _expand_members(
    raw: Mapping[str, object], template: Mapping[str, object], options: VoOptions
) -> Iterator[JobMember]:
    if not is_parametric(raw):
        yield JobMember(description=descriptions.parse_description(raw, options), parameters=None)
        return
    expanded = expand_parameters(raw, most=options.job_description.max_parametric_jobs)
    yield from template_members(template, expanded, options)


def _bundles(
    template: Mapping[str, object], members: Sequence[JobMember], options: VoOptions
) -> list[tuple[Mapping[str, object], Sequence[JobMember]]]:
    """Group members by stored body: one for all, unless a placeholder is where only a number is allowed.

    Nor if a value is a list, since the release 1.0.0 does not join it with the list that has its placeholder.
    """
    if members[0].parameters is None:
        return [(descriptions.stored_body(members[0].description), members)]
    try:
        shared = descriptions.stored_body(descriptions.parse_description(template, options))
    except InvalidJob:
        shared = {}
    have_lists = any(
        isinstance(value, list) for each in members for value in (each.parameters or {}).values()
    )
    if not have_lists and is_same_for_all(shared, members):
        return [(shared, members)]
    return [(descriptions.stored_body(each.whole), [replace(each, parameters=None)]) for each in members]

"""Parametric jobs, many from one description with `Parameters`; expansion of any description into its jobs.

Source: DIRAC's parametric jobs.

The parts of a parametric job that do not depend on the members' values are parsed once. An input sandbox is
an archive that was uploaded before, identified by the digest of its content.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from requirements.errors import InvalidJob, Problem
from requirements.values import MAX_INTEGER, Unevaluated, as_number, fold, normal_number, text_fault
from requirements.written_reals import WrittenReal
from taskqueue.jobs import placeholders

_LISTS = "parameters"
_NUMBERS = {"parameterstart": 0, "parameterstep": 1, "parameterfactor": 1}
_KINDS = frozenset({_LISTS, *_NUMBERS})
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedParameter:
    """A keyword such as `Parameters.A` or `ParameterStart.A` with its value."""

    keyword: str  #: as written
    kind: str  #: folded, without the name
    name: str  #: of its placeholder; `s` for `Parameters`
    value: object


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitDescription:
    """A parsed description, valid or not, split into what its jobs share and their parameters."""

    #: What the jobs share, with placeholders. An expression of another keyword with a percent sign has its
    #: form in JSON, where placeholders are filled.
    template: Mapping[str, object]
    parameters: Sequence[StatedParameter]  #: in the order written; empty: it is one job
    varied: Mapping[str, object]  #: open keywords with placeholders, by canonical name: read for each job
    is_varied_whole: bool  #: placeholders affect other keywords, too: each job is read as a whole
    refers_to_own: bool  #: Requirements or Rank may have `MY.X`
    volume: Volume  #: upper bound for `expand_parameters`


def split_description(raw: Mapping[str, object]) -> SplitDescription:
    """Split a description into template and parameters, and measure it."""
    template: dict[str, object] = {}
    parameters: list[StatedParameter] = []
    for keyword, value in raw.items():
        head, _, name = keyword.partition(".")
        if (kind := fold(head)) in _KINDS:
            parameters.append(StatedParameter(keyword=keyword, kind=kind, name=name or "s", value=value))
        elif isinstance(value, Unevaluated) and "%" in value.text and keywords.find_keyword(keyword) is None:
            template[keyword] = {descriptions.EXPRESSION: value.text}
        else:
            template[keyword] = value
    columns = {each.name: each.value for each in parameters if each.kind == _LISTS}
    shared = template if columns else raw
    found = {name: placeholders.find_places(value) for name, value in shared.items() if columns}
    places = {name: each for name, each in found.items() if each.characters}
    varied = {
        known.name: shared[name]
        for name in places
        if (known := keywords.find_keyword(name)) and known.name in keywords.OPEN
    }
    expressions = descriptions.find_expressions(shared)
    refers = any(map(descriptions.may_refer_to_own, expressions))
    is_whole = bool(places) and (refers or len(varied) < len(places))
    return SplitDescription(
        template=shared,
        parameters=parameters if columns else (),
        varied=varied,
        is_varied_whole=is_whole,
        refers_to_own=refers,
        volume=_measure(places.values(), columns, shared if is_whole else varied, expressions, refers=refers),
    )


def _measure(
    places: Iterable[placeholders.Places],
    columns: Mapping[str, object],
    varied: Mapping[str, object],
    expressions: Sequence[str],
    *,
    refers: bool,
) -> Volume:
    """The volume of a description with these places for values, of which `varied` is read for each job.

    So are expressions with placeholders, and all if one `refers` to own values of the job.
    """
    if not columns:
        tokens = sum(map(jdl.count_tokens, expressions)) if refers else 0
        return Volume(jobs=1, varied_tokens=tokens, expressions=frozenset(() if refers else expressions))
    sizes = {name: _measure_column(column) for name, column in columns.items()}
    jobs = max(each.jobs for each in sizes.values())
    sizes.setdefault("n", _measure_column(jobs))
    fixed = sum(each.characters for each in places)
    uses = sum((each.uses for each in places), Counter[str]())
    filled = [(number, sizes[name]) for name, number in uses.items() if name in sizes]
    more = sum(number * (size.values - size.jobs) for number, size in filled)  # items of lists
    own = {text for text in expressions if (refers and fixed) or "%" in text}
    return Volume(
        jobs=jobs,
        characters=jobs * fixed + sum(number * size.characters for number, size in filled),
        longest=fixed + sum(number * size.longest for number, size in filled),
        values=jobs * (count_values(varied) + uses.total()) + more,
        expressions=frozenset(expressions) - own,
        varied_tokens=sum(_count_varied_tokens(text, columns, jobs) for text in own),
    )


def _count_varied_tokens(text: str, columns: Mapping[str, object], jobs: int) -> int:
    """Words, strings and signs of an expression that each job reads, with those of the job's values in it."""
    uses = placeholders.find_places(text).uses
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


def _measure_column(column: object) -> _ColumnSize:
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
    if isinstance(value, WrittenReal):
        return len(value.text)
    return len(value) if isinstance(value, str) else _MOST_DIGITS


def expand_parameters(split: SplitDescription, *, most: int) -> list[MemberValues]:
    """Return the values of each member of a parametric job, in order; InvalidJob has every problem.

    `Parameters` is a list of values, or a number of members whose values start at `ParameterStart` and
    continue with value × `ParameterFactor` + `ParameterStep`. `Parameters.A` is the same for `%(A)s`. `%n`
    is the number of the member, from 0, with leading zeros so that names sort.
    """
    reader = _Reader(most=most, problems=[])
    columns = {name: reader.column(stated) for name, stated in reader.group(split.parameters).items()}
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


#: The keywords of one parameter, by kind.
_Stated = Mapping[str, StatedParameter]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    most: int
    problems: list[Problem]

    def group(self, parameters: Sequence[StatedParameter]) -> Mapping[str, _Stated]:
        """Group keywords by parameter, in their order; a start or step without its list is a problem."""
        grouped: defaultdict[str, dict[str, StatedParameter]] = defaultdict(dict)
        twice: dict[str, None] = {}
        for each in parameters:
            if each.kind == _LISTS and _LISTS in grouped[each.name]:
                twice[each.name] = None
            grouped[each.name][each.kind] = each
        for each in parameters:
            if _LISTS not in grouped[each.name]:
                suffix = "" if each.name == "s" else f".{each.name}"
                self.problem(each.keyword, f"has no effect without Parameters{suffix}")
        for name in twice:
            self.problem("Parameters", f"{name} is named twice")
        return {name: stated for name, stated in sorted(grouped.items()) if _LISTS in stated}

    def column(self, stated: _Stated) -> Sequence[MemberValue]:
        """Return the values of one parameter, one for each member."""
        keyword, value = stated[_LISTS].keyword, stated[_LISTS].value
        if not isinstance(value, list | tuple):
            return self._progression(keyword, value, stated)
        if not value:
            self.problem(keyword, "the list is empty, so there would be no job")
        if len(value) > self.most:
            return self._too_many(keyword, len(value))
        named = [(f"{keyword}[{place}]", each) for place, each in enumerate(value)]
        return [
            [self._text(f"{path}[{place}]", item) for place, item in enumerate(each)]
            if isinstance(each, list | tuple)
            else self._text(path, each)
            for path, each in named
        ]

    def _text(self, path: str, value: object) -> str:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            self.problem(path, f"{_format_seen(value)}, allowed is a text, a number, or a list of these")
            return ""
        # As stated: only the steps of a progression are rounded.
        shown = value.text if isinstance(value, WrittenReal) else str(value)
        if type(value) is float and float(short := f"{value:.12g}") == value:
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

    def _progression(self, keyword: str, number: object, stated: _Stated) -> list[MemberValue]:
        count = self._number(keyword, number)
        if not isinstance(count, int) or count < 1:
            self.problem(
                keyword, f"{_format_seen(number)}, allowed is a list or a number of jobs, at least 1"
            )
            return []
        if count > self.most:
            return self._too_many(keyword, count)
        value, step, factor = (
            self._number(stated[kind].keyword, stated[kind].value) if kind in stated else default
            for kind, default in _NUMBERS.items()
        )
        values: list[MemberValue] = []
        for _ in range(count):
            if not abs(value) <= MAX_INTEGER:
                self.problem(keyword, "its values grow beyond what every program can hold")
                break
            rounded = normal_number(value)
            values.append(f"{rounded:.12g}" if isinstance(rounded, float) else str(rounded))
            value = value * factor + step
        return values

    def _too_many(self, keyword: str, count: int) -> list[MemberValue]:
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
    def own_body(self) -> dict[str, object]:
        """The job's own values as in a stored description."""
        own = [(keywords.BY_ATTRIBUTE[attribute], value) for attribute, value in self.own.items()]
        return {keyword.name: keywords.as_json(keyword, value) for keyword, value in own}


def read_members(
    split: SplitDescription, expanded: Sequence[MemberValues], options: VoOptions
) -> Iterator[JobMember]:
    """Yield the jobs of a parametric description; InvalidJob is about the first invalid one.

    What no placeholder affects is read once.
    """
    if not (split.varied or split.is_varied_whole):
        same = descriptions.parse_description(split.template, options)
        yield from (JobMember(description=same, parameters=values) for values in expanded)
        return
    model = _read_member(split.template, expanded[0], options)
    for values in expanded:
        own: Mapping[str, object] | None = None
        if not split.is_varied_whole:
            filled = placeholders.fill_placeholders(split.varied, values)
            own = descriptions.read_own(model, filled, options)
        description = model if own is not None else _read_member(split.template, values, options)
        yield JobMember(description=description, own=own or {}, parameters=values)


def find_shared_body(
    split: SplitDescription, members: Sequence[JobMember], options: VoOptions
) -> Mapping[str, object] | None:
    """The body that is the description of each member of a parametric job when its values are filled in.

    None: there is none, since a placeholder is where only a number is allowed; or since a value is a list,
    which the release 1.0.0 does not join with the list that has its placeholder.
    """
    values = (value for each in members for value in (each.parameters or {}).values())
    if any(isinstance(value, list) for value in values):
        return None
    if split.is_varied_whole:
        try:
            body = descriptions.stored_body(descriptions.parse_description(split.template, options))
        except InvalidJob:
            return None
        stored = (descriptions.stored_body(each.description) for each in members)
        own = body
    else:
        model = members[0].description
        read = descriptions.read_own(model, split.varied, options)
        if read is None:
            return None
        own = JobMember(description=model, own=read, parameters=None).own_body
        body = descriptions.stored_body(model) | own
        stored = (each.own_body for each in members)
    filled = (placeholders.fill_placeholders(own, each.parameters) for each in members)
    return body if all(one == other for one, other in zip(filled, stored, strict=True)) else None


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
    split: SplitDescription, submitter: Submitter, config: Configuration, archive: str | None
) -> list[SharedDescription]:
    """Expand one description into its jobs, grouped by the stored description that they can share.

    `archive` is the sandbox of the whole submission. InvalidJob has the problems of the first invalid job.
    """
    try:
        whose = resolve_ownership(split.template, submitter, config)
    except InvalidJob as invalid:
        raise InvalidJob([*invalid.problems, *_other_problems(split, config)]) from None
    options = options_for(config, whose.vo)
    bundles = list(_bundles(split, options))
    archives: dict[int, str | None] = {}  # by the description that jobs have in common
    for member in (each for _, members in bundles for each in members):
        if id(member.description) not in archives:
            archives[id(member.description)] = _find_archive(member.description, archive)
        if unfit := list(descriptions.grid_job_problems(member.description, member.own, options)):
            raise InvalidJob(unfit)
    return [
        SharedDescription(
            body=body, sandbox=sandbox, whose=whose, members=list(alike), is_own=len(bundles) > 1
        )
        for body, members in bundles
        for (sandbox, *_), alike in groupby(
            members,
            key=lambda each: (
                *(archives[id(each.description)], each.description.rank),
                *(each.description.waiting_ttl, each.description.relax_after),
            ),
        )
    ]


def _other_problems(split: SplitDescription, config: Configuration) -> Sequence[Problem]:
    """Those of a description whose owner is unknown."""
    try:
        list(_bundles(split, options_for(config, None)))
    except InvalidJob as invalid:
        return invalid.problems
    return ()


def _bundles(
    split: SplitDescription, options: VoOptions
) -> Iterator[tuple[Mapping[str, object], Sequence[JobMember]]]:
    """Yield bodies with the jobs that share them: one for all, if there is one that is right for all."""
    if not split.parameters:
        description = descriptions.parse_description(split.template, options)
        yield descriptions.stored_body(description), [JobMember(description=description, parameters=None)]
        return
    expanded = expand_parameters(split, most=options.job_description.max_parametric_jobs)
    members = list(read_members(split, expanded, options))
    if (shared := find_shared_body(split, members, options)) is not None:
        yield shared, members
        return
    for each in members:
        yield descriptions.stored_body(each.whole), [replace(each, parameters=None)]

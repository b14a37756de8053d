"""Plans of submissions: the requests that send some descriptions, and the files that each of them needs.

A service takes so many jobs and so much text in one request. What is larger is sent in several, and a long
parametric description in pieces; equal descriptions with the same files share a request.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice, product
from pathlib import PurePosixPath

from cs_config.options import bounds, keywords
from cs_config.options.keywords import UnfitValueError
from optimizers.description import jdl, parametric
from optimizers.description.parametric import SplitDescription, Volume
from requirements.errors import InvalidJob, PilotageError, Problem, format_count
from taskqueue.jobs import placeholders

#: Jobs of equal or different descriptions in one request.
_JOBS = 1000
#: Jobs of one parametric description in one request; a longer one is sent in pieces.
_MEMBERS = 5_000
#: Bytes in a request beside each description: more than the names in it and the signs between two.
_ENVELOPE = 300
#: Signs between values that the service finds in a text at most: it leaves out long ones.
_BETWEEN = 110
#: Jobs of one parametric description; the service has its own limit for what is sent to it.
_MOST_MEMBERS = 1_000_000
#: Requests of a plan that a service makes.
_MOST_REQUESTS = 10_000

#: One value of each parameter makes a job: names with values.
Parameters = Mapping[str, Sequence[str]]


class PlanTooLarge(PilotageError):
    """A plan would take more than a second of processor time."""

    code = "body_too_large"

    def __init__(self, what: str) -> None:
        super().__init__(
            f"too much to be submitted at once: {what}; submit several files, or by a client "
            "with the whole program, which plans by itself"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenSource:
    """A text with descriptions, or one as an object."""

    content: str | Mapping[str, object]
    name: str = ""  #: of its file, for messages
    place: int = 0  #: the same for sources whose equal names of files mean the same files


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A description to be sent: as given, or changed."""

    source: int | None = None  #: index of the source that is this description
    job: Mapping[str, object] | None = None  #: otherwise the description as JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """A request of a submission."""

    parts: list[tuple[int, int]]  #: indices of pieces, and how often each is sent
    is_text: bool  #: the pieces are texts
    files: tuple[str, ...]  #: local files of the input sandbox, as stated
    executables: tuple[str, ...]  #: that no input sandbox has, as stated: sent if they lie beside
    mentioned: tuple[str, ...]  #: words of arguments that may be names of files
    place: int  #: of the source that states them
    vo: str | None  #: that the sandbox is stored for; None: the VO of the token
    jobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionPlan:
    """The requests for some sources."""

    descriptions: int
    pieces: list[Piece]
    requests: list[PlannedRequest]
    warnings: list[str]  #: of placeholders without values
    is_linked: bool  #: jobs name others of the submission: sent in one request, each with its own sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """One description, not submitted yet."""

    source: int | None  #: index of the source that has nothing else; None: it differs
    text: str | None  #: the same, if that is a text
    content: Mapping[str, object]
    split: SplitDescription  #: the same, as template and parameters
    place: int = 0
    files: tuple[str, ...] = ()  #: names of its local files, as stated
    executables: tuple[str, ...] = ()  #: that its input sandbox does not have
    mentioned: tuple[str, ...] = ()  #: words of its arguments
    vo: str | None = None  #: named in the description
    jobs: int = 1  #: 1, or the members of a parametric job

    @property
    def sandbox(self) -> tuple[object, ...]:
        """Files, place and VO of the input sandbox, to which programs of its place may be added."""
        return (self.files, self.place, self.vo) if self.files or self.executables else ()

    def as_piece(self) -> Piece:
        """The description as it is sent."""
        if self.source is not None:
            return Piece(source=self.source)
        return Piece(job=jdl.description_as_json(self.content))


def plan_submission(
    sources: Sequence[GivenSource], *, parameters: Parameters, count: int, is_bounded: bool
) -> SubmissionPlan:
    """Plan `count` copies of each job; `parameters` make several of one description.

    Raises:
        InvalidJob: A source cannot be read, or its parameters make no jobs.
        PlanTooLarge: `is_bounded`, and it would take more than about a second.
    """
    if is_bounded:
        _require_short(sources, parameters)
    drafts = [
        add_parameters(draft, parameters)
        for index, source in enumerate(sources)
        for draft in read_drafts(source, index=index)
    ]
    if is_bounded:
        _require_few(drafts, count)
    found = list(map(complete_draft, drafts))
    is_linked = any(map(_names_others, drafts))
    if is_linked:
        found = list(map(_separate_files, found))
    pieces: dict[int, tuple[int, Draft]] = {}
    requests: list[PlannedRequest] = []
    for runs in build_requests(found, count):
        first = runs[0].draft
        for run in runs:
            pieces.setdefault(id(run.draft), (len(pieces), run.draft))
        requests.append(
            PlannedRequest(
                parts=[(pieces[id(run.draft)][0], run.copies) for run in runs],
                is_text=first.text is not None,
                files=first.files,
                executables=tuple(dict.fromkeys(each for run in runs for each in run.draft.executables)),
                mentioned=take_first(each for run in runs for each in run.draft.mentioned),
                place=first.place,
                vo=first.vo if first.sandbox else None,
                jobs=sum(run.jobs for run in runs),
            )
        )
    return SubmissionPlan(
        descriptions=len(drafts),
        pieces=[draft.as_piece() for _, draft in pieces.values()],
        requests=requests,
        is_linked=is_linked,
        warnings=list(take_first(each for draft in drafts for each in _warn_of_placeholders(draft))),
    )


def _require_short(sources: Sequence[GivenSource], parameters: Parameters) -> None:
    """Refuse what takes long to parse, or what parameters make too long."""
    tokens = sum(jdl.count_tokens(each.content) for each in sources if isinstance(each.content, str))
    values = sum(
        parametric.count_values(each.content) for each in sources if isinstance(each.content, Mapping)
    )
    jobs = math.prod(map(len, parameters.values()))
    filled = sum(jobs // len(each) * sum(map(len, each)) for each in parameters.values() if each)
    for what, seen, most in (
        ("words, strings and signs in texts", tokens, bounds.DESCRIBED_TOKENS),
        ("values in descriptions", values, bounds.RECORD_VALUES),
        ("jobs", jobs * len(sources), bounds.PARAMETRIC_JOBS),
        ("characters in parameters of all jobs", filled * len(sources), bounds.DESCRIBED),
    ):
        if seen > most:
            raise PlanTooLarge(f"{seen:,} {what}, allowed are {most:,}")


def _require_few(drafts: Sequence[Draft], count: int) -> None:
    """Refuse many members, and plans of many requests."""
    members = sum(draft.split.volume.jobs for draft in drafts if draft.split.parameters)
    if members > bounds.PARAMETRIC_JOBS:
        raise PlanTooLarge(
            f"{format_count(members, 'parametric job')}, allowed are {bounds.PARAMETRIC_JOBS:,}"
        )
    named = sum(map(_measure_names, drafts), Volume())
    for what, seen, most in (
        ("names in the input sandboxes of all jobs", named.values, bounds.FILLED_VALUES),
        ("characters in the input sandboxes of all jobs", named.characters, bounds.DESCRIBED),
    ):
        if seen > most:
            raise PlanTooLarge(f"{seen:,} {what}, allowed are {most:,}")
    if (requests := len(drafts) * math.ceil(count / _JOBS)) > _MOST_REQUESTS:
        raise PlanTooLarge(f"{requests:,} requests, allowed are {_MOST_REQUESTS:,}")


def _measure_names(draft: Draft) -> Volume:
    """The volume of the names of files, which are filled in for each member."""
    names = [each for kind in _FILES for each in _values_of(kind, draft.split.template)]
    parameters = {each.keyword: each.value for each in draft.split.parameters}
    if not names or not parameters:
        return Volume()
    return parametric.split_description({"InputSandbox": names, **parameters}).volume


def read_drafts(source: GivenSource, *, index: int = 0) -> list[Draft]:
    """The descriptions of one source, without their files; messages have its name."""
    if not isinstance(source.content, str):
        contents: Sequence[Mapping[str, object]] = [source.content]
    else:
        contents = jdl.read_descriptions(source.content, source.name or None)
    is_alone = len(contents) == 1
    text = source.content if is_alone and isinstance(source.content, str) else None
    return [
        Draft(
            source=index if is_alone else None,
            text=text,
            content=content,
            split=parametric.split_description(content),
            place=source.place,
        )
        for content in contents
    ]


def add_parameters(draft: Draft, parameters: Parameters) -> Draft:
    """`draft` as a parametric job with a member for each combination of the values.

    The values of a member replace `%(NAME)s`.
    """
    if not parameters:
        return draft
    if draft.split.parameters:
        raise InvalidJob([Problem(path="--param", message="the description has Parameters of its own")])
    columns = zip(*product(*parameters.values()), strict=True)
    lists = {f"Parameters.{name}": list(column) for name, column in zip(parameters, columns, strict=True)}
    return _changed(draft, {**draft.content, **lists})


def complete_draft(draft: Draft) -> Draft:
    """`draft` with its files, its VO, and the number of its jobs."""
    split = draft.split
    members = parametric.expand_parameters(split, most=_MOST_MEMBERS) if split.parameters else [{}]
    vo = next((str(value) for value in _values_of("vo", draft.content)), None)
    return replace(
        draft,
        files=tuple(name for name in _list_names("input_sandbox", split, members) if not _is_elsewhere(name)),
        executables=tuple(_name_executables(split, members)),
        mentioned=_name_mentioned(split, members),
        vo=vo,
        jobs=len(members),
    )


def _names_others(draft: Draft) -> bool:
    """Whether a description names jobs of its submission that it waits for."""
    named = (word for value in _values_of("after", draft.content) for word in keywords.parents(value))
    with suppress(UnfitValueError):  # which the service reports
        return any(not word.isdecimal() for word in named)
    return False


def _separate_files(draft: Draft) -> Draft:
    """`draft` as an object without its local files, whose archive is to be added to its input sandbox."""
    content = {
        name: value
        for name, value in draft.content.items()
        if (known := keywords.find_keyword(name)) is None or known.attribute != "input_sandbox"
    }
    kept = [
        each
        for value in _values_of("input_sandbox", draft.content)
        for each in keywords.texts(value)
        if _is_elsewhere(each)
    ]
    changed = _changed(draft, {**content, "InputSandbox": kept})
    return replace(draft, source=None, text=None, content=changed.content, split=changed.split)


def _changed(draft: Draft, content: Mapping[str, object]) -> Draft:
    split = parametric.split_description(content)
    return replace(draft, source=None, text=None, content=content, split=split)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Copies of a description in one request."""

    draft: Draft
    copies: int

    @property
    def jobs(self) -> int:
        """The jobs of all copies."""
        return self.copies * self.draft.jobs


class _Work(Counter[str]):
    """Amounts that the service limits in a request, by name of the limit; equal descriptions count once."""

    @classmethod
    def from_draft(cls, draft: Draft) -> "_Work":
        """The work for a description."""
        volume = draft.split.volume
        source = jdl.description_as_json(draft.content) if draft.text is None else draft.text
        return cls(
            BODY=len(text := json.dumps(source, default=str)) + _ENVELOPE,
            JSON_VALUES=_BETWEEN if draft.text is not None else sum(map(text.count, ",:[{")) + 1,
            RECORD_VALUES=parametric.count_values(draft.content),
            DESCRIBED_TOKENS=jdl.count_tokens(draft.text or ""),
            EXPRESSION_TOKENS=volume.expression_tokens,
            FILLED_VALUES=volume.values,
        )

    @property
    def repetition(self) -> "_Work":
        """The work for one more copy of a description, which is only read again."""
        return type(self)({name: self[name] for name in ("BODY", "JSON_VALUES")})

    @property
    def is_too_much(self) -> bool:
        """Whether the service would refuse it."""
        return any(amount > getattr(bounds, name) for name, amount in self.items())


@dataclass(slots=True, kw_only=True)
class _Batch:
    """A request that is being filled."""

    runs: list[Run] = field(default_factory=list)
    work: Counter[str] = field(default_factory=_Work)

    def count_fitting(self, draft: Draft, own: _Work, wanted: int) -> int:
        """How many copies fit, up to those wanted; into an empty request at least one."""
        least = 0 if self.runs else 1
        if self.runs and not self._fits_kind(draft):
            return 0
        room = _JOBS - sum(run.jobs for run in self.runs)
        rooms = [room // draft.jobs, int(not _Work(self.work + own).is_too_much) * wanted]
        for name, amount in own.repetition.items():
            rooms.append((getattr(bounds, name) - self.work[name] - own[name]) // amount + 1)
        return max(least, min(wanted, *rooms))

    def _fits_kind(self, draft: Draft) -> bool:
        """Whether a draft may share the request with the others: the same files, all texts or none."""
        first = self.runs[0].draft
        return first.sandbox == draft.sandbox and (first.text is None) == (draft.text is None)

    def add(self, draft: Draft, own: _Work, copies: int) -> None:
        """Add copies of a draft."""
        again = own.repetition
        self.work = self.work + own + Counter({name: (copies - 1) * again[name] for name in again})
        self.runs.append(Run(draft=draft, copies=copies))


def build_requests(drafts: Sequence[Draft], count: int) -> Iterator[list[Run]]:
    """Each draft `count` times, in as few requests as the service allows; one request has one sandbox."""
    batch = _Batch()
    for draft in (piece for each in drafts for piece in split_members(each)):
        own, left = _Work.from_draft(draft), count
        while left:
            fitting = batch.count_fitting(draft, own, left)
            if fitting:
                batch.add(draft, own, fitting)
            else:
                yield batch.runs
                batch = _Batch()
            left -= fitting
    if batch.runs:
        yield batch.runs


def split_members(draft: Draft) -> Iterator[Draft]:
    """Split a long parametric description; each member keeps its values and its number."""
    work = _Work.from_draft(draft)
    del work["DESCRIBED_TOKENS"]  # the text is read once
    fits = (getattr(bounds, name) * draft.jobs // max(1, amount) for name, amount in work.items())
    most = max(1, min(_MEMBERS, *fits))
    if draft.jobs <= most:
        yield draft
        return
    members = parametric.expand_parameters(draft.split, most=_MOST_MEMBERS)
    for start in range(0, len(members), most):
        own = members[start : start + most]
        lists = {f"Parameters.{name}": [values[name] for values in own] for name in own[0]}
        if "s" in own[0]:
            lists["Parameters"] = lists.pop("Parameters.s")
        piece = _changed(draft, {**draft.split.template, **lists})
        # Again, since the values of some members may be longer than those of others.
        yield from split_members(replace(piece, jobs=len(own)))


#: Keywords whose values name local files.
_FILES = ("input_sandbox", "executable")
#: Names of files that the service or the grid has; of these, archives of unknown files.
_ELSEWHERE = re.compile(r"(?:lfn|sb|sha256):|[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_ARCHIVE = re.compile(r"(?:sb|sha256):", re.IGNORECASE)
#: Words of arguments, and warnings, that a plan has at most; members whose arguments are read.
_MOST_WORDS = 100


def _is_elsewhere(name: str) -> bool:
    return _ELSEWHERE.match(name) is not None


def take_first(found: Iterable[str]) -> tuple[str, ...]:
    """The first different texts, as many as a plan has."""
    return tuple(islice(dict.fromkeys(found), _MOST_WORDS))


def _list_names(
    keyword: str, split: SplitDescription, members: Sequence[parametric.MemberValues]
) -> Iterator[str]:
    """The texts that a keyword has in all members, each once."""
    found: dict[str, None] = {}
    for value in _values_of(keyword, split.template):
        is_filled = bool(split.parameters) and placeholders.find_places(value).characters > 0
        for own in members if is_filled else members[:1]:
            stated = placeholders.fill_value(value, own) if is_filled else value
            with suppress(UnfitValueError):  # which the service reports
                found.update(dict.fromkeys(keywords.texts(stated)))
    return iter(found)


def _name_executables(split: SplitDescription, members: Sequence[parametric.MemberValues]) -> Iterator[str]:
    """Executables that the input sandbox of the description does not have, as far as it tells."""
    sandbox = list(_list_names("input_sandbox", split, members))
    if any(map(_ARCHIVE.match, sandbox)):
        return
    sent = {PurePosixPath(name).name for name in sandbox}
    for name in _list_names("executable", split, members):
        path = PurePosixPath(name)
        if path == PurePosixPath(path.name) and path.name not in sent:
            yield name


def _name_mentioned(split: SplitDescription, members: Sequence[parametric.MemberValues]) -> tuple[str, ...]:
    """The first words of arguments that may be names of files."""
    texts = _list_names("arguments", split, members[:_MOST_WORDS])
    return take_first(word.strip("\"'") for text in texts for word in text[:_MOST_TEXT].split())


#: Characters of arguments that are read for names of files.
_MOST_TEXT = 10_000
#: Also without parameters usual in arguments, such as `date +%s`.
_SHORT = frozenset({"s", "n"})


def _warn_of_placeholders(draft: Draft) -> Iterator[str]:
    """Warnings of placeholders without values, which jobs get as they are."""
    given = {each.name for each in draft.split.parameters} | _SHORT
    for keyword, value in draft.split.template.items():
        for name in placeholders.find_places(value).uses:
            if name not in given:
                yield (
                    f"{keyword}: %({name})s has no value, so jobs get it as it is; values come by "
                    f"--param {name}=…, parameters= in Python, or Parameters.{name} in the description"
                )


def _values_of(attribute: str, content: Mapping[str, object]) -> Iterator[object]:
    """The values of a keyword in any of its spellings."""
    for name, value in content.items():
        known = keywords.find_keyword(name)
        if known is not None and known.attribute == attribute:
            yield value

"""Jobs: their submission, filters, lists, details and changes."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, Self, TypeVar

from fastapi import Path
from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    computed_field,
    create_model,
    field_validator,
    model_validator,
)

from pilotage.service.models import MOST, AnswerModel, ListPage, StrictInput
from requirements.errors import InvalidRequest, Problem
from requirements.job_fields import (
    FIELDS,
    FILTERED,
    FILTERS,
    JOB_ID,
    UPDATED_AT,
    AnyField,
    Filter,
    JobField,
    V,
)
from requirements.states import JobStatus, LocalJobsStatus
from taskqueue.jobs.grid_jobs import aggregate_status
from taskqueue.jobs.log import JobChange


class JobSummaryRow(BaseModel):
    """Number of jobs with these values."""

    model_config = ConfigDict(extra="allow")

    count: int


class UnknownValue(BaseModel):
    """A value of a filter that no visible job has, and the configuration does not, either."""

    field: str = Field(description="Name of the filter.")
    value: str
    did_you_mean: str | None
    message: str = Field(description="For people: `no job has the group scn, did you mean scan?`")


_UNKNOWN: Any = Field(default_factory=list, description="Values of the filter that are probably misspelt.")


class JobSummary(BaseModel):
    """Numbers of jobs by the requested columns."""

    summary: list[JobSummaryRow]
    unknown: list[UnknownValue] = _UNKNOWN


_Model = TypeVar("_Model", bound=BaseModel)


def _with_fields(fields: Mapping[str, Any]) -> Callable[[type[_Model]], type[_Model]]:
    """Add fields to a model: their types with their properties by name."""

    def add(model: type[_Model]) -> type[_Model]:
        made = create_model(model.__name__, __base__=model, __module__=model.__module__, **fields)
        made.__doc__ = model.__doc__
        return made

    return add


def _describe_answers(fields: Iterable[AnyField]) -> dict[str, Any]:
    return {
        field.name: (
            field.type | None if field.may_be_null else field.type,
            Field(description=field.words or None),
        )
        for field in fields
    }


@_with_fields(_describe_answers(field for field in FIELDS if field.is_answered))
class JobAnswer(AnswerModel):
    """A job."""


#: Exact in every JSON reader.
Exact = Annotated[int, Field(ge=0, le=2**53)]
_PRINTABLE = r"^[^\x00-\x1f\x7f]*$"


class PhaseBody(AnswerModel):
    """Progress of one phase of a grid job, summed over its local jobs."""

    name: str = Field(min_length=1, max_length=100, pattern=_PRINTABLE)
    done: Exact
    of: Exact
    unit: str = Field(
        default="", max_length=30, pattern=_PRINTABLE, description="Unit of the counts, such as events."
    )

    @model_validator(mode="after")
    def _not_beyond_the_end(self) -> Self:
        if self.done > self.of:
            raise ValueError(f"{self.name}: {self.done} of {self.of} is more than all")
        return self


class AmountsAnswer(AnswerModel):
    """Amounts of resources; null: not stated, or not reported."""

    memory_mb: int | None = Field(description="Asked: what the match reserved. Used: the peak.")
    scratch_mb: int | None = Field(description="Disk space of the job's directories. Used: the peak.")
    cpu_seconds: float | None = Field(
        description="Asked: `CPUWorkDB12`, else `CPUTime`, both normalised. Used: seconds of the node."
    )


class AttemptAnswer(AnswerModel):
    """The latest attempt of a job, as reported by its pilot; its lease is the pilot's secret."""

    epoch: int
    site: str
    ce: str
    queue: str
    pilot: str | None = Field(validation_alias="stamp", description="Stamp of the pilot.")
    matched_at: datetime = Field(validation_alias="opened_at")
    started_at: datetime | None
    heartbeat_at: datetime | None
    closed_at: datetime | None
    closed_as: str | None
    exit_code: int | None
    processors: int | None = Field(description="Cores that the job was given; null: not recorded.")
    asked: AmountsAnswer
    used: AmountsAnswer = Field(description="As last reported, also of a job that was killed.")
    progress: str
    output_tail: str
    phases: list[PhaseBody] = Field(description="Phases of a grid job, in their order.")
    local_jobs: dict[str, int] = Field(description="Numbers of a grid job's local jobs by state.")

    @computed_field(description="Overall status of a grid job's local jobs; null: it is no grid job.")  # type: ignore[prop-decorator]
    @property
    def local_status(self) -> LocalJobsStatus | None:
        """State of the grid job that follows from the numbers of its local jobs by state."""
        return aggregate_status(self.local_jobs) if self.local_jobs or self.phases else None

    @field_validator("phases", "local_jobs", mode="before")
    @classmethod
    def _parse_stored(cls, value: object, info: ValidationInfo) -> object:
        """Accept stored JSON or NULL."""
        if value is None:
            return [] if info.field_name == "phases" else {}
        return json.loads(value) if isinstance(value, str) else value


DetailText = Annotated[str, Field(max_length=200)]
_NAME = r"^[^\x00-\x1f\x7f]{1,50}$"
#: State of a local job.
LOCAL_STATE = r"^[a-z][a-z_]{0,31}$"


class LocalJobBody(AnswerModel):
    """A local job of a grid job, as its job manager reports it."""

    number: int = Field(ge=1, le=100_000, description="Number of the local job, from 1.")
    state: str = Field(
        pattern=LOCAL_STATE, description="unsubmitted, waiting, running, done, failed, killed."
    )
    tries: int = Field(default=1, ge=0, le=1_000_000, description="Times that it was submitted.")
    reference: str | None = Field(
        default=None, max_length=300, description="Id of its latest try in the batch system."
    )
    started_at: AwareDatetime | None = None
    ended_at: AwareDatetime | None = None
    exit_code: int | None = Field(default=None, ge=-(2**31), le=2**31 - 1)
    message: str = Field(default="", max_length=300, description="Why its last try failed.")
    details: dict[Annotated[str, Field(pattern=_NAME)], DetailText | int | float] = Field(
        default_factory=dict,
        max_length=10,
        description="Texts, numbers and links (`https://…`) of the handler of its type, by name.",
    )


class LocalJobPage(BaseModel):
    """Local jobs of the latest attempt at a grid job, by number."""

    job_id: int
    local_jobs: list[LocalJobBody]
    next: int | None = Field(description="The `after` of the next page; null: this was the last.")


class LocalJobQuery(ListPage):
    """Page of the local jobs of a grid job."""

    after: int = Field(default=0, ge=0, le=2**31 - 1, description="`next` of the page before.")
    state: str | None = Field(default=None, pattern=LOCAL_STATE, description="Only those in this state.")


class ParentAnswer(AnswerModel):
    """A job that another one waits for, or waited for."""

    job_id: int
    status: str = Field(description="As it ended, or its status now; `gone`: it was deleted.")
    has_ended: bool


class RetryAnswer(AnswerModel):
    """A retry of a job by its rules."""

    at: datetime
    epoch: int = Field(description="Number of the attempt that failed.")
    note: str = Field(
        validation_alias="application_status", description="Its end, what is changed, and which retry it is."
    )


class RelaxationAnswer(AnswerModel):
    """What a job that waited long gave up by its rules."""

    at: datetime
    note: str = Field(
        validation_alias="application_status", description="The time of the rule, and what is changed."
    )


class JobDetails(JobAnswer):
    """A job with its description."""

    description: dict[str, Any] = Field(description="The checked description with its placeholders replaced.")
    parameters: dict[str, str] = Field(description="Texts by name, as its pilots reported them.")
    attempt: AttemptAnswer | None = Field(description="The latest attempt; null: never matched.")
    waited: dict[str, float] = Field(description="Seconds waited by cause, the longest first.")
    after: list[ParentAnswer] = Field(description="Jobs that it waits for, or waited for.")
    retries: list[RetryAnswer] = Field(description="Each time that a rule let it run again, in order.")
    relaxations: list[RelaxationAnswer] = Field(
        description="Each time that it gave something up by a rule, for it waited long, in order."
    )


class JobPage(BaseModel):
    """Jobs in order; a page may be short or empty: a request searches at most 100,000 jobs."""

    jobs: list[JobAnswer]
    next: int | None = Field(description="The `after` of the next page; null: this was the last.")
    unknown: list[UnknownValue] = _UNKNOWN


class LogLine(AnswerModel):
    """One change of a job's status."""

    at: datetime
    from_status: JobStatus | None = Field(serialization_alias="from")
    to_status: JobStatus = Field(serialization_alias="to")
    minor: str = Field(validation_alias="minor_status")
    application: str = Field(validation_alias="application_status")
    source: str = Field(description="Component: JobManager, an optimizer, Matcher, Pilot or an agent.")
    epoch: int


class LogQuery(ListPage):
    """Page of a job's history."""

    limit: int = Field(default=MOST, ge=1, le=MOST, description="Most entries in the answer.")
    after: int = Field(default=0, ge=0, le=2**63 - 1, description="`next` of the page before.")


class JobLog(BaseModel):
    """The history of a job, in order."""

    job_id: int
    log: list[LogLine]
    next: int | None = Field(description="The `after` of the next page; null: this was the last.")


@_with_fields(_describe_answers(field for field in FIELDS if field.is_in_changes))
class ChangeLine(AnswerModel):
    """A change of one job's status."""

    job_id: int
    at: datetime
    from_status: JobStatus | None = Field(
        serialization_alias="from", description="Status before; null: the job was submitted."
    )
    status: JobStatus = Field(serialization_alias="to")
    minor_status: str = Field(serialization_alias="minor", description="Why it is in this status.")
    epoch: int = Field(description="Number of its latest attempt at that time.")

    @classmethod
    def from_change(cls, change: JobChange) -> Self:
        """The line of a change."""
        at = change.fields[UPDATED_AT.name]
        own = {"from_status": change.from_status, "epoch": change.epoch, "at": at}
        return cls.model_validate({**change.fields, **own})


_CURSOR = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")


@dataclass(frozen=True, slots=True)
class ChangeCursor:
    """A position in the feed of changes, as text `INCARNATION-LOG_ID`."""

    incarnation: int
    log_id: int

    def __str__(self) -> str:
        return f"{self.incarnation}-{self.log_id}"

    @classmethod
    def parse(cls, text: str) -> "ChangeCursor":
        """Read one; `InvalidRequest` if it is none."""
        found = _CURSOR.fullmatch(text)
        if found is None:
            message = f"{text!r:.80} is not a cursor: give `next` of an earlier answer, or the id of an event"
            raise InvalidRequest([Problem(path="after", message=message)])
        return cls(int(found[1]), int(found[2]))


class ChangePageAnswer(BaseModel):
    """Changes in the order in which they happened."""

    changes: list[ChangeLine]
    next: str = Field(description="Cursor behind them, the `after` of the next request; there always is one.")
    more: bool = Field(description="Whether there are more already: request them at once.")


#: The largest id of a job.
MAX_ID = 2**63 - 1
_ID = re.compile(r"[0-9]{1,19}")

#: As a path parameter.
JobIdPath = Annotated[int, Path(ge=1, le=MAX_ID)]
JobId = Annotated[int, Field(ge=1, le=MAX_ID, strict=True)]


def words(value: object) -> object:
    """Split `a,b`, also within a list: several values in a query; one value is a list, too."""
    if isinstance(value, str | int):
        value = [value]
    if not isinstance(value, list):
        return value
    split = [each.split(",") if isinstance(each, str) else [each] for each in value]
    return [
        word.strip() if isinstance(word, str) else word for words in split for word in words if word != ""
    ]


def _ids(value: object) -> object:
    split = words(value)
    if not isinstance(split, list):
        return split
    return [int(word) if isinstance(word, str) and _ID.fullmatch(word) else word for word in split]


_RANGE = re.compile(r"(-?[0-9]{1,10})-(-?[0-9]{1,10})")


def _numbers(value: object) -> object:
    """Split `a,b`, and replace a range `a-b` by its numbers."""
    split = words(value)
    if not isinstance(split, list):
        return split
    found: list[object] = []
    for word in split:
        ends = _RANGE.fullmatch(word) if isinstance(word, str) else None
        if ends is None:
            found.append(word)
            continue
        numbers = range(int(ends[1]), int(ends[2]) + 1)
        if not 0 < len(numbers) <= MOST - len(found):  # not left to pydantic, which reads 0-5 as -5
            raise ValueError(
                f"{word!r} is not allowed, a range has 1 to {MOST:,} numbers, the least first, "
                "and all together have no more"
            )
        found += numbers
    return found


_Most = Field(max_length=MOST)
Words = Annotated[Annotated[list[str], _Most] | None, BeforeValidator(words)]
JobIds = Annotated[Annotated[list[JobId], _Most] | None, BeforeValidator(_ids)]
#: A number as a filter; `none`: jobs that have none.
Number = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | Literal["none"]


#: A point in time as it was typed: a list of the last 24 hours remains one, also as a saved view.
Moment = Annotated[str, Field(max_length=40)]
_AGE = re.compile("([0-9]{1,9})([smhdw])")
#: Milliseconds since 1970, some of which would be times of 1795: a date, any one character, a time.
_NUMBER = re.compile("[0-9]{9}")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_moment(field: str, text: str, now: datetime) -> datetime:
    """The time that the text of a field states; `InvalidRequest` if it states none."""
    typed = text.strip()
    try:
        if age := _AGE.fullmatch(typed):
            return now - timedelta(**{_UNITS[age[2]]: int(age[1])})
        moment = datetime.fromisoformat("" if _NUMBER.match(typed) else typed)
        return moment.replace(tzinfo=moment.tzinfo or UTC)
    except (ValueError, OverflowError):
        message = f"{text!r:.60} is not a time: 2026-03-28, 2026-03-28T12:00:00Z, or how long ago: 24h, 7d"
        raise InvalidRequest([Problem(path=field, message=message)]) from None


def parse_given_moment(field: str, text: str | None, now: datetime) -> datetime | None:
    """The time that the text of an optional field states, as by `parse_moment`; None: it is not given."""
    return None if text is None else parse_moment(field, text, now)


def _describe_filter(field: AnyField, given: Filter) -> tuple[Any, Any]:
    kind: Any = field.type | None
    if field is JOB_ID:
        kind = JobIds
    elif field.type is datetime:
        kind = Moment | None
    elif given.has_several:
        is_number = field.type is int
        value: Any = Number if is_number else field.type
        split = BeforeValidator(_numbers if is_number else words)
        kind = Annotated[Annotated[list[value], _Most] | None, split]
    return kind, Field(default=None, description=given.words or None)


@_with_fields({name: _describe_filter(FILTERED[name], given) for name, given in FILTERS.items()})
class JobFilter(StrictInput):
    """Filter of jobs; several values, separated by commas, mean any of them."""

    @property
    def given(self) -> Mapping[str, Any]:
        """The values of the conditions by the names of the filters."""
        return {name: value for name, value in self if name in FILTERS and value is not None}

    @property
    def is_empty(self) -> bool:
        """Whether there is no condition."""
        return not any(self.given.values())

    def get(self, field: JobField[V]) -> Sequence[V] | None:
        """The values of a field of which a job has one; None: any."""
        value = self.given.get(field.filter_name)
        found = value if isinstance(value, list) else [value]
        return None if value is None else [each for each in found if isinstance(each, field.type)]


class BulkChange(JobFilter):
    """The filter of the jobs to change; one request changes up to 10,000, the newest first."""

    after: int | None = Field(default=None, ge=1, le=MAX_ID, description="`next` of the answer before.")


#: Values for keywords of descriptions, or for parts of their Requirements: each is checked for each job.
SetValues = Annotated[dict[str, Any], Field(max_length=100)]


class EditRequest(BulkChange):
    """The filter of the jobs to edit, and what changes in their descriptions."""

    set: Annotated[SetValues, Field(min_length=1)] = Field(
        description="Values by keyword, or by name in the Requirements (`Requirements.NAME` is always "
        "there); null takes one away."
    )
    dry_run: bool = Field(default=False, description="Change nothing: `job_ids` are those that would change.")


class JobQuery(JobFilter, ListPage):
    """The filter and the page of a list of jobs."""

    id: JobIds = Field(default=None, description="Job ids, separated by commas; `ids` means the same.")
    after: int | None = Field(default=None, ge=1, le=MAX_ID, description="`next` of the page before.")
    sort: str = Field(
        default="-job_id",
        max_length=40,
        description="A field, after `-` from its highest value; of very many jobs the newest are sorted.",
    )

    @property
    def filter(self) -> JobFilter:
        """The conditions alone."""
        is_stated = self.id is None or self.get(JOB_ID) is not None
        return self if is_stated else self.model_copy(update={"ids": self.id})


_AFTER = Field(
    default=None, max_length=40, description="Cursor: `next` of an answer, or the id of an event; none: now."
)


class ChangeQuery(JobFilter, ListPage):
    """Filter of changes, by the job with its new status, and where they begin."""

    limit: int = Field(default=MOST, ge=1, le=MOST, description="Most changes in the answer.")
    after: str | None = _AFTER


class EventQuery(JobFilter):
    """Filter of events, by the job with its new status, and where they begin and end."""

    after: str | None = _AFTER
    seconds: float = Field(
        default=300.0,
        gt=0,
        le=3600,
        description="How long the stream may last; the service may end it earlier.",
    )


class SummaryQuery(JobFilter):
    """Filter and grouping of a summary of jobs."""

    by: str = Field(
        default="status",
        description="Columns such as status, minor_status, exit_code, site; separated by commas.",
    )


class ChangedJob(BaseModel):
    """The new status of a job."""

    job_id: int
    status: JobStatus


class JobEnd(StrictInput):
    """The end of a Completed job."""

    status: Literal["Done", "Failed"]
    minor_status: str = Field(default="", max_length=2000)


class RefusedJob(BaseModel):
    """A job that was named by its id and could not be changed."""

    job_id: int
    reason: str


class ChangedJobs(BaseModel):
    """The result of changing many jobs."""

    job_ids: list[int]
    refused: list[RefusedJob] = Field(
        description="Jobs that were not changed, if they were named by their ids; of others that an edit "
        "would make invalid the first ones."
    )
    next: int | None = Field(
        default=None,
        description="Not null: there may be more jobs; send the request again with this as `after`.",
    )
    unknown: list[UnknownValue] = _UNKNOWN
    warnings: list[str] = Field(
        default_factory=list,
        description="Of an edit: jobs that no queue is eligible for with the new values.",
    )


class Submission(StrictInput):
    """Jobs to submit: exactly one of `jdl`, `jdls` and `jobs`."""

    jdl: str | None = Field(default=None, description="One description: JDL, ClassAd, CFG or YAML.")
    jdls: list[str] | None = Field(default=None, min_length=1, max_length=MOST, description="Several.")
    jobs: list[dict[str, Any]] | None = Field(
        default=None, min_length=1, max_length=MOST, description="Several, as JSON objects of keywords."
    )
    sandbox: str | None = Field(
        default=None,
        pattern="^sha256:[0-9a-f]{64}$",
        description="Input sandbox of all jobs: the digest returned by `POST /sandboxes`.",
    )


class SubmittedJobs(BaseModel):
    """Ids of the new jobs, in the order of their descriptions."""

    job_ids: list[int]
    warnings: list[str] = Field(
        default_factory=list,
        description="Jobs without an eligible queue, with the smallest change that helps.",
    )


class CopyRequest(StrictInput):
    """The jobs to copy."""

    ids: Annotated[list[JobId], Field(min_length=1, max_length=MOST), BeforeValidator(_ids)] = Field(
        description="Job ids."
    )
    set: SetValues = Field(
        default_factory=dict,
        description="What differs in the copies: values by keyword, or by name in the Requirements; null "
        "takes one away.",
    )
    dry_run: bool = Field(
        default=False,
        description="Submit nothing: `job_ids` are those that would be copied, with other values.",
    )


class CopiedJobs(SubmittedJobs):
    """Ids of the copies, in the order in which the jobs were named, without those that were refused."""

    refused: list[RefusedJob] = Field(description="Jobs that were not copied.")

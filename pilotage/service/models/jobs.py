"""Jobs on the wire."""

from dataclasses import fields
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from pilotage.service.models.paging import Page
from taskqueue.attempts import Attempt
from taskqueue.jobs import Job
from taskqueue.log import LogEntry
from taskqueue.states import JobStatus

#: Descriptions in one submission, ids in one question.
MOST = 1000
MAX_ID = 2**63 - 1

JobId = Annotated[int, Field(ge=1, le=MAX_ID, strict=True)]


class Submission(BaseModel):
    """Jobs to submit: exactly one of `jdl`, `jdls` and `jobs`."""

    model_config = ConfigDict(extra="forbid")

    jdl: str | None = Field(default=None, description="One description: JDL, ClassAd or YAML.")
    jdls: list[str] | None = Field(default=None, min_length=1, max_length=MOST, description="Several.")
    jobs: list[dict[str, Any]] | None = Field(
        default=None, min_length=1, max_length=MOST, description="Several, as JSON objects of keywords."
    )
    sandbox: str | None = Field(
        default=None,
        pattern="^sha256:[0-9a-f]{64}$",
        description="Input sandbox of all of them, as `POST /sandboxes` answered it.",
    )


class Submitted(BaseModel):
    """The new jobs, in the order of their descriptions."""

    job_ids: list[int]


class JobSummaryRow(BaseModel):
    """How many jobs have these values."""

    model_config = ConfigDict(extra="allow")

    count: int


class JobSummary(BaseModel):
    """Numbers of jobs by the columns that were asked for."""

    summary: list[JobSummaryRow]


class JobAnswer(BaseModel):
    """A job as it stands."""

    job_id: int
    vo: str
    owner: str
    owner_group: str
    status: JobStatus
    minor_status: str = Field(description="Why it is in this status.")
    application_status: str
    job_name: str
    job_type: str
    job_group: str
    priority: float = Field(description="The user's, 0 to 10.")
    submit_pool: str | None = Field(description="Id of its SubmitPool; null: no Requirements, or not yet.")
    site: str = Field(description="Where it is or was; before that what it asks.")
    epoch: int = Field(description="Number of its latest attempt.")
    reschedules: int
    submitted_at: datetime
    updated_at: datetime = Field(description="Last change of status.")
    started_at: datetime | None
    ended_at: datetime | None

    @classmethod
    def of(cls, job: Job) -> "JobAnswer":
        """The job without what only the task queue needs."""
        return cls.model_validate({field.name: getattr(job, field.name) for field in fields(Job)})


class AttemptAnswer(BaseModel):
    """The latest attempt of a job, as far as its pilot told."""

    epoch: int
    site: str
    ce: str
    queue: str
    pilot: str | None = Field(description="Stamp of the pilot.")
    matched_at: datetime
    started_at: datetime | None
    heartbeat_at: datetime | None
    closed_at: datetime | None
    closed_as: str | None
    exit_code: int | None
    progress: str
    output_tail: str

    @classmethod
    def of(cls, attempt: Attempt) -> "AttemptAnswer":
        """The attempt without its lease, which is its pilot's secret."""
        return cls(
            epoch=attempt.epoch,
            site=attempt.site,
            ce=attempt.ce,
            queue=attempt.queue,
            pilot=attempt.stamp,
            matched_at=attempt.opened_at,
            started_at=attempt.started_at,
            heartbeat_at=attempt.heartbeat_at,
            closed_at=attempt.closed_at,
            closed_as=attempt.closed_as,
            exit_code=attempt.exit_code,
            progress=attempt.progress,
            output_tail=attempt.output_tail,
        )


class JobDetails(JobAnswer):
    """A job with its description."""

    description: dict[str, Any] = Field(description="The checked description, placeholders filled.")
    attempt: AttemptAnswer | None = Field(description="The latest attempt; null: never matched.")


class JobPage(BaseModel):
    """Jobs, the newest first."""

    jobs: list[JobAnswer]
    next: int | None = Field(description="The `after` of the next page; null: this was the last.")


class LogLine(BaseModel):
    """One change of a job's status."""

    model_config = ConfigDict(populate_by_name=True)

    at: datetime
    from_status: JobStatus | None = Field(serialization_alias="from")
    to_status: JobStatus = Field(serialization_alias="to")
    minor: str
    application: str
    source: str = Field(description="Who did it: JobManager, an optimizer, Matcher, Pilot, an agent.")
    epoch: int

    @classmethod
    def of(cls, entry: LogEntry) -> "LogLine":
        """An entry of the log."""
        return cls(
            at=entry.at,
            from_status=entry.from_status,
            to_status=entry.to_status,
            minor=entry.minor_status,
            application=entry.application_status,
            source=entry.source,
            epoch=entry.epoch,
        )


class JobLog(BaseModel):
    """All that happened to a job, in order."""

    job_id: int
    log: list[LogLine]


def _words(value: object) -> object:
    """`a,b` as a list, also within a list: how queries say several values."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        return value
    split = [each.split(",") if isinstance(each, str) else [each] for each in value]
    return [
        word.strip() if isinstance(word, str) else word for words in split for word in words if word != ""
    ]


def _ids(value: object) -> object:
    words = _words(value)
    if not isinstance(words, list):
        return words
    return [int(word) if isinstance(word, str) and _is_id(word) else word for word in words]


def _is_id(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= len(str(MAX_ID))


_Most = Field(max_length=MOST)
Words = Annotated[Annotated[list[str], _Most] | None, BeforeValidator(_words)]
Statuses = Annotated[Annotated[list[JobStatus], _Most] | None, BeforeValidator(_words)]
JobIds = Annotated[Annotated[list[JobId], _Most] | None, BeforeValidator(_ids)]


class JobFilter(BaseModel):
    """Which jobs; several values, separated by commas, mean any of them."""

    model_config = ConfigDict(extra="forbid")

    ids: JobIds = Field(default=None, description="Job ids.")
    status: Statuses = None
    vo: Words = None
    owner: str | None = None
    owner_group: str | None = None
    site: Words = None
    pool: str | None = Field(default=None, description="Id of the SubmitPool.")
    minor_status: str | None = None
    job_name: str | None = None
    job_type: str | None = None
    job_group: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it names no condition."""
        return not any(getattr(self, name) for name in JobFilter.model_fields)


class JobQuery(JobFilter, Page):
    """The filter and the page of a list of jobs."""

    id: JobIds = Field(default=None, description="Job ids, separated by commas; `ids` means the same.")
    after: int | None = Field(default=None, ge=1, le=MAX_ID, description="`next` of the page before.")

    @property
    def filter(self) -> JobFilter:
        """What it asks of the jobs."""
        return self.model_copy(update={"ids": self.id if self.ids is None else self.ids})


class SummaryQuery(JobFilter):
    """By which columns to count, and which jobs."""

    by: str = Field(default="status", description="Columns, separated by commas.")


class Changed(BaseModel):
    """The status that a job was given."""

    job_id: int
    status: JobStatus


class Refused(BaseModel):
    """A named job that could not be changed."""

    job_id: int
    reason: str


class ChangedJobs(BaseModel):
    """Which of the jobs were changed."""

    job_ids: list[int]
    refused: list[Refused] = Field(description="Of the jobs that were named by their ids.")


Change = Literal["kill", "reschedule"]

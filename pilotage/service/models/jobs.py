"""Jobs on the wire.

Which jobs, as queries and bodies say it.

What became of jobs that were to be changed, on the wire.

Submissions on the wire.
"""

import json
from datetime import datetime
from typing import Annotated, Any, Self

from fastapi import Path
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from pilotage.service.models.leases import PhaseBody
from pilotage.service.models.paging import ListPage
from taskqueue.jobs.jobs import Job
from taskqueue.states import JobStatus


class JobSummaryRow(BaseModel):
    """How many jobs have these values."""

    model_config = ConfigDict(extra="allow")

    count: int


class JobSummary(BaseModel):
    """Numbers of jobs by the columns that were asked for."""

    summary: list[JobSummaryRow]


class JobAnswer(BaseModel):
    """A job as it stands."""

    model_config = ConfigDict(from_attributes=True)

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
    def of(cls, job: Job) -> Self:
        """The job without what only the task queue needs."""
        return cls.model_validate(job)


class AttemptAnswer(BaseModel):
    """The latest attempt of a job, as far as its pilot told; its lease is the pilot's secret."""

    model_config = ConfigDict(from_attributes=True)

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
    progress: str
    output_tail: str
    phases: list[PhaseBody] = Field(description="Of a grid job, in their order.")
    local_jobs: dict[str, int] = Field(description="Numbers of a grid job's local jobs by state.")

    @field_validator("phases", "local_jobs", mode="before")
    @classmethod
    def _stored(cls, value: object, info: ValidationInfo) -> object:
        """As it is stored, JSON or nothing."""
        if value is None:
            return [] if info.field_name == "phases" else {}
        return json.loads(value) if isinstance(value, str) else value


class JobDetails(JobAnswer):
    """A job with its description."""

    description: dict[str, Any] = Field(description="The checked description, placeholders filled.")
    attempt: AttemptAnswer | None = Field(description="The latest attempt; null: never matched.")
    waited: dict[str, float] = Field(description="Seconds by what it waited for, the longest first.")


class JobPage(BaseModel):
    """Jobs, the newest first; a page is short, or empty, where 100,000 jobs were looked through for it."""

    jobs: list[JobAnswer]
    next: int | None = Field(description="The `after` of the next page; null: there is no more.")


class LogLine(BaseModel):
    """One change of a job's status."""

    model_config = ConfigDict(from_attributes=True)

    at: datetime
    from_status: JobStatus | None = Field(serialization_alias="from")
    to_status: JobStatus = Field(serialization_alias="to")
    minor: str = Field(validation_alias="minor_status")
    application: str = Field(validation_alias="application_status")
    source: str = Field(description="Who did it: JobManager, an optimizer, Matcher, Pilot, an agent.")
    epoch: int


class JobLog(BaseModel):
    """All that happened to a job, in order."""

    job_id: int
    log: list[LogLine]


#: Values of one condition.
MOST = 1000
MAX_ID = 2**63 - 1

#: In the path of a request.
JobIdPath = Annotated[int, Path(ge=1, le=MAX_ID)]
JobId = Annotated[int, Field(ge=1, le=MAX_ID, strict=True)]


def words(value: object) -> object:
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
    said = words(value)
    if not isinstance(said, list):
        return said
    return [int(word) if isinstance(word, str) and _is_id(word) else word for word in said]


def _is_id(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= len(str(MAX_ID))


_Most = Field(max_length=MOST)
Words = Annotated[Annotated[list[str], _Most] | None, BeforeValidator(words)]
Statuses = Annotated[Annotated[list[JobStatus], _Most] | None, BeforeValidator(words)]
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


class JobQuery(JobFilter, ListPage):
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


class ChangedJob(BaseModel):
    """The status that a job was given."""

    job_id: int
    status: JobStatus


class RefusedJob(BaseModel):
    """A named job that could not be changed."""

    job_id: int
    reason: str


class ChangedJobs(BaseModel):
    """Which of the jobs were changed."""

    job_ids: list[int]
    refused: list[RefusedJob] = Field(description="Of the jobs that were named by their ids.")


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


class SubmittedJobs(BaseModel):
    """The new jobs, in the order of their descriptions."""

    job_ids: list[int]

"""Jobs on the wire."""

from dataclasses import fields
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from taskqueue.attempts import Attempt
from taskqueue.jobs import Job
from taskqueue.log import LogEntry
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
    waited: dict[str, float] = Field(description="Seconds by what it waited for, the longest first.")


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

"""Jobs on the wire."""

import json
from datetime import datetime
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from pilotage.service.models.leases import Phase
from taskqueue.jobs import Job
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
    phases: list[Phase] = Field(description="Of a grid job, in their order.")
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

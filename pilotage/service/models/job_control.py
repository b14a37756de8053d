"""What became of jobs that were to be changed, on the wire."""

from pydantic import BaseModel, Field

from taskqueue.states import JobStatus


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

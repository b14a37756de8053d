"""Explanations on the wire."""

from pydantic import BaseModel, Field


class Example(BaseModel):
    """A queue that fails a requirement."""

    queue: str = Field(description="`Site/CE/Queue`.")
    has: str | None = Field(description="What it has; null: nothing of that name.")


class ReasonAnswer(BaseModel):
    """What one requirement costs."""

    requirement: str
    wanted: str
    excluded: int = Field(description="Queues that fail it.")
    only_this: int = Field(description="Queues that fail it and nothing else.")
    example: Example


class ChangeAnswer(BaseModel):
    """A change of the requirements that would make queues eligible."""

    change: str
    gains: int = Field(description="Queues.")
    example: str


class JobExplanation(BaseModel):
    """Why a job runs or does not."""

    job_id: int
    status: str
    eligible_queues: int
    candidate_queues: int = Field(description="Queues that the VO may use now.")
    reasons: list[ReasonAnswer] = Field(description="Every failing requirement, the costliest first.")
    changes: list[ChangeAnswer] = Field(description="Smallest changes that help, best first.")
    now: list[str] = Field(description="What holds it back at this moment.")

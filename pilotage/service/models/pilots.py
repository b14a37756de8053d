"""Pilots: registration, secrets, status, output, lists."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from pilotage.service.models.paging import ListPage
from taskqueue.pilots import pilot_secrets
from taskqueue.states import PilotStatus

_LONGEST_SECRET = pilot_secrets.MAX_LIFETIME.total_seconds()


class NewPilot(BaseModel):
    """A pilot about to be submitted: it is stored before its batch job exists."""

    model_config = ConfigDict(extra="forbid")

    stamp: str = Field(min_length=1, max_length=255, description="Unique id, and the name of the batch job.")
    queue: str | None = Field(default=None, description="`Site/CE/Queue` that it is sent to.")
    landings: list[str] = Field(
        default=[],
        max_length=1000,
        description="Instead of `queue`: possible queues if a broker picks; the pilot states which.",
    )
    vo: str | None = Field(default=None, description="Default: the token's VO.")
    secret: bool = Field(
        default=False, description="Return a one-time secret that the pilot exchanges for its token."
    )
    secret_lifetime: float = Field(
        default=_LONGEST_SECRET,
        ge=1,
        le=_LONGEST_SECRET,
        description="Seconds within which the secret can be exchanged.",
    )


class Exchange(BaseModel):
    """A pilot's exchange of its secret for a token."""

    model_config = ConfigDict(extra="forbid")

    request_id: UUID = Field(
        description="Chosen by the pilot's process: only a repetition with the same id gets the token again."
    )


class PilotToken(BaseModel):
    """The token of a pilot, for its VO and queue; a broker's pilot has no queue until it states one."""

    token: str
    expires_at: datetime


class PilotNews(BaseModel):
    """Status of a pilot in the batch system."""

    model_config = ConfigDict(extra="forbid")

    status: PilotStatus
    reference: str | None = Field(default=None, max_length=1000, description="The CE's id, once known.")
    reason: str = Field(default="", max_length=2000)
    empty_reason: str | None = Field(
        default=None,
        pattern=r"^[a-z_]{1,40}$",
        description="For a pilot without a job: the last reason it received, such as `no_task_queue`.",
    )


class PilotOutputAnswer(BaseModel):
    """The ends of a pilot's output."""

    model_config = ConfigDict(from_attributes=True)

    stdout: str
    stderr: str
    stored_at: datetime


class PilotOutputNews(BaseModel):
    """The ends of a pilot's output, fetched by its director."""

    model_config = ConfigDict(extra="forbid")

    stdout: str = Field(default="", max_length=16_000)
    stderr: str = Field(default="", max_length=16_000)


class StampsQuestion(BaseModel):
    """Names of batch jobs to compare with the registered pilots."""

    model_config = ConfigDict(extra="forbid")

    stamps: list[Annotated[str, Field(min_length=1, max_length=255)]] = Field(max_length=1000)


class StampStanding(StrEnum):
    """State of a stamp in the service."""

    ACTIVE = "active"
    ENDED = "ended"
    UNKNOWN = "unknown"


class Standings(BaseModel):
    """States of stamps in the service."""

    standings: dict[str, StampStanding]


class PilotAnswer(BaseModel):
    """A pilot."""

    model_config = ConfigDict(from_attributes=True)

    stamp: str
    vo: str
    status: PilotStatus
    status_reason: str
    site: str
    ce: str
    queue: str
    reference: str | None
    submitted_by: str = Field(
        description="Token subject of the director; empty: it was not registered first."
    )
    jobs: int = Field(description="Number of jobs given to it.")
    created_at: datetime
    updated_at: datetime
    last_seen_at: datetime | None
    landings: list[str] = Field(description="Possible queues, if a broker picks.")
    empty_reason: str = Field(description="Code for why it got no job; empty: not reported.")
    has_output: bool = Field(description="`GET /pilots/{stamp}/output` has the end of its output.")


class RegisteredPilot(PilotAnswer):
    """A registered pilot, new or not."""

    secret: str | None = Field(
        default=None, description="On request; shown once, and it replaces an earlier one."
    )
    secret_expires_at: datetime | None = None


class PilotPage(BaseModel):
    """Pilots by stamp."""

    pilots: list[PilotAnswer]
    next: str | None = Field(description="The `after` of the next page; null: this was the last.")


class PilotSummaryRow(BaseModel):
    """Numbers of pilots for one combination of the values in `by`, which are further fields of the row."""

    model_config = ConfigDict(extra="allow", from_attributes=True)

    count: int
    jobs: int = Field(description="Jobs given to them.")
    active: int = Field(description="Pilots that have not ended.")
    with_jobs: int = Field(description="Pilots that got at least one job.")
    empty: int = Field(description="Pilots that ended normally without a job.")
    broken: int = Field(description="Failed or Aborted.")
    quality: float | None = Field(
        description="Share of pilots with a job among those with a job, empty or failed; null: none ended."
    )


class PilotSummary(BaseModel):
    """Numbers of pilots."""

    summary: list[PilotSummaryRow]


class PilotQuery(ListPage):
    """Filter of pilots; several values are separated by commas."""

    model_config = ConfigDict(extra="forbid")

    vo: str | None = None
    site: str | None = None
    status: str | None = None
    since: AwareDatetime | None = Field(default=None, description="Status changed then or later.")
    after: str = Field(default="", max_length=255, description="`next` of the page before.")


class PilotSummaryQuery(BaseModel):
    """Filter and grouping of numbers of pilots; several values are separated by commas."""

    model_config = ConfigDict(extra="forbid")

    by: str = Field(
        default="status", description="Of `status, vo, site, ce, queue, empty_reason, submitted_by`."
    )
    vo: str | None = None
    site: str | None = None
    status: str | None = None
    since: AwareDatetime | None = Field(default=None, description="Leave out pilots that ended before.")

"""Pilots on the wire."""

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
    """The intent to submit a pilot, stored before its batch job exists."""

    model_config = ConfigDict(extra="forbid")

    stamp: str = Field(min_length=1, max_length=255, description="Ours, unique; the name of the batch job.")
    queue: str | None = Field(default=None, description="`Site/CE/Queue` that it goes to.")
    landings: list[str] = Field(
        default=[],
        max_length=1000,
        description="Instead of `queue`: where it may land, if a broker picks; what it states first holds.",
    )
    vo: str | None = Field(default=None, description="Without it the token's VO.")
    secret: bool = Field(
        default=False, description="Answer a one-use secret that the pilot exchanges for its token."
    )
    secret_lifetime: float = Field(
        default=_LONGEST_SECRET,
        ge=1,
        le=_LONGEST_SECRET,
        description="Seconds within which the secret can be exchanged.",
    )


class Exchange(BaseModel):
    """A pilot's first request."""

    model_config = ConfigDict(extra="forbid")

    request_id: UUID = Field(
        description="Made by the pilot's process: the same again gets a token again, another one does not."
    )


class PilotToken(BaseModel):
    """The token of a pilot, for its VO and its queue, which a pilot of a broker states first."""

    token: str
    expires_at: datetime


class PilotNews(BaseModel):
    """What the batch system says of a pilot."""

    model_config = ConfigDict(extra="forbid")

    status: PilotStatus
    reference: str | None = Field(default=None, max_length=1000, description="The CE's id, once known.")
    reason: str = Field(default="", max_length=2000)
    empty_reason: str | None = Field(
        default=None,
        pattern=r"^[a-z_]{1,40}$",
        description="Of one that got no job: the last reason that it was told, such as `no_task_queue`.",
    )


class PilotOutputAnswer(BaseModel):
    """The ends of what a pilot wrote."""

    model_config = ConfigDict(from_attributes=True)

    stdout: str
    stderr: str
    stored_at: datetime


class PilotOutputNews(BaseModel):
    """The ends of what a pilot wrote, as its director fetched them."""

    model_config = ConfigDict(extra="forbid")

    stdout: str = Field(default="", max_length=16_000)
    stderr: str = Field(default="", max_length=16_000)


class StampsQuestion(BaseModel):
    """Batch jobs that somebody found, by their names."""

    model_config = ConfigDict(extra="forbid")

    stamps: list[Annotated[str, Field(min_length=1, max_length=255)]] = Field(max_length=1000)


class StampStanding(StrEnum):
    """How the service stands to a stamp."""

    ACTIVE = "active"
    ENDED = "ended"
    UNKNOWN = "unknown"


class Standings(BaseModel):
    """What the service knows of stamps."""

    standings: dict[str, StampStanding]


class PilotAnswer(BaseModel):
    """A pilot as it stands."""

    model_config = ConfigDict(from_attributes=True)

    stamp: str
    vo: str
    status: PilotStatus
    status_reason: str
    site: str
    ce: str
    queue: str
    reference: str | None
    submitted_by: str = Field(description="Token subject of the director; empty: it came by itself.")
    jobs: int = Field(description="How many it was given.")
    created_at: datetime
    updated_at: datetime
    last_seen_at: datetime | None
    landings: list[str] = Field(description="Where it may land, if a broker picks its queue.")
    empty_reason: str = Field(description="Why it got no job, in a word; empty: it does not say.")
    has_output: bool = Field(description="`GET /pilots/{stamp}/output` has the end of what it wrote.")


class RegisteredPilot(PilotAnswer):
    """A pilot that was registered just now, or before."""

    secret: str | None = Field(
        default=None, description="If asked for; shown once, and the one shown before is void."
    )
    secret_expires_at: datetime | None = None


class PilotPage(BaseModel):
    """Pilots by stamp."""

    pilots: list[PilotAnswer]
    next: str | None = Field(description="The `after` of the next page; null: this was the last.")


class PilotSummaryRow(BaseModel):
    """How the pilots of one combination of values fared; the names of `by` stand beside."""

    model_config = ConfigDict(extra="allow", from_attributes=True)

    count: int
    jobs: int = Field(description="That they were given.")
    active: int = Field(description="That have not ended.")
    with_jobs: int = Field(description="That were given a job, or several.")
    empty: int = Field(description="That ended as they should, without a job.")
    broken: int = Field(description="Failed or Aborted.")
    quality: float | None = Field(
        description="Share of those with a job among those with one, empty ones and those that broke without;"
        " null: there are none."
    )


class PilotSummary(BaseModel):
    """Numbers of pilots."""

    summary: list[PilotSummaryRow]


class PilotQuery(ListPage):
    """Which pilots; several values are separated by commas."""

    model_config = ConfigDict(extra="forbid")

    vo: str | None = None
    site: str | None = None
    status: str | None = None
    since: AwareDatetime | None = Field(default=None, description="Changed their status then or later.")
    after: str = Field(default="", max_length=255, description="`next` of the page before.")


class PilotSummaryQuery(BaseModel):
    """Which pilots are counted, and by what; several values are separated by commas."""

    model_config = ConfigDict(extra="forbid")

    by: str = Field(
        default="status", description="Of `status, vo, site, ce, queue, empty_reason, submitted_by`."
    )
    vo: str | None = None
    site: str | None = None
    status: str | None = None
    since: AwareDatetime | None = Field(default=None, description="Leave out those that ended before.")

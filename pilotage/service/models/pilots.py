"""Pilots on the wire."""

from datetime import datetime
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from pilotage.service.models.paging import Page
from taskqueue import pilot_secrets
from taskqueue.states import PilotStatus

_LONGEST_SECRET = pilot_secrets.LONGEST_LIFE.total_seconds()


class NewPilot(BaseModel):
    """The intent to submit a pilot, stored before its batch job exists."""

    model_config = ConfigDict(extra="forbid")

    stamp: str = Field(min_length=1, max_length=255, description="Ours, unique; the name of the batch job.")
    queue: str = Field(description="`Site/CE/Queue` that it goes to.")
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
    """The token of a pilot, for its VO and its queue."""

    token: str
    expires_at: datetime


class PilotNews(BaseModel):
    """What the batch system says of a pilot."""

    model_config = ConfigDict(extra="forbid")

    status: PilotStatus
    reference: str | None = Field(default=None, max_length=1000, description="The CE's id, once known.")
    reason: str = Field(default="", max_length=2000)


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


class PilotQuery(Page):
    """Which pilots; several values are separated by commas."""

    model_config = ConfigDict(extra="forbid")

    vo: str | None = None
    site: str | None = None
    status: str | None = None
    since: AwareDatetime | None = Field(default=None, description="Changed their status then or later.")
    after: str = Field(default="", max_length=255, description="`next` of the page before.")

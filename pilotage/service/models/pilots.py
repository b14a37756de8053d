"""Pilots on the wire."""

from datetime import datetime

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from pilotage.service.models.paging import Page
from taskqueue.states import PilotStatus


class NewPilot(BaseModel):
    """The intent to submit a pilot, stored before its batch job exists."""

    model_config = ConfigDict(extra="forbid")

    stamp: str = Field(min_length=1, max_length=255, description="Ours, unique; the name of the batch job.")
    queue: str = Field(description="`Site/CE/Queue` that it goes to.")
    vo: str | None = Field(default=None, description="Without it the token's VO.")


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

"""Sites on the wire: advertisements, and how the throttles stand."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from pilotage.service.models.paging import ListPage
from requirements.values import Value

#: Attempts that one advertisement may list.
_MOST_SEEN = 100_000


class Watermark(BaseModel):
    """To be fetched before counting, and stated as `as_of`."""

    watermark: int


class SeenAttempt(BaseModel):
    """An attempt by its job and number."""

    model_config = ConfigDict(extra="forbid")

    job_id: Annotated[int, Field(ge=1, lt=2**63)]
    epoch: Annotated[int, Field(ge=1, lt=2**31)]


class AdvertisementBody(BaseModel):
    """What a site, CE or queue says of its state; any further name is an attribute for its expressions."""

    model_config = ConfigDict(extra="allow")

    as_of: int | None = Field(
        default=None, description="The watermark that was fetched before it counted; none: a plain script."
    )
    attempts_seen: list[str | SeenAttempt] = Field(
        default=[],
        max_length=_MOST_SEEN,
        description="Attempts that the counts contain, by lease or by job and epoch.",
    )
    taken_at: datetime | None = Field(default=None, description="When it counted; for people.")
    CurrentJobs: int | None = Field(default=None, ge=0)
    CurrentSubmittingJobs: int | None = Field(default=None, ge=0)
    CurrentGatheringOutputJobs: int | None = Field(default=None, ge=0)
    CurrentPendingJobs: int | None = Field(default=None, ge=0)
    MaxJobs: int | None = Field(default=None, ge=0)
    MaxSubmittingJobs: int | None = Field(default=None, ge=0)
    MaxSubmittingAndOutputGatheringJobs: int | None = Field(default=None, ge=0)
    MaxPendingJobs: int | None = Field(default=None, ge=0)
    CurMatches: int | float | str | None = Field(
        default=None, description="Start value for the policy `expression`: a number or an expression."
    )
    Requirements: str | None = Field(default=None, description="For the policy `expression`.")

    def attributes(self) -> dict[str, Any]:
        """What it says of the site's state."""
        return self.model_dump(exclude={"as_of", "attempts_seen", "taken_at"}, exclude_none=True)


class TakenCounts(BaseModel):
    """What became of an advertisement."""

    accepted: bool = Field(description="False: one with a later watermark is known already.")
    as_of: int = Field(description="The watermark of the current one.")
    warnings: list[str] = Field(description="Names that may be slips of the pen.")


class ReservationAnswer(BaseModel):
    """A match that counts beside what is advertised."""

    job_id: int
    epoch: int
    matched_at: datetime
    started_at: datetime | None


class GaugeAnswer(BaseModel):
    """A bound of a throttle: what counts has to stay below its limit."""

    model_config = ConfigDict(from_attributes=True)

    counters: list[str] = Field(description="Whose sum counts.")
    reported: int | float | None = Field(description="That sum as advertised; null: not advertised.")
    reserved: int = Field(description="Matches that count beside.")
    limit_name: str
    limit: int | float | None = Field(description="Null: not set, which closes the throttle.")


class ThrottleAnswer(BaseModel):
    """How the throttle of a site, CE or queue stands."""

    scope: str = Field(description="`Site`, `Site/CE` or `Site/CE/Queue`.")
    policy: str
    open: bool
    room: int | None = Field(description="Jobs that may still be matched; none: not limited by numbers.")
    why: str | None = Field(description="What closes it.")
    limits: dict[str, int | float]
    gauges: list[GaugeAnswer] = Field(description="What the policy compares; none of an expression.")
    counters: dict[str, int | float] = Field(
        description="As advertised, and CurMatches with what came since."
    )
    reserved: int = Field(description="Matches that the advertisement does not contain.")
    reservations: list[ReservationAnswer] = Field(
        description="The first 100 of them; for those who look after the site, and of its gateways' VOs."
    )
    stale: bool
    stale_rule: str = Field(description="closed, open or derived: what holds while it is stale.")
    as_of: int
    advertised_at: datetime | None
    taken_at: str | None
    advertisement: dict[str, Value] | None


class LimitAnswer(BaseModel):
    """A running limit or a matching delay, and how it stands."""

    scope: str = Field(description="`Site` or `Site/CE`.")
    option: str = Field(description="RunningLimit or MatchingDelay.")
    attribute: str
    value: str
    vo: str | None = Field(description="Whose jobs; none: of all.")
    most: int | None = Field(description="Jobs at a time, of a running limit.")
    there: int | None = Field(description="Those that are there now.")
    seconds: float | None = Field(description="Between two matches, of a delay.")
    burst: int | None = Field(description="Matches at once after a pause.")
    tokens: float | None = Field(description="Matches that may be made now.")
    full: bool = Field(description="No job of this kind is matched now.")


class BanBody(BaseModel):
    """Why a site gets no jobs."""

    model_config = ConfigDict(extra="forbid")

    reason: str = Field(min_length=1, max_length=1000)
    until: datetime | None = Field(default=None, description="With its zone; none: until it is allowed.")


class BanAnswer(BaseModel):
    """A ban; jobs of the type Test still come."""

    model_config = ConfigDict(from_attributes=True)

    reason: str
    author: str
    at: datetime
    until: datetime | None


class SiteAnswer(BaseModel):
    """A site with what limits matches there."""

    site: str
    ban: BanAnswer | None
    throttles: list[ThrottleAnswer]
    limits: list[LimitAnswer]


class SiteQuery(ListPage):
    """Which sites."""

    after: str | None = Field(default=None, description="Only those behind this one.")


class SitePage(BaseModel):
    """Some sites, in the order of their names."""

    sites: list[SiteAnswer]
    next: str | None = Field(description="Goes into `after` for the next page.")

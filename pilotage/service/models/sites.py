"""Sites: advertisements, throttles, limits and bans."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from pilotage.service.models.paging import ListPage
from requirements.values import Value

#: Attempts that one advertisement may list.
_MOST_SEEN = 100_000


class Watermark(BaseModel):
    """A number to fetch before counting, and to send back as `as_of`."""

    watermark: int


class SeenAttempt(BaseModel):
    """An attempt by its job and number."""

    model_config = ConfigDict(extra="forbid")

    job_id: Annotated[int, Field(ge=1, lt=2**63)]
    epoch: Annotated[int, Field(ge=1, lt=2**31)]


class AdvertisementBody(BaseModel):
    """State of a site, CE or queue; any further name is an attribute for its expressions."""

    model_config = ConfigDict(extra="allow")

    as_of: int | None = Field(
        default=None, description="The watermark that was fetched before counting; null: a plain script."
    )
    attempts_seen: list[str | SeenAttempt] = Field(
        default=[],
        max_length=_MOST_SEEN,
        description="Attempts that the counts contain, by lease or by job and epoch.",
    )
    taken_at: datetime | None = Field(default=None, description="Time of counting; for people.")
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
        """The attributes of the site's state."""
        return self.model_dump(exclude={"as_of", "attempts_seen", "taken_at"}, exclude_none=True)


class TakenCounts(BaseModel):
    """Result of an advertisement."""

    accepted: bool = Field(description="False: one with a later watermark was received before.")
    as_of: int = Field(description="The watermark of the current advertisement.")
    warnings: list[str] = Field(description="Names that are probably misspelled.")


class ReservationAnswer(BaseModel):
    """A match that is not in the advertisement yet and counts in addition."""

    job_id: int
    epoch: int
    matched_at: datetime
    started_at: datetime | None


class GaugeAnswer(BaseModel):
    """A bound of a throttle: the sum must stay below the limit."""

    model_config = ConfigDict(from_attributes=True)

    counters: list[str] = Field(description="The counters that are summed.")
    reported: int | float | None = Field(description="The sum as advertised; null: not advertised.")
    reserved: int = Field(description="Matches that count in addition.")
    limit_name: str
    limit: int | float | None = Field(description="Null: not set, which closes the throttle.")


class ThrottleAnswer(BaseModel):
    """The throttle of a site, CE or queue."""

    scope: str = Field(description="`Site`, `Site/CE` or `Site/CE/Queue`.")
    policy: str
    open: bool
    room: int | None = Field(description="Jobs that may still be matched; null: not limited by numbers.")
    why: str | None = Field(description="The reason if it is closed.")
    limits: dict[str, int | float]
    gauges: list[GaugeAnswer] = Field(description="Bounds of the policy; empty for an expression.")
    counters: dict[str, int | float] = Field(description="As advertised; CurMatches includes later matches.")
    reserved: int = Field(description="Matches that the advertisement does not contain.")
    reservations: list[ReservationAnswer] = Field(
        description="The first 100; for admins of the site, and for its gateways those of their VOs."
    )
    stale: bool
    stale_rule: str = Field(description="Effect of a stale advertisement: closed, open or derived.")
    as_of: int
    advertised_at: datetime | None
    taken_at: str | None
    advertisement: dict[str, Value] | None


class LimitAnswer(BaseModel):
    """A running limit or a matching delay with its current numbers."""

    scope: str = Field(description="`Site` or `Site/CE`.")
    option: str = Field(description="RunningLimit or MatchingDelay.")
    attribute: str
    value: str
    vo: str | None = Field(description="VO whose jobs are limited; null: all.")
    most: int | None = Field(description="Of a running limit: most jobs at a time.")
    there: int | None = Field(description="Of a running limit: jobs there now.")
    seconds: float | None = Field(description="Of a delay: seconds between two matches.")
    burst: int | None = Field(description="Of a delay: matches at once after a pause.")
    tokens: float | None = Field(description="Of a delay: matches possible now.")
    full: bool = Field(description="No such job is matched now.")


class BanBody(BaseModel):
    """Ban of a site."""

    model_config = ConfigDict(extra="forbid")

    reason: str = Field(min_length=1, max_length=1000)
    until: datetime | None = Field(default=None, description="With a time zone; null: until allowed again.")


class BanAnswer(BaseModel):
    """A ban; only jobs of the type Test are matched."""

    model_config = ConfigDict(from_attributes=True)

    reason: str
    author: str
    at: datetime
    until: datetime | None


class SiteAnswer(BaseModel):
    """A site with its ban, throttles and limits."""

    site: str
    ban: BanAnswer | None
    throttles: list[ThrottleAnswer]
    limits: list[LimitAnswer]


class SiteQuery(ListPage):
    """Page of sites."""

    after: str | None = Field(default=None, description="`next` of the page before.")


class SitePage(BaseModel):
    """Some sites, in the order of their names."""

    sites: list[SiteAnswer]
    next: str | None = Field(description="The `after` of the next page; null: this was the last.")

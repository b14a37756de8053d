"""What the service is made of; the composition root puts it together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sqlalchemy import Engine

from cs_config.live import LiveConfiguration
from matcher.claimer import Claimer
from matcher.matcher import Matcher
from pilotage.service.limits import RateLimiter
from pilotage.service.metrics import Metrics
from pilotage.service.models.jobs import JobSummary
from pilotage.service.oidc.issuers import Issuers
from pilotage.service.pilot_places import PilotPlaces
from pilotage.service.remembered import Remembered
from pilotage.service.reports import Reports
from pilotage.service.revoked import RevokedTokens
from pilotage.service.sign_in_ways import SignInWay
from pilotage.service.tokens import Tokens
from taskqueue.blob_store import BlobStore
from taskqueue.waiting_classes import WaitingClass

#: Of a summary that is remembered.
_MOST_ROWS = 1000


def utc_now() -> datetime:
    """The time of this machine."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLimits:
    """What the door lets in at most."""

    json_bytes: int = 32 << 20  #: of a body other than an archive
    archive_bytes: int = 10 << 30  #: of a sandbox or an output; the configuration may say less
    request_timeout: float = 10.0  #: seconds that a pilot waits for an answer unless it says otherwise
    longest_request_timeout: float = 60.0  #: seconds
    burst_seconds: float = 10.0  #: a caller may use so many seconds of its rate at once, after a pause


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """All that the routes use; made anew in each process, after the fork."""

    engine: Engine
    live: LiveConfiguration
    matcher: Matcher
    claimer: Claimer
    blobs: BlobStore
    tokens: Tokens
    ring: Callable[[Sequence[int]], None]  #: tells the optimizers of new jobs, after the commit
    clock: Callable[[], datetime] = utc_now
    limits: ServiceLimits = field(default_factory=ServiceLimits)
    metrics: Metrics = field(default_factory=Metrics)
    issuers: Issuers = field(default_factory=Issuers)  #: whose tokens are taken beside our own
    rates: RateLimiter = field(default_factory=RateLimiter)
    sign_in_ways: Sequence[SignInWay] = ()  #: of browsers, beside the one-time link
    waiting: Remembered[Sequence[WaitingClass]] = field(default_factory=lambda: Remembered(_waiting))
    summaries: Remembered[JobSummary] = field(default_factory=lambda: Remembered(_counted))
    places: PilotPlaces = field(init=False)
    reports: Reports = field(init=False)
    revoked: RevokedTokens = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "places", PilotPlaces(self.engine))
        object.__setattr__(self, "reports", Reports(self.engine, self.live, self.clock))
        object.__setattr__(self, "revoked", RevokedTokens(self.engine, self.clock))


def _waiting(classes: Sequence[WaitingClass]) -> int:
    return sum(each.jobs for each in classes)


def _counted(summary: JobSummary) -> int:
    """None worth remembering where the answer itself is long, as by the names of jobs."""
    return sum(each.count for each in summary.summary) if len(summary.summary) <= _MOST_ROWS else 0

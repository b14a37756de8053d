"""Parts of the service, put together by the composition root."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from threading import Event
from typing import Final, Protocol, TypeVar

from pydantic import BaseModel
from sqlalchemy import Engine

from agents.effective_shares import UsageCache
from cs_config.cache import Cache, CountCache, RowCounts
from cs_config.versions.store import LiveConfiguration
from matcher.answer_recorder import AnswerRecorder
from matcher.claim.async_claimer import AsyncClaimer
from matcher.claim.claim_thread import ClaimWorker
from matcher.claim.matcher import Matcher
from matcher.hardware_recorder import HardwareRecorder
from matcher.wait_cause_recorder import WaitCauseRecorder
from pilotage.service.advice import Advisor
from pilotage.service.auth import rate_limits
from pilotage.service.auth.oidc.issuers import Issuers
from pilotage.service.auth.pilot_binding import PilotPlaces
from pilotage.service.auth.rate_limits import Limiter, RateLimiter
from pilotage.service.auth.tokens import RevokedTokens, Tokens
from pilotage.service.job_events import JobEvents
from pilotage.service.lease_reports import LeaseReports
from pilotage.service.metrics import Metrics
from pilotage.service.models.jobs import JobSummary
from taskqueue.blob_stores.store import BlobStore
from taskqueue.db import clock, database
from taskqueue.db.replica import Replica
from taskqueue.jobs.optimizer_queue import OptimizerQueueState
from taskqueue.task_queues.listing import WaitingClass
from taskqueue.task_queues.priorities import FamilyCache

utc_now = clock.utc_now


#: Seconds for which a failed attempt to store counts: small writes may succeed while larger ones do not.
_STORE_FAULT: Final = 15.0


class StorageState:
    """Whether the database stores what this process writes."""

    def __init__(self) -> None:
        self._fault: str | None = None
        self._until = 0.0

    def note_failure(self, error: BaseException) -> None:
        """Note a failed statement; of no effect unless the database cannot store anything."""
        fault = database.find_store_fault(error)
        if fault is not None:
            self._fault, self._until = fault, time.monotonic() + _STORE_FAULT

    @property
    def fault(self) -> str | None:
        """Why nothing could be stored lately, such as `its disk is full`."""
        return self._fault if time.monotonic() < self._until else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLimits:
    """Limits of requests."""

    json_bytes: int = 32 << 20  #: of a body other than an archive; of most callers less (`bounds.BODY`)
    archive_bytes: int = 10 << 30  #: of a sandbox or an output; the configuration may set less
    request_timeout: float = 10.0  #: default seconds that a pilot waits for an answer
    longest_request_timeout: float = 60.0  #: seconds
    burst_seconds: float = 10.0  #: a caller may use this many seconds of its rate at once, after a pause
    strangers_per_second: float = 10.0  #: requests without a token from one address, at most
    streams: int = 1_000  #: of events, of all callers; of one VO as many as are left free
    streams_of_caller: int = 20
    stream_seconds: float = 300.0  #: after which a client continues in a new one, with its token checked anew


_Own = TypeVar("_Own", bound=BaseModel)


class SettingsOf(Protocol):
    """The settings of a plug-in, by its model."""

    def __call__(self, kind: type[_Own], /) -> _Own:
        """Those of this process."""


def _make_defaults(kind: type[_Own]) -> _Own:
    return kind()


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """All dependencies of the routes; created in each process after the fork."""

    engine: Engine
    live: LiveConfiguration
    matcher: Matcher
    claimer: ClaimWorker  #: the claim thread, for requests that `claims` leaves to it
    blobs: BlobStore
    tokens: Tokens
    notify_optimizers: Callable[[Sequence[int]], None]  #: of new jobs, after the commit
    optimizer_queue: Callable[[], OptimizerQueueState | None] = lambda: None  #: None: there is no Redis
    clock: Callable[[], datetime] = utc_now  #: time of the database
    #: The problem of the clock of this host, if it differs too much from the database's.
    clock_problem: Callable[[], str | None] = lambda: None
    #: Seconds since the database confirmed a commit of this process, which makes one every five seconds.
    commit_age: Callable[[], float] = lambda: 0.0
    running_jobs: Callable[[], int] = lambda: 0  #: of the installation, some seconds ago
    limits: ServiceLimits = field(default_factory=ServiceLimits)
    settings_of: SettingsOf = _make_defaults
    metrics: Metrics = field(default_factory=Metrics)
    issuers: Issuers = field(default_factory=Issuers)  #: other issuers whose tokens are accepted
    rates: RateLimiter = field(default_factory=RateLimiter)
    #: Requests in threads, of each caller and of all; those that wait for an issuer; answers until sent.
    work: Limiter = field(init=False, default_factory=lambda: Limiter(rate_limits.AT_WORK))
    turns: Limiter = field(init=False, default_factory=lambda: Limiter(rate_limits.TURNS))
    expensive_turns: Limiter = field(init=False, default_factory=lambda: Limiter(rate_limits.EXPENSIVE_TURNS))
    large_turns: Limiter = field(init=False, default_factory=lambda: Limiter(rate_limits.LARGE_TURNS))
    sign_ins: Limiter = field(init=False, default_factory=lambda: Limiter(rate_limits.SIGN_INS))
    answers: Limiter = field(init=False, default_factory=lambda: Limiter(rate_limits.ANSWERS))
    waiting: CountCache[Sequence[WaitingClass]] = field(default_factory=lambda: CountCache(_waiting))
    summaries: CountCache[JobSummary] = field(default_factory=lambda: CountCache(_count_jobs))
    demand_counts: RowCounts = field(default_factory=RowCounts)  #: waiting jobs by task queue, for directors
    #: What shares are computed from.
    usage: UsageCache = field(default_factory=UsageCache)
    families: FamilyCache = field(default_factory=FamilyCache)
    advisor: Advisor = field(default_factory=Advisor)
    #: By VO: folded names of parameters that its waiting jobs compare as versions.
    versions: Cache[str, frozenset[str]] = field(default_factory=lambda: Cache(1000))
    storage: StorageState = field(default_factory=StorageState)
    leaving: Event = field(default_factory=Event)  #: set once the process is about to end
    direct_url: str | None = None  #: of the database without its pooler; None: as `engine`
    certificate: Path | None = None  #: PEM, of a process with TLS of its own
    replica_engine: Engine | None = None  #: None: all is read from `engine`
    claims: AsyncClaimer = field(init=False)  #: in the event loop; it has each request first
    places: PilotPlaces = field(init=False)
    wait_causes: WaitCauseRecorder = field(init=False)
    hardware: HardwareRecorder = field(init=False)
    answers_given: AnswerRecorder = field(init=False)
    reports: LeaseReports = field(init=False)
    revoked: RevokedTokens = field(init=False)
    job_events: JobEvents = field(init=False)
    replica: Replica = field(init=False)  #: for lists, counts and explanations, which may be late

    def __post_init__(self) -> None:
        direct = self.engine if self.direct_url is None else database.connect(self.direct_url)
        object.__setattr__(self, "claims", AsyncClaimer(direct, self.matcher, self.claimer.give_back))
        object.__setattr__(self, "wait_causes", WaitCauseRecorder(self.engine, self.matcher))
        object.__setattr__(self, "hardware", HardwareRecorder(self.engine, self.matcher))
        object.__setattr__(self, "answers_given", AnswerRecorder(self.engine, self.matcher))
        object.__setattr__(self, "places", PilotPlaces(self.engine, self.clock))
        object.__setattr__(self, "reports", LeaseReports(self.engine, self.live, self.clock))
        object.__setattr__(self, "revoked", RevokedTokens(self.engine, self.clock))
        events = JobEvents(
            self.engine,
            most=self.limits.streams,
            most_of_caller=self.limits.streams_of_caller,
            longest=self.limits.stream_seconds,
        )
        object.__setattr__(self, "job_events", events)
        replica = Replica(self.engine, self.replica_engine, clock=self.clock)
        object.__setattr__(self, "replica", replica)

    def notify(self, job_ids: Sequence[int]) -> None:
        """Notify the optimizers of stored jobs; without that the sweep finds them."""
        with database.after_commit("notify the optimizers"):
            self.notify_optimizers(job_ids)


def _waiting(classes: Sequence[WaitingClass]) -> int:
    return sum(each.jobs for each in classes)


def _count_jobs(summary: JobSummary) -> int:
    """0 (not cached) for a long answer, such as one by job names."""
    return sum(each.count for each in summary.summary) if len(summary.summary) <= 1000 else 0

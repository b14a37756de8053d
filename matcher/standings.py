"""How the throttles of sites, CEs and queues stand at a moment."""

import logging
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import Connection

from cs_config.configuration import Configuration
from cs_config.throttle import Stale, Throttle
from matcher import job_ads, kinds_waiting, throttles
from matcher.job_ads import Job
from matcher.throttles import OPEN, Room, Throttled
from requirements.values import Value, exact
from taskqueue import presence, reservations
from taskqueue.kinds import Kind
from taskqueue.scopes import Scope

log = logging.getLogger(__name__)

NOT_FRESH = "no fresh advertisement"


@dataclass(slots=True, kw_only=True)
class Standing:
    """A throttle with the state of its scope; it changes with every match of the transaction."""

    scope: Scope
    stale: bool
    rule: Stale | None  #: what holds instead of the advertisement; None: it is fresh
    throttled: Throttled

    def room(self) -> Room:
        """How many jobs may still be matched here."""
        if self.rule is Stale.CLOSED:
            return Room(jobs=0, why=NOT_FRESH)
        return OPEN if self.rule is Stale.OPEN else self.throttled.room()

    def why_not(self, job: Job) -> str | None:
        """What keeps this job out; None: it may come."""
        room = self.room()
        if room.jobs is not None and room.jobs <= 0:
            return room.why
        return self.throttled.refuses(job_ads.of(job)) if self.asks_job else None

    def admits(self, job: Job) -> bool:
        """Whether the site takes this very job, as far as it asks who it is."""
        return not self.asks_job or self.throttled.admits(job_ads.of(job))

    def refused(self, kinds: Iterable[tuple[Kind, Mapping[str, Value]]]) -> Iterator[Kind]:
        """The kinds of which certainly no job is admitted; asked once for all that look the same here."""
        asks = sorted(self.throttled.asks)
        said: dict[Hashable, bool] = {}
        for kind, ad in kinds:
            if kinds_waiting.looks_alike(asks, ad):
                seen = tuple(exact(ad.get(name)) for name in asks)
                if seen not in said:
                    said[seen] = self.throttled.admits(ad)
                if not said[seen]:
                    yield kind

    @property
    def asks_owner_only(self) -> bool:
        """Whether the job makes a difference, and of it only whose it is."""
        return self.asks_job and kinds_waiting.asks_owner_only(self.throttled.asks)

    @property
    def asks_job(self) -> bool:
        """Whether the job itself makes a difference."""
        return self.rule in (None, Stale.DERIVED) and self.throttled.asks_job

    def matched(self, jobs: int) -> None:
        """Count jobs that were just taken."""
        self.throttled = replace(self.throttled, reserved=self.throttled.reserved + jobs)


def of(
    conn: Connection, config: Configuration, scopes: Collection[Scope], now: datetime
) -> Mapping[str, Standing]:
    """The standings of scopes that have a throttle."""
    reserved = reservations.count(conn, [each.scope for each in scopes]) if scopes else {}
    return {
        each.scope: _standing(conn, each, config.throttles[each.scope], reserved.get(each.scope, 0), now)
        for each in scopes
    }


def _standing(conn: Connection, scope: Scope, throttle: Throttle, reserved: int, now: datetime) -> Standing:
    fresh = _is_fresh(scope, throttle, now)
    rule = None if fresh else throttle.stale
    advertised = scope.advertised or {}
    if rule is Stale.DERIVED:
        # Our own states contain every match.
        advertised, reserved = {**advertised, **_derived(conn, scope.scope)}, 0
    throttled = Throttled(throttle=throttle, advertised=advertised, reserved=reserved)
    return Standing(scope=scope, stale=not fresh, rule=rule, throttled=throttled)


def _is_fresh(scope: Scope, throttle: Throttle, now: datetime) -> bool:
    """Whether an advertisement still counts; one whose lifetime is no duration does not."""
    if scope.advertised_at is None:
        return False
    try:
        return now - scope.advertised_at <= timedelta(seconds=throttle.lifetime)
    except OverflowError as error:
        log.warning("the lifetime of advertisements of %s cannot be reckoned with: %s", scope.scope, error)
        return False


def _derived(conn: Connection, scope: str) -> Mapping[str, int]:
    present = presence.at(conn, scope)
    return {
        throttles.JOBS: present.jobs,
        throttles.SUBMITTING: present.submitting,
        throttles.GATHERING: present.gathering,
        throttles.PENDING: present.submitting,
    }

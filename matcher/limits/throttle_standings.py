"""Throttles of sites, CEs and queues with their current state; advertised attributes and job types."""

import logging
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from cs_config.tree.throttle import Stale, Throttle
from matcher.limits import job_groups, throttles
from matcher.limits.job_groups import WaitingJobRow
from matcher.limits.throttles import OPEN, ThrottleRoom, ThrottleState
from requirements.values import Value, exact, fold, format_value
from taskqueue.db import clock, sql
from taskqueue.leases.candidate_jobs import JobKind
from taskqueue.sites import occupancy, reservations, scopes
from taskqueue.sites.scopes import Scope

#: Attribute of advertisements: the job types that a gateway handles there.
JOB_TYPES = "JobTypes"
#: Seconds until an advertisement is stale where there is no throttle.
_LIFETIME: Final = Throttle.model_fields["lifetime"].default

log = logging.getLogger(__name__)

NOT_FRESH = "no fresh advertisement"
NOT_COUNTED = "a new throttle whose matches are not counted yet"


@dataclass(slots=True, kw_only=True)
class ThrottleStanding:
    """A throttle with the state of its scope, updated by every match of the transaction."""

    scope: Scope
    stale: bool
    rule: Stale | None  #: replaces the advertisement; None: it is fresh
    throttled: ThrottleState
    rule_id: int = 0  #: of the counter; 0: the rows were counted
    reserved: int = 0  #: reservations of the scope
    opened: bool = True  #: False: a new rule that admits no job yet
    changed: bool = False

    def room(self) -> ThrottleRoom:
        """How many jobs may still be matched here."""
        if not self.opened:
            return ThrottleRoom(jobs=0, why=NOT_COUNTED)
        if self.rule is Stale.CLOSED:
            return ThrottleRoom(jobs=0, why=NOT_FRESH)
        return OPEN if self.rule is Stale.OPEN else self.throttled.room()

    def why_not(self, job: WaitingJobRow, config: Configuration) -> str | None:
        """Reason why this job is refused; None: it is admitted."""
        room = self.room()
        if room.jobs is not None and room.jobs <= 0:
            return room.why
        return self.throttled.refuses(job_groups.job_ad(job, config)) if self.depends_on_job else None

    def admits(self, job: WaitingJobRow, config: Configuration | None) -> bool:
        """Whether the throttle's expression admits this job; true if it reads no job."""
        return not self.depends_on_job or self.throttled.admits(job_groups.job_ad(job, config))

    def refused(self, kinds: Iterable[tuple[JobKind, Mapping[str, Value]]]) -> Iterator[JobKind]:
        """The job groups that are refused for certain; evaluated once per distinct values."""
        asks = sorted(self.throttled.asks)
        admitted: dict[Hashable, bool] = {}
        for kind, ad in kinds:
            if job_groups.is_same_for_group(asks, ad):
                values = tuple(exact(ad.get(name)) for name in asks)
                if values not in admitted:
                    admitted[values] = self.throttled.admits(ad)
                if not admitted[values]:
                    yield kind

    @property
    def depends_on_owner_only(self) -> bool:
        """Whether the throttle reads the job, and of it only owner, group and VO."""
        return self.depends_on_job and job_groups.reads_owner_only(self.throttled.asks)

    @property
    def depends_on_job(self) -> bool:
        """Whether the throttle reads the job."""
        return self.rule in (None, Stale.DERIVED) and self.throttled.depends_on_job

    def matched(self, jobs: int) -> None:
        """Count taken jobs."""
        self.throttled = replace(self.throttled, reserved=self.throttled.reserved + jobs)
        self.reserved += jobs
        self.changed = True


def read_standings(
    conn: Connection, config: Configuration, throttled: Collection[Scope], now: datetime
) -> Mapping[str, ThrottleStanding]:
    """States of the throttles of these scopes, each of which must have one."""
    reserved = reservations.count_reservations(conn, [each.scope for each in throttled]) if throttled else {}
    return {
        each.scope: read_standing(conn, each, config.throttles[each.scope], reserved.get(each.scope, 0), now)
        for each in throttled
    }


def iterate_standings(
    conn: Connection, config: Configuration, names: Collection[str], now: datetime
) -> Iterator[tuple[str, ThrottleStanding]]:
    """States of the throttles of scopes given by name, read in batches."""
    for some in sql.split_batches(names):
        yield from read_standings(conn, config, scopes.read_scopes(conn, some).values(), now).items()


def read_standing(
    conn: Connection, scope: Scope, throttle: Throttle, reserved: int, now: datetime
) -> ThrottleStanding:
    """State of one throttle with a number of reservations."""
    fresh = _is_fresh(scope, throttle.lifetime, now)
    rule = None if fresh else throttle.stale
    advertised, more = scope.advertised or {}, reserved
    if rule is Stale.DERIVED:
        # Our own job states include every match; an advertised number of matches would stay as it is.
        ours = _derived_counters(conn, scope.scope, now)
        replaced = frozenset(map(fold, ours))
        kept = {
            name: value
            for name, value in advertised.items()
            if fold(name) not in replaced and not _is_start(name, value)
        }
        advertised, more = {**kept, **ours}, 0
    throttled = ThrottleState(throttle=throttle, advertised=advertised, reserved=more)
    return ThrottleStanding(scope=scope, stale=not fresh, rule=rule, throttled=throttled, reserved=reserved)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvertisedAttribute:
    """The advertised value of an attribute at a queue."""

    value: Value
    scope: str  #: that advertised it: the queue, its CE or its site
    advertised_at: datetime

    def describe(self, now: datetime) -> str:
        """Format value, source and age for people."""
        age = int((now - self.advertised_at).total_seconds())
        return f"= {format_value(self.value)}, advertised by {self.scope} {age} s ago"


def read_attributes(
    conn: Connection, config: Configuration, address: QueueAddress, names: Collection[str], now: datetime
) -> dict[str, AdvertisedAttribute]:
    """The valid advertised values of attributes (folded names) at a queue; the innermost scope decides."""
    scoped = scopes.list_enclosing(str(address))
    read = {fold(name): scope for name, scope in scopes.read_scopes(conn, scoped).items()}
    return select_attributes(config, read, address, names, now)


def select_attributes(
    config: Configuration,
    advertised: Mapping[str, Scope],
    address: QueueAddress,
    names: Collection[str],
    now: datetime,
) -> dict[str, AdvertisedAttribute]:
    """The same as `read_attributes`, but from scopes that were read before, by folded name."""
    found: dict[str, AdvertisedAttribute] = {}
    for name in scopes.list_enclosing(str(address)):
        if (scope := advertised.get(fold(name))) is None or scope.advertised_at is None:
            continue
        if is_fresh(config, scope, name, now):
            found |= {
                fold(each): AdvertisedAttribute(value=value, scope=name, advertised_at=scope.advertised_at)
                for each, value in (scope.advertised or {}).items()
                if fold(each) in names
            }
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class HandledTypes:
    """The job types that a gateway advertised for a scope; for display, matching does not read them."""

    scope: str  #: spelled as in the configuration
    job_types: tuple[str, ...]
    advertised_at: datetime
    stale: bool


def list_handled_types(
    conn: Connection, config: Configuration, sites: Collection[str], now: datetime
) -> list[HandledTypes]:
    """The job types that gateways advertise at these sites, by scope.

    A gateway advertises its queues and all above them: of nested scopes with the same types, the innermost.
    """
    advertised = [
        each for each in scopes.read_advertised(conn, sites) if JOB_TYPES in (each.advertised or {})
    ]
    if not advertised:
        return []
    places = (str(address) for address in config.addresses if address.site in sites)
    spelled = {fold(scope): scope for place in places for scope in scopes.list_enclosing(place)}
    found = [
        HandledTypes(
            scope=spelled[each.scope],
            job_types=_names((each.advertised or {})[JOB_TYPES]),
            advertised_at=each.advertised_at,
            stale=not is_fresh(config, each, spelled[each.scope], now),
        )
        for each in advertised
        if each.scope in spelled and each.advertised_at is not None
    ]
    by_site = defaultdict[str, list[HandledTypes]](list)
    for each in found:
        by_site[scopes.parse_site(each.scope)].append(each)
    return [
        each
        for there in by_site.values()
        for each in there
        if not any(_is_repeated(each, other) for other in there)
    ]


def _names(stated: Value) -> tuple[str, ...]:
    return tuple(map(str, stated)) if isinstance(stated, tuple) else (str(stated),)


def _is_repeated(outer: HandledTypes, inner: HandledTypes) -> bool:
    inside = inner.scope.startswith(f"{outer.scope}/")
    return inside and inner.stale <= outer.stale and set(outer.job_types) <= set(inner.job_types)


def is_fresh(config: Configuration, scope: Scope, name: str, now: datetime) -> bool:
    """Whether the advertisement of a scope, as the configuration names it, is within its lifetime."""
    throttle = config.throttles.get(name)
    return _is_fresh(scope, _LIFETIME if throttle is None else throttle.lifetime, now)


def _is_fresh(scope: Scope, lifetime: float, now: datetime) -> bool:
    """Whether the advertisement is within its lifetime; a lifetime that overflows counts as expired.

    One from the future is as well: the clock of the database was set back since.
    """
    if scope.advertised_at is None:
        return False
    try:
        return -clock.MOST_OFFSET <= now - scope.advertised_at <= timedelta(seconds=lifetime)
    except OverflowError as error:
        log.warning("invalid lifetime of advertisements of %s: %s", scope.scope, error)
        return False


def _is_start(name: str, value: Value) -> bool:
    return fold(name) == fold(throttles.CUR_MATCHES) and not isinstance(value, str)


def _derived_counters(conn: Connection, scope: str, now: datetime) -> Mapping[str, int]:
    present = occupancy.count_jobs(conn, scope, now=now)
    return {
        throttles.JOBS: present.jobs,
        throttles.SUBMITTING: present.submitting,
        throttles.GATHERING: present.gathering,
        throttles.PENDING: present.submitting,
    }

"""The gate of one place: which jobs it lets through now, and in one word why not.

What must hold at the moment of a claim, beyond rules and pools: bans, limits, delays and throttles.

The rows of the scopes are locked, in the order of their names, before anything is counted, and what is
taken is written down with the claim: what one transaction sees free, no other gives away. Where nothing
is configured, nothing is locked or counted.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache

from sqlalchemy import Connection

from cs_config.tree.configuration import Configuration
from matcher.index.waiting import split_into_pieces
from matcher.limits import job_groups, running_limits, throttle_state
from matcher.limits.admission import AdmissionPolicy
from matcher.limits.job_groups import JobGroupCache
from matcher.limits.running_limits import DelayBucket, PlaceCondition
from matcher.limits.throttle_state import ThrottleStanding
from requirements.values import Value, fold
from taskqueue.leases import assignment, selection
from taskqueue.leases.assignment import Location, TakenRow
from taskqueue.leases.selection import CandidateFilter, CandidateRow, JobKind
from taskqueue.sites import bans, matching_delays, reservations, scopes
from taskqueue.sites.matching_delays import BucketLevel
from taskqueue.task_queues.task_queues import TaskQueue

BANNED = "banned"
LIMITS = "limits"
THROTTLED = "throttled"
#: The only type of jobs that a banned site gets.
TEST = "Test"


class PlacePolicy:
    """What one place lets through; each request goes through it alone."""

    def __init__(
        self,
        standing: Sequence[ThrottleStanding],
        conditions: Sequence[PlaceCondition],
        *,
        banned: bool,
        keeper: AdmissionPolicy | None = None,
        kinds: JobGroupCache,
    ) -> None:
        self._kinds = kinds
        self.keeper = keeper  #: speaks for queues that tell jobs apart; None: they need not be asked any more
        self._standing = standing
        self._conditions = conditions
        self._banned = banned
        self._refused: tuple[JobKind, ...] = ()  # kinds of jobs that throttles let none of in, as they stand
        self.refused: str | None = BANNED if banned else None  #: one word, once something was kept out
        self.reserved: list[tuple[str, reservations.AttemptKey]] = []

    @property
    def asks_job(self) -> bool:
        """Whether it has to be asked for each job."""
        return bool(self._conditions) or self._looks_at_jobs

    @property
    def _looks_at_jobs(self) -> bool:
        """Whether something other than a limit or delay asks who a job is."""
        asking = self._banned or self.keeper is not None
        return asking or any(each.asks_job for each in self._standing)

    def passing(self, *vos: str) -> CandidateFilter:
        """Which jobs of these VOs are worth a look."""
        kept_out = {
            (each.rule.limit.attribute, vo, fold(each.rule.limit.value))
            for each in self._conditions
            if each.full
            for vo in vos
            if each.rule.is_about(vo)
        }
        return CandidateFilter(
            job_type=fold(TEST) if self._banned else "",
            kept_out=frozenset(kept_out),
            refused=(*(() if self.keeper is None else self.keeper.refused), *self._refused),
        )

    def most(self, wanted: int) -> int:
        """How many of the wanted jobs may be taken at once."""
        rooms = [room for each in self._standing if (room := each.room().jobs) is not None]
        most = min((wanted, *rooms))
        if most <= 0 < wanted:
            self.refused = self.refused or THROTTLED
        return 1 if most > 1 and self.asks_job else max(most, 0)

    def concerns(self, task_queue: TaskQueue) -> bool:
        """Whether jobs of this task queue may be worth a look at all."""
        if self._banned and not any(map(is_test, task_queue.requirement_class.job_types)):
            return False
        if any(each.full and each.rule.concerns_all(task_queue) for each in self._conditions):
            self.refused = self.refused or LIMITS
            return False
        asking = [each.throttled for each in self._standing if each.asks_owner_only]
        if asking and not all(each.admits(_owner(task_queue)) for each in asking):
            self.refused = self.refused or THROTTLED
            return False
        return True

    def worth(self, conn: Connection, task_queues: Sequence[TaskQueue], place: Location) -> list[TaskQueue]:
        """Those of the task queues that have a job which is worth a look; of none else one is read."""
        some = [each for each in task_queues if self.concerns(each)]
        passing = self.passing(*{each.vo for each in some})
        if not some or passing == CandidateFilter():
            return some
        ids = {each.task_queue_id for each in some}
        kept_out = assignment.find_nonempty(
            conn, ids - selection.find_nonempty(conn, ids, place=place, passing=passing), place=place
        )
        if kept_out and passing.kept_out:
            self.refused = self.refused or LIMITS
        # One that has no job at all stays: whoever tries it finds that out.
        return [each for each in some if each.task_queue_id not in kept_out]

    def admits_any(self, conn: Connection, task_queues: Iterable[TaskQueue], place: Location) -> bool:
        """Whether a job of the task queues may be taken next, as far as a look tells."""
        asks_job = any(each.asks_job for each in self._standing)
        worth = (each for some in split_into_pieces(task_queues) for each in self.worth(conn, some, place))
        return any(not asks_job or any(True for _ in self.admitted(conn, each, place)) for each in worth)

    def admitted(
        self, conn: Connection, task_queue: TaskQueue, place: Location, *, most: float = math.inf
    ) -> Iterator[CandidateRow]:
        """The jobs of a task queue that may be taken next, in order.

        Where a whole page of them is refused, the others are asked kind by kind instead of one by one.

        Args:
            conn: Read only.
            task_queue: Where they wait.
            place: Where they would run.
            most: Jobs that are asked one by one.
        """
        asked = 0
        for page in selection.list_pages(
            conn, task_queue.task_queue_id, place=place, passing=lambda: self.passing(task_queue.vo)
        ):
            some = False
            for job in page:
                if self.admits(job):
                    some = True
                    yield job
            asked += len(page)
            if asked >= most or not (some or self._has_other_kinds(conn, task_queue)):
                return

    def _has_other_kinds(self, conn: Connection, task_queue: TaskQueue) -> bool:
        """Whether the throttles may let in some kind of the jobs; those that they refuse are noted."""
        asking = [each for each in self._standing if each.asks_job]
        if not asking:
            return True
        kinds = self._kinds.waiting_in(conn, task_queue.task_queue_id)
        refused = {kind for each in asking for kind in each.refused(kinds)}
        self._refused = tuple(refused.union(self._refused))[: job_groups.MOST_REFUSED]
        return len(refused) < len(kinds) or len(kinds) == job_groups.MOST

    def admits(self, job: CandidateRow) -> bool:
        """Whether this job may be taken next."""
        if self.keeper is not None and not self.keeper.admits(job):
            return False
        if any(each.keeps_out(job) for each in self._conditions):
            self.refused = self.refused or LIMITS
            return False
        if not all(each.admits(job) for each in self._standing):
            self.refused = self.refused or THROTTLED
            return False
        return True

    def is_told_by(self, task_queue: TaskQueue) -> bool:
        """Whether it takes no look at the jobs of a task queue to say if one may come."""
        return not self._looks_at_jobs and all(each.rule.is_told_by(task_queue) for each in self._conditions)

    def count(self, task_queue: TaskQueue, jobs: int) -> None:
        """Count jobs of a task queue that tells all, as if they were taken; fewer than none were not."""
        for each in self._standing:
            each.matched(jobs)
        for condition in self._conditions:
            if condition.rule.is_used_by_all(task_queue):
                condition.matched(jobs)

    def reserve(self, job_id: int, epoch: int) -> None:
        """Note what was counted, now that it has been taken."""
        self.reserved += ((each.scope.scope, (job_id, epoch)) for each in self._standing)

    def count_kept_out(self, task_queue: TaskQueue) -> None:
        """A task queue that has jobs has none that is worth a look."""
        if self.passing(task_queue.vo).kept_out:
            self.refused = self.refused or LIMITS

    def passed(self, taken: Iterable[TakenRow], job: CandidateRow | None = None) -> None:
        """Count jobs that were taken; `job` where it had to be asked for."""
        rows = list(taken)
        self._refused = ()
        for each in self._standing:
            each.matched(len(rows))
        for row in rows:
            self.reserve(row.job_id, row.epoch)
        for condition in self._conditions:
            if job is not None and condition.rule.is_used_by(job):
                condition.matched()


def _owner(task_queue: TaskQueue) -> Mapping[str, Value]:
    return job_groups.identity_attributes(
        vo=task_queue.vo, owner=task_queue.owner, owner_group=task_queue.owner_group
    )


def is_test(job_type: str) -> bool:
    """Whether jobs of this type go to banned sites."""
    return fold(job_type) == fold(TEST)


class PlacePolicies:
    """The gates of the places that one transaction claims for."""

    def __init__(
        self,
        standing: Mapping[str, ThrottleStanding],
        conditions: Mapping[str, Sequence[PlaceCondition]],
        banned: Collection[str],
        kinds: JobGroupCache,
    ) -> None:
        self._kinds = kinds
        self._standing = standing
        self._conditions = conditions
        self._banned = banned
        self._gates: list[PlacePolicy] = []

    def find_policy(self, place: Location, keeper: AdmissionPolicy | None = None) -> PlacePolicy | None:
        """The gate of a place; None: nothing holds there.

        Args:
            place: Where jobs would run.
            keeper: Who has to be asked about each of them.
        """
        names = _scopes_of_place(place)
        standing = [self._standing[name] for name in names if name in self._standing]
        conditions = [each for name in names for each in self._conditions.get(name, ())]
        banned = place.site in self._banned
        if not (standing or conditions or banned or keeper):
            return None
        self._gates.append(PlacePolicy(standing, conditions, banned=banned, keeper=keeper, kinds=self._kinds))
        return self._gates[-1]

    def write(self, conn: Connection) -> None:
        """Write down what passed, after its attempts were opened."""
        reservations.create_reservations(conn, (each for gate in self._gates for each in gate.reserved))
        buckets = (
            each for these in self._conditions.values() for each in these if isinstance(each, DelayBucket)
        )
        matching_delays.store_levels(
            conn,
            ((each.key, BucketLevel(tokens=each.tokens, at=each.at)) for each in buckets if each.changed),
        )


def lock_policies(
    conn: Connection, config: Configuration, places: Collection[Location], now: datetime
) -> PlacePolicies:
    """The gates of places, locked until the end of the transaction."""
    names = _scope_names(config, places)
    locked = scopes.lock_scopes(conn, names) if names else {}
    sites = {place.site for place in places if place.site}
    banned = bans.read_bans(conn, sites, now=now) if sites else {}
    return _build_policies(conn, config, locked, banned, now)


def read_policies(
    conn: Connection,
    config: Configuration,
    places: Collection[Location],
    now: datetime,
    *,
    banned: Collection[str],
) -> PlacePolicies:
    """The same for a look only: who finds a gate closed need not write.

    Args:
        conn: Any connection.
        config: The current configuration.
        places: Where the jobs would run.
        now: The time.
        banned: The sites that are, read once for many places.
    """
    return _build_policies(conn, config, scopes.read_scopes(conn, _scope_names(config, places)), banned, now)


def counts_jobs(config: Configuration, place: Location) -> bool:
    """Whether a limit, delay or throttle may hold there: only then is anything locked or counted."""
    known = running_limits.rules_by_scope(config)
    return any(name in config.throttles or name in known for name in _scopes_of_place(place))


def list_throttled_scopes(config: Configuration, place: Location) -> tuple[str, ...]:
    """The scopes with a throttle that a place is in, the site first."""
    return tuple(name for name in _scopes_of_place(place) if name in config.throttles)


def list_scopes_below(config: Configuration, place: Location, vos: Collection[str]) -> tuple[str, ...]:
    """The scopes within a place that have a throttle, or a limit on one of these VOs: it may be in any."""
    line = _scopes_of_place(place)
    if not line:
        return ()
    limited = (
        name
        for name, rules in running_limits.rules_by_scope(config).items()
        if any(rule.is_about(vo) for rule in rules for vo in vos)
    )
    return tuple(sorted(name for name in {*config.throttles, *limited} if name.startswith(f"{line[-1]}/")))


def _build_policies(
    conn: Connection,
    config: Configuration,
    found: Mapping[str, scopes.Scope],
    banned: Collection[str],
    now: datetime,
) -> PlacePolicies:
    limited = [name for name in found if name in running_limits.rules_by_scope(config)]
    return PlacePolicies(
        throttle_state.read_standings(
            conn, config, [found[name] for name in found if name in config.throttles], now
        ),
        running_limits.read_conditions(conn, config, limited, now) if limited else {},
        banned,
        job_groups.find_cache(conn),
    )


def _scope_names(config: Configuration, places: Collection[Location]) -> set[str]:
    known = running_limits.rules_by_scope(config)
    return {
        name
        for place in places
        for name in _scopes_of_place(place)
        if name in config.throttles or name in known
    }


def _scopes_of_place(place: Location) -> tuple[str, ...]:
    """The scopes that a place is in, the site first."""
    return _scope_line(place.site, place.ce, place.queue)


@lru_cache(maxsize=10_000)
def _scope_line(site: str, ce: str, queue: str) -> tuple[str, ...]:
    return scopes.list_enclosing("/".join(part for part in (site, ce, queue) if part)) if site else ()

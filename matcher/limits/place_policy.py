"""Conditions that hold at a place at the moment of a claim, beyond rules and pools: closures and limits.

Rows of scopes are locked in the order of their names before their counters are read, and what is taken is
added to the counters with the claim, so two transactions never give away the same room. Rules and counters
are rows (`taskqueue.sites.scope_rules`), so that they hold for every process, whatever configuration it has.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain

from sqlalchemy import Connection

from cs_config.cache import derived
from cs_config.options.place_limits import RunningLimit
from cs_config.tree.configuration import Configuration
from matcher.limits import compiled_rules, floors, job_groups, running_limits, throttle_standings
from matcher.limits.admission import AdmissionPolicy
from matcher.limits.job_groups import JobGroupCache
from matcher.limits.running_limits import DelayBucket, PlaceCondition, PlaceRule, RunningLimitState
from matcher.limits.throttle_standings import ThrottleStanding
from requirements.requirement_class import RequirementClass
from requirements.resource import Location
from requirements.values import fold
from taskqueue.db.sql import split_growing
from taskqueue.leases import assignment, candidate_jobs
from taskqueue.leases.assignment import TakenRow
from taskqueue.leases.candidate_jobs import CandidateFilter, CandidateRow, JobKind
from taskqueue.sites import closures, reservations, scope_rules, scopes
from taskqueue.sites.scope_rules import BucketLevel, Counting, RuleKind, StoredRule
from taskqueue.task_queues.task_queues import TaskQueue

BANNED = "banned"
LIMITS = "limits"
THROTTLED = "throttled"
#: Milliseconds to wait for a scope that was passed over too often.
_LOCK_WAIT = 200
#: The cores that a job of a class is given.
CountCores = Callable[[RequirementClass], int]


def _get_fewest_cores(asked: RequirementClass) -> int:
    return asked.processors_min


class PlacePolicy:
    """The jobs that one place admits now; each request has its own instance."""

    def __init__(
        self,
        standing: Sequence[ThrottleStanding],
        conditions: Sequence[PlaceCondition],
        *,
        banned: bool,
        admission: AdmissionPolicy | None = None,
        kinds: JobGroupCache,
        vos: Collection[str] = (),
        owners: Collection[str] = (),
    ) -> None:
        """Start with nothing taken.

        `vos`: those whose jobs are wanted; empty: unknown. Rules that cannot count them are ignored.
        `owners`: others with a floor here, and with work that the request's slot would go to.
        """
        self._owners = owners
        self.count_cores: CountCores = _get_fewest_cores  #: needed only where `counts_cores`
        self._kinds = kinds
        self.admission = admission  #: queues with conditions on jobs; None: no check needed
        self._standing = standing
        self._conditions = [each for each in conditions if not vos or any(map(each.rule.counts, vos))]
        self._of_site = [each for each in conditions if floors.is_about_floors(each.rule)]
        #: whether the order of jobs depends on what their VOs have there
        self.has_floors = any(each.vo in vos for each in floors.list_standings(self._of_site))
        #: whether a limit on cores may count the jobs
        self.bounds_cores = any(
            isinstance(each, RunningLimitState) and each.limit.cores is not None for each in self._conditions
        )
        self._counts_cores = self.bounds_cores or any(floors.list_standings(self._of_site))
        self._banned = banned
        self._refused: tuple[JobKind, ...] = ()  # job groups that the throttles refuse in their current state
        self.refused: str | None = BANNED if banned else None  #: reason code, once a job was refused
        self.reserved: list[tuple[str, reservations.AttemptKey]] = []
        self._countings: dict[int, str] = {}  # of taken jobs

    def list_first(self, vos: Collection[str]) -> list[str]:
        """Those of the VOs whose jobs come first here, before the next job is taken: see `floors`."""
        return floors.list_first(self._of_site, vos)

    def _is_kept_from(self, vo: str) -> bool:
        """Whether jobs of a VO wait here, since others have less than their floors."""
        is_lacking = bool(self._owners) and bool(floors.list_first(self._of_site, self._owners))
        return is_lacking and not floors.list_first(self._of_site, [vo])

    @property
    def is_opening(self) -> bool:
        """Whether a new rule does not admit jobs yet; it will soon."""
        return not all(each.opened for each in self._standing) or any(
            isinstance(each, RunningLimitState) and not each.opened for each in self._conditions
        )

    @property
    def admits_all(self) -> bool:
        """Whether no condition excludes a job now: no ban or throttle, and no limit is reached."""
        is_free = not (self._banned or self._standing or self.admission or self.bounds_cores or self._owners)
        return is_free and not any(each.full for each in self._conditions)

    @property
    def depends_on_job(self) -> bool:
        """Whether each job must be checked by itself."""
        return bool(self._conditions) or self._checks_jobs

    @property
    def _checks_jobs(self) -> bool:
        """Whether a condition other than a limit or delay reads the job."""
        return self._banned or self.admission is not None or bool(self._reading_job)

    @property
    def _reading_job(self) -> list[ThrottleStanding]:
        return [each for each in self._standing if each.depends_on_job]

    def passing(self, *task_queues: TaskQueue) -> CandidateFilter:
        """Filter for those jobs of task queues with the same cores that can be admitted."""
        vos = {each.vo for each in task_queues}
        cores = max(map(self._size, task_queues), default=1)
        full = [each.rule for each in self._conditions if each.excludes(cores)]
        kept_out = {
            (rule.limit.attribute, vo, fold(rule.limit.value))
            for rule in full
            for vo in vos
            if rule.is_about(vo)
        }
        return CandidateFilter(
            job_type=fold(closures.TEST) if self._banned else None,
            kept_out=frozenset(kept_out),
            refused=(*(() if self.admission is None else self.admission.refused), *self._refused),
        )

    def most(self, wanted: int) -> int:
        """How many of the wanted jobs may be taken at once."""
        rooms = [room for each in self._standing if (room := each.room().jobs) is not None]
        most = min((wanted, *rooms))
        if most <= 0 < wanted:
            self.refused = self.refused or THROTTLED
        return 1 if most > 1 and self.depends_on_job else max(most, 0)

    def concerns(self, task_queue: TaskQueue) -> bool:
        """Whether jobs of this task queue can be admitted at all."""
        if self._banned and not any(map(closures.is_test, task_queue.requirement_class.job_types)):
            return False
        cores = self._size(task_queue)
        if self._is_kept_from(task_queue.vo) or any(
            each.excludes(cores) and each.rule.concerns(task_queue) for each in self._conditions
        ):
            self.refused = self.refused or LIMITS
            return False
        dependent = [each.throttled for each in self._standing if each.depends_on_owner_only]
        if dependent and not all(each.admits(job_groups.owner_ad(task_queue)) for each in dependent):
            self.refused = self.refused or THROTTLED
            return False
        return True

    def list_passing(
        self, conn: Connection, task_queues: Sequence[TaskQueue], place: Location
    ) -> list[TaskQueue]:
        """The task queues with a job that passes the filter; jobs are read only where there is a filter."""
        concerned = [each for each in task_queues if self.concerns(each)]
        by_size: defaultdict[int, list[TaskQueue]] = defaultdict(list)
        for each in concerned:
            by_size[self._size(each)].append(each)
        kept_out = {each for some in by_size.values() for each in self._find_kept_out(conn, some, place)}
        # Empty task queues stay; the claim finds them empty.
        return [each for each in concerned if each.task_queue_id not in kept_out]

    def _size(self, task_queue: TaskQueue) -> int:
        """The cores that a limit counts for a job of a task queue; 1 for all where none counts cores."""
        return self.count_cores(task_queue.requirement_class) if self._counts_cores else 1

    def _find_kept_out(self, conn: Connection, some: Sequence[TaskQueue], place: Location) -> Collection[int]:
        """The nonempty task queues, of some with the same cores, without a job that passes the filter."""
        passing = self.passing(*some)
        if passing == CandidateFilter():
            return ()
        ids = {each.task_queue_id for each in some}
        kept_out = assignment.find_nonempty(
            conn, ids - candidate_jobs.find_nonempty(conn, ids, place=place, passing=passing), place=place
        )
        if kept_out and passing.kept_out:
            self.refused = self.refused or LIMITS
        return kept_out

    def admits_any(self, conn: Connection, task_queues: Iterable[TaskQueue], place: Location) -> bool:
        """Whether a job of the task queues may be taken next. Advisory: nothing is locked."""
        depends_on_job = bool(self._reading_job)
        for some in split_growing(task_queues):
            for each in self.list_passing(conn, some, place):
                if not depends_on_job or next(self.admitted(conn, each, place), None) is not None:
                    return True
        return False

    def admitted(
        self, conn: Connection, task_queue: TaskQueue, place: Location, *, most: float = math.inf
    ) -> Iterator[CandidateRow]:
        """The jobs of a task queue that may be taken next, in order.

        After a page without an admitted job the rest is checked by job group instead of one by one. `most`
        bounds the jobs that are checked one by one.
        """
        asked = 0
        for page in candidate_jobs.list_pages(
            conn, task_queue.task_queue_id, place=place, passing=lambda: self.passing(task_queue)
        ):
            some = False
            for job in page:
                if self.admits(job, task_queue):
                    some = True
                    yield job
            asked += len(page)
            if asked >= most or not (some or self._has_other_kinds(conn, task_queue)):
                return

    def _has_other_kinds(self, conn: Connection, task_queue: TaskQueue) -> bool:
        """Whether the throttles may admit some job group; refused groups are recorded."""
        if not (dependent := self._reading_job):
            return True
        kinds, are_all = self._kinds.waiting_in(conn, task_queue.task_queue_id)
        refused = {kind for each in dependent for kind in each.refused(kinds)}
        self._refused = tuple(refused.union(self._refused))[: job_groups.MOST_REFUSED]
        return len(refused) < len(kinds) or not are_all

    def admits(self, job: CandidateRow, task_queue: TaskQueue) -> bool:
        """Whether this job of a task queue may be taken next."""
        if self.admission is not None and not self.admission.admits(job):
            return False
        cores = self._size(task_queue)
        is_full = any(running_limits.keeps_out(each, job, cores) for each in self._conditions)
        if is_full or self._is_kept_from(job.vo):
            self.refused = self.refused or LIMITS
            return False
        if not all(each.admits(job, self._kinds.config) for each in self._standing):
            self.refused = self.refused or THROTTLED
            return False
        return True

    def find_countings(self, job_id: int) -> str | None:
        """The rules that count a taken job; None: nothing counts here."""
        return self._countings.get(job_id)

    def record_kept_out(self, task_queue: TaskQueue) -> None:
        """Record that no job of a nonempty task queue passes the filter."""
        if self.passing(task_queue).kept_out:
            self.refused = self.refused or LIMITS

    def count_taken(
        self, taken: Iterable[TakenRow], task_queue: TaskQueue, job: CandidateRow | None = None
    ) -> None:
        """Count taken jobs of a task queue; `job` if it was checked by itself."""
        rows = list(taken)
        self._refused = ()
        rules: list[Counting] = []
        for each in self._standing:
            each.matched(len(rows))
            rules.append((scope_rules.RESERVATION, each.scope.scope))
            self.reserved += ((each.scope.scope, (row.job_id, row.epoch)) for row in rows)
        for condition in self._conditions:
            if job is not None and condition.rule.is_used_by(job):
                condition.matched(job.vo, self._size(task_queue))
                if isinstance(condition, RunningLimitState):
                    rules.append(condition.counting)
        if rules:
            countings = scope_rules.format_countings(rules)
            self._countings |= {row.job_id: countings for row in rows}


@dataclass(slots=True, kw_only=True, eq=False)
class PlacePolicies:
    """The policies of all places of one claim transaction."""

    rules: Sequence[StoredRule]
    standing: Mapping[str, ThrottleStanding]  #: by scope, as the next
    conditions: Mapping[str, Sequence[PlaceCondition]]
    closed: frozenset[str]  #: scopes, by bans and downtimes
    kinds: JobGroupCache
    busy_scopes: frozenset[str]  #: locked by another transaction, or with rules that cannot be read
    returned: Mapping[int, int]  #: see `LockedRules.returned`
    inside: Sequence[StoredRule]  #: rules that may hold inside places that are stated without their queue
    _policies: list[PlacePolicy] = field(default_factory=list)

    def is_busy(self, place: Location, vos: Collection[str]) -> bool:
        """Whether nothing may be taken there now for these VOs.

        Another transaction has a scope of the place, or the rules of a newer configuration hold inside it:
        which of them would count the job is unknown.
        """
        if not self.busy_scopes.isdisjoint(scopes.list_containing(place)):
            return True
        if place.queue:
            return False
        counting = (rule.scope for rule in self.inside if compiled_rules.may_count(rule, vos))
        return any(scopes.list_inside((*self.closed, *counting), place))

    def policy_at(
        self,
        place: Location,
        admission: AdmissionPolicy | None = None,
        *,
        vos: Collection[str] = (),
        owners: Collection[str] = (),
    ) -> PlacePolicy | None:
        """The policy of a place for jobs of some VOs (empty: unknown); None: it has no conditions.

        `owners` as of `PlacePolicy`.
        """
        names = scopes.list_containing(place)
        standing = [self.standing[name] for name in names if name in self.standing]
        conditions = [each for name in names for each in self.conditions.get(name, ())]
        banned = not self.closed.isdisjoint(names)
        if not (standing or conditions or banned or admission):
            return None
        policy = PlacePolicy(
            standing,
            conditions,
            banned=banned,
            admission=admission,
            kinds=self.kinds,
            vos=vos,
            owners=owners,
        )
        self._policies.append(policy)
        return policy

    def write(self, conn: Connection) -> None:
        """Store counters, reservations and delay buckets; the attempts must exist already."""
        if not self.rules:
            return
        reservations.create_reservations(conn, chain(*(policy.reserved for policy in self._policies)))
        conditions = list(chain(*self.conditions.values()))
        buckets = (each if isinstance(each, DelayBucket) else each.bucket for each in conditions)
        changed = (
            (each.key, BucketLevel(tokens=each.tokens, at=each.at))
            for each in buckets
            if each is not None and each.changed
        )
        scope_rules.store_levels(conn, changed)
        counts = dict(self.returned)
        counts |= {
            each.rule_id: each.there
            for each in conditions
            if isinstance(each, RunningLimitState) and each.changed
        }
        counts |= {each.rule_id: each.reserved for each in self.standing.values() if each.changed}
        scope_rules.store_counts(conn, counts)


def lock_policies(
    conn: Connection,
    places: Collection[Location],
    now: datetime,
    *,
    wait: bool = False,
) -> PlacePolicies:
    """The policies of places, locked until the end of the transaction; `PlacePolicies.write` has to follow.

    Scopes locked by others are passed over; or, with `wait`, an OperationalError after 200 ms.
    """
    names = set(chain(*map(scopes.list_containing, places)))
    if wait:
        scopes.limit_wait(conn, milliseconds=_LOCK_WAIT)
    locked = scope_rules.lock_rules(conn, names, wait=wait)
    inexact = {fold(place.site) for place in places if not place.queue}
    if "" in inexact:
        scopes.lock_scopes(conn, ())  # none, but new rules are counted only when this transaction has ended
    inside = scope_rules.list_rules(conn, None if "" in inexact else inexact) if inexact else ()
    unknown = {each.scope for each in locked.rules if not each.known}
    closed = closures.list_closed(conn, now=now)
    busy = locked.busy | unknown
    return _build_policies(conn, locked.rules, locked.scopes, closed, now, busy, locked.returned, inside)


def read_policies(
    conn: Connection, places: Collection[Location], now: datetime, *, closed: frozenset[str]
) -> PlacePolicies:
    """Like `lock_policies`, without locks: a closed place costs no write.

    `closed`: the closed scopes. Rules that are not counted yet have room: they will be.
    """
    names = set(chain(*map(scopes.list_containing, places)))
    stored = scope_rules.read_rules(conn, names) if names else ()
    rules = [
        replace(each, opened=True, n=each.n if each.opened else 0, cores=each.cores or 0) for each in stored
    ]
    found = scopes.read_scopes(conn, {each.scope for each in rules}) if rules else {}
    return _build_policies(conn, rules, found, closed, now)


def counts_jobs(config: Configuration, place: Location) -> bool:
    """Whether a limit, delay or throttle of the configuration may apply at the place; claims read rows."""
    return not _list_limited(config).isdisjoint(scopes.list_containing(place))


def find_lock(config: Configuration, place: Location, vos: Collection[str]) -> str | None:
    """The scope that keeps apart two claim statements with limits: a site, or all sites together.

    None: nothing is limited at the place, or a statement cannot apply it to a request for jobs of these VOs.
    """
    names = scopes.list_containing(place)
    with_floors = floors.list_vos(config, place.site)
    if (
        not _list_slowed(config).isdisjoint(names)
        or with_floors.difference(vos)
        or (with_floors and len(vos) > 1)
    ):
        return None
    limited = _list_limited(config)
    return next((scopes.parse_site(name) for name in names if name in limited), None)


@derived
def _list_limited(config: Configuration) -> frozenset[str]:
    """The folded names of all scopes with rules."""
    return frozenset(map(fold, (*running_limits.rules_by_scope(config), *config.throttles)))


@derived
def _list_slowed(config: Configuration) -> frozenset[str]:
    """The folded names of the scopes with a throttle, a delay or a ramp, which no statement applies."""
    by_scope = running_limits.rules_by_scope(config).items()
    delaying = (scope for scope, rules in by_scope if any(map(running_limits.find_delay, rules)))
    return frozenset(map(fold, (*delaying, *config.throttles)))


def list_scopes_below(config: Configuration, place: Location, vos: Collection[str]) -> tuple[str, ...]:
    """The scopes inside a place with a throttle, or a limit that counts one of these VOs.

    The job may run at any of them. Without a site a place contains all.
    """
    limited = {*config.throttles, *running_limits.scopes_counting(config, vos)}
    return tuple(sorted(scopes.list_inside(limited, place)))


def _build_policies(
    conn: Connection,
    rules: Sequence[StoredRule],
    found: Mapping[str, scopes.Scope],
    closed: frozenset[str],
    now: datetime,
    busy: Collection[str] = (),
    returned: Mapping[int, int] | None = None,
    inside: Sequence[StoredRule] = (),
) -> PlacePolicies:
    known = [each for each in rules if each.known]
    standing = {
        each.scope: replace(
            throttle_standings.read_standing(
                conn, found[each.scope], compiled_rules.read_throttle(each.definition), each.n, now
            ),
            rule_id=each.rule_id,
            opened=each.opened,
        )
        for each in known
        if each.kind is RuleKind.THROTTLE
    }
    limits = [
        (each, compiled_rules.read_place_rule(each)) for each in known if each.kind is not RuleKind.THROTTLE
    ]
    buckets = running_limits.read_buckets(conn, [rule for _, rule in limits], now) if limits else {}
    conditions: defaultdict[str, list[PlaceCondition]] = defaultdict(list)
    for stored, rule in limits:
        conditions[stored.scope].append(_build_condition(stored, rule, buckets.get(rule)))
    kinds = job_groups.find_cache(conn.engine)
    return PlacePolicies(
        rules=rules,
        standing=standing,
        conditions=conditions,
        closed=closed,
        kinds=kinds,
        busy_scopes=frozenset(busy),
        returned=returned or {},
        inside=inside,
    )


def _build_condition(stored: StoredRule, rule: PlaceRule, bucket: DelayBucket | None) -> PlaceCondition:
    if bucket is not None and not isinstance(rule.limit, RunningLimit):
        return bucket
    if not isinstance(rule.limit, RunningLimit):
        raise TypeError(f"{stored.kind} of {stored.scope}: a delay without its bucket")
    return RunningLimitState(
        rule=rule,
        limit=rule.limit,
        there=stored.n,
        cores=stored.cores or 0,
        bucket=bucket,
        rule_id=stored.rule_id,
        opened=running_limits.is_open(stored, rule.limit),
    )

"""Snapshot for one batch: one configuration, one time, one transaction, and the caches of the process."""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import Random
from typing import Final

from sqlalchemy import Connection

from cs_config.cache import Cache
from cs_config.options.job_tiers import JobTiers
from cs_config.options.operations import managed_types
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from cs_config.tree.storage import list_near
from matcher import allotment
from matcher.allotment import JobSize
from matcher.index import place_pools
from matcher.index.place_pools import MappingVersions, PlaceCache, PlacePools
from matcher.index.waiting import Candidates, WaitingIndex, iterate_candidates
from matcher.limits import floors, place_policy, time_left
from matcher.limits.admission import AdmissionPolicies, AdmissionPolicy
from matcher.limits.place_policy import PlacePolicy
from matcher.request import match_request, queue_offer
from matcher.request.match_request import MatchCaller, NotServed
from matcher.request.queue_offer import SlotBounds
from requirements.errors import PilotageError
from requirements.resource import Allotment, Location, Resource, StatedResource
from requirements.values import Value, fold
from taskqueue.db.database import LazyTransaction, NoTransaction
from taskqueue.db.sql import split_growing
from taskqueue.leases import opening
from taskqueue.leases.opening import LeaseHolder
from taskqueue.pilots import pilots
from taskqueue.pilots.slots import SlotLimits
from taskqueue.sites.closures import Calendar
from taskqueue.task_queues import task_queues
from taskqueue.task_queues.task_queues import TaskQueue

#: Reason for no job: those that wait fit only other nodes of the queue, by hardware or tags of these.
NODE_FEATURES: Final = "node_features"
#: Property of groups whose members accept each other's jobs.
_JOB_SHARING = "JobSharing"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPlace:
    """A place with what the configuration and the mapping decide there for one kind of request."""

    served: PlacePools
    resource: Resource
    policy: AdmissionPolicy | None  #: checks jobs one by one; None: all are admitted
    is_restricted: bool  #: whether the configuration has limits or throttles for the place
    locks: str | None  #: see `place_policy.find_lock`
    lease_time: timedelta
    lease_times: Mapping[str, timedelta]  #: of those of several VOs that differ
    tiers: Mapping[str, JobTiers]  #: of those VOs that order their job types
    slot: SlotLimits | None  #: of a pilot there; None: the request is not by one
    allotments: dict[JobSize, Allotment] = field(default_factory=dict)  #: of single jobs


#: Cached places, requests without a match, and open places.
_REQUESTS = 10_000
#: Bytes of each of these caches: pilots decide how much they state.
MOST_BYTES: Final = 128 << 20
#: Bytes of the id of a pool in a set.
_ID = 64


def measure_place(cache_key: Hashable, here: PreparedPlace) -> int:
    """Bytes that a cached place takes. Sets of pools are shared, but for those that depend on the node."""
    served = here.served
    ids = len(served.pools) + len(served.kept_back) if served.kept_back else 0
    return match_request.measure(cache_key) + _ID * ids


@dataclass(frozen=True, slots=True, kw_only=True)
class NoMatch:
    """A request that had no match, with everything that this depends on."""

    resource: Resource
    time_left: float | None  #: of the request
    served: PlacePools  #: its place, and the pools that may run there
    warnings: tuple[str, ...]
    config: Configuration
    age: int  #: of the mapping
    changed: int  #: of the waiting index, see `WaitingIndex.changed`
    ends: datetime | None = None  #: when the place closes next; None: nothing is planned
    #: The resource with what its queue leaves to the nodes left open; None: the queue leaves nothing open.
    any_node: Resource | None = None
    refused: str | None = None  #: the reason; None: nothing waits that fits


class NoMatchCache:
    """Cache of requests without a match, the most frequent result.

    Such a result depends only on the waiting classes, the mapping, the configuration and the next downtime,
    before which ever less fits: closures, limits and throttles are evaluated only for matching task queues.
    It is valid while these are unchanged; with a next downtime not at a place that is closed now, which is
    the reason for jobs that are too long for it. At worst a job of the last second is missed, whose
    notification was lost; the pilot asks again in twenty seconds, and no job is handed out from this cache.
    Any thread reads and writes it.
    """

    def __init__(self) -> None:
        self._results: Cache[Hashable, NoMatch] = Cache(
            _REQUESTS, measure=lambda key, _: match_request.measure(key), most=MOST_BYTES
        )

    def store(self, key: Hashable, no_match: NoMatch) -> None:
        """Store a result."""
        self._results.store(key, no_match, no_match.config)

    def find(
        self,
        key: Hashable,
        config: Configuration,
        *,
        time_left: float | None,
        age: int,
        calendar: Calendar,
        waiting: WaitingIndex,
        lock: threading.Lock,
    ) -> NoMatch | None:
        """The cached result if it still holds; None: unknown, or it must be computed again."""
        no_match = self._results.find(key, config)
        if no_match is None or no_match.age != age or no_match.time_left != time_left:
            return None
        place = no_match.served.place
        if no_match.ends != calendar.find_begin(place) or (no_match.ends and calendar.closes(place)):
            return None
        if no_match.changed == waiting.changed:
            return no_match
        # Match the classes again. If another thread is changing them, waiting is not worth it.
        if not lock.acquire(blocking=False):
            return None
        try:
            changed, pools = waiting.changed, no_match.served.pools
            found = waiting.candidates(no_match.resource, pools)
            others = no_match.any_node is not None and waiting.mask(no_match.any_node, pools)
        finally:
            lock.release()
        if found:
            return None
        no_match = replace(no_match, changed=changed, refused=NODE_FEATURES if others else None)
        self.store(key, no_match)
        return no_match


#: Seconds in which others get a lock that is taken again: Python gives it to whoever comes first.
_LET_GO = 1e-4
#: Seconds for which a place counts as open; a claim that finds it closed ends that.
_OPEN_SECONDS = 10.0


class OpenPlaceCache:
    """Places with limits that gave a job a moment ago: whether there is room is not checked before the claim.

    Each for one configuration: with another one the claim thread claims first, and stores its limits.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: Cache[Location, float] = Cache(_REQUESTS)

    def is_open(self, place: Location, config: Configuration) -> bool:
        """Whether a claim at the place succeeded a moment ago, with this configuration."""
        return self._clock() < (self._until.find(place, config) or 0.0)

    def record(self, place: Location, config: Configuration, *, gave: bool) -> None:
        """Record whether a claim at the place succeeded."""
        self._until.store(place, self._clock() + _OPEN_SECONDS if gave else 0.0, config)


#: Seconds for which the sites with waiting pilots are kept; directors report them less often.
_EXPECTED_SECONDS = 5.0


class ExpectedPilots:
    """VO and site of pilots that wait in batch systems, kept for some seconds, as many claims need them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._found: frozenset[tuple[str, str]] = frozenset()
        self._until = -math.inf

    def read(self, conn: Connection, *, now: datetime) -> frozenset[tuple[str, str]]:
        """What was read some seconds ago, or at `now`."""
        if (passed := self._clock()) >= self._until:
            self._found = pilots.list_expected(conn, now=now)
            self._until = passed + _EXPECTED_SECONDS
        return self._found


@dataclass(slots=True)
class CachedCalendar:
    """The cached calendar of closures, and the age of all cached data."""

    calendar: Calendar = field(default_factory=Calendar)
    at: float = -math.inf  #: time of reading, monotonic clock


@dataclass(frozen=True, slots=True, kw_only=True)
class MatcherCache:
    """The caches of a process: they narrow the search, and decide nothing."""

    waiting: WaitingIndex = field(default_factory=WaitingIndex)
    places: PlaceCache = field(default_factory=PlaceCache)
    #: By the cache key of requests, valid for one configuration and age of the mapping.
    prepared: Cache[Hashable, PreparedPlace] = field(
        default_factory=lambda: Cache(_REQUESTS, measure=measure_place, most=MOST_BYTES)
    )
    #: Keys of requests whose places are not kept, so that they are not read ahead of each claim; as before.
    not_kept: Cache[Hashable, Hashable] = field(
        default_factory=lambda: Cache(
            _REQUESTS, measure=lambda key, _: match_request.measure(key), most=MOST_BYTES
        )
    )
    #: Requests by whether their place was prepared: `hit` or `miss`; threads may count one too few.
    lookups: Counter[str] = field(default_factory=lambda: Counter(hit=0, miss=0))
    admission_policies: AdmissionPolicies = field(default_factory=AdmissionPolicies)
    no_matches: NoMatchCache = field(default_factory=NoMatchCache)
    closures: CachedCalendar = field(default_factory=CachedCalendar)
    open_places: OpenPlaceCache = field(default_factory=OpenPlaceCache)
    expected: ExpectedPilots = field(default_factory=ExpectedPilots)
    #: Held while the index is read or changed, never during a statement: the event loop takes it, too.
    lock: threading.Lock = field(default_factory=threading.Lock)
    #: Held by the one thread that reads the feed.
    following: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def counting(cls, steady: Callable[[], float]) -> "MatcherCache":
        """Empty caches, whose age is counted by this clock."""
        return cls(open_places=OpenPlaceCache(steady), expected=ExpectedPilots(steady))

    def follow(self, conn: Connection) -> int | None:
        """Apply recent changes, first in a transaction; return the age of what it reads from here on.

        None: the changes are unknown, so this cache is void.
        """
        with self.following:
            changes = self.waiting.read(conn)
            if changes is None:
                return None
            # One user may have made thousands of task queues: requests of others do not wait for all of them.
            for part in changes.split() if self.waiting.is_loaded else (changes,):
                with self.lock:
                    self.waiting.apply(part)
                if part.position is None:
                    threading.Event().wait(_LET_GO)
            self.places.forget(changes.mapped_vos)
            return self.places.age


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state for one batch of requests, all answered as of one moment."""

    reading: LazyTransaction
    memory: MatcherCache
    age: int  #: of the data that the transaction reads, see `PlaceCache.age`
    config: Configuration  #: without expired values
    now: datetime
    random: Random
    #: Of closures, read once per batch, because the most frequent answer must stay cheap.
    calendar: Calendar
    versions: MappingVersions = field(default_factory=dict)  #: read once per batch
    #: By task queue, whether it has a waiting job: read once per batch, as idle pilots ask for the same ones.
    filled: dict[int, bool] = field(default_factory=dict)

    @property
    def conn(self) -> Connection:
        """Connection for data that are not cached."""
        return self.reading.conn

    @property
    def in_memory(self) -> bool:
        """Whether this is for the event loop, without a database."""
        return isinstance(self.reading, NoTransaction)

    def place(self, presented: StatedResource, caller: MatchCaller) -> tuple[PlacePools | None, Resource]:
        """The place of a pilot, and its resource restricted to the caller's rights there.

        None: the queue serves none of the VOs now. The place has the configuration's spelling
        (`place_pools.respell_place`).
        """
        places, reading, config = self.memory.places, self.reading, self.config
        versions, age, now = self.versions, self.age, self.now
        address = _queue_address(presented, caller, config)
        resource = _restrict_to_caller(presented.resource, caller, config)
        if address is None:
            vos = place_pools.usable_vos(resource.named_vos, presented, config)
            resource = replace(resource, vos=vos)
            if not vos:
                return None, resource
            served = places.served_without_queue(
                reading, config, presented, vos, versions=versions, age=age, now=now
            )
            return served, resource
        if caller.stamp is not None:
            resource = self.slot_bounds(address, resource.named_vos).bound(resource)
        resource = _place_at_queue(resource, address, config)
        if not (vos := resource.named_vos):
            return None, resource
        facts, submits = presented.node_facts, presented.submits
        served = places.served(
            reading, config, address, vos, facts, submits=submits, versions=versions, age=age, now=now
        )
        return served, resource

    def place_now(self, presented: StatedResource, caller: MatchCaller) -> tuple[PlacePools | None, Resource]:
        """The same, with what the resource can do until the next downtime of its place."""
        served, resource = self.place(presented, caller)
        return served, resource if served is None else self.bound_by_downtime(resource, served.place)

    def bound_by_downtime(self, resource: Resource, place: Location) -> Resource:
        """What the resource can do until the next downtime of its place; itself, if none is near."""
        begins = self.calendar.find_begin(place)
        if begins is None:
            return resource
        values: Mapping[str, Value] = {}
        if place.queue:
            address = QueueAddress(site=place.site, ce=place.ce, queue=place.queue)
            values = self._values_of_one(address, resource.named_vos) or {}
        return time_left.bound(resource, begins, self.now, values)

    def slot_bounds(self, address: QueueAddress, vos: frozenset[str]) -> SlotBounds:
        """The largest slot that a pilot of one of the VOs may have at a queue."""
        known = self._values_of_one(address, vos)
        return SlotBounds() if known is None else queue_offer.read_bounds(known)

    def open_to_nodes(self, resource: Resource, place: Location) -> Resource | None:
        """A resource with what its queue leaves to the nodes left open; None: the queue leaves nothing open.

        None also for a queue that is not the same for all VOs of the request, or is faulty.
        """
        if not place.queue:
            return None
        address = QueueAddress(site=place.site, ce=place.ce, queue=place.queue)
        values = self._values_of_one(address, resource.named_vos)
        try:
            offered = None if values is None else queue_offer.build_resource(values)
        except PilotageError:
            return None
        found = None if offered is None else queue_offer.reopen(resource, offered)
        return None if found == resource else found

    def _values_of_one(self, address: QueueAddress, vos: frozenset[str]) -> Mapping[str, Value] | None:
        """The effective parameters of a queue; None: they may differ, for it is for several VOs."""
        known = [self.config.values(address, vo) for vo in vos if vo in self.config.vos]
        return known[0] if len(known) == 1 else None

    def require_one_place(self, presented: StatedResource, caller: MatchCaller) -> None:
        """Refuse a request with several places where that matters."""
        if caller.queue is None:
            vos = presented.resource.vos or caller.vos
            place_pools.require_one_place(presented, self.config, vos, self.calendar.closed)

    def candidates(
        self, pools: frozenset[str], resource: Resource, *, job_id: int | None = None
    ) -> Sequence[TaskQueue]:
        """The task queues with jobs that fit a resource, with one of the pools or none.

        `job_id`: only the one that holds this job.
        """
        memory = self.memory
        found = Candidates(
            memory.waiting,
            resource,
            pools,
            lock=memory.lock,
            random=self.random,
            in_loop=self.in_memory,
        )
        if job_id is None:
            return found
        its = task_queues.find_by_job(self.conn, job_id)
        return [each for each in found if each.task_queue_id == its]

    def has_fitting_class(self, pools: frozenset[str], resource: Resource) -> bool:
        """Whether a job of any owner waits whose class fits a resource, with one of the pools or none."""
        with self.memory.lock:
            return self.memory.waiting.mask(resource, pools) != 0

    def find_filled(self, task_queue_ids: Collection[int]) -> frozenset[int]:
        """The task queues among these that have a waiting job."""
        if new := [each for each in task_queue_ids if each not in self.filled]:
            filled = task_queues.find_filled(self.conn, new)
            self.filled.update((each, each in filled) for each in new)
        return frozenset(each for each in task_queue_ids if self.filled[each])

    def admitted(
        self, place: Location, resource: Resource, candidates: Sequence[TaskQueue]
    ) -> tuple[Sequence[TaskQueue], AdmissionPolicy | None]:
        """The task queues that the queues of the place may admit, and the policy if jobs must be checked."""
        return self.admit(
            self.memory.admission_policies.policy_at(self.config, place, resource.named_vos), candidates
        )

    def admit(
        self, policy: AdmissionPolicy | None, candidates: Sequence[TaskQueue]
    ) -> tuple[Sequence[TaskQueue], AdmissionPolicy | None]:
        """The task queues that a policy may admit, and the policy if jobs must be checked."""
        if policy is None:
            return candidates, None
        admitted = policy.open_to(self.conn, candidates)
        return admitted, policy if any(map(policy.depends_on_job, admitted)) else None

    def counts(self, place: Location) -> bool:
        """Whether a limit, throttle or closure may apply at a place."""
        return self.calendar.closes(place) or place_policy.counts_jobs(self.config, place)

    def gate(
        self,
        place: Location,
        policy: AdmissionPolicy | None = None,
        *,
        resource: Resource,
        count: int,
        holder: LeaseHolder | None = None,
        owners: frozenset[str] | None = None,
    ) -> PlacePolicy | None:
        """The policy of a place for a request for jobs, without locks.

        Cores are counted as the claim would give them; `holder` None: to a pilot without jobs; `owners` as of
        `find_owners`, None: not known yet. None: no conditions, or its pilot has no room, and the claim gives
        the reason.
        """
        if policy is None and not self.counts(place):
            return None
        policies = place_policy.read_policies(self.conn, [place], self.now, closed=self.calendar.closed)
        owners = self.find_owners(place, resource) if owners is None else owners
        gate = policies.policy_at(place, policy, vos=resource.named_vos, owners=owners)
        if gate is not None and gate.bounds_cores:
            [room] = [None] if holder is None else opening.read_rooms(self.conn, [holder], now=self.now)
            if room is not None and room.refusal is not None:
                return None
            resource, wanted = allotment.bound_by_room(resource, count, room)
            gate.count_cores = allotment.build_core_counter(resource, is_only=wanted == 1)
        return gate

    def find_owners(self, place: Location, resource: Resource) -> frozenset[str]:
        """VOs that a request does not serve, with a floor at the site and work that its slot would go to.

        A job of theirs that may run there now would fit, and a pilot of theirs waits for a slot of the site.
        """
        others = floors.list_vos(self.config, place.site) - resource.named_vos if place.queue else frozenset()
        return frozenset(vo for vo in others if self._would_take(place, resource, vo))

    def _would_take(self, place: Location, resource: Resource, vo: str) -> bool:
        address = QueueAddress(site=place.site, ce=place.ce, queue=place.queue)
        if not self.config.usable(address, vo):
            return False
        if (vo, place.site) not in self.memory.expected.read(self.conn, now=self.now):
            return False
        own = replace(resource, vos=frozenset({vo}), owners=None, owner_groups=None)
        served = self.memory.places.served(
            *(self.reading, self.config, address, own.named_vos, {}),
            submits=False,
            versions=self.versions,
            age=self.age,
            now=self.now,
        )
        fitting, admission = self.admitted(place, own, self.candidates(served.pools, own))
        policies = place_policy.read_policies(self.conn, [place], self.now, closed=self.calendar.closed)
        gate = policies.policy_at(place, admission, vos=own.named_vos)
        if gate is None or not gate.admits_any(self.conn, iterate_candidates(fitting), place):
            return False
        # Jobs may be gone while their task queues are still known: a slot is kept for none of these.
        pieces = split_growing(iterate_candidates(fitting))
        return any(self.find_filled({each.task_queue_id for each in piece}) for piece in pieces)


def _queue_address(
    presented: StatedResource, caller: MatchCaller, config: Configuration
) -> QueueAddress | None:
    """The queue of the pilot; None: none is stated or needed."""
    stated = place_pools.find_stated_queue(presented, config)
    if caller.queue is None:
        return stated
    if stated not in (None, config.require(caller.queue)):
        raise NotServed(f"this token is bound to {caller.queue}, not to {stated}")
    return caller.queue


def _place_at_queue(resource: Resource, address: QueueAddress, config: Configuration) -> Resource:
    """The resource at a queue, for the VOs that may use it now; possibly none."""
    return replace(
        resource,
        vos=frozenset(vo for vo in resource.named_vos if config.usable(address, vo)),
        sites=frozenset({fold(address.site)}),
        near=list_near(config, [address.site]),
        grid_ces=frozenset({fold(address.ce)}),
    )


def _restrict_to_caller(resource: Resource, caller: MatchCaller, config: Configuration) -> Resource:
    """The resource restricted to the VOs of the token."""
    vos = caller.vos if resource.vos is None else caller.vos & resource.vos
    if not vos and resource.vos:
        raise NotServed(f"this token has no rights for the VO {', '.join(sorted(resource.vos))}")
    # Needed only with owners: groups whose members accept each other's jobs.
    groups = {} if resource.owners is None or resource.owner_groups is None else config.registry.groups
    return replace(
        resource,
        vos=vos,
        near=None if resource.sites is None else list_near(config, resource.sites),
        platforms=None if resource.platforms is None else config.list_runnable_platforms(resource.platforms),
        managed_types=managed_types(config) if resource.job_types is None else frozenset(),
        sharing_groups=frozenset(
            fold(name) for name, group in groups.items() if _JOB_SHARING in group.properties
        ),
    )

"""What one look sees: one configuration, one time, one transaction, and what the process remembers."""

import math
import threading
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from random import Random

from sqlalchemy import Connection

from cs_config.options.operations import managed_types
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher.cache import LocationCache, NoMatch, NoMatchCache, OpenPlaceCache, PilotLocation
from matcher.errors import NotServed
from matcher.index import place_pools
from matcher.index.place_pools import PlaceCache, PlacePools
from matcher.index.waiting import Candidates, WaitingIndex
from matcher.limits import place_policy
from matcher.limits.admission import AdmissionPolicies, AdmissionPolicy
from matcher.limits.place_policy import PlacePolicy
from matcher.pilot_groups import PilotGroups
from matcher.request.match_request import MatchCaller
from matcher.request.node_facts import Facts
from matcher.request.resource import Resource, StatedResource
from requirements.values import fold
from taskqueue.db.database import LazyTransaction
from taskqueue.leases.assignment import Location
from taskqueue.task_queues import task_queues
from taskqueue.task_queues.task_queues import TaskQueue

#: Seconds for which what was read of the database will do; a job is to be offered within two.
_FRESH = 0.2
#: Property of groups whose members take each other's jobs.
_JOB_SHARING = "JobSharing"


@dataclass(slots=True)
class CachedBans:
    """What is read beside the changes themselves, and how old all of it is."""

    banned: frozenset[str] = frozenset()  #: the sites that are
    at: float = -math.inf  #: when it was read, on the monotonic clock

    @property
    def is_fresh(self) -> bool:
        """Whether it will do for one who finds something; who does not has to look again."""
        return time.monotonic() - self.at < _FRESH


@dataclass(frozen=True, slots=True, kw_only=True)
class MatcherCache:
    """What a process remembers of the database: where to look, never what holds."""

    waiting: WaitingIndex = field(default_factory=WaitingIndex)
    places: PlaceCache = field(default_factory=PlaceCache)
    stands: LocationCache = field(default_factory=LocationCache)
    doorkeepers: AdmissionPolicies = field(default_factory=AdmissionPolicies)
    groups: PilotGroups = field(default_factory=PilotGroups)
    idle: NoMatchCache = field(default_factory=NoMatchCache)
    news: CachedBans = field(default_factory=CachedBans)
    open: OpenPlaceCache = field(default_factory=OpenPlaceCache)
    #: It is read and changed by one thread at a time; no claim is made under it.
    lock: threading.Lock = field(default_factory=threading.Lock)

    def follow(self, conn: Connection) -> int | None:
        """Take up what has changed, first in a transaction; the age of what is read in it from here on.

        None: nobody can say what has changed, and nothing of this memory holds any more.
        """
        with self.lock:
            changed = self.waiting.follow(conn)
            if changed is None:
                return None
            self.places.forget(changed)
            return self.places.age

    def find_no_match(self, likeness: Hashable, config: Configuration) -> NoMatch | None:
        """What there still is nothing for, as far as is remembered; to be asked only while that is fresh."""
        if self.waiting.aside:
            return None  # one of these may have a job
        return self.idle.find(likeness, config, age=self.places.age, waiting=self.waiting, lock=self.lock)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A look at what waits, for one batch of questions; all of them get answers of one moment."""

    reading: LazyTransaction
    memory: MatcherCache
    age: int  #: of what the transaction reads, as the memory counts it
    config: Configuration  #: without what has expired by now
    now: datetime
    random: Random
    #: The sites that are; read once for all, since the commonest answer must be cheap there, too.
    banned: frozenset[str]

    @property
    def conn(self) -> Connection:
        """For what is not remembered."""
        return self.reading.conn

    def place(
        self, presented: StatedResource, caller: MatchCaller, *, likeness: Hashable | None = None
    ) -> tuple[PlacePools | None, Resource]:
        """Where the pilot is, and its resource as far as the caller may offer it there.

        None: the queue serves none of the VOs now.

        Args:
            presented: What the pilot says.
            caller: Who asks.
            likeness: The same for all that say the same of the same place with the same rights.

        Raises:
            QueueNotFound, InvalidResource: The place is wrong.
            NotServed: It states what its token does not stand for.
        """
        stand = self.memory.stands.find(likeness, self.config)
        if stand is None:
            presented = place_pools.respell_place(presented, self.config)
            address = _queue_address(presented, caller, self.config)
            resource = _restrict_to_caller(presented.resource, caller, self.config)
            if address is None:
                resource = replace(
                    resource, vos=place_pools.usable_vos(resource.list_named_vos, presented, self.config)
                )
                return self._served_without_queue(presented, resource), resource
            stand = _locate(address, resource, presented.node_facts, self.config)
            self.memory.stands.note(likeness, stand, self.config)
        return self._served(stand), stand.resource

    def _served(self, stand: PilotLocation) -> PlacePools | None:
        usable = stand.resource.list_named_vos
        if not usable:
            return None
        with self.memory.lock:
            known = self.memory.places
            return known.served(self.reading, self.config, stand.address, usable, stand.facts, age=self.age)

    def _served_without_queue(self, presented: StatedResource, resource: Resource) -> PlacePools | None:
        if not resource.vos:
            return None
        with self.memory.lock:
            known = self.memory.places
            return known.served_without_queue(
                self.reading, self.config, presented, resource.vos, age=self.age
            )

    def require_one_place(self, presented: StatedResource, caller: MatchCaller) -> None:
        """Refuse a pilot that says it is at several places where that matters.

        Raises:
            InvalidResource: It names several sites, CEs or queues.
        """
        if caller.queue is None:
            vos = presented.resource.vos or caller.vos
            place_pools.require_one_place(presented, self.config, vos, self.banned)

    def candidates(self, pools: frozenset[str], resource: Resource) -> Candidates:
        """The task queues with jobs that fit a resource, with one of the pools or none."""
        memory = self.memory
        return Candidates(memory.waiting, resource, pools, lock=memory.lock, random=self.random)

    def build_filter(
        self, presented: StatedResource, pools: frozenset[str], resource: Resource
    ) -> Sequence[TaskQueue]:
        """Those with jobs that fit; if it wants one job only, the one which that is in."""
        candidates = self.candidates(pools, resource)
        if presented.job_id is None:
            return candidates
        its = task_queues.find_by_job(self.conn, presented.job_id)
        return [each for each in candidates if each.task_queue_id == its]

    def admitted(
        self, place: Location, resource: Resource, candidates: Sequence[TaskQueue]
    ) -> tuple[Sequence[TaskQueue], AdmissionPolicy | None]:
        """Those with jobs that the queues there may admit, and who has to be asked about each of them."""
        keeper = self.memory.doorkeepers.find_policy(self.config, place, resource.list_named_vos)
        if keeper is None:
            return candidates, None
        admitted = keeper.open_to(self.conn, candidates)
        return admitted, keeper if any(map(keeper.asks_job, admitted)) else None

    def counts(self, place: Location) -> bool:
        """Whether anything may hold at a place."""
        return place.site in self.banned or place_policy.counts_jobs(self.config, place)

    def gate(self, place: Location, keeper: AdmissionPolicy | None = None) -> PlacePolicy | None:
        """What holds at a place now, seen without locks; None: nothing does."""
        if keeper is None and not self.counts(place):
            return None
        return place_policy.read_policies(
            self.conn, self.config, [place], self.now, banned=self.banned
        ).find_policy(place, keeper)


def _queue_address(
    presented: StatedResource, caller: MatchCaller, config: Configuration
) -> QueueAddress | None:
    """The queue that the pilot is in; None: it states none, and does not have to.

    Raises:
        NotServed: It states another one than its token is bound to.
        QueueNotFound: The configuration has no such queue.
        InvalidResource: It states a queue without its site or CE.
    """
    stated = place_pools.find_stated_queue(presented, config)
    if caller.queue is None:
        return stated
    if stated not in (None, config.require(caller.queue)):
        raise NotServed(f"this token speaks for {caller.queue}, not for {stated}")
    return caller.queue


def _locate(address: QueueAddress, resource: Resource, facts: Facts, config: Configuration) -> PilotLocation:
    here = replace(
        resource,
        vos=frozenset(vo for vo in resource.list_named_vos if config.usable(address, vo)),
        sites=frozenset({fold(address.site)}),
        grid_ces=frozenset({fold(address.ce)}),
    )
    return PilotLocation(address=address, resource=here, facts=facts)


def _restrict_to_caller(resource: Resource, caller: MatchCaller, config: Configuration) -> Resource:
    """The resource without what its token does not stand for.

    Raises:
        NotServed: It states none but VOs of others.
    """
    vos = caller.vos if resource.vos is None else caller.vos & resource.vos
    if not vos and resource.vos:
        raise NotServed(f"this token does not speak for the VO {', '.join(sorted(resource.vos))}")
    return replace(
        resource,
        vos=vos,
        managed_types=managed_types(config) if resource.job_types is None else frozenset(),
        sharing_groups=_sharing_groups(config, resource),
    )


def _sharing_groups(config: Configuration, resource: Resource) -> frozenset[str]:
    """Those of the stated groups whose members take each other's jobs; asked for only where owners matter."""
    if resource.owners is None or resource.owner_groups is None:
        return frozenset()
    return frozenset(
        fold(name) for name, group in config.registry.groups.items() if _JOB_SHARING in group.properties
    )

"""The matcher of one process: finds in memory what a resource may run, and claims it in the database."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random

from sqlalchemy import Connection, Engine

from cs_config.address import QueueAddress
from cs_config.configuration import Configuration
from cs_config.operations import operations
from matcher import claiming, gates, lottery, places
from matcher.claiming import Look, Wish
from matcher.doorkeeper import Doorkeeper, Doorkeepers
from matcher.errors import NotServed, UnknownQueue
from matcher.gates import LIMITS, Gate
from matcher.listing import Listing, listings
from matcher.pilot_groups import PilotGroup, PilotGroups
from matcher.places import Places
from matcher.requests import RETRY_AFTER, Caller, MatchAnswer, MatchRequest
from matcher.resource import Presented, Resource
from matcher.served import Served
from matcher.sightings import Sightings
from matcher.waiting import Waiting
from requirements.errors import PilotageError
from requirements.values import fold
from taskqueue import bans, database, hindrances, mapping, pilots, task_queues
from taskqueue.claims import Claimed, Holder, Place
from taskqueue.hindrances import TURN
from taskqueue.task_queues import TaskQueue

#: Property of groups whose members take each other's jobs.
_JOB_SHARING = "JobSharing"
#: Why there is nothing, where no gate says so.
#: The queue is switched off, or not for the VOs of the pilot.
NOT_USABLE = "not_usable"
NO_TASK_QUEUE = "no_task_queue"
#: Jobs wait that another node of the queue may run.
NODE = "node"


class Matcher:
    """Serves requests for work, one batch at a time.

    What it remembers is only where to look: `taskqueue.claims` states again what must hold.
    """

    def __init__(
        self,
        engine: Engine,
        config: Callable[[], Configuration],
        clock: Callable[[], datetime],
        random: Random | None = None,
    ) -> None:
        self._engine = engine
        self._given = config
        self._clock = clock
        self._random = random or Random()
        self._waiting = Waiting()
        self._places = Places()
        self._doorkeepers = Doorkeepers()
        self._groups = PilotGroups()
        self._sightings = Sightings()
        #: Memory is read and changed by one thread at a time; no claim is made under it.
        self._lock = threading.Lock()

    def now(self) -> datetime:
        """The time by which leases count."""
        return self._clock()

    def _config(self) -> Configuration:
        """What holds now, without what has expired."""
        return self._given().at(self._clock())

    def refresh(self) -> None:
        """Take up what has changed since the last time."""
        with database.reading(self._engine) as conn:
            self._follow(conn)

    def serve(self, batch: Sequence[MatchRequest]) -> list[Look | PilotageError]:
        """Look for jobs for all requests; one that is wrong gets its error and disturbs no other.

        Who finds nothing in memory, which has been brought up to date before, costs no writing.
        """
        now = self._clock()
        first = _firsts(batch)
        unique = [batch[number] for number in range(len(batch)) if first[number] == number]
        with database.reading(self._engine) as conn:
            age = self._follow(conn)
            given = claiming.given_before(conn, unique)
            # Once for all: the commonest answer must be cheap at a banned site, too.
            banned = frozenset(ban.site for ban in bans.current(conn, now=now))
            found = {
                id(request): self._prepare(
                    conn, request, given.get(claiming.key_of(request), ()), age, banned
                )
                for request in unique
            }
        wishes = [each for each in found.values() if isinstance(each, Wish)]
        if wishes:
            with database.writing(self._engine) as conn:
                looks = claiming.claim_all(conn, wishes, config=self._config(), now=now)
            claimed = {id(wish.request): wish.told(look) for wish, look in zip(wishes, looks, strict=True)}
            self._note_served(wishes, looks, now)
        else:
            claimed = {}
        return [_outcome(found, claimed, batch[number]) for number in first]

    def settle(self, looks: Sequence[Look | PilotageError]) -> None:
        """Stop trying task queues that turned out to be empty."""
        emptied = {each for look in looks if isinstance(look, Look) for each in look.emptied}
        if emptied:
            with database.writing(self._engine) as conn:
                task_queues.mark_empty(conn, emptied, now=self._clock())

    def write_down(self, *, at_end: bool = False) -> None:
        """Write what kept jobs from pilots, about once a minute; for the thread that calls `serve`."""
        now = self._clock()
        if seen := self._sightings.due(now, at_end=at_end):
            with database.writing(self._engine) as conn:
                hindrances.write(conn, seen)
            self._sightings.written()

    def get_submit_pools(
        self, vos: frozenset[str], queues: Sequence[str]
    ) -> tuple[Mapping[str, list[str]], list[UnknownQueue]]:
        """For each of the queues the pools that it serves; and those that do not exist.

        Raises:
            UnknownQueue: None of them exists.
        """
        known, unknown = self._known(queues)
        with database.reading(self._engine) as conn:
            found = mapping.pools_for_queues(conn, sorted(vos), sorted(set(known.values())))
        return {text: list(found.get(address, ())) for text, address in known.items()}, unknown

    def get_pilot_groups(
        self, vos: frozenset[str], queues: Sequence[str]
    ) -> tuple[Mapping[str, tuple[PilotGroup, ...]], list[UnknownQueue]]:
        """The same, the pools of each queue by the flags that pilots for them are sent with.

        Raises:
            UnknownQueue: None of them exists.
        """
        known, unknown = self._known(queues)
        with database.reading(self._engine) as conn:
            mapped = mapping.mapped_to_queues(conn, sorted(vos), sorted(set(known.values())))
            with self._lock:
                found = self._groups.of(conn, self._config(), mapped)
        return {text: found[address] for text, address in known.items()}, unknown

    def _known(self, queues: Sequence[str]) -> tuple[dict[str, QueueAddress], list[UnknownQueue]]:
        config = self._config()
        known: dict[str, QueueAddress] = {}
        unknown: list[UnknownQueue] = []
        for text in dict.fromkeys(queues):
            try:
                known[text] = places.known_queue(text, config)
            except UnknownQueue as error:
                unknown.append(error)
        if unknown and not known:
            raise unknown[0]
        return known, unknown

    def get_matching_task_queues(self, presented: Presented, caller: Caller) -> list[Listing]:
        """All task queues that a resource may serve now, limits and bans applied, with what waits in them.

        Without facts of a node, also those that only some nodes of the queue may serve.

        Raises:
            UnknownQueue, InvalidResource: The place is wrong.
        """
        with database.reading(self._engine) as conn:
            served, resource = self._place(conn, presented, caller, self._follow(conn))
            if served is None:
                return []
            pools, place = served.pools, served.place
            if not presented.node_facts:
                # Before there is a node, nobody can say what it has not.
                pools, place = pools | served.kept_back, replace(place, checked=self._config().version)
            candidates, keeper = self._admitted(conn, place, resource, self._candidates(pools, resource))
            now = self._clock()
            banned = bans.of(conn, [place.site], now=now)
            gate = gates.look(conn, self._config(), [place], now, banned=banned).at(place, keeper)
            return listings(conn, candidates, place, gate)

    def _follow(self, conn: Connection) -> int:
        """Take up what has changed, first in a transaction; the age of what is read in it from here on."""
        with self._lock:
            self._places.forget(self._waiting.follow(conn))
            return self._places.age

    def _prepare(
        self,
        conn: Connection,
        request: MatchRequest,
        given: tuple[Claimed, ...],
        age: int,
        banned: frozenset[str],
    ) -> Wish | Look | PilotageError:
        """What a request comes down to; a look if it is answered without a claim."""
        if given:
            return Look(claimed=given)
        try:
            if request.caller.queue is None:
                vos = request.presented.resource.vos or request.caller.vos
                places.require_one(conn, request.presented, self._config(), vos, self._clock())
            served, resource = self._place(conn, request.presented, request.caller, age)
        except PilotageError as error:
            return error
        if served is None:
            return Look(refused=NOT_USABLE)
        if within := gates.below(self._config(), served.place, _vos(resource)):
            return places.not_exact(served.place, within[0])
        candidates = self._wanted(conn, request.presented, served.pools, resource)
        candidates, keeper = self._admitted(conn, served.place, resource, candidates)
        otherwise = self._elsewhere(conn, request.presented, served, resource)
        if not candidates and otherwise is None:
            return Look()
        # A look without locks, so that polling at a closed place costs no writing.
        gate = gates.look(conn, self._config(), [served.place], self._clock(), banned=banned).at(served.place)
        if gate is not None and (refused := _refusal(conn, gate, candidates, served.place, request.count)):
            self._note(refused, candidates, served.place, resource)
            return Look(refused=refused)
        if not candidates:
            return Look(refused=otherwise)
        drawn = lottery.order(candidates, self._random)
        return Wish(
            request=request,
            resource=resource,
            place=served.place,
            holder=self._holder(conn, request, served.place),
            drawn=drawn,
            keeper=keeper,
            fitting=self._let_in(conn, gate, candidates, served.place, resource),
            otherwise=otherwise,
        )

    def _place(
        self, conn: Connection, presented: Presented, caller: Caller, age: int
    ) -> tuple[Served | None, Resource]:
        """Where the pilot is, and its resource as far as the caller may offer it there.

        None: the queue serves none of the VOs now.
        """
        config = self._config()
        presented = places.spelled(presented, config)
        address = _address(presented, caller, config)
        resource = _allowed(presented.resource, caller, config)
        if address is None:
            resource = replace(resource, vos=places.usable_by(_vos(resource), presented, config))
            if not resource.vos:
                return None, resource
            with self._lock:
                found = self._places.served_without_queue(conn, config, presented, _vos(resource), age=age)
                return found, resource
        usable = frozenset(vo for vo in _vos(resource) if config.usable(address, vo))
        if not usable:
            return None, resource
        here = replace(
            resource,
            vos=usable,
            sites=frozenset({fold(address.site)}),
            grid_ces=frozenset({fold(address.ce)}),
        )
        with self._lock:
            return self._places.served(conn, config, address, usable, presented.node_facts, age=age), here

    def _candidates(self, pools: frozenset[str], resource: Resource) -> Sequence[TaskQueue]:
        with self._lock:
            return self._waiting.candidates(resource, pools)

    def _wanted(
        self, conn: Connection, presented: Presented, pools: frozenset[str], resource: Resource
    ) -> Sequence[TaskQueue]:
        """Those with jobs that fit; if it wants one job only, the one which that is in."""
        candidates = self._candidates(pools, resource)
        if presented.job_id is None:
            return candidates
        its = task_queues.holding(conn, presented.job_id)
        return [each for each in candidates if each.task_queue_id == its]

    def _admitted(
        self, conn: Connection, place: Place, resource: Resource, candidates: Sequence[TaskQueue]
    ) -> tuple[Sequence[TaskQueue], Doorkeeper | None]:
        """Those with jobs that the queues there may admit, and who has to be asked about each of them."""
        keeper = self._doorkeepers.at(self._config(), place, _vos(resource))
        if keeper is None:
            return candidates, None
        admitted = keeper.open_to(conn, candidates)
        return admitted, keeper if any(map(keeper.asks_job, admitted)) else None

    def _elsewhere(
        self, conn: Connection, presented: Presented, served: Served, resource: Resource
    ) -> str | None:
        """`node` if there are jobs that another node of the queue may run."""
        if not served.kept_back:
            return None
        fitting = self._wanted(conn, presented, served.kept_back, resource)
        kept_back = [each for each in fitting if each.requirement_class.submit_pool in served.kept_back]
        self._note(NODE, kept_back, served.place, resource)
        return NODE if kept_back else None

    def _note(self, cause: str, task_queues: Sequence[TaskQueue], place: Place, resource: Resource) -> None:
        """Task queues were kept from a pilot at a place."""
        now = self._clock()
        if task_queues and self._sightings.is_due((cause, place, resource.vos, len(task_queues)), now):
            self._sightings.note(cause, task_queues, now)

    def _let_in(
        self,
        conn: Connection,
        gate: Gate | None,
        candidates: Sequence[TaskQueue],
        place: Place,
        resource: Resource,
    ) -> Sequence[TaskQueue]:
        """Those that a place which is open has work for, the others noted; none: this was noted just now."""
        now = self._clock()
        if not self._sightings.is_due((place, resource.vos, len(candidates)), now):
            return ()
        if gate is None:
            return candidates
        fitting = gate.worth(conn, candidates, place)
        let_in = {each.task_queue_id for each in fitting}
        kept_out = [each for each in candidates if each.task_queue_id not in let_in]
        self._sightings.note(gate.refused or LIMITS, kept_out, now)
        return fitting

    def _note_served(self, wishes: Sequence[Wish], looks: Sequence[Look], now: datetime) -> None:
        """Note what pilots that fit were told when they tried to take jobs."""
        for wish, look in zip(wishes, looks, strict=True):
            cause = TURN if look.claimed else look.refused
            if cause is not None and wish.job_id is None:
                self._sightings.note(cause, wish.fitting, now)

    def _holder(self, conn: Connection, request: MatchRequest, place: Place) -> Holder:
        """Who asks; who is no pilot itself may ask for one of its VOs at its place, not for any other."""
        vos = request.caller.vos
        stamp = request.caller.stamp
        stated = None if stamp else request.presented.stamp
        if stated and pilots.is_at(conn, stated, site=place.site, vos=vos):
            stamp = stated
        leases = operations(self._config(), min(vos) if len(vos) == 1 else None).leases
        return Holder(
            subject=request.caller.subject,
            stamp=stamp,
            lease_time=timedelta(seconds=leases.time),
        )


def _refusal(
    conn: Connection, gate: Gate, candidates: Sequence[TaskQueue], place: Place, count: int
) -> str | None:
    """Why the place lets nothing through now."""
    return None if gate.most(count) and gate.admits_any(conn, candidates, place) else gate.refused


def answer(request: MatchRequest, look: Look) -> MatchAnswer:
    """What the pilot is told."""
    warnings = request.presented.warnings
    if look.claimed:
        return MatchAnswer(matches=look.claimed, warnings=warnings)
    reason = look.refused or NO_TASK_QUEUE
    return MatchAnswer(reason=reason, retry_after=RETRY_AFTER, warnings=warnings)


def _firsts(batch: Sequence[MatchRequest]) -> list[int]:
    """For each request the first of the batch that is the same one, said again."""
    seen: dict[object, int] = {}
    return [
        seen.setdefault(claiming.key_of(request) or number, number) for number, request in enumerate(batch)
    ]


def _outcome(
    found: Mapping[int, Wish | Look | PilotageError], claimed: Mapping[int, Look], request: MatchRequest
) -> Look | PilotageError:
    outcome = found[id(request)]
    return claimed[id(request)] if isinstance(outcome, Wish) else outcome


def _address(presented: Presented, caller: Caller, config: Configuration) -> QueueAddress | None:
    """The queue that the pilot is in; None: it states none, and does not have to.

    Raises:
        NotServed: It states another one than its token is bound to.
        UnknownQueue: The configuration has no such queue.
        InvalidResource: It states a queue without its site or CE.
    """
    stated = places.stated_queue(presented, config)
    if caller.queue is None:
        return stated
    if not config.knows(caller.queue):
        raise UnknownQueue(str(caller.queue), config.suggest(str(caller.queue)))
    if stated not in (None, caller.queue):
        raise NotServed(f"this token speaks for {caller.queue}, not for {stated}")
    return caller.queue


def _allowed(resource: Resource, caller: Caller, config: Configuration) -> Resource:
    """The resource without what its token does not stand for.

    Raises:
        NotServed: It states none but VOs of others.
    """
    vos = caller.vos if resource.vos is None else caller.vos & resource.vos
    if not vos and resource.vos:
        raise NotServed(f"this token does not speak for the VO {', '.join(sorted(resource.vos))}")
    return replace(resource, vos=vos, sharing_groups=_sharing_groups(config, resource))


def _sharing_groups(config: Configuration, resource: Resource) -> frozenset[str]:
    """Those of the stated groups whose members take each other's jobs; asked for only where owners matter."""
    if resource.owners is None or resource.owner_groups is None:
        return frozenset()
    return frozenset(
        fold(name) for name, group in config.registry.groups.items() if _JOB_SHARING in group.properties
    )


def _vos(resource: Resource) -> frozenset[str]:
    return resource.vos or frozenset()

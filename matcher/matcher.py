"""The matcher of one process: finds in memory what a resource may run, and claims it in the database."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from random import Random

from sqlalchemy import Connection, Engine

from cs_config.address import QueueAddress
from cs_config.configuration import Configuration
from cs_config.operations import operations
from matcher import lottery, places
from matcher.errors import UnknownQueue
from matcher.places import Places, Served
from matcher.requests import RETRY_AFTER, Caller, MatchAnswer, MatchRequest
from matcher.resource import Presented, Resource, Values
from matcher.waiting import Waiting
from requirements.values import fold
from taskqueue import claims, database, mapping, match_requests, task_queues
from taskqueue.claims import Claimed, Holder
from taskqueue.task_queues import TaskQueue

#: Jobs whose ids a listing names.
_NAMED_JOBS = 100
#: Task queues that one look tries; what is left waits for the next look.
_TRIES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look brought a request: jobs, or how it stands."""

    claimed: tuple[Claimed, ...] = ()
    closed: bool = False  #: its queue serves none of its VOs now
    tried: tuple[int, ...] = ()  #: task queues that had fewer jobs than were wanted
    in_other_hands: bool = False  #: jobs that fit are being taken by others; they may come free again


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A task queue that a resource may serve now."""

    task_queue: TaskQueue
    waiting: int
    job_ids: tuple[int, ...]  #: the first to be handed out, a hundred at most


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
        self._config = config
        self._clock = clock
        self._random = random or Random()
        self._waiting = Waiting()
        self._places = Places()
        #: Memory is read and changed by one thread at a time; no claim is made under it.
        self._lock = threading.Lock()

    def now(self) -> datetime:
        """The time by which leases count."""
        return self._clock()

    def refresh(self) -> None:
        """Take up what has changed since the last time."""
        with self._lock, database.reading(self._engine) as conn:
            self._places.forget(self._waiting.follow(conn))

    def serve(self, batch: Sequence[MatchRequest]) -> list[Look]:
        """Claim for all requests in one transaction: all of it happens, or nothing.

        Raises:
            UnknownQueue, InvalidResource: Of a request that is wrong; serve it alone to learn which.
        """
        now = self._clock()
        with database.writing(self._engine) as conn:
            # In one order everywhere: a repeated request waits for its twin in another process.
            looks = {
                position: self._look(conn, batch[position], now)
                for position in sorted(range(len(batch)), key=lambda each: _order(batch[each]))
            }
        return [looks[position] for position in range(len(batch))]

    def settle(self, looks: Sequence[Look]) -> None:
        """Stop trying task queues that turned out to be empty."""
        tried = {each for look in looks for each in look.tried}
        if tried:
            with database.writing(self._engine) as conn:
                task_queues.mark_empty(conn, tried, now=self._clock())
            self.refresh()

    def get_submit_pools(
        self, vos: frozenset[str], queues: Sequence[str]
    ) -> tuple[Mapping[str, list[str]], list[UnknownQueue]]:
        """For each of the queues the pools that it serves; and those that do not exist.

        Raises:
            UnknownQueue: None of them exists.
        """
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
        with database.reading(self._engine) as conn:
            found = mapping.pools_for_queues(conn, sorted(vos), sorted(set(known.values())))
        return {text: list(found.get(address, ())) for text, address in known.items()}, unknown

    def get_matching_task_queues(self, presented: Presented, caller: Caller) -> list[Listing]:
        """All task queues that a resource may serve now, with what waits in them.

        Raises:
            UnknownQueue, InvalidResource: The place is wrong.
        """
        self.refresh()
        with database.reading(self._engine) as conn:
            served, resource = self._place(conn, presented, caller)
            if served is None:
                return []
            candidates = {each.task_queue_id: each for each in self._candidates(served, resource)}
            waiting = task_queues.waiting_in(conn, candidates)
            return [
                Listing(
                    task_queue=candidates[each],
                    waiting=waiting[each],
                    job_ids=tuple(task_queues.first_jobs(conn, each, _NAMED_JOBS)),
                )
                for each in sorted(waiting)
            ]

    def _look(self, conn: Connection, request: MatchRequest, now: datetime) -> Look:
        if request.request_id is None:
            return self._claim(conn, request, now)
        this = {"subject": request.caller.subject, "request_id": request.request_id}
        given = match_requests.reserve(conn, **this, now=now)
        if given:
            held = claims.still_held(conn, given, subject=request.caller.subject)
            if held:
                return Look(claimed=tuple(held))
        look = self._claim(conn, request, now)
        if look.claimed:
            ids = [each.job_id for each in look.claimed]
            match_requests.remember(conn, **this, job_ids=ids, now=now)
        return look

    def _claim(self, conn: Connection, request: MatchRequest, now: datetime) -> Look:
        served, resource = self._place(conn, request.presented, request.caller)
        if served is None:
            return Look(closed=True)
        drawn = lottery.order(self._candidates(served, resource), self._random)
        order = [each.task_queue_id for each in islice(drawn, _TRIES)]
        if not order:
            return Look()
        claimed = claims.claim(
            conn, order, request.count, place=served.place, holder=self._holder(request), now=now
        )
        if len(claimed) >= request.count:
            return Look(claimed=tuple(claimed))
        in_other_hands = not claimed and bool(claims.left(conn, order, place=served.place))
        return Look(claimed=tuple(claimed), tried=tuple(order), in_other_hands=in_other_hands)

    def _place(
        self, conn: Connection, presented: Presented, caller: Caller
    ) -> tuple[Served | None, Resource]:
        """Where the pilot is, and its resource as far as the caller may offer it there."""
        config = self._config()
        address = caller.queue or places.stated_queue(presented, config)
        vos = _common(caller.vos, presented.resource.vos)
        resource = replace(presented.resource, vos=vos)
        if address is None:
            with self._lock:
                return self._places.served_without_queue(conn, presented, vos), resource
        if not config.knows(address):
            raise UnknownQueue(str(address), config.suggest(str(address)))
        usable = frozenset(vo for vo in vos if config.usable(address, vo))
        if not usable:
            return None, resource
        here = replace(
            resource,
            vos=usable,
            sites=frozenset({fold(address.site)}),
            grid_ces=frozenset({fold(address.ce)}),
        )
        with self._lock:
            return self._places.served(conn, address, usable), here

    def _candidates(self, served: Served, resource: Resource) -> list[TaskQueue]:
        with self._lock:
            return list(self._waiting.candidates(resource, served.pools))

    def _holder(self, request: MatchRequest) -> Holder:
        vos = request.caller.vos
        leases = operations(self._config(), min(vos) if len(vos) == 1 else None).leases
        return Holder(
            subject=request.caller.subject,
            stamp=request.presented.stamp,
            lease_time=timedelta(seconds=leases.time),
        )


def answer(request: MatchRequest, look: Look) -> MatchAnswer:
    """What the pilot is told."""
    warnings = request.presented.warnings
    if look.claimed:
        return MatchAnswer(matches=look.claimed, warnings=warnings)
    reason = "banned" if look.closed else "no_task_queue"
    return MatchAnswer(reason=reason, retry_after=RETRY_AFTER, warnings=warnings)


def _common(allowed: frozenset[str], stated: Values) -> frozenset[str]:
    return allowed if stated is None else allowed & stated


def _order(request: MatchRequest) -> tuple[str, str]:
    return request.caller.subject, request.request_id or ""

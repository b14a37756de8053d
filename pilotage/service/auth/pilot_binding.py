"""Binding of pilots to queues: named in the token, or else the first queue that the pilot states."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial

import anyio.from_thread
import anyio.to_thread
from sqlalchemy import Engine

from cs_config.cache import Cache
from cs_config.tree.address import QueueAddress
from matcher.request.match_request import NotInTime
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.batching import run_in_thread
from requirements.errors import NotAllowed
from taskqueue.db import database
from taskqueue.pilots import pilots
from taskqueue.pilots.pilots import FirstRequest, PilotKey

#: Pilots cached in this process; one more statement for the others.
_REMEMBERED = 100_000
#: Precision of a pilot's `last_seen_at`: one write per pilot in this time.
_SEEN_EVERY = timedelta(minutes=1)

_Contacts = dict[str, set[str]]  # stamps, by VO


class PilotPlaces:
    """Queues of pilots, stored in the database and cached in this process; used from one event loop only.

    First requests of many pilots are served in one transaction, before their claims. Later contacts are only
    collected; `store_contacts` writes them. Contacts that are lost when the process is killed come again with
    the next request of the pilot.
    """

    def __init__(self, engine: Engine, clock: Callable[[], datetime]) -> None:
        self._engine = engine
        self._clock = clock
        #: Queue of each pilot, and the time of the contact that was collected last.
        self._bound: Cache[PilotKey, tuple[QueueAddress, datetime]] = Cache(_REMEMBERED)
        self._contacts: _Contacts = defaultdict(set)
        #: Pilots whose turn is taken, and who waits for its end.
        self._turns: dict[str, asyncio.Event | None] = {}
        self._binding = run_in_thread(self._bind)

    def is_known(self, caller: Caller, queue: QueueAddress, *, now: datetime) -> bool:
        """Whether the pilot is known to request jobs for this queue; its contact is collected then."""
        vo, stamp = caller.vo or "", caller.stamp or ""
        known = self._bound.find((vo, stamp))
        if known is None or known[0] != queue:
            return False
        if now - known[1] >= _SEEN_EVERY:
            self._contacts[vo].add(stamp)
            self._bound.store((vo, stamp), (queue, now))
        return True

    def take_turn(self, stamp: str) -> bool:
        """Take the turn of a pilot until `end_turn`, unless another request of it has taken it.

        One request of a pilot for jobs is served at a time: what it may have depends on what it has.
        """
        if stamp in self._turns:
            return False
        self._turns[stamp] = None
        return True

    def end_turn(self, stamp: str) -> None:
        """End the turn of a pilot."""
        if (ended := self._turns.pop(stamp)) is not None:
            ended.set()

    @asynccontextmanager
    async def turn(self, stamp: str, *, deadline: float) -> AsyncIterator[None]:
        """Hold the turn of a pilot, for which the request may have to wait.

        `NotInTime` at the deadline, on the clock `time.monotonic`.
        """
        while not self.take_turn(stamp):
            if (ended := self._turns[stamp]) is None:
                ended = self._turns[stamp] = asyncio.Event()
            try:
                await asyncio.wait_for(ended.wait(), deadline - time.monotonic())
            except TimeoutError:
                raise NotInTime("another request of this pilot is being served; try again") from None
        try:
            yield
        finally:
            self.end_turn(stamp)

    def bind(self, caller: Caller, queue: QueueAddress, *, now: datetime) -> None:
        """The same as `bind_with_others`, from a worker thread of the event loop; its slot stays unknown."""
        anyio.from_thread.run(partial(self.bind_with_others, caller, queue, now=now))

    async def bind_with_others(
        self, caller: Caller, queue: QueueAddress, *, processors: int | None = None, now: datetime
    ) -> None:
        """Bind the pilot to the queue, unless it is bound; `NotAllowed` if it is bound to another.

        With the processors of its slot if it requests jobs. All that ask meanwhile share a transaction: after
        a restart all pilots do.
        """
        vo, stamp = caller.vo or "", caller.stamp or ""
        first = FirstRequest(stamp=stamp, vo=vo, queue=caller.queue or queue, processors=processors)
        bound = await self._binding.answer(first)
        if bound is None:
            raise NotAllowed(f"the pilot {stamp} was not sent to {queue}")
        self._contacts[vo].add(stamp)
        if processors is not None:
            self._bound.store((vo, stamp), (bound, now))
        if bound != queue:
            raise NotAllowed(f"the pilot {stamp} belongs to {bound}, it cannot request jobs for {queue}")

    async def store_contacts(self) -> None:
        """Write the contacts that were collected; if that fails, they are kept for the next time.

        A pilot that is not bound in the database any more, because a failover has lost its row, is bound
        again by its next request.
        """
        contacts, self._contacts = self._contacts, defaultdict(set)
        if not contacts:
            return
        try:
            bound = await anyio.to_thread.run_sync(_write_contacts, self._engine, contacts, self._clock())
        except database.UNAVAILABLE:
            for vo, stamps in contacts.items():
                self._contacts[vo] |= stamps
            raise
        for vo, stamps in contacts.items():
            for stamp in stamps - bound:
                self._bound.remove((vo, stamp))

    def require_unbound(self, caller: Caller) -> None:
        """Raise `NotAllowed` if a pilot that states no queue is bound to one, or is that of another VO."""
        vo, stamp = caller.vo or "", caller.stamp or ""
        with database.reading(self._engine) as conn:
            known = pilots.read_places(conn, [stamp])
        if known and (vo, stamp) not in known:
            raise NotAllowed(f"the pilot {stamp} belongs to another VO")
        bound = caller.queue or known.get((vo, stamp))
        if bound is not None:
            raise NotAllowed(f"the pilot {caller.stamp} belongs to {bound} and has to state it")

    def _bind(self, requests: Sequence[FirstRequest]) -> Sequence[QueueAddress | None]:
        # Of each pilot the earliest request, if possible one that states the slot.
        first: dict[PilotKey, FirstRequest] = {}
        for each in sorted(requests, key=lambda each: each.processors is None):
            first.setdefault((each.vo, each.stamp), each)
        # After a restart most pilots are bound and running already: nothing is written for these.
        with database.reading(self._engine) as conn:
            bound = dict(pilots.read_bound_queues(conn, {stamp for _, stamp in first}, in_use=True))
        unbound = [each for key, each in first.items() if key not in bound]
        while unbound:  # once, unless a stamp is stated for several VOs
            some = {each.stamp: each for each in reversed(unbound)}
            bound |= _bind_queues(self._engine, list(some.values()), self._clock())
            unbound = [each for each in unbound if each is not some[each.stamp]]
        return [bound.get((each.vo, each.stamp)) for each in requests]


@database.retry_on_conflict
def _bind_queues(
    engine: Engine, requests: Sequence[FirstRequest], now: datetime
) -> Mapping[PilotKey, QueueAddress]:
    with database.writing(engine) as conn:
        return pilots.bind_queues(conn, requests, now=now)


@database.retry_on_conflict
def _write_contacts(engine: Engine, contacts: _Contacts, now: datetime) -> frozenset[str]:
    with database.writing(engine) as conn:
        return pilots.record_contacts(conn, contacts, now=now)


def check_site(caller: Caller, site: str | None) -> None:
    """Raise `NotAllowed` if a director's or gateway's token is not for the site."""
    if caller.role is Role.PILOT or not caller.sites:
        return
    if site not in caller.sites:
        raise NotAllowed(f"the token is for {', '.join(sorted(caller.sites))}, not for {site or 'any site'}")

"""Claims in the event loop (PostgreSQL): all requests that have come in go into one statement.

A request is served here if any one job will do and its candidates are in memory; what the mapping decides at
its place is read in a thread before the first claim there. A place with limits must have given a job a moment
ago, and have only running limits without a ramp. Where a limit leaves no room for a task queue, another is
tried. The claim thread serves all other requests, and those for which no job was found here, because only a
current index can prove that there is none.

A single request is sent at once, without a timer or a thread. While a statement is under way, requests gather
for the next one, since a statement costs PostgreSQL three times as much as one more job in it. A second
statement (`_LANES`) is sent when as many requests wait as the first one has, or when that one is slow. Until
then it serves no site with limits that the first one serves, whose scopes it would find locked.

A task queue without a job for one statement may only be locked by another one under way: it counts as empty
only if no other statement of this process claimed from it meanwhile. A claim whose commit is not confirmed is
in doubt, and the claim thread searches for it. A job whose request has ended meanwhile is released at once.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, IntegrityError

from matcher.claim import matcher as matching
from matcher.claim.claim_request import ClaimRequest, ClaimResult
from matcher.claim.matcher import Matcher
from matcher.index.sampling import CandidateOrder
from matcher.limits import running_limits
from matcher.request.match_request import MatchRequest, MatchResult, NotInTime
from taskqueue.db import database
from taskqueue.db.compiled_sql import AsyncRunner
from taskqueue.leases import batched_claim, opening
from taskqueue.leases.batched_claim import BatchClaim, BatchClaimResult
from taskqueue.task_queues.task_queues import TaskQueue

log = logging.getLogger(__name__)

#: Statements under way at the same time.
_LANES = 2
#: Requests at places with limits for which one statement may lock all their sites; of more, the other
#: statement has half.
_FEW = 16
#: Seconds after which a statement is slow: it may wait for a lock, and holds up no others any more.
_SLOW = 0.02
#: Requests in one statement.
_BATCH = 64
#: Requests that wait for a statement, and places that are read; further requests go to the claim thread,
#: which refuses what is too much.
_MOST_WAITING = 1024
#: Threads that read what the mapping decides at places, and so connections.
_READERS = 4
#: Task queues tried for a request; afterwards the claim thread serves it.
_TRIES = 4
_NOT_IN_TIME = "there was no answer in time; try again"
#: Releases jobs, by their leases, that were claimed for a request and cannot be delivered.
Release = Callable[[MatchRequest, tuple[str, ...]], None]
#: Requests with the leases that they may have got.
_Leases = Sequence[tuple[MatchRequest, tuple[str, ...]]]


@dataclass(eq=False, slots=True, kw_only=True)
class _Ticket:
    """A waiting request; the future gets its answer, or None if the claim thread has to serve it."""

    prepared: ClaimRequest
    is_gone: Callable[[], bool]  #: whether the client has gone
    future: "asyncio.Future[MatchResult | None]"

    def answer(self, result: MatchResult | None) -> bool:
        """Deliver an answer; False: the request has ended."""
        if self.future.done():
            return False
        self.future.set_result(result)
        return True

    def refuse(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


@dataclass(eq=False, slots=True)
class _Lane:
    """A connection, and the statement under way on it."""

    server: AsyncRunner
    task: "asyncio.Task[None] | None" = None  #: None: nothing is under way
    size: int = 0  #: requests of the statement under way, until it is slow
    locks: frozenset[str | None] = frozenset()  #: scopes that it locks, until it is slow
    claimed_from: frozenset[int] = frozenset()  #: task queues of the statement under way
    shared: set[int] = field(default_factory=set)  #: task queues of other statements during this one


class AsyncClaimer:
    """Claims of one process in its event loop."""

    def __init__(self, engine: Engine, matcher: Matcher, release: Release) -> None:
        """Create it; `engine` tells only where the database is. On SQLite the thread serves all requests."""
        is_possible = engine.dialect.name == "postgresql"
        self._matcher = matcher
        self._release = release
        self._lanes = [_Lane(AsyncRunner(engine)) for _ in range(_LANES if is_possible else 0)]
        self._waiting: deque[_Ticket] = deque()
        self._keys: set[object] = set()  # of the requests that wait or are claimed for
        self._is_dispatching = False
        # Threads of their own: after a restart the places of all pilots are read, and others must not wait.
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="places")
        self._readings: dict[Hashable, asyncio.Future[None]] = {}  # under way, by cache key

    async def claim(self, request: MatchRequest, is_gone: Callable[[], bool]) -> MatchResult | None:
        """A job; None: the claim thread has to serve the request. Errors as of `submit`.

        The first request from a place waits until the mapping was read for it, then it is one as any other.
        """
        future = self.submit(request, is_gone)
        if future is None and self._lanes and not self._matcher.knows_place(request):
            await self._read_place(request)
            future = self.submit(request, is_gone)
        if future is None:
            return None
        try:
            return await future
        except asyncio.CancelledError:
            if not future.cancelled() and future.exception() is None and (answer := future.result()):
                self.give_back(request, answer)
            raise

    async def _read_place(self, request: MatchRequest) -> None:
        """Read what the mapping decides at a place, once for all requests that wait for it."""
        key, loop = request.cache_key, asyncio.get_running_loop()
        reading = self._readings.get(key)
        if reading is None:
            if len(self._readings) >= _MOST_WAITING:
                return
            reading = loop.run_in_executor(self._readers, self._matcher.read_place, request)
            self._readings[key] = reading
            reading.add_done_callback(lambda _: self._readings.pop(key))
        try:
            async with asyncio.timeout(request.deadline - time.monotonic()):
                await asyncio.shield(reading)
        except TimeoutError:
            raise NotInTime(_NOT_IN_TIME) from None

    def submit(
        self, request: MatchRequest, is_gone: Callable[[], bool]
    ) -> "asyncio.Future[MatchResult | None] | None":
        """A future job; None, at once: its place may have to be read; in the end: the claim thread serves it.

        `NotInTime` at the deadline, and the errors of an unavailable database. What comes after the end of
        the future is released.
        """
        key = request.key
        if not self._lanes or key in self._keys:
            return None
        if (prepared := self._matcher.prepare_in_memory(request)) is None:
            return None
        if len(self._waiting) >= _MOST_WAITING:
            return None
        loop = asyncio.get_running_loop()
        future: asyncio.Future[MatchResult | None] = loop.create_future()
        ticket = _Ticket(prepared=prepared, is_gone=is_gone, future=future)
        timer = loop.call_later(
            request.deadline - time.monotonic(),
            ticket.refuse,
            NotInTime(_NOT_IN_TIME),
        )
        if key is not None:
            self._keys.add(key)
        future.add_done_callback(partial(self._end, timer, key))
        self._waiting.append(ticket)
        if not self._is_dispatching:  # when all that the event loop has received is waiting
            self._is_dispatching = True
            loop.call_soon(self._dispatch)
        return future

    def _end(self, timer: asyncio.TimerHandle, key: object, _future: object) -> None:
        timer.cancel()
        self._keys.discard(key)

    def give_back(self, request: MatchRequest, answer: MatchResult) -> None:
        """Release jobs that cannot be delivered."""
        if answer.matches:
            self._release(request, tuple(match.lease for match in answer.matches))

    async def close(self) -> None:
        """Wait for the statements under way, and for those that begin at their end; close the connections."""
        try:
            while tasks := [lane.task for lane in self._lanes if lane.task is not None]:
                await asyncio.wait(tasks)
        finally:
            self._readers.shutdown(wait=False, cancel_futures=True)
            for lane in self._lanes:
                await lane.server.close()

    def _dispatch(self) -> None:
        self._is_dispatching = False
        for lane in self._lanes:
            if self._waiting and lane.task is None and (batch := self._take_batch()):
                lane.size, lane.locks = len(batch), frozenset(each.prepared.locks for each in batch) - {None}
                lane.task = asyncio.create_task(self._serve(lane, batch))

    def _take_batch(self) -> list[_Ticket]:
        """The requests for the next statement; empty: not yet."""
        locked: set[str | None] = set()
        for lane in self._lanes:
            locked |= lane.locks
        free = [each for each in self._waiting if each.prepared.locks not in locked]
        if len(free) < max(1, *(each.size for each in self._lanes)):
            return []
        batch = _leave_sites(free)[:_BATCH]
        taken = set(batch)
        self._waiting = deque(each for each in self._waiting if each not in taken)
        return batch

    def _overtake(self, lane: _Lane) -> None:
        """Let requests wait for this statement no longer, also not for its scopes, which are passed over."""
        lane.size, lane.locks = 0, frozenset()
        self._dispatch()

    async def _serve(self, lane: _Lane, batch: Sequence[_Ticket]) -> None:
        slow = asyncio.get_running_loop().call_later(_SLOW, self._overtake, lane)
        try:
            await self._claim(lane, batch)
        except database.UNAVAILABLE as error:
            log.warning("the database is away or too busy: %s", error)
            for ticket in batch:
                ticket.refuse(error)
        except Exception:
            # One of them is at fault; the claim thread, which serves them one by one, finds out which.
            log.exception("%d requests could not be served together", len(batch))
            for ticket in batch:
                ticket.answer(None)
        finally:
            slow.cancel()
            lane.task, lane.size, lane.locks, lane.claimed_from = None, 0, frozenset(), frozenset()
            self._dispatch()

    async def _claim(self, lane: _Lane, batch: Sequence[_Ticket]) -> None:
        await lane.server.connect()
        tried: list[_Ticket] = []
        claims: list[BatchClaim] = []
        for ticket, lease in zip(batch, opening.generate_leases(len(batch)), strict=True):
            if ticket.future.done():
                continue
            # Nothing is claimed for a client that has gone; the claim thread does not, either.
            task_queue = None if ticket.is_gone() else ticket.prepared.drawn.next()
            if task_queue is None:
                ticket.answer(None)
            else:
                tried.append(ticket)
                claims.append(_build_claim(ticket.prepared, task_queue, lease))
        if not claims:
            return
        self._mark_shared(lane, frozenset(claim.task_queue_id for claim in claims))
        maybe = [
            (ticket.prepared.request, (claim.lease,)) for ticket, claim in zip(tried, claims, strict=True)
        ]
        try:
            outcomes = await self._run(lane, claims, maybe)
        except DBAPIError as error:
            if database.is_unavailable(error) and not database.is_conflict(error):
                raise
            # It claimed nothing: one of the requests is at fault.
            log.warning("a batch of %d claims was rejected, they go step by step: %s", len(claims), error)
            for ticket in tried:
                ticket.answer(None)
            return
        for ticket, claim, outcome in zip(tried, claims, outcomes, strict=True):
            self._finish(lane, ticket, claim, outcome)

    async def _run(
        self, lane: _Lane, claims: Sequence[BatchClaim], maybe: _Leases, *, is_repeated: bool = False
    ) -> list[BatchClaimResult]:
        """The outcomes of one statement. Once it is repeated if another process answered one of the requests.

        That process has committed then, so the repeated statement leaves this request alone.
        """
        now = self._matcher.now()
        try:
            with self._matcher.doubts.about(maybe):
                rows = await lane.server.rows(*batched_claim.build_statement(claims, now=now))
                return batched_claim.read_results(claims, rows, now=now)
        except DBAPIError as error:
            if is_repeated or not (isinstance(error, IntegrityError) or database.is_conflict(error)):
                raise
            log.info("a batch of %d claims is repeated after a conflict: %s", len(claims), error)
        return await self._run(lane, claims, maybe, is_repeated=True)

    def _mark_shared(self, lane: _Lane, claimed_from: frozenset[int]) -> None:
        """Register a statement with those under way, as each of them may lock jobs that another looks for."""
        lane.claimed_from, lane.shared = claimed_from, set()
        for other in self._lanes:
            if other is not lane and other.task is not None:
                lane.shared |= other.claimed_from
                other.shared |= claimed_from

    def _finish(self, lane: _Lane, ticket: _Ticket, claim: BatchClaim, outcome: BatchClaimResult) -> None:
        """Deliver the outcome of one claim; if that fails, the others are still delivered."""
        try:
            self._settle(lane, ticket, claim, outcome)
        except Exception as error:  # of any kind
            log.exception("the outcome of a claim could not be delivered")
            ticket.refuse(error)
            if outcome.claimed is not None:
                self._release(ticket.prepared.request, (claim.lease,))

    def _settle(self, lane: _Lane, ticket: _Ticket, claim: BatchClaim, outcome: BatchClaimResult) -> None:
        """Deliver the outcome of one claim, or try the request again."""
        task_queue_id, request = claim.task_queue_id, ticket.prepared.request
        if outcome.claimed is not None:
            result = ClaimResult(claimed=(outcome.claimed,))
            self._matcher.record_outcome(ticket.prepared, gave=True)
            if not ticket.answer(matching.build_answer(request, result)):
                self._release(request, (outcome.claimed.lease,))
            return
        if outcome.refused:
            result = ClaimResult(refused=outcome.refused)
            ticket.answer(matching.build_answer(request, result))
            return
        if outcome.is_undecided:
            if not _leave_out_full(ticket.prepared.drawn, outcome.full):
                self._matcher.record_outcome(ticket.prepared, gave=False)
                ticket.answer(None)
                return
        elif task_queue_id not in lane.shared:
            self._matcher.exclude({task_queue_id})
        if len(ticket.prepared.drawn.tried) >= _TRIES:
            ticket.answer(None)
        elif not ticket.future.done():
            self._waiting.appendleft(ticket)


def _leave_sites(tickets: list[_Ticket]) -> list[_Ticket]:
    """The requests without those of some sites with limits, about half of these, for the other statement."""
    limited = Counter(each.prepared.locks for each in tickets if each.prepared.locks is not None)
    if limited.total() <= _FEW:
        return tickets
    taken: set[str | None] = {None}
    wanted = limited.total() / 2
    for site, number in limited.items():
        if wanted <= 0:
            break
        taken.add(site)
        wanted -= number
    return [each for each in tickets if each.prepared.locks in taken]


def _leave_out_full(drawn: CandidateOrder, full: Sequence[str]) -> bool:
    """Leave out all task queues that a place has no room for, as for the last one, by limits on attributes.

    False: no limit counts all jobs of that task queue. Another of its jobs may run there.
    """
    last = drawn.tried[-1]
    values = {each: value for each in full if (value := running_limits.find_value(last, each)) is not None}

    def is_kept_out(other: TaskQueue) -> bool:
        same = (running_limits.find_value(other, each) == value for each, value in values.items())
        return other.vo == last.vo and any(same)

    drawn.leave_out(is_kept_out)
    return bool(values)


def _build_claim(prepared: ClaimRequest, task_queue: TaskQueue, lease: str) -> BatchClaim:
    return BatchClaim(
        task_queue_id=task_queue.task_queue_id,
        place=prepared.place,
        holder=prepared.holder.for_vo(task_queue.vo),
        lease=lease,
        allotment=prepared.allot_one(task_queue),
        request_id=prepared.request.request_id,
        only_vo=min(vos) if len(vos := prepared.resource.named_vos) == 1 else None,
    )

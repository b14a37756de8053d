"""The process's single claim thread; it serves all pending requests in one transaction.

On SQLite it serves all requests for work; on PostgreSQL those that `async_claimer` leaves to it.

Requests wait on a future. The thread takes all that are queued, drops those past their deadline or
cancelled, and claims for the rest, without a timer that would delay them. An undeliverable job is released
at once. If a batch fails, its requests are served one by one, so that only the faulty one fails.
"""

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from sqlalchemy import Engine

from matcher.claim import in_doubt_claims
from matcher.claim import matcher as matching
from matcher.claim.claim_request import ClaimResult
from matcher.claim.matcher import Matcher
from matcher.request.match_request import Busy, MatchRequest, MatchResult, NotInTime, Unserved
from requirements.errors import PilotageError
from taskqueue.db import database

log = logging.getLogger(__name__)

#: Queued requests; further ones are rejected.
_MOST_WAITING = 1024
#: Requests per transaction.
_BATCH = 64
#: Seconds between reads of the feed while idle.
_IDLE = 0.25
#: Seconds until a retry for jobs locked by others.
_PAUSE = 0.02
#: Seconds after which a batch counts as stuck.
_STUCK = 60.0


#: A request with its undelivered leases.
_Returned = tuple[MatchRequest, tuple[str, ...]]


@dataclass(eq=False, slots=True, kw_only=True)
class PendingRequest:
    """A queued request; `future` gets the answer or an error, unless it is cancelled first."""

    request: MatchRequest
    future: "Future[MatchResult]" = field(default_factory=Future)

    @property
    def is_wanted(self) -> bool:
        """Whether an answer would still reach its pilot."""
        return not self.future.cancelled() and time.monotonic() < self.request.deadline

    def deliver(self, answer: MatchResult) -> bool:
        """Deliver the answer; False: it is too late."""
        if not self.is_wanted:
            self.refuse(NotInTime("there was no answer in time; no job was taken"))
            return False
        if not self.future.set_running_or_notify_cancel():
            return False
        self.future.set_result(answer)
        return True

    def refuse(self, error: Exception) -> None:
        """Deliver an error."""
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


class ClaimWorker:
    """Owner of the claim thread. Call `start` after a fork, `stop` before the end."""

    def __init__(self, engine: Engine, matcher: Matcher, *, most_waiting: int = _MOST_WAITING) -> None:
        self._engine = engine
        self._matcher = matcher
        self._tickets: queue.Queue[PendingRequest | None] = queue.Queue(most_waiting)
        self._returned: queue.SimpleQueue[_Returned] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="claimer", daemon=True)
        self._stopping = threading.Event()
        self._batch_began = time.monotonic()

    def start(self) -> None:
        """Begin to serve."""
        self._batch_began = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Serve the queued requests, then end."""
        self._stopping.set()
        self.wake()
        self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether requests are served; if not, the process is not ready."""
        return self._thread.is_alive() and time.monotonic() - self._batch_began < _STUCK

    def submit(self, request: MatchRequest) -> PendingRequest:
        """Queue a request.

        Raises:
            Busy: The queue is full, or the thread has ended.
        """
        if not self.alive or self._stopping.is_set():
            raise Busy("this process does not match jobs at the moment; try again later")
        ticket = PendingRequest(request=request)
        try:
            self._tickets.put_nowait(ticket)
        except queue.Full:
            raise Busy(f"{self._tickets.maxsize} requests wait already; try again later") from None
        return ticket

    def wake(self) -> None:
        """Read the feed now, even if no request is queued."""
        if self._tickets.empty():
            with contextlib.suppress(queue.Full):
                self._tickets.put_nowait(None)

    def abandon(self, ticket: PendingRequest) -> None:
        """Cancel a request; jobs that it got are released."""
        if not ticket.future.cancel() and ticket.future.exception() is None:
            self._returned.put((ticket.request, _list_leases(ticket.future.result())))

    def give_back(self, request: MatchRequest, leases: tuple[str, ...]) -> None:
        """Release jobs that were claimed for a request and cannot be delivered."""
        self._returned.put((request, leases))
        self.wake()

    def _run(self) -> None:
        again = self._serve_batch([])  # loads the index: before, the process is not ready
        while not self._stopping.is_set() or again or not self._tickets.empty():
            # At most half a batch is tried again: requests at a closed place must not keep out all others.
            retried, left = again[: _BATCH // 2], again[_BATCH // 2 :]
            batch = retried + self._next(wait=_PAUSE if again else _IDLE, most=_BATCH - len(retried))
            self._batch_began = time.monotonic()
            again = left + self._serve_batch(batch)

    def _serve_batch(self, batch: Sequence[PendingRequest]) -> list[PendingRequest]:
        """Serve a batch; return the requests to try again."""
        try:
            self._release_doubtful()
            self._release_returned()  # before a repeated request gets them
            again = self._serve(_list_wanted(batch))
            self._release_returned()
        except database.UNAVAILABLE as error:
            log.warning("the database is away or too busy: %s", error)
            _refuse_all(batch, error)
        except Exception as error:
            log.exception("requests for work could not be served")
            _refuse_all(batch, error)
        else:
            return again
        return []

    def _next(self, *, wait: float, most: int) -> list[PendingRequest]:
        """All queued requests; if there is none, the first one within `wait` seconds."""
        batch: list[PendingRequest | None] = []
        try:
            while len(batch) < most:
                batch.append(
                    self._tickets.get_nowait() if batch or wait <= 0 else self._tickets.get(timeout=wait)
                )
        except queue.Empty:
            pass
        return [ticket for ticket in batch if ticket is not None]  # None: a call of `wake`

    def _serve(self, batch: Sequence[PendingRequest]) -> list[PendingRequest]:
        if not batch:
            self._matcher.refresh()
            return []
        try:
            results = database.run_with_retry(
                lambda: self._matcher.serve([ticket.request for ticket in batch])
            )
        except Exception as error:
            if len(batch) == 1 or database.is_unavailable(error):
                raise
            log.warning("%d requests could not be served together; each goes alone", len(batch))
            return [again for ticket in batch for again in self._serve_batch([ticket])]
        again = self._deliver(batch, results)
        self._matcher.settle(results)
        for ticket, result in zip(batch, results, strict=True):
            if isinstance(result, Unserved):
                log.warning("a request could not be served with others: %s; it goes alone", result.cause)
                again += self._serve_batch([ticket])
        return again

    def _deliver(
        self, batch: Sequence[PendingRequest], results: Sequence[ClaimResult | PilotageError]
    ) -> list[PendingRequest]:
        again: list[PendingRequest] = []
        delivered: set[str] = set()
        undeliverable: list[_Returned] = []
        for ticket, result in zip(batch, results, strict=True):
            if isinstance(result, Unserved):
                continue  # it is served alone
            if isinstance(result, PilotageError):
                ticket.refuse(result)
            elif result.in_other_hands and ticket.is_wanted:
                again.append(ticket)
            else:
                answer = matching.build_answer(ticket.request, result)
                if ticket.deliver(answer):
                    delivered.update(_list_leases(answer))
                elif answer.matches:
                    undeliverable.append((ticket.request, _list_leases(answer)))
        for request, leases in undeliverable:
            # A repeated request in the batch: one of the two has the answer.
            if delivered.isdisjoint(leases):
                self._returned.put((request, leases))
        self._matcher.doubts.settle(delivered)
        return again

    def _release_returned(self) -> None:
        """Release undelivered jobs; if that fails, their leases expire instead."""
        while not self._returned.empty():
            self._release(*self._returned.get())

    @database.retry_on_conflict
    def _release(self, request: MatchRequest, leases: tuple[str, ...]) -> None:
        with database.writing(self._engine) as conn:
            in_doubt_claims.release(conn, request, leases, now=self._matcher.now())

    def _release_doubtful(self) -> None:
        """Release claims in doubt, before anything else is claimed."""
        doubts = self._matcher.doubts
        for doubt in doubts.due():
            if self._release_if_claimed(doubt.request, doubt.leases):
                doubts.settle(doubt.leases)

    @database.retry_on_conflict
    def _release_if_claimed(self, request: MatchRequest, leases: tuple[str, ...]) -> bool:
        with database.writing(self._engine) as conn:
            return in_doubt_claims.release_if_claimed(conn, request, leases, now=self._matcher.now())


def _list_wanted(batch: Sequence[PendingRequest]) -> list[PendingRequest]:
    """The requests that an answer would still reach; the others are refused."""
    wanted: list[PendingRequest] = []
    for ticket in batch:
        if ticket.is_wanted:  # once: it changes with time
            wanted.append(ticket)
        else:
            ticket.refuse(NotInTime("there was no answer in time; no job was taken"))
    return wanted


def _list_leases(answer: MatchResult) -> tuple[str, ...]:
    return tuple(match.lease for match in answer.matches)


def _refuse_all(batch: Sequence[PendingRequest], error: Exception) -> None:
    for ticket in batch:
        ticket.refuse(error)

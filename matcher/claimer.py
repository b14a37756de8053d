"""The one thread of a process that claims: whoever waits when it is free goes along.

Requests wait on a future. The thread takes all that have come in, drops those whose time is over or whose
client has gone, and claims for the rest in one transaction; no timer, so nobody waits for company. What
cannot be delivered is released at once. One request that breaks the transaction is found by serving each
alone, and fails alone.
"""

import logging
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from sqlalchemy import Engine

from matcher import matcher as matching
from matcher.errors import Busy
from matcher.matcher import Look, Matcher
from matcher.requests import MatchAnswer, MatchRequest
from taskqueue import database, handover
from taskqueue.claims import Claimed
from taskqueue.errors import IllegalTransition, LeaseNotFound, StaleLease

log = logging.getLogger(__name__)

#: Requests that may wait; more are sent away.
_MOST_WAITING = 1024
#: Requests in one transaction.
_BATCH = 64
#: Seconds between looks at the feed while nobody asks.
_IDLE = 0.5
#: Seconds before another look for jobs that were in other hands.
_PAUSE = 0.02
UNDELIVERED = "The answer could not be delivered"


@dataclass(eq=False, slots=True, kw_only=True)
class Ticket:
    """A request in the queue; `future` gets its answer or its error."""

    request: MatchRequest
    future: "Future[MatchAnswer]" = field(default_factory=Future)
    lock: threading.Lock = field(default_factory=threading.Lock)
    abandoned: bool = False


class Claimer:
    """Owns the thread. `start` it after a fork, `stop` it before the end."""

    def __init__(self, engine: Engine, matcher: Matcher, *, most_waiting: int = _MOST_WAITING) -> None:
        self._engine = engine
        self._matcher = matcher
        self._tickets: queue.Queue[Ticket | None] = queue.Queue(most_waiting)
        self._undelivered: queue.SimpleQueue[Claimed] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="claimer", daemon=True)
        self._stopping = threading.Event()

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def stop(self) -> None:
        """Serve what has come in, then end."""
        self._stopping.set()
        self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether requests are being served; if not, the process is not ready."""
        return self._thread.is_alive()

    def submit(self, request: MatchRequest) -> Ticket:
        """Queue a request.

        Raises:
            Busy: Too many wait, or the thread is gone.
        """
        if not self.alive or self._stopping.is_set():
            raise Busy("this process does not match jobs at the moment; ask again")
        ticket = Ticket(request=request)
        try:
            self._tickets.put_nowait(ticket)
        except queue.Full:
            raise Busy(f"{self._tickets.maxsize} requests wait already; ask again later") from None
        return ticket

    def abandon(self, ticket: Ticket) -> None:
        """Nobody waits for this answer any more; what it was given goes back."""
        with ticket.lock:
            ticket.abandoned = True
            given = ticket.future.done() and not ticket.future.cancelled()
        if given and ticket.future.exception() is None:
            self._take_back(ticket.future.result().matches)

    def _run(self) -> None:
        again: list[Ticket] = []
        while not (self._stopping.is_set() and self._tickets.empty() and not again):
            batch = again + self._next(wait=_PAUSE if again else _IDLE, most=_BATCH - len(again))
            again = self._serve([ticket for ticket in batch if _wanted(ticket)])
            self._release_undelivered()
        self._release_undelivered()

    def _next(self, *, wait: float, most: int) -> list[Ticket]:
        """All that have come in; if none has, the first that comes within `wait` seconds."""
        batch: list[Ticket] = []
        try:
            while len(batch) < most:
                ticket = self._tickets.get(timeout=wait) if not batch else self._tickets.get_nowait()
                if ticket is not None:
                    batch.append(ticket)
        except queue.Empty:
            pass
        return batch

    def _serve(self, batch: Sequence[Ticket]) -> list[Ticket]:
        """Answer the requests; those that have to look again are returned."""
        try:
            self._matcher.refresh()
            if not batch:
                return []
            looks = self._matcher.serve([ticket.request for ticket in batch])
        except database.UNAVAILABLE as error:
            self._refuse(batch, error)
            return []
        except Exception as error:  # noqa: BLE001 - whose fault it is shows when each is served alone
            if len(batch) == 1:
                self._refuse(batch, error)
                return []
            return [again for ticket in batch for again in self._serve([ticket])]
        again = self._deliver(batch, looks)
        self._settle(looks)
        return again

    def _deliver(self, batch: Sequence[Ticket], looks: Sequence[Look]) -> list[Ticket]:
        again = []
        for ticket, look in zip(batch, looks, strict=True):
            if look.in_other_hands and time.monotonic() < ticket.request.deadline:
                again.append(ticket)
                continue
            answer = matching.answer(ticket.request, look)
            with ticket.lock:
                undeliverable = ticket.abandoned or time.monotonic() > ticket.request.deadline
                ticket.future.set_result(MatchAnswer(reason="timeout") if undeliverable else answer)
            if undeliverable:
                self._take_back(answer.matches)
        return again

    def _settle(self, looks: Sequence[Look]) -> None:
        try:
            self._matcher.settle([look for look in looks if not look.in_other_hands])
        except database.UNAVAILABLE as error:
            log.warning("emptied task queues are still tried: %s", error)

    def _refuse(self, batch: Sequence[Ticket], error: Exception) -> None:
        for ticket in batch:
            with ticket.lock:
                ticket.future.set_exception(error)

    def _take_back(self, matches: Sequence[Claimed]) -> None:
        for each in matches:
            self._undelivered.put(each)

    def _release_undelivered(self) -> None:
        """Release what nobody was told of; if the database is away, its lease runs out instead."""
        while not self._undelivered.empty():
            claimed = self._undelivered.get()
            try:
                with database.writing(self._engine) as conn:
                    handover.release(
                        conn,
                        claimed.lease,
                        reason=UNDELIVERED,
                        max_rescheduling=0,
                        now=self._matcher.now(),
                    )
            except (StaleLease, LeaseNotFound, IllegalTransition):
                continue
            except database.UNAVAILABLE as error:
                log.warning("job %d stays with its lease until that ends: %s", claimed.job_id, error)


def _wanted(ticket: Ticket) -> bool:
    """Whether an answer would still find its pilot."""
    with ticket.lock:
        if not ticket.abandoned and time.monotonic() < ticket.request.deadline:
            return True
        ticket.future.set_result(MatchAnswer(reason="timeout"))
        return False

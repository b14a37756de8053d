"""What a matcher sees keep task queues from pilots: noted in memory, written down about once a minute.

A poll at a closed place stays a read. A process that dies loses what it noted in the last minute; that
time then counts as waiting for a pilot, as does what goes beyond the bound of the memory.

What a matcher passes by and why, told to `sightings` as requests are served.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from sqlalchemy import Engine

from matcher.claim.batch_claim import Results
from matcher.claim.claim_loop import ClaimRequest, ClaimResult
from matcher.claim.snapshot import Snapshot
from matcher.index.waiting import iterate_candidates
from matcher.limits.place_policy import LIMITS, PlacePolicy
from matcher.request.match_request import RETRY_AFTER
from matcher.request.resource import Resource
from taskqueue.db import database
from taskqueue.jobs import wait_times
from taskqueue.jobs.wait_times import CAUSE_ORDER, TURN_CAUSE, WaitCause
from taskqueue.leases.assignment import Location
from taskqueue.task_queues.task_queues import TaskQueue

#: How long one look counts: a pilot that waits asks again before this is over.
_COUNTS: Final = timedelta(seconds=1.5 * RETRY_AFTER)
#: Nothing new is learned from the same question so soon.
_AGAIN: Final = timedelta(seconds=10)
#: Between two times of writing.
_EVERY: Final = timedelta(seconds=60)
#: Times of hindrance in memory.
_MOST: Final = 20_000
#: Task queues that are noted at a turn, and at one for which nobody waits.
_PIECE: Final = 8
IDLE_PIECE: Final = 2_000
#: Times of hindrance that are written in one transaction.
_WRITTEN_AT_ONCE: Final = 500


class WaitCauseBuffer:
    """Of one process; used by the thread that serves its requests, and by no other."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, str], WaitCause] = {}
        self._over: list[WaitCause] = []
        self._asked: dict[Hashable, datetime] = {}
        self._first: datetime | None = None
        self._later: deque[tuple[str, Iterator[TaskQueue], datetime]] = deque()
        self._due: deque[WaitCause] = deque()
        self._writing = 0  # how many of those are being written

    def is_due(self, question: Hashable, now: datetime) -> bool:
        """Whether such a question is worth a note; asked again at once, it is not."""
        if self._later:
            return False
        last = self._asked.get(question)
        if last is not None and last <= now < last + _AGAIN:
            return False
        self._asked[question] = now
        return True

    def note(self, cause: str, task_queues: Iterable[TaskQueue], now: datetime) -> None:
        """These task queues were passed by; a cause that is not in `hindrances.ORDER` is not kept.

        Many of them are noted a few at a time, by `go_on`: others wait for their jobs meanwhile.
        """
        if cause not in CAUSE_ORDER:
            return
        if self._first is None:
            self._first = now  # since the last time of writing
        self._later.append((cause, iter(task_queues), now))
        self.go_on()

    def go_on(self, *, most: int = _PIECE) -> None:
        """Note some more of what was passed by."""
        while self._later and most > 0:
            cause, task_queues, at = self._later[0]
            some = list(islice(task_queues, most))
            for each in some:
                self._prolong(each.task_queue_id, cause, at)
            if len(some) < most:
                self._later.popleft()
            most -= len(some)

    def due(self, now: datetime, *, at_end: bool = False) -> Sequence[WaitCause]:
        """What is to be written down now, in pieces; `written` forgets it when that has been done."""
        if at_end or (self._first is not None and now - self._first >= _EVERY):
            self._due += (*self._over, *self._open.values())
            self._over.clear()
            self._open.clear()
            self._asked.clear()
            self._first = None
        self._writing = len(self._due) if at_end else min(len(self._due), _WRITTEN_AT_ONCE)
        return tuple(islice(self._due, self._writing))

    def written(self) -> None:
        """All that was due is in the database."""
        for _ in range(self._writing):
            self._due.popleft()
        self._writing = 0

    def _prolong(self, task_queue_id: int, cause: str, now: datetime) -> None:
        key = (task_queue_id, cause)
        before = self._open.get(key)
        if before is None and len(self._open) + len(self._over) >= _MOST:
            return
        since = now
        if before is not None:
            if before.since <= now <= before.until:
                since = before.since
            elif len(self._open) + len(self._over) < _MOST:
                self._over.append(before)
        self._open[key] = WaitCause(
            task_queue_id=task_queue_id, cause=cause, since=since, until=now + _COUNTS
        )


class WaitCauseRecorder:
    """Of one process; for the thread that serves its requests."""

    def __init__(self) -> None:
        self._sightings = WaitCauseBuffer()

    def note_kept_out(
        self, cause: str, task_queues: Sequence[TaskQueue], place: Location, resource: Resource, now: datetime
    ) -> None:
        """Task queues were kept from a pilot at a place."""
        if task_queues and self._sightings.is_due((cause, place, resource.vos), now):
            self._sightings.note(cause, iterate_candidates(task_queues), now)

    def are_due(self, place: Location, resource: Resource, now: datetime) -> bool:
        """Whether it is to be noted what a place has work for; not again if it was just now."""
        return self._sightings.is_due((place, resource.vos), now)

    def let_in(
        self, view: Snapshot, gate: PlacePolicy | None, candidates: Sequence[TaskQueue], place: Location
    ) -> Sequence[TaskQueue]:
        """Those that a place which is open has work for, the others noted."""
        if gate is None:
            return candidates
        fitting = gate.worth(view.conn, candidates, place)
        let_in = {each.task_queue_id for each in fitting}
        kept_out = [each for each in candidates if each.task_queue_id not in let_in]
        self._sightings.note(gate.refused or LIMITS, kept_out, view.now)
        return fitting

    def served(self, wishes: Sequence[ClaimRequest], claimed: Results, now: datetime) -> None:
        """Pilots that fit tried to take jobs."""
        for wish in wishes:
            look = claimed[id(wish.request)]
            if isinstance(look, ClaimResult) and wish.job_id is None and wish.fitting:
                cause = TURN_CAUSE if look.claimed else look.refused
                if cause is not None:
                    self._sightings.note(cause, iterate_candidates(wish.fitting), now)

    def go_on(self) -> None:
        """Note more of what was passed by, while nobody waits."""
        self._sightings.go_on(most=IDLE_PIECE)

    def write_down(self, engine: Engine, now: datetime, *, at_end: bool = False) -> None:
        """Write what kept jobs from pilots, about once a minute."""
        self._sightings.go_on()
        if seen := self._sightings.due(now, at_end=at_end):
            with database.writing(engine) as conn:
                wait_times.record_causes(conn, seen)
            self._sightings.written()

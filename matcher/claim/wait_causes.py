"""Causes that keep waiting task queues from pilots: recorded in memory, stored about once a minute.

So a poll at a closed place stays a read. A process that dies loses its last minute, which then counts as
waiting for a pilot, as does everything beyond the bound of the buffer.
"""

from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice
from threading import RLock
from typing import Final

from sqlalchemy import Engine

from matcher.claim.batch_claim import Results
from matcher.claim.claim_loop import ClaimRequest, ClaimResult
from matcher.claim.snapshot import Snapshot
from matcher.index.waiting import Candidates, iterate_candidates
from matcher.limits.place_policy import LIMITS, PlacePolicy
from matcher.request.match_request import RETRY_AFTER
from requirements.resource import Location, Resource
from taskqueue.db import database
from taskqueue.jobs import wait_times
from taskqueue.jobs.wait_times import CAUSE_ORDER, TURN_CAUSE, WaitCause
from taskqueue.task_queues.task_queues import TaskQueue

#: Validity of one record: a waiting pilot asks again before its end.
_COUNTS: Final = timedelta(seconds=1.5 * RETRY_AFTER)
#: Interval within which an equal question gives nothing new.
_AGAIN: Final = timedelta(seconds=10)
#: Interval between two writes.
_EVERY: Final = timedelta(seconds=60)
#: Wait causes in memory, and questions.
_MOST: Final = 20_000
#: Task queues recorded per call, and per call in idle times.
_PIECE: Final = 8
IDLE_PIECE: Final = 2_000
#: Wait causes written per transaction.
_WRITTEN_AT_ONCE: Final = 500


class WaitCauseRecorder:
    """Wait causes of one process, recorded as requests are served; `write_down` is for one thread only."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._open: dict[tuple[int, str], WaitCause] = {}
        self._over: list[WaitCause] = []
        self._recorded_at: dict[tuple[Hashable, bool], datetime] = {}  # by question, and whether it was left
        #: By cause: classes recorded since a time, which are not listed again for a while. Pilots of all
        #: places bring nearly the same thousands of classes.
        self._covered: dict[str, tuple[datetime, int]] = {}
        self._first: datetime | None = None
        self._later: deque[tuple[str, Iterator[TaskQueue], datetime]] = deque()
        self._due: deque[WaitCause] = deque()
        self._writing = 0  # how many of `_due` are being written

    def is_due(self, question: Hashable, now: datetime, *, is_left: bool = False) -> bool:
        """Whether a question is worth a record; not if it was asked a moment ago.

        `is_left`: the record is left to a later call, for which the question stays due.
        """
        with self._lock:
            if self._later:
                return False
            last = self._recorded_at.get((question, is_left))
            if last is not None and last <= now < last + _AGAIN:
                return False
            if len(self._recorded_at) >= _MOST:  # most questions have nothing to write
                self._recorded_at.clear()
            self._recorded_at[question, True] = now
            if not is_left:
                self._recorded_at[question, False] = now
            return True

    def note(self, cause: str, task_queues: Sequence[TaskQueue], now: datetime) -> None:
        """Record a cause for these task queues; a cause that is not in `CAUSE_ORDER` is ignored.

        Many task queues are recorded a few at a time, by `go_on`, so that requests need not wait.
        """
        if cause not in CAUSE_ORDER:
            return
        with self._lock:
            if self._first is None:
                self._first = now  # since the last write
            self._later.append((cause, self._iterate_uncovered(cause, task_queues, now), now))
            self.go_on()

    def _iterate_uncovered(
        self, cause: str, task_queues: Sequence[TaskQueue], now: datetime
    ) -> Iterator[TaskQueue]:
        """The task queues, without whole classes that were recorded a moment ago."""
        if not isinstance(task_queues, Candidates) or not task_queues.has_whole_classes:
            return iterate_candidates(task_queues)
        since, covered = self._covered.get(cause, (now, 0))
        if not since <= now < since + _AGAIN:
            since, covered = now, 0
        mask = task_queues.mask()
        self._covered[cause] = since, covered | mask
        return task_queues.iterate_in(mask & ~covered)

    def go_on(self, *, most: int = _PIECE) -> None:
        """Record some more of the pending task queues."""
        while self._later and most > 0:
            with self._lock:  # for a few at a time: the event loop takes it for each request
                most -= self._record_piece(min(most, _PIECE))

    def _record_piece(self, most: int) -> int:
        """Record at most so many of the pending task queues; their number."""
        if not self._later:
            return 0
        cause, task_queues, at = self._later[0]
        some = list(islice(task_queues, most))
        for each in some:
            self._prolong(each.task_queue_id, cause, at)
        if len(some) < most:
            self._later.popleft()
        return len(some)

    def due(self, now: datetime, *, at_end: bool = False) -> Sequence[WaitCause]:
        """Causes to write now, in pieces; `written` removes them afterwards."""
        with self._lock:
            if at_end or (self._first is not None and not timedelta() <= now - self._first < _EVERY):
                self._due += (*self._over, *self._open.values())
                self._over.clear()
                self._open.clear()
                self._recorded_at.clear()
                self._covered.clear()
                self._first = None
        self._writing = len(self._due) if at_end else min(len(self._due), _WRITTEN_AT_ONCE)
        return tuple(islice(self._due, self._writing))

    def written(self) -> None:
        """Remove the causes that `due` returned."""
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

    def note_kept_out(
        self, cause: str, task_queues: Sequence[TaskQueue], place: Location, resource: Resource, now: datetime
    ) -> None:
        """Record a cause for task queues at a place."""
        if task_queues and self.is_due((cause, place, resource.vos), now):
            self.note(cause, task_queues, now)

    def let_in(
        self, view: Snapshot, gate: PlacePolicy | None, candidates: Sequence[TaskQueue], place: Location
    ) -> Sequence[TaskQueue]:
        """The task queues that an open place admits; the others are recorded."""
        if gate is None or gate.admits_all:
            return candidates
        fitting = gate.list_passing(view.conn, candidates, place)
        let_in = {each.task_queue_id for each in fitting}
        kept_out = [each for each in candidates if each.task_queue_id not in let_in]
        self.note(gate.refused or LIMITS, kept_out, view.now)
        return fitting

    def served(self, prepared: Sequence[ClaimRequest], claimed: Results, now: datetime) -> None:
        """Record the outcome of claims."""
        for each in prepared:
            result = claimed[id(each.request)]
            if isinstance(result, ClaimResult) and each.job_id is None and each.fitting:
                cause = TURN_CAUSE if result.claimed else result.refused
                if cause is not None:
                    self.note(cause, each.fitting, now)

    def write_down(self, engine: Engine, now: datetime, *, at_end: bool = False) -> None:
        """Store wait causes, about once a minute."""
        self.go_on()
        if seen := self.due(now, at_end=at_end):
            with database.writing(engine) as conn:
                wait_times.record_causes(conn, seen)
            self.written()

"""Causes that keep waiting task queues from pilots: answers counted by place and cause, stored once a minute.

A claim records nothing. Outside of claims each process finds once a minute which task queues fit the places
that gave an answer, and stores its cause for that minute. While the database is unavailable, the first minute
is kept to be stored later. The others, the last minute of a process that dies or has no time left for it, and
everything beyond the bound of the memory count as waiting for a pilot.
"""

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from sqlalchemy import Engine

from matcher.claim.matcher import Matcher
from matcher.claim.prepare import NODE
from matcher.claim.snapshot import Snapshot
from matcher.index.place_pools import PlacePools
from matcher.index.waiting import Candidates, iterate_candidates
from matcher.limits.place_policy import BANNED, LIMITS
from matcher.pauses import no_pause
from matcher.request.match_request import MatchRequest, MatchResult
from requirements.errors import PilotageError
from requirements.resource import Resource
from taskqueue.db import database
from taskqueue.task_queues import wait_causes
from taskqueue.task_queues.task_queues import TaskQueue
from taskqueue.task_queues.wait_causes import CAUSE_ORDER, TURN_CAUSE, WaitCause

#: Seconds between two writes.
EVERY: Final = 60.0
#: Places and causes in memory; task queues and causes of one minute.
_MOST: Final = 20_000
#: Answers whose task queues are found in one transaction, and seconds after which it ends, with its pauses.
_FOUND_AT_ONCE: Final = 500
_FOUND_WITHIN: Final = 5.0
#: Wait causes written per transaction.
_WRITTEN_AT_ONCE: Final = 100

#: Place and VOs of a request, and the queue that its token is bound to.
_Place = tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Minute:
    """Requests with their causes, and the time in which they were answered."""

    since: datetime
    until: datetime
    answered: Sequence[tuple[str, MatchRequest]]


class WaitCauseRecorder:
    """Answers of one process by place and cause; `store` is for one thread at a time."""

    def __init__(self, engine: Engine, matcher: Matcher) -> None:
        self._engine = engine
        self._matcher = matcher
        self._since = matcher.now()  #: of the answers
        self._answered: dict[tuple[_Place, str], MatchRequest] = {}  #: the last request of each kind
        self._unstored: _Minute | None = None  #: the database was unavailable
        self._until = math.inf  #: when `store` leaves out the rest, monotonic clock

    def count(self, request: MatchRequest, answer: MatchResult) -> None:
        """Count an answer; a reason that is not in `CAUSE_ORDER` says nothing of jobs that fit."""
        cause = answer.reason or TURN_CAUSE
        if cause not in CAUSE_ORDER or request.presented.job_id is not None:
            return
        stated, caller = request.presented, request.caller
        named = stated.resource.vos
        # Of the VOs that it names only the caller's: with invented ones a pilot would fill the memory.
        vos = caller.vos if named is None else caller.vos & named
        place = stated.site, stated.ce, stated.queue, caller.queue, vos
        if len(self._answered) < _MOST or (place, cause) in self._answered:
            self._answered[place, cause] = request

    def store(self, pause: Callable[[], None] = no_pause) -> None:
        """Store the causes since the last time.

        Answers are tried again only after errors of the database: with one that we cannot work on, no others
        would be stored any more.
        """
        unstored, self._unstored = self._unstored, None
        for minute in filter(None, (unstored, self._take_minute())):
            try:
                self._store_minute(minute, pause)
            except database.UNAVAILABLE:
                self._unstored = minute
                raise

    def end(self, *, within: float) -> None:
        """Let `store` leave out what it has not done in so many seconds, a running one, too. Thread-safe.

        Thousands of places take a busy machine a minute.
        """
        self._until = time.monotonic() + within

    def _has_time(self) -> bool:
        return time.monotonic() < self._until

    def _take_minute(self) -> _Minute:
        now = self._matcher.now()
        since = self._since if self._since < now else now - timedelta(seconds=EVERY)  # the clock was set back
        self._since = now
        answered = dict(self._answered)
        for key, request in answered.items():
            if self._answered.get(key) is request:  # else the place gave the answer again meanwhile
                self._answered.pop(key, None)
        causes = [(cause, request) for (_, cause), request in answered.items()]
        return _Minute(since=since, until=now, answered=causes)

    def _store_minute(self, minute: _Minute, pause: Callable[[], None]) -> None:
        found: defaultdict[str, set[int]] = defaultdict(set)
        left = deque(minute.answered)
        while left and self._has_time():
            with self._matcher.current_view() as view:
                for cause, ids in find_causes(view, self._take_piece(left, pause)).items():
                    found[cause] |= ids
        self._write(found, minute.since, minute.until, pause)

    def _take_piece(
        self, left: deque[tuple[str, MatchRequest]], pause: Callable[[], None]
    ) -> Iterator[tuple[str, MatchRequest]]:
        until = time.monotonic() + _FOUND_WITHIN
        for _ in range(_FOUND_AT_ONCE):
            if not left or not self._has_time():
                return
            yield left.popleft()
            pause()
            if time.monotonic() >= until:
                return

    def _write(
        self, found: Mapping[str, set[int]], since: datetime, until: datetime, pause: Callable[[], None]
    ) -> None:
        causes = (
            WaitCause(task_queue_id=each, cause=cause, since=since, until=until)
            for cause in CAUSE_ORDER
            for each in sorted(found.get(cause, ()))
        )
        left = islice(causes, _MOST)
        while self._has_time() and (piece := list(islice(left, _WRITTEN_AT_ONCE))):
            with database.writing(self._engine) as conn:
                wait_causes.record_causes(conn, piece)
            pause()


def find_causes(view: Snapshot, answered: Iterable[tuple[str, MatchRequest]]) -> Mapping[str, set[int]]:
    """The task queues that each cause keeps from the pilots of some requests, each with its own answer."""
    found: defaultdict[str, _HeldTaskQueues] = defaultdict(_HeldTaskQueues)
    for cause, request in answered:
        try:
            # A closure keeps out what is too long until the next downtime as well.
            place = view.place if cause == BANNED else view.place_now
            served, resource = place(request.presented, request.caller)
        except PilotageError:  # the configuration has changed meanwhile
            continue
        if served is not None:
            for each, task_queues in _list_held(view, cause, served, resource, request.count):
                found[each].add(task_queues)
    return {cause: held.ids for cause, held in found.items()}


@dataclass(slots=True)
class _HeldTaskQueues:
    """Task queues that one cause holds back."""

    ids: set[int] = field(default_factory=set)
    #: Classes that were listed: pilots of all places bring nearly the same thousands of classes.
    classes: int = 0

    def add(self, task_queues: Sequence[TaskQueue]) -> None:
        """Add the task queues of one place."""
        if isinstance(task_queues, Candidates) and task_queues.has_whole_classes:
            mask = task_queues.mask()
            new = task_queues.iterate_in(mask & ~self.classes)
            self.classes |= mask
        else:
            new = iterate_candidates(task_queues)  # no request waits for a lock meanwhile
        self.ids.update(each.task_queue_id for each in new)


def _list_held(
    view: Snapshot, cause: str, served: PlacePools, resource: Resource, count: int
) -> Iterator[tuple[str, Sequence[TaskQueue]]]:
    """Task queues that fit a place which gave such an answer, by what keeps them waiting there."""
    if served.kept_back:
        others = iterate_candidates(view.candidates(served.kept_back, resource))
        yield NODE, [each for each in others if each.requirement_class.submit_pool in served.kept_back]
    if cause == NODE:
        return
    candidates, _ = view.admitted(served.place, resource, view.candidates(served.pools, resource))
    gate = view.gate(served.place, resource=resource, count=count) if cause == TURN_CAUSE else None
    if gate is None or gate.admits_all:
        yield cause, candidates
        return
    fitting = list(iterate_candidates(candidates))
    passing = gate.list_passing(view.conn, fitting, served.place)
    ids = {each.task_queue_id for each in passing}
    yield cause, passing
    yield gate.refused or LIMITS, [each for each in fitting if each.task_queue_id not in ids]

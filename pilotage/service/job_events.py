"""Changes of jobs over HTTP: pages behind a cursor, and server-sent events to a bounded number of streams.

All streams of a process share one reader of the log, which looks every half second while there are any: so
it needs no notifications, and any number of processes, on either database, show the same changes. A stream
ends after some minutes, and with the service; a client continues with its cursor, with its token checked
anew.
"""

import asyncio
import logging
import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Final

import anyio
from anyio import to_thread
from fastapi.responses import StreamingResponse
from sqlalchemy import Engine
from starlette.types import Receive, Scope, Send

from pilotage.service.auth import visibility
from pilotage.service.auth.callers import Caller
from pilotage.service.http_errors import CursorExpired, LogBusy, TooManyStreams
from pilotage.service.models.jobs import (
    ChangeCursor,
    ChangeLine,
    ChangePageAnswer,
    ChangeQuery,
    EventQuery,
    JobFilter,
)
from requirements.errors import InvalidRequest, Problem
from requirements.job_fields import FILTERED
from taskqueue.db import database
from taskqueue.jobs.log import ChangePage, JobChange, LogFeed
from taskqueue.jobs.search import JobSelector

_log = logging.getLogger(__name__)

#: Seconds between two looks at the log.
_EVERY: Final = 0.5
#: Longest time in seconds without a byte: proxies and clients take longer silence for a lost connection.
_KEEP_ALIVE: Final = 5.0
#: Rows of the log that are read at once, and changes that are kept in memory for the streams.
_ROWS: Final = 1000
_KEPT: Final = 10_000
#: Changes of one stream between two turns of the other requests of the process.
_TURN: Final = 200
#: Threads that read for streams that are behind memory, and for those that are being opened.
_READING: Final = 2
_OPENING: Final = 8
#: Rows of the log that one page may search.
PAGE_ROWS: Final = 10_000
#: Seconds to wait for the transactions that are under way when a client asks for a cursor of the present.
_PRESENT: Final = 3.0


class EventStream(StreamingResponse):
    """Server-sent events."""

    media_type = "text/event-stream"


#: No proxy may keep events back.
_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class _CountedStream(EventStream):
    """A stream that is counted until its end, or if it never begins, until nobody has it any more."""

    def __init__(self, events: AsyncIterator[str], uncount: Callable[[], None]) -> None:
        super().__init__(events, headers=_HEADERS)
        self._uncount = weakref.finalize(self, uncount)  # calls it once

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._uncount()


class JobEvents:
    """Streams of changes; their methods are for the event loop, those that read pages for threads."""

    def __init__(self, engine: Engine, *, most: int, most_of_caller: int, longest: float) -> None:
        """Allow so many streams at a time, and so many of one subject, of so many seconds each.

        A VO has no more streams than are left free, so that those of other VOs find room, too.
        """
        self._log = LogFeed(engine)
        self._most, self._most_of_caller = most, most_of_caller
        self.longest = longest
        self._streams: Counter[str] = Counter()  # by subject
        self._of_vos: Counter[str] = Counter()  # by VO, or by subject of callers that are not of one VO
        self._reading = anyio.CapacityLimiter(_READING)
        self._opening = anyio.CapacityLimiter(_OPENING)
        self._recent: Sequence[JobChange] = ()  # all from behind `_since` to `_upto`
        self._since: int | None = None  # None: the reader has not begun
        self._upto = 0
        self._changed = asyncio.Event()  # set, and replaced, at each change
        self._reader: asyncio.Task[None] | None = None
        self._is_closing = False

    def read_page(self, caller: Caller, query: ChangeQuery, *, now: datetime) -> ChangePageAnswer:
        """The changes behind the cursor of a query; without one none, but where they begin."""
        wanted = _select(caller, query, now)
        cursor = self.start_of(query.after)
        end = self._log.read_end()
        page = self._log.read_page(cursor.log_id, upto=end, most=PAGE_ROWS)
        met = [change for change in page.changes if wanted.includes(change)]
        is_cut = len(met) > query.limit
        upto = met[query.limit - 1].log_id if is_cut else page.upto
        return ChangePageAnswer(
            changes=[ChangeLine.from_change(change) for change in met[: query.limit]],
            next=str(ChangeCursor(cursor.incarnation, upto)),
            more=is_cut or page.more,
        )

    def start_of(self, after: str | None) -> ChangeCursor:
        """The cursor of a text, or of the present.

        Raises:
            CursorExpired: Log ids have another meaning now.
            LogBusy: Changes from before the present may still be added.
        """
        incarnation = self._log.read_incarnation()
        cursor = self._present(incarnation) if after is None else ChangeCursor.parse(after)
        if cursor.incarnation != incarnation:
            raise CursorExpired(
                f"the cursor {after} is from before a recovery of the database: "
                "get a new one without `after`, and list the jobs again"
            )
        return cursor

    def _present(self, incarnation: int) -> ChangeCursor:
        log_id = self._log.read_present(seconds=_PRESENT)
        if log_id is None:
            raise LogBusy("a long transaction is under way in the database, try again in some seconds")
        return ChangeCursor(incarnation, log_id)

    async def open_stream(
        self, caller: Caller, query: EventQuery, last_event_id: str | None, *, now: datetime
    ) -> EventStream:
        """A stream behind a cursor for so long; the id of each event is the cursor that continues behind it.

        `TooManyStreams` if the caller or its VO have too many.
        """
        vo = caller.tenant
        if self._streams[caller.subject] >= self._most_of_caller:
            raise TooManyStreams(f"you have {self._most_of_caller} streams of events open")
        if self._of_vos[vo] >= (free := self._most - self._streams.total()):
            raise TooManyStreams(
                f"{vo} has {self._of_vos[vo]} streams of events open, the {free} that are left are for others"
            )
        wanted = _select(caller, query, now)
        self._streams[caller.subject] += 1
        self._of_vos[vo] += 1
        uncount = partial(self._uncount, caller.subject, vo)
        try:
            begin = partial(self.start_of, last_event_id or query.after)
            start = await to_thread.run_sync(begin, limiter=self._opening)
        except BaseException:
            uncount()
            raise
        events = self._follow(wanted, start=start, seconds=min(query.seconds, self.longest))
        return _CountedStream(events, uncount)

    def _uncount(self, subject: str, vo: str) -> None:
        # May be called by the garbage collector, in any thread: it touches nothing but its own keys.
        for counter, name in ((self._streams, subject), (self._of_vos, vo)):
            counter[name] -= 1
            if not counter[name]:
                del counter[name]

    async def _follow(
        self, wanted: JobSelector, *, start: ChangeCursor, seconds: float
    ) -> AsyncIterator[str]:
        now = asyncio.get_running_loop().time
        after, until, sent = start.log_id, now() + seconds, now()
        reader = self._start_reader()
        yield f"retry: 1000\nid: {start}\n\n"
        while not (self._is_closing or reader.done()) and (left := until - now()) > 0:
            changed = self._changed
            page = await self._page(after)
            if page is None:
                return
            for begin in range(0, len(page.changes), _TURN):
                text = "".join(
                    f"id: {ChangeCursor(start.incarnation, change.log_id)}\nevent: job\n"
                    f"data: {ChangeLine.from_change(change).model_dump_json(by_alias=True)}\n\n"
                    for change in page.changes[begin : begin + _TURN]
                    if wanted.includes(change)
                )
                if text:
                    yield text
                    sent = now()
                await asyncio.sleep(0)
            if now() - sent >= _KEEP_ALIVE:
                yield f"id: {ChangeCursor(start.incarnation, page.upto)}\n\n"
                sent = now()
            if page.upto == after:
                quiet = max(0.0, sent + _KEEP_ALIVE - now())
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), min(left, quiet))
            after = page.upto

    def close(self) -> None:
        """End all streams, as the service does before it waits for running requests."""
        self._is_closing = True
        self._notify()

    async def _page(self, after: int) -> ChangePage | None:
        """The changes behind a log id, from memory if they are there; None: the database is unavailable."""
        if self._since is not None and after >= self._since:
            begin = bisect_right(self._recent, after, key=lambda change: change.log_id)
            changes, more = self._recent[begin : begin + _ROWS], len(self._recent) > begin + _ROWS
            upto = changes[-1].log_id if more else max(after, self._upto)
            return ChangePage(changes=changes, upto=upto, more=more)
        try:
            return await to_thread.run_sync(self._read_next, after, limiter=self._reading)
        except database.UNAVAILABLE:
            return None

    def _read_next(self, after: int) -> ChangePage:
        return self._log.read_page(after, upto=self._log.read_end(), most=_ROWS)

    def _start_reader(self) -> asyncio.Task[None]:
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read())
        return self._reader

    async def _read(self) -> None:
        """Keep the last changes in memory while there are streams."""
        self._recent, self._since = (), None
        try:
            self._since = self._upto = await asyncio.to_thread(self._log.read_end)
            while self._streams and not self._is_closing:
                page = await asyncio.to_thread(self._read_next, self._upto)
                if page.upto > self._upto:
                    changes = [*self._recent, *page.changes]
                    if len(changes) > _KEPT:
                        self._since = changes[-_KEPT - 1].log_id
                    self._recent, self._upto = changes[-_KEPT:], page.upto
                    self._notify()
                if not page.more:
                    await asyncio.sleep(_EVERY)
        except database.UNAVAILABLE as error:
            _log.warning("the database is unavailable, streams of changes end: %s", error)
        finally:
            self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _select(caller: Caller, query: JobFilter, now: datetime) -> JobSelector:
    for name in query.given:
        if FILTERED[name].is_of_attempt:
            message = f"a change is of the status of the job itself: leave {name} out"
            raise InvalidRequest([Problem(path=name, message=message)])
    return visibility.visible_jobs(caller, query, now=now)

"""Lease reports of pilots (start, heartbeat, finish): one transaction records all that arrived meanwhile.

There is no timer, so a single report is not delayed. If a batch fails, its reports are retried one by one, so
that one bad report fails alone.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Generic, TypeVar

import anyio
import anyio.to_thread
from sqlalchemy import Engine

from cs_config.options.operations import options_for
from cs_config.tree.configuration import Configuration
from cs_config.versions.live import LiveConfiguration
from matcher.errors import Busy
from taskqueue.db import database
from taskqueue.db.compiled_sql import AutocommitRunner
from taskqueue.leases import lifecycle_batch
from taskqueue.leases.lifecycle_batch import FinishReport, HeartbeatReport, ReportedJob, StartReport

#: Longest interval between heartbeats in seconds: a pilot learns with its heartbeat that its job was killed.
_HEARTBEAT = 20.0
#: Shortest interval in seconds, however short the configured times: limits the load on the service.
_SHORTEST = 0.1


def length(config: Configuration, vo: str) -> timedelta:
    """How long a heartbeat extends the lease of a running job."""
    leases = options_for(config, vo).leases
    return timedelta(seconds=max(leases.time, leases.stalled_time))


def heartbeat_every(config: Configuration, vo: str) -> float:
    """Seconds between heartbeats, such that a few may be lost before the job counts as stalled."""
    return max(_SHORTEST, min(_HEARTBEAT, options_for(config, vo).leases.stalled_time / 4))


#: Requests that may wait; further ones are rejected.
_MOST_WAITING = 4096
#: Requests in one batch.
_AT_ONCE = 256

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Batcher(Generic[Item, Answer]):
    """Collect requests and serve all that wait in one call; use it from one event loop only."""

    def __init__(self, serve: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]]) -> None:
        self._serve = serve
        self._waiting: deque[tuple[Item, asyncio.Future[Answer]]] = deque()
        self._worker: asyncio.Task[None] | None = None

    async def answer(self, item: Item) -> Answer:
        """Wait for the answer to one item; `Busy` if too many requests wait."""
        if len(self._waiting) >= _MOST_WAITING:
            raise Busy(f"{_MOST_WAITING} requests wait already; try again later")
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._worker is None:
            self._worker = asyncio.create_task(self._serve_all())
        return await future

    async def _serve_all(self) -> None:
        try:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(_AT_ONCE, len(self._waiting)))]
                await self._serve_batch([each for each in batch if not each[1].done()])
        finally:
            self._worker = None

    async def _serve_batch(self, batch: Sequence[tuple[Item, "asyncio.Future[Answer]"]]) -> None:
        try:
            answers = await self._serve([item for item, _ in batch])
        except Exception as error:  # noqa: BLE001  (raised again in the waiting requests)
            if len(batch) == 1 or database.is_unavailable(error):
                _refuse(batch, error)
                return
            for each in batch:
                await self._serve_batch([each])
        else:
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)


def run_in_thread(serve: Callable[[Sequence[Item]], Sequence[Answer]]) -> Batcher[Item, Answer]:
    """Batch requests that are served in a thread of their own, independent of other requests."""
    limiter = anyio.CapacityLimiter(1)

    async def serve_in_thread(items: Sequence[Item]) -> Sequence[Answer]:
        return await anyio.to_thread.run_sync(serve, items, limiter=limiter)

    return Batcher(serve_in_thread)


def _refuse(batch: Sequence[tuple[Item, "asyncio.Future[Answer]"]], error: Exception) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(error)


class LeaseReports:
    """Record plain lease reports in batches; one instance per process.

    Each kind has its own thread, so that slow starts or finishes do not delay heartbeats. All methods raise
    `Busy` if too many reports wait.
    """

    def __init__(self, engine: Engine, live: LiveConfiguration, clock: Callable[[], datetime]) -> None:
        self._engine = engine
        self._live = live
        self._clock = clock
        self._starting = AutocommitRunner(engine)
        self._beating = AutocommitRunner(engine)
        self._finishing = AutocommitRunner(engine)
        self._starts = run_in_thread(self._start)
        self._heartbeats = run_in_thread(self._beat)
        self._finishes = run_in_thread(self._finish)
        #: On SQLite batching gains nothing: statements are local calls, and there is one writer.
        self._is_batched = engine.dialect.name == "postgresql"

    async def start(self, report: StartReport) -> ReportedJob | None:
        """The job, now running; None: not a plain start, nothing was changed."""
        return await self._starts.answer(report) if self._is_batched else None

    async def heartbeat(self, report: HeartbeatReport) -> str | None:
        """The VO of a recorded heartbeat; None: not a plain heartbeat, nothing was changed."""
        return await self._heartbeats.answer(report)

    async def finish(self, report: FinishReport) -> ReportedJob | None:
        """The job, now ended; None: not a plain finish, nothing was changed."""
        return await self._finishes.answer(report) if self._is_batched else None

    def _start(self, reports: Sequence[StartReport]) -> Sequence[ReportedJob | None]:
        config = self._live.current
        return lifecycle_batch.start_jobs(
            self._starting, reports, vos=config.vos, lease_time=partial(length, config), now=self._clock()
        )

    def _finish(self, reports: Sequence[FinishReport]) -> Sequence[ReportedJob | None]:
        return lifecycle_batch.finish_jobs(self._finishing, reports, now=self._clock())

    def _beat(self, beats: Sequence[HeartbeatReport]) -> Sequence[str | None]:
        config, now = self._live.current, self._clock()
        last = {each.lease: each for each in beats}  # earlier heartbeats of the same lease are not plain
        recorded = self._record(list(last.values()), config, now)
        return [recorded.get(each.lease) if last[each.lease] is each else None for each in beats]

    def _record(
        self, beats: Sequence[HeartbeatReport], config: Configuration, now: datetime
    ) -> Mapping[str, str]:
        lease_time = partial(length, config)
        if self._is_batched:
            return lifecycle_batch.record_heartbeats(
                self._beating, beats, vos=config.vos, lease_time=lease_time, now=now
            )
        with database.writing(self._engine) as conn:
            return lifecycle_batch.record_heartbeats_sqlite(conn, beats, lease_time=lease_time, now=now)

"""For how long a lease is good, and how often its pilot has to say that it lives.

Requests that share a turn: whoever waits when the one before is over goes along.

No timer: who comes alone does not wait for company. What breaks a turn of several is found by serving each
alone, and fails alone.

What pilots report while one transaction is under way shares the next one, as far as it is plain.
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

#: Seconds between heartbeats at most: so soon a pilot learns that its job was killed.
_HEARTBEAT = 20.0
#: Seconds between them at least, however short the configured times: the service has to hear them all.
_SHORTEST = 0.1


def length(config: Configuration, vo: str) -> timedelta:
    """For how long a sign of life from a running job is good."""
    leases = options_for(config, vo).leases
    return timedelta(seconds=max(leases.time, leases.stalled_time))


def heartbeat_every(config: Configuration, vo: str) -> float:
    """Seconds between heartbeats: some may get lost before the job counts as stalled."""
    return max(_SHORTEST, min(_HEARTBEAT, options_for(config, vo).leases.stalled_time / 4))


#: Requests that may wait; more are sent away.
_MOST_WAITING = 4096
#: Requests in one turn.
_AT_ONCE = 256

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class Batcher(Generic[Asked, Answer]):
    """Belongs to the event loop in which it is asked.

    Args:
        serve: Answers some at once.
    """

    def __init__(self, serve: Callable[[Sequence[Asked]], Awaitable[Sequence[Answer]]]) -> None:
        self._serve = serve
        self._waiting: deque[tuple[Asked, asyncio.Future[Answer]]] = deque()
        self._turns: asyncio.Task[None] | None = None

    async def answer(self, asked: Asked) -> Answer:
        """The answer to one of them.

        Raises:
            Busy: Too many wait.
        """
        if len(self._waiting) >= _MOST_WAITING:
            raise Busy(f"{_MOST_WAITING} requests wait already; ask again later")
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, future))
        if self._turns is None:
            self._turns = asyncio.create_task(self._serve_all())
        return await future

    async def _serve_all(self) -> None:
        try:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(_AT_ONCE, len(self._waiting)))]
                await self._turn([each for each in batch if not each[1].done()])
        finally:
            self._turns = None

    async def _turn(self, batch: Sequence[tuple[Asked, "asyncio.Future[Answer]"]]) -> None:
        try:
            answers = await self._serve([asked for asked, _ in batch])
        except Exception as error:  # noqa: BLE001  (it goes to whoever asked)
            if len(batch) == 1 or database.is_unavailable(error):
                _refuse(batch, error)
                return
            for each in batch:
                await self._turn([each])
        else:
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)


def run_in_thread(serve: Callable[[Sequence[Asked]], Sequence[Answer]]) -> Batcher[Asked, Answer]:
    """Those that are served in a thread of their own, so that they wait for no others."""
    turn = anyio.CapacityLimiter(1)

    async def served(some: Sequence[Asked]) -> Sequence[Answer]:
        return await anyio.to_thread.run_sync(serve, some, limiter=turn)

    return Batcher(served)


def _refuse(batch: Sequence[tuple[Asked, "asyncio.Future[Answer]"]], error: Exception) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(error)


class LeaseReports:
    """Notes those that are plain; of one process.

    Each kind has a thread of its own: other requests that are held up hold up nobody's sign of life.
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
        #: On SQLite a statement is no way to anywhere, and there is one that writes.
        self._together = engine.dialect.name == "postgresql"

    async def start(self, said: StartReport) -> ReportedJob | None:
        """The job that runs now; None: it is no plain start, and nothing was changed.

        Raises:
            Busy: Too many wait.
        """
        return await self._starts.answer(said) if self._together else None

    async def heartbeat(self, said: HeartbeatReport) -> str | None:
        """The VO of a heartbeat that was noted; None: it is no plain one, and nothing was changed.

        Raises:
            Busy: Too many wait.
        """
        return await self._heartbeats.answer(said)

    async def finish(self, said: FinishReport) -> ReportedJob | None:
        """The job that has ended; None: it is no plain finish, and nothing was changed.

        Raises:
            Busy: Too many wait.
        """
        return await self._finishes.answer(said) if self._together else None

    def _start(self, said: Sequence[StartReport]) -> Sequence[ReportedJob | None]:
        config = self._live.current
        return lifecycle_batch.start_jobs(
            self._starting,
            said,
            vos=config.vos,
            lease_time=partial(length, config),
            now=self._clock(),
        )

    def _finish(self, said: Sequence[FinishReport]) -> Sequence[ReportedJob | None]:
        return lifecycle_batch.finish_jobs(self._finishing, said, now=self._clock())

    def _beat(self, beats: Sequence[HeartbeatReport]) -> Sequence[str | None]:
        config, now = self._live.current, self._clock()
        last = {each.lease: each for each in beats}  # what else is said of one of them is no plain heartbeat
        noted = self._note(list(last.values()), config, now)
        return [noted.get(each.lease) if last[each.lease] is each else None for each in beats]

    def _note(
        self, beats: Sequence[HeartbeatReport], config: Configuration, now: datetime
    ) -> Mapping[str, str]:
        lease_time = partial(length, config)
        if self._together:
            return lifecycle_batch.record_heartbeats(
                self._beating, beats, vos=config.vos, lease_time=lease_time, now=now
            )
        with database.writing(self._engine) as conn:
            return lifecycle_batch.record_heartbeats_sqlite(conn, beats, lease_time=lease_time, now=now)

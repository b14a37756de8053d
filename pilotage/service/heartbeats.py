"""Heartbeats that have come in while one transaction was under way share the next one."""

from collections.abc import Callable, Sequence
from datetime import datetime

import anyio
import anyio.to_thread
from sqlalchemy import Engine

from cs_config.live import LiveConfiguration
from pilotage.service import lease_times
from pilotage.service.gathering import Gathering
from taskqueue import database, heartbeats
from taskqueue.heartbeats import Beat


class Heartbeats:
    """Notes those that are plain; of one process."""

    def __init__(self, engine: Engine, live: LiveConfiguration, clock: Callable[[], datetime]) -> None:
        self._engine = engine
        self._live = live
        self._clock = clock
        self._gathering: Gathering[Beat, str | None] = Gathering(self._serve)
        #: A thread of its own: other requests that are held up hold up nobody's sign of life.
        self._turn = anyio.CapacityLimiter(1)

    async def note(self, beat: Beat) -> str | None:
        """The VO of a heartbeat that was noted; None: it is no plain one, and nothing was changed.

        Raises:
            Busy: Too many wait.
        """
        return await self._gathering.answer(beat)

    async def _serve(self, beats: Sequence[Beat]) -> Sequence[str | None]:
        return await anyio.to_thread.run_sync(self._note, beats, limiter=self._turn)

    def _note(self, beats: Sequence[Beat]) -> Sequence[str | None]:
        config = self._live.current
        last = {each.lease: each for each in beats}  # what else is said of one of them is no plain heartbeat
        with database.writing(self._engine) as conn:
            noted = heartbeats.beat(
                conn,
                list(last.values()),
                lease_time=lambda vo: lease_times.length(config, vo),
                now=self._clock(),
            )
        return [noted.get(each.lease) if last[each.lease] is each else None for each in beats]

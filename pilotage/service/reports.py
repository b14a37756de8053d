"""What pilots report while one transaction is under way shares the next one, as far as it is plain."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial

from sqlalchemy import Engine

from cs_config.configuration import Configuration
from cs_config.live import LiveConfiguration
from pilotage.service import gathering, lease_times
from taskqueue import database, heartbeats, plain_reports
from taskqueue.heartbeats import Beat
from taskqueue.plain_reports import Finished, Moved, Started
from taskqueue.single_statements import SingleStatements


class Reports:
    """Notes those that are plain; of one process.

    Each kind has a thread of its own: other requests that are held up hold up nobody's sign of life.
    """

    def __init__(self, engine: Engine, live: LiveConfiguration, clock: Callable[[], datetime]) -> None:
        self._engine = engine
        self._live = live
        self._clock = clock
        self._starting = SingleStatements(engine)
        self._beating = SingleStatements(engine)
        self._finishing = SingleStatements(engine)
        self._starts = gathering.in_a_thread(self._start)
        self._heartbeats = gathering.in_a_thread(self._beat)
        self._finishes = gathering.in_a_thread(self._finish)
        #: On SQLite a statement is no way to anywhere, and there is one that writes.
        self._together = engine.dialect.name == "postgresql"

    async def start(self, said: Started) -> Moved | None:
        """The job that runs now; None: it is no plain start, and nothing was changed.

        Raises:
            Busy: Too many wait.
        """
        return await self._starts.answer(said) if self._together else None

    async def heartbeat(self, said: Beat) -> str | None:
        """The VO of a heartbeat that was noted; None: it is no plain one, and nothing was changed.

        Raises:
            Busy: Too many wait.
        """
        return await self._heartbeats.answer(said)

    async def finish(self, said: Finished) -> Moved | None:
        """The job that has ended; None: it is no plain finish, and nothing was changed.

        Raises:
            Busy: Too many wait.
        """
        return await self._finishes.answer(said) if self._together else None

    def _start(self, said: Sequence[Started]) -> Sequence[Moved | None]:
        config = self._live.current
        return plain_reports.start(
            self._starting,
            said,
            vos=config.vos,
            lease_time=partial(lease_times.length, config),
            now=self._clock(),
        )

    def _finish(self, said: Sequence[Finished]) -> Sequence[Moved | None]:
        return plain_reports.finish(self._finishing, said, now=self._clock())

    def _beat(self, beats: Sequence[Beat]) -> Sequence[str | None]:
        config, now = self._live.current, self._clock()
        last = {each.lease: each for each in beats}  # what else is said of one of them is no plain heartbeat
        noted = self._noted(list(last.values()), config, now)
        return [noted.get(each.lease) if last[each.lease] is each else None for each in beats]

    def _noted(self, beats: Sequence[Beat], config: Configuration, now: datetime) -> Mapping[str, str]:
        lease_time = partial(lease_times.length, config)
        if self._together:
            return heartbeats.beat(self._beating, beats, vos=config.vos, lease_time=lease_time, now=now)
        with database.writing(self._engine) as conn:
            return heartbeats.beat_each(conn, beats, lease_time=lease_time, now=now)

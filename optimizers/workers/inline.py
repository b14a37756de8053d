"""The optimizers without Redis: a thread of the service does what a worker would."""

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from threading import Thread

from sqlalchemy import Engine

from cs_config.tree.configuration import Configuration
from optimizers.chain import batch
from optimizers.chain.batch import MOST_AT_ONCE, Observer
from taskqueue.db import database

log = logging.getLogger(__name__)


class InlineOptimizer:
    """Takes the jobs that are rung for, in batches. What it misses the sweep finds."""

    def __init__(
        self,
        engine: Engine,
        current: Callable[[], Configuration],
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        observe: Observer | None = None,
    ) -> None:
        self._engine = engine
        self._current = current
        self._clock = clock
        self._observe = observe
        self._rung: SimpleQueue[Sequence[int] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="optimizers", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def ring(self, job_ids: Sequence[int]) -> None:
        """Ask for these jobs to be looked at; returns at once."""
        if job_ids:
            self._rung.put(tuple(job_ids))

    def stop(self, timeout: float = 30.0) -> None:
        """End after the batch at hand; what is left stays due."""
        self._rung.put(None)
        self._thread.join(timeout)

    @property
    def alive(self) -> bool:
        """Whether somebody listens."""
        return self._thread.is_alive()

    def _run(self) -> None:
        while (job_ids := self._next()) is not None:
            self._optimize(job_ids)

    def _next(self) -> list[int] | None:
        """All that was rung for by now, up to a batch; None: end."""
        first = self._rung.get()
        if first is None:
            return None
        job_ids = list(first)
        while len(job_ids) < MOST_AT_ONCE:
            try:
                more = self._rung.get_nowait()
            except Empty:
                break
            if more is None:
                self._rung.put(None)
                break
            job_ids += more
        return job_ids

    def _optimize(self, job_ids: Sequence[int]) -> None:
        try:
            batch.optimize(self._engine, self._current(), job_ids, now=self._clock(), observe=self._observe)
        except database.UNAVAILABLE as error:
            log.warning("the database is away, %d jobs wait for the sweep: %s", len(job_ids), error)
        except Exception:
            log.exception("the optimizers broke, %d jobs wait for the sweep", len(job_ids))

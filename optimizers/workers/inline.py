"""Optimizers in a thread of the service, without Redis."""

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from threading import Thread

from sqlalchemy import Engine

from cs_config.tree.configuration import Configuration
from optimizers.chain import batch
from optimizers.chain.batch import MOST_AT_ONCE, Observer
from requirements.errors import format_count
from taskqueue.db import database

log = logging.getLogger(__name__)


class InlineOptimizer:
    """Processes notified jobs in batches. Missed jobs are found by the sweep."""

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
        self._pending: SimpleQueue[Sequence[int] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="optimizers", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def notify(self, job_ids: Sequence[int]) -> None:
        """Queue these jobs; returns at once."""
        if job_ids:
            self._pending.put(tuple(job_ids))

    def stop(self) -> None:
        """Stop after the current batch; the remaining jobs stay due."""
        self._pending.put(None)
        self._thread.join(30.0)

    @property
    def alive(self) -> bool:
        """Whether the thread is running."""
        return self._thread.is_alive()

    def _run(self) -> None:
        while (job_ids := self._next()) is not None:
            self._optimize(job_ids)

    def _next(self) -> list[int] | None:
        """Wait for jobs and return up to a batch of them; None: stop."""
        first = self._pending.get()
        if first is None:
            return None
        job_ids = list(first)
        while len(job_ids) < MOST_AT_ONCE:
            try:
                more = self._pending.get_nowait()
            except Empty:
                break
            if more is None:
                self._pending.put(None)
                break
            job_ids += more
        return job_ids

    def _optimize(self, job_ids: Sequence[int]) -> None:
        try:
            batch.optimize(self._engine, self._current(), job_ids, now=self._clock(), observe=self._observe)
        except database.UNAVAILABLE as error:
            jobs = format_count(len(job_ids), "job waits", "jobs wait")
            log.warning("the database is unavailable, %s for the sweep: %s", jobs, error)
        except Exception:
            jobs = format_count(len(job_ids), "job waits", "jobs wait")
            log.exception("the optimizers failed, %s for the sweep", jobs)

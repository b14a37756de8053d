"""What RQ runs. Its arguments are job ids alone: where the database is the worker knows.

Telling the workers that there are new jobs: an RQ job for each batch, rung after the commit.

Redis holds nothing but this: a bell that nobody hears costs a few seconds, until the sweep looks.

The RQ worker that runs the optimizers.

RQ guarantees neither that a job runs nor that it runs once; the database decides. A worker that lost
Redis while it was busy gives up, so this starts another one in its place. A job that ends the process is
found out by the sweep; whatever started the process starts the next one.
"""

import logging
import signal
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from threading import Event
from types import FrameType
from typing import Final

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry
from rq import Queue, SimpleWorker
from rq import Retry as RunAgain
from rq.serializers import JSONSerializer
from sqlalchemy import Engine

from cs_config.versions.live import LiveConfiguration
from optimizers.chain import batch, chain
from optimizers.chain.batch import MOST_AT_ONCE
from taskqueue.db import database
from taskqueue.db.notify import make_publisher
from taskqueue.db.notify_redis import RedisTransport

log = logging.getLogger(__name__)


class WorkerContext:
    """A worker's database and configuration."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.live = LiveConfiguration()

    def refresh(self) -> None:
        """Take a newer version of the configuration, if there is one.

        Raises:
            OperationalError: The database is away.
        """
        with database.reading(self.engine) as conn:
            self.live.refresh(conn)


_open: list[WorkerContext] = []


def open_worker_context(database_url: str) -> WorkerContext:
    """Say where `optimize_jobs` of this process finds the database."""
    workshop = WorkerContext(database.connect(database_url, pool_size=2))
    _open[:] = [workshop]
    return workshop


def optimize_jobs(job_ids: list[int]) -> None:
    """Lead jobs through the optimizers; called by RQ, perhaps twice, perhaps never.

    Raises:
        OperationalError: The database is away; RQ tries again, and after that the sweep.
    """
    if not _open:
        raise RuntimeError("optimize_jobs runs in a worker that `pilotage worker` started")
    workshop = _open[0]
    workshop.refresh()
    result = batch.optimize(workshop.engine, workshop.live.current, job_ids, now=datetime.now(UTC))
    log.info(
        "optimized %d jobs: %d waiting, %d held, %d failed, %d left",
        len(job_ids), len(result.waiting), len(result.held), len(result.failed), len(result.left),
    )  # fmt: skip


#: RQ's queue; its Redis keys are `rq:queue:pilotage-optimizers` and `rq:job:<id>`, one for each batch of
#: job ids that nobody has taken yet.
QUEUE: Final = "pilotage-optimizers"
#: Seconds that a submission may lose because Redis does not answer.
_PATIENCE: Final = 1.0
#: Seconds without a try after that.
_RETRY_PAUSE: Final = 5.0
#: Seconds after which a batch is ended: a step hangs.
_LONGEST: Final = 300


class RQNotifier:
    """Rings through Redis; safe in several threads."""

    def __init__(self, redis_url: str) -> None:
        redis = Redis.from_url(
            redis_url,
            socket_timeout=_PATIENCE,
            socket_connect_timeout=_PATIENCE,
            retry=Retry(NoBackoff(), 0),
        )
        self._queue = Queue(QUEUE, connection=redis, serializer=JSONSerializer)
        self._away_until = 0.0

    def ring(self, job_ids: Sequence[int]) -> None:
        """Ask for these jobs to be looked at. Redis away is no error: the sweep finds them."""
        if not job_ids or time.monotonic() < self._away_until:
            return
        try:
            for start in range(0, len(job_ids), MOST_AT_ONCE):
                self._enqueue(list(job_ids[start : start + MOST_AT_ONCE]))
        except RedisError as error:
            self._away_until = time.monotonic() + _RETRY_PAUSE
            log.warning("Redis is away, %d jobs wait for the sweep: %s", len(job_ids), error)

    def _enqueue(self, job_ids: list[int]) -> None:
        self._queue.enqueue(
            optimize_jobs,
            job_ids,
            description=f"{len(job_ids)} jobs from {job_ids[0]}",
            job_timeout=_LONGEST,
            result_ttl=0,
            failure_ttl=3600,
            retry=RunAgain(max=2),
        )


#: Seconds; low, so that what a killed worker held is soon taken for lost.
_WORKER_TTL: Final = 30
_MONITORING: Final = 5
_MAINTENANCE: Final = 30
#: Seconds between a worker that lost Redis and the next one.
_RECONNECT_PAUSE: Final = 2.0


class _OptimizerWorker(SimpleWorker):
    """Works without a fork for each batch: what one batch has found out helps the next."""

    stopping: Event
    max_connection_wait_time = 5  # seconds between tries to reach Redis

    def request_stop(self, signum: int, frame: FrameType | None) -> None:
        self.stopping.set()
        super().request_stop(signum, frame)  # type: ignore[no-untyped-call]


def run_worker(database_url: str, redis_url: str, *, burst: bool = False) -> None:
    """Work until SIGTERM or SIGINT; to be called in the main thread of a process.

    Args:
        database_url: Where the jobs are.
        redis_url: Where the bell rings.
        burst: End when nothing is left to do.
    """
    workshop = open_worker_context(database_url)
    database.set_notifier(workshop.engine, make_publisher(RedisTransport(redis_url)))
    chain.installed_steps()
    stopping = Event()
    while not stopping.is_set():
        _handle_signals(stopping)
        try:
            _work(redis_url, stopping, burst=burst)
        except RedisError as error:
            log.warning("Redis is away: %s", error)
            if burst:
                raise
        if burst:
            return
        _handle_signals(stopping)
        stopping.wait(_RECONNECT_PAUSE)


def _work(redis_url: str, stopping: Event, *, burst: bool) -> None:
    with Redis.from_url(redis_url) as connection:
        worker = _OptimizerWorker(
            [QUEUE],
            connection=connection,
            serializer=JSONSerializer,
            worker_ttl=_WORKER_TTL,
            job_monitoring_interval=_MONITORING,
            maintenance_interval=_MAINTENANCE,
        )
        worker.stopping = stopping
        worker.work(burst=burst, logging_level=None)


def _handle_signals(stopping: Event) -> None:
    """Our own ear for signals, while no worker of RQ has one."""
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda _number, _frame: stopping.set())

"""The RQ worker that runs the optimizers.

RQ guarantees neither that a job runs nor that it runs once; the database decides. A worker that lost
Redis while it was busy gives up, so this starts another one in its place. A job that ends the process is
found out by the sweep; whatever started the process starts the next one.
"""

import logging
import signal
from threading import Event
from types import FrameType
from typing import Final

from redis import Redis
from redis.exceptions import RedisError
from rq import SimpleWorker
from rq.serializers import JSONSerializer

from optimizers import plugins, rq_tasks
from optimizers.doorbell import QUEUE
from taskqueue import database
from taskqueue.bells.bell import quietly
from taskqueue.bells.redis_wire import RedisWire

log = logging.getLogger(__name__)

#: Seconds; low, so that what a killed worker held is soon taken for lost.
_WORKER_TTL: Final = 30
_MONITORING: Final = 5
_MAINTENANCE: Final = 30
#: Seconds between a worker that lost Redis and the next one.
_PAUSE: Final = 2.0


class _OptimizerWorker(SimpleWorker):
    """Works without a fork for each batch: what one batch has found out helps the next."""

    stopping: Event
    max_connection_wait_time = 5  # seconds between tries to reach Redis

    def request_stop(self, signum: int, frame: FrameType | None) -> None:
        self.stopping.set()
        super().request_stop(signum, frame)  # type: ignore[no-untyped-call]


def run(database_url: str, redis_url: str, *, burst: bool = False) -> None:
    """Work until SIGTERM or SIGINT; to be called in the main thread of a process.

    Args:
        database_url: Where the jobs are.
        redis_url: Where the bell rings.
        burst: End when nothing is left to do.
    """
    workshop = rq_tasks.open_workshop(database_url)
    database.ring_with(workshop.engine, quietly(RedisWire(redis_url)))
    plugins.installed()
    stopping = Event()
    while not stopping.is_set():
        _listen(stopping)
        try:
            _work(redis_url, stopping, burst=burst)
        except RedisError as error:
            log.warning("Redis is away: %s", error)
            if burst:
                raise
        if burst:
            return
        _listen(stopping)
        stopping.wait(_PAUSE)


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


def _listen(stopping: Event) -> None:
    """Our own ear for signals, while no worker of RQ has one."""
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda _number, _frame: stopping.set())

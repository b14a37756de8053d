"""Optimizers in RQ workers: the notifier, the function that RQ runs, and the worker process.

The notifier enqueues an RQ job for each batch after the commit. Its arguments are job ids only; the worker
has its own database connection. Redis holds nothing else: a lost notification costs a few seconds, until the
sweep finds the jobs.

RQ guarantees neither that a job runs nor that it runs once; the database decides. A worker that lost Redis
while it was busy stops, so another one is started in its place. A job that crashes the process is isolated by
the sweep; the supervisor of the process restarts it.
"""

import logging
import os
import secrets
import signal
import socket
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from threading import Event
from types import FrameType
from typing import Any, Final, cast

from redis import Redis
from redis.exceptions import RedisError
from rq import Queue, SimpleWorker, Worker
from rq import Retry as RunAgain
from rq.exceptions import DeserializationError
from rq.job import Job
from rq.serializers import JSONSerializer
from sqlalchemy import Engine

from cs_config.versions.store import LiveConfiguration
from optimizers.chain import batch, chain
from optimizers.chain.batch import MOST_AT_ONCE
from requirements.errors import format_count
from taskqueue.db import clock, database, redis_servers
from taskqueue.db.notify import RedisTransport, make_publisher
from taskqueue.jobs.optimizer_queue import OptimizerQueueState

log = logging.getLogger(__name__)


class WorkerContext:
    """Database, configuration and Redis of a worker; without Redis, outcomes are not counted."""

    def __init__(self, engine: Engine, redis: Redis | None = None) -> None:
        self.engine = engine
        self.redis = redis
        self.live = LiveConfiguration()

    def refresh(self) -> None:
        """Load a newer version of the configuration, if there is one."""
        with database.reading(self.engine) as conn:
            self.live.refresh(conn)


_contexts: list[WorkerContext] = []


def connect_worker(database_url: str, redis_url: str | None = None) -> WorkerContext:
    """Connect `optimize_jobs` of this process to the database, and to Redis for its counters."""
    redis = None if redis_url is None else redis_servers.connect(redis_url, timeout=_TIMEOUT)
    context = WorkerContext(database.connect(database_url, pool_size=2), redis)
    _contexts[:] = [context]
    return context


def optimize_jobs(job_ids: list[int]) -> None:
    """Run the optimizers for jobs; called by RQ, perhaps twice, perhaps never.

    While the database is unavailable they wait for the sweep, as in `workers.inline`.
    """
    if not _contexts:
        raise RuntimeError("optimize_jobs runs in a worker that `pilotage worker` started")
    context = _contexts[0]
    try:
        context.refresh()
        with database.reading(context.engine) as conn:
            now = clock.read_time(conn, clock.utc_now())
        result = batch.optimize(context.engine, context.live.current, job_ids, now=now)
    except database.UNAVAILABLE as error:
        jobs = format_count(len(job_ids), "job waits", "jobs wait")
        log.warning("the database is unavailable, %s for the sweep: %s", jobs, error)
        return
    log.info(
        "optimized %s: %d waiting, %d held, %d failed, %d left",
        format_count(len(job_ids), "job"),
        *map(len, (result.waiting, result.held, result.failed, result.left)),
    )
    if context.redis is not None:
        _count_outcomes(context.redis, result.outcomes)


def _count_outcomes(redis: Redis, outcomes: Mapping[tuple[str, str], int]) -> None:
    """Add to the counters of all workers; those of a batch are lost while Redis is unavailable."""
    try:
        with redis.pipeline() as pipeline:
            for names, number in outcomes.items():
                pipeline.hincrby(OUTCOMES, " ".join(names), number)
            pipeline.execute()
    except RedisError as error:
        log.warning("Redis is unavailable, the outcomes of a batch are not counted: %s", error)


#: Redis hash with the outcomes of the steps of all workers: `<step> <outcome>` to their number.
OUTCOMES: Final = "pilotage:optimizer-outcomes"
#: RQ's queue; its Redis keys are `rq:queue:pilotage-optimizers` and `rq:job:<id>`, one for each waiting batch
#: of job ids.
QUEUE: Final = "pilotage-optimizers"
#: Timeout of Redis in seconds, which delays a submission.
_TIMEOUT: Final = 1.0
#: Seconds without another attempt after a failure.
_RETRY_PAUSE: Final = 5.0
#: Timeout of a batch in seconds: a step hangs.
_LONGEST: Final = 300
#: Begins the name of a batch in RQ's tools.
_VERB: Final = "optimize "
#: Seconds that a batch may wait: by then the sweep has prepared its jobs.
_WAITING: Final = 600
#: Batches that may wait, in case no worker listens.
_MOST_WAITING: Final = 10_000
#: Seconds for which a state that was read is good enough.
_STATE_AGE: Final = 5.0


def read_state(redis: Redis) -> OptimizerQueueState:
    """The current state; one with a problem if Redis is unavailable."""
    queue = Queue(QUEUE, connection=redis, serializer=JSONSerializer)
    try:
        workers = Worker.count(connection=redis, queue=queue)
        counted = cast("Mapping[bytes, bytes]", redis.hgetall(OUTCOMES))
        outcomes = {tuple(name.decode().split(" ", 1)): int(number) for name, number in counted.items()}
        return OptimizerQueueState(
            waiting=queue.count,
            running=queue.started_job_registry.count,
            failed=queue.failed_job_registry.count,
            workers=workers,
            outcomes={(step, outcome): number for (step, outcome), number in outcomes.items()},
        )
    except RedisError as error:
        return OptimizerQueueState(problem=str(error))


class RQNotifier:
    """Notifies the workers through Redis; thread-safe."""

    def __init__(self, redis_url: str) -> None:
        self._redis = redis_servers.connect(redis_url, timeout=_TIMEOUT)
        self._queue = Queue(QUEUE, connection=self._redis, serializer=JSONSerializer)
        self._retry_at = 0.0
        self._state = OptimizerQueueState()
        self._state_until = 0.0

    def read_state(self) -> OptimizerQueueState:
        """The state of the queue, at most some seconds old."""
        if time.monotonic() >= self._state_until:
            self._state = read_state(self._redis)
            self._state_until = time.monotonic() + _STATE_AGE
        return self._state

    def notify(self, job_ids: Sequence[int]) -> None:
        """Enqueue these jobs. No error if Redis is unavailable: the sweep finds them."""
        if not job_ids or time.monotonic() < self._retry_at:
            return
        try:
            if self._queue.count >= _MOST_WAITING:
                self._retry_at = time.monotonic() + _RETRY_PAUSE
                log.warning("%d batches wait in Redis, further jobs wait for the sweep", _MOST_WAITING)
                return
            for start in range(0, len(job_ids), MOST_AT_ONCE):
                self._enqueue(list(job_ids[start : start + MOST_AT_ONCE]))
        except RedisError as error:
            self._retry_at = time.monotonic() + _RETRY_PAUSE
            jobs = format_count(len(job_ids), "job waits", "jobs wait")
            log.warning("Redis is unavailable, %s for the sweep: %s", jobs, error)

    def _enqueue(self, job_ids: list[int]) -> None:
        self._queue.enqueue(
            optimize_jobs,
            job_ids,
            description=f"{_VERB}{format_count(len(job_ids), 'job')} from {job_ids[0]}",
            ttl=_WAITING,
            job_timeout=_LONGEST,
            result_ttl=0,
            failure_ttl=3600,
            retry=RunAgain(max=2),
        )


#: The only function that workers run.
_FUNCTION: Final = f"{optimize_jobs.__module__}.{optimize_jobs.__qualname__}"
#: Seconds; low, so that the batch of a killed worker is soon considered lost.
_WORKER_TTL: Final = 30
_MONITORING: Final = 5
_MAINTENANCE: Final = 30
#: Seconds between the end of a worker that lost Redis and the start of the next.
_RECONNECT_PAUSE: Final = 2.0


class _OptimizerWorker(SimpleWorker):
    """Runs batches without a fork, so that caches are kept between batches."""

    stopping: Event
    max_connection_wait_time = 5  # seconds between tries to reach Redis

    def request_stop(self, signum: int, frame: FrameType | None) -> None:
        self.stopping.set()
        super().request_stop(signum, frame)  # type: ignore[no-untyped-call]

    def _install_signal_handlers(self) -> None:
        super()._install_signal_handlers()  # type: ignore[no-untyped-call]
        if self.stopping.is_set():  # by a signal that came before RQ's own handlers
            self._stop_requested = True

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Run a batch. Whoever may write to Redis could name any other function: none is looked up."""
        name = _read_function(job)
        if name == _FUNCTION:
            super().execute_job(job, queue)
        else:
            log.warning("refused in the queue %s: %.200r, which is no batch of ours", QUEUE, name)
            job.delete()

    def handle_exception(self, job: Job, *exc_info: Any) -> None:
        """Log a failure of the optimizers with its traceback; that Redis lost the RQ job is expected."""
        _, error, trace = exc_info
        if any(frame.f_code is optimize_jobs.__code__ for frame, _ in traceback.walk_tb(trace)):
            super().handle_exception(job, *exc_info)
        else:
            batch_of = str(job.description).removeprefix(_VERB)
            log.warning("Redis has lost the record of %s: %s", batch_of, error)


def _read_function(job: Job) -> str | None:
    """The function that a record names; None: it cannot be read, which must not end the worker."""
    try:
        return job.func_name
    except DeserializationError:
        return None


def _shorten(record: logging.LogRecord) -> bool:
    """Filter of RQ's log: an error of Redis gets one line, without a traceback; every record passes.

    It is expected: `run_worker` connects again.
    """
    if record.exc_info and isinstance(error := record.exc_info[1], RedisError):
        record.msg, record.args, record.exc_info = f"{record.getMessage()} {error}", (), None
    return True


def run_worker(
    database_url: str,
    redis_url: str,
    *,
    burst: bool = False,
    track: Callable[[Engine], AbstractContextManager[object]] = nullcontext,
) -> None:
    """Work until SIGTERM or SIGINT; must be called in the main thread of a process.

    `burst`: stop when the queue is empty. `track` is entered meanwhile, with the engine of the database.
    """
    context = connect_worker(database_url, redis_url)
    database.set_notifier(context.engine, make_publisher(RedisTransport(redis_url)))
    with track(context.engine):
        _run_until_stopped(redis_url, burst=burst)


def _run_until_stopped(redis_url: str, *, burst: bool) -> None:
    chain.installed_steps()
    logging.getLogger("rq.worker").addFilter(_shorten)
    stopping = Event()
    while not stopping.is_set():
        _handle_signals(stopping)
        try:
            _work(redis_url, stopping, burst=burst)
        except RedisError as error:
            log.warning("Redis is unavailable: %s", error)
            if burst:
                raise
        if burst:
            return
        _handle_signals(stopping)
        stopping.wait(_RECONNECT_PAUSE)


def _work(redis_url: str, stopping: Event, *, burst: bool) -> None:
    with redis_servers.connect(redis_url) as connection:
        worker = _OptimizerWorker(
            [QUEUE],
            name=f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}",  # shown by `rq info`
            connection=connection,
            serializer=JSONSerializer,
            worker_ttl=_WORKER_TTL,
            job_monitoring_interval=_MONITORING,
            maintenance_interval=_MAINTENANCE,
        )
        worker.stopping = stopping
        worker.work(burst=burst, logging_level=None)


def _handle_signals(stopping: Event) -> None:
    """Handle signals while no RQ worker has installed its own handlers."""
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda _number, _frame: stopping.set())

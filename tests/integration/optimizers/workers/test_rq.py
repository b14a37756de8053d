"""The optimizers behind Redis: real workers, killed and cut off at the worst moments."""

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import psutil
import pytest
from redis import Redis
from rq import Queue
from rq.registry import StartedJobRegistry
from rq.serializers import JSONSerializer
from sqlalchemy import Engine

from agents import sweep
from examples.servers.redis_server import RedisServer
from optimizers.workers import rq
from optimizers.workers.rq import RQNotifier
from requirements.states import JobStatus
from tests.support import wait
from tests.support.factories.submitted_jobs import GRID, grid, job, store_grid, submit, waiting, way

JOB = {"Executable": "a.sh", "Requirements": {"Memory": 4000}}
ROOT = Path(__file__).parents[4]
PATIENCE = 300


class Workers:
    """Worker processes of one test."""

    def __init__(self, database_url: str, redis_url: str, directory: Path) -> None:
        self._arguments = [database_url, redis_url, str(directory / "began")]
        self.log = directory / "worker.log"
        self.began = directory / "began"
        self.slow = directory / "slow"
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log_file:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.scripts.slow_optimizer", *self._arguments],
                cwd=ROOT,
                stdout=log_file,
                stderr=log_file,
            )
        self._processes.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """The worker and what it forked, at once."""
        worker = psutil.Process(process.pid)
        worker.suspend()  # it forks no other meanwhile
        for member in (*worker.children(recursive=True), worker):
            with contextlib.suppress(psutil.NoSuchProcess):  # what it forked may have ended by itself
                member.kill()
        process.wait(PATIENCE)

    def end(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                self.kill(process)


@pytest.fixture
def workers(database_url: str, redis_server: RedisServer, tmp_path: Path) -> Iterator[Workers]:
    made = Workers(database_url, redis_server.url, tmp_path)
    yield made
    made.end()


def begin_batch(
    engine: Engine, now: datetime, redis_server: RedisServer, workers: Workers
) -> tuple[list[int], subprocess.Popen[bytes]]:
    """Twenty jobs and the worker that has them in hand, until `workers.slow` is removed."""
    store_grid(engine, now)
    workers.slow.touch()
    ids = submit(engine, grid(), now, *([JOB] * 20))
    process = workers.start()
    RQNotifier(redis_server.url).notify(ids)
    wait.until(workers.began.exists)
    return ids, process


def sweep_up(engine: Engine, now: datetime) -> sweep.SweepResult:
    result = sweep.cycle(engine, grid(), now=now, holder="test")
    assert result is not None
    return result


def test_a_worker_does_what_is_rung_for(
    engine: Engine, now: datetime, redis_server: RedisServer, workers: Workers
) -> None:
    store_grid(engine, now)
    ids = submit(engine, grid(), now, *([JOB] * 50))
    RQNotifier(redis_server.url).notify(ids)
    process = workers.start()
    wait.until(lambda: waiting(engine) == ids)
    assert job(engine, ids[0]).minor_status == "Pilot Agent Submission"
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0


def test_a_worker_runs_nothing_but_the_optimizers(
    engine: Engine, now: datetime, redis_server: RedisServer, workers: Workers, tmp_path: Path
) -> None:
    store_grid(engine, now)
    ids = submit(engine, grid(), now, JOB)
    with Redis.from_url(redis_server.url) as connection:
        queue = Queue(rq.QUEUE, connection=connection, serializer=JSONSerializer)
        queue.enqueue("os.mkdir", str(tmp_path / "made"))
        garbage = queue.enqueue("os.mkdir", str(tmp_path / "made"))
        connection.hset(garbage.key, "data", b"no JSON")
        RQNotifier(redis_server.url).notify(ids)
        workers.start()
        wait.until(lambda: waiting(engine) == ids)
        assert queue.count == 0
        assert not connection.exists(garbage.key)
    assert not (tmp_path / "made").exists()


def test_the_state_of_the_queue_and_the_outcomes_of_workers_are_read_from_redis(
    engine: Engine, now: datetime, redis_server: RedisServer, workers: Workers
) -> None:
    store_grid(engine, now)
    ids = submit(engine, grid(), now, *([JOB] * 3))
    RQNotifier(redis_server.url).notify(ids)
    with redis_server.client() as client:
        before = rq.read_state(client)
        assert (before.waiting, before.workers, before.is_heard, before.outcomes) == (1, 0, False, {})
        queue = Queue(rq.QUEUE, connection=client, serializer=JSONSerializer)
        assert 0 < client.ttl(f"rq:job:{queue.job_ids[0]}") <= 600, "an old message goes by itself"
        workers.start()
        wait.until(lambda: rq.read_state(client).outcomes)
        after = rq.read_state(client)
    assert (after.waiting, after.failed, after.workers) == (0, 0, 1)
    assert sum(jobs for (step, _), jobs in after.outcomes.items() if step == "Requirements") == 3
    redis_server.kill()
    assert RQNotifier(redis_server.url).read_state().problem


def test_a_worker_follows_the_configuration(
    engine: Engine, now: datetime, redis_server: RedisServer, workers: Workers
) -> None:
    store_grid(engine, now)
    workers.start()
    [first] = submit(engine, grid(), now, JOB)
    RQNotifier(redis_server.url).notify([first])
    wait.until(lambda: waiting(engine) == [first])
    store_grid(engine, now, GRID + "Operations: {Defaults: {JobScheduling: {AllowInvalidSites: false}}}\n")
    [second] = submit(engine, grid(), now, {**JOB, "Site": "X.Y.ch"})
    RQNotifier(redis_server.url).notify([second])
    wait.until(lambda: job(engine, second).status is JobStatus.FAILED)


def test_an_absent_database_is_one_warning_and_the_jobs_wait_for_the_sweep(
    engine: Engine, now: datetime, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    store_grid(engine, now)
    ids = submit(engine, grid(), now, JOB)
    rq.connect_worker(f"sqlite:///{tmp_path / 'absent' / 'no.db'}")
    rq.optimize_jobs(ids)
    assert [record.exc_info for record in caplog.records] == [None]
    assert "1 job waits for the sweep" in caplog.text
    assert waiting(engine) == []


def test_only_job_ids_go_through_redis(redis_server: RedisServer) -> None:
    RQNotifier(redis_server.url).notify(range(1, 2201))
    with redis_server.client() as client:
        queue = Queue(rq.QUEUE, connection=client, serializer=JSONSerializer)
        batches = [client.hget(f"rq:job:{each}", "data") for each in queue.job_ids]
    calls = [json.loads(zlib.decompress(data)) for data in batches if isinstance(data, bytes)]
    assert [call[0] for call in calls] == ["optimizers.workers.rq.optimize_jobs"] * 3
    assert [job_id for call in calls for job_id in call[2][0]] == list(range(1, 2201))


def test_a_worker_killed_in_the_middle_of_a_batch_loses_nothing(
    engine: Engine, now: datetime, redis_server: RedisServer, workers: Workers
) -> None:
    ids, process = begin_batch(engine, now, redis_server, workers)
    workers.kill(process)
    assert waiting(engine) == []
    assert sweep_up(engine, now + timedelta(seconds=10)).waiting == 20
    assert waiting(engine) == ids
    assert {tuple(way(engine, job_id)) for job_id in ids} == {("Received", "Waiting")}


def test_a_worker_that_comes_late_after_the_sweep_does_nothing_twice(
    engine: Engine, now: datetime, redis_server: RedisServer, workers: Workers
) -> None:
    ids, _ = begin_batch(engine, now, redis_server, workers)
    assert sweep_up(engine, now + timedelta(seconds=10)).waiting == 20
    workers.slow.unlink()
    with redis_server.client() as client:
        started = StartedJobRegistry(rq.QUEUE, connection=client, serializer=JSONSerializer)
        wait.until(lambda: not started.get_job_ids(cleanup=False))
    assert {tuple(way(engine, job_id)) for job_id in ids} == {("Received", "Waiting")}


def test_a_flushed_redis_loses_nothing(
    engine: Engine, now: datetime, redis_server: RedisServer, workers: Workers
) -> None:
    store_grid(engine, now)
    ids = submit(engine, grid(), now, *([JOB] * 20))
    notifier = RQNotifier(redis_server.url)
    notifier.notify(ids)
    redis_server.flush()
    workers.start()
    [later] = submit(engine, grid(), now, JOB)
    notifier.notify([later])
    wait.until(lambda: waiting(engine) == [later])
    sweep_up(engine, now + timedelta(seconds=10))
    assert waiting(engine) == [*ids, later]


def test_a_redis_flushed_in_the_middle_of_a_batch_is_one_line_in_the_log(
    engine: Engine, now: datetime, redis_server: RedisServer, workers: Workers
) -> None:
    ids, _ = begin_batch(engine, now, redis_server, workers)
    redis_server.flush()
    workers.slow.unlink()
    wait.until(lambda: waiting(engine) == ids)
    wait.until(lambda: "Redis has lost the record of 20 jobs" in workers.log.read_text())
    assert "Traceback" not in workers.log.read_text()


def test_redis_away_is_no_error_for_the_submitter(
    engine: Engine,
    now: datetime,
    redis_server: RedisServer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rq, "_RETRY_PAUSE", 600.0)
    ids = submit(engine, grid(), now, *([JOB] * 5))
    notifier = RQNotifier(redis_server.url)
    redis_server.kill()
    with caplog.at_level(logging.WARNING):
        notifier.notify(ids)
        notifier.notify(ids)
    assert caplog.text.count("Redis is unavailable, 5 jobs wait for the sweep") == 1
    assert sweep_up(engine, now + timedelta(seconds=10)).waiting == 5
    assert waiting(engine) == ids


def test_a_worker_outlives_the_loss_of_redis_in_the_middle_of_a_batch(
    engine: Engine, now: datetime, redis_server: RedisServer, workers: Workers
) -> None:
    first, process = begin_batch(engine, now, redis_server, workers)
    redis_server.kill()
    workers.slow.unlink()
    wait.until(lambda: waiting(engine) == first)
    redis_server.start()
    second = submit(engine, grid(), now, *([JOB] * 3))
    RQNotifier(redis_server.url).notify(second)
    wait.until(lambda: waiting(engine) == [*first, *second])
    assert process.poll() is None
    assert {tuple(way(engine, job_id)) for job_id in [*first, *second]} == {("Received", "Waiting")}


def test_several_workers_share_the_work(
    engine: Engine, now: datetime, redis_server: RedisServer, workers: Workers
) -> None:
    store_grid(engine, now)
    notifier = RQNotifier(redis_server.url)
    ids = [job_id for _ in range(20) for ids in [submit(engine, grid(), now, *([JOB] * 5))] for job_id in ids]
    for start in range(0, 100, 5):
        notifier.notify(ids[start : start + 10])
    for _ in range(2):
        workers.start()
    wait.until(lambda: waiting(engine) == ids)
    assert {tuple(way(engine, job_id)) for job_id in ids} == {("Received", "Waiting")}


def test_a_worker_that_cannot_reach_redis_ends_when_told(
    database_url: str, redis_server: RedisServer, workers: Workers
) -> None:
    redis_server.kill()
    process = workers.start()
    wait.until(lambda: "Redis is unavailable" in workers.log.read_text())
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(PATIENCE) == 0


_ENDED_EARLY = """
import os, signal, sys
from optimizers.workers import rq

begin = rq._OptimizerWorker.bootstrap

def end_while_it_begins(self, *arguments):
    os.kill(os.getpid(), signal.SIGTERM)
    begin(self, *arguments)

rq._OptimizerWorker.bootstrap = end_while_it_begins
rq.run_worker(*sys.argv[1:])
"""


def test_a_worker_ends_that_is_told_to_while_it_starts(database_url: str, redis_server: RedisServer) -> None:
    command = [sys.executable, "-c", _ENDED_EARLY, database_url, redis_server.url]
    assert subprocess.run(command, timeout=300).returncode == 0

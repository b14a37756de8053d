"""`pilotage worker --workers 2`: a pool whose dead are replaced, and that ends when it is told to."""

import os
import signal
import subprocess
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import psutil

from examples.servers.starting import wait_until
from optimizers.workers.rq import RQNotifier
from taskqueue.db import database
from tests import submitted
from tests.acceptance.processes import PILOTAGE
from tests.redis_server import RedisServer


def _workers_of(pool: subprocess.Popen[bytes]) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(pool.pid).children():
        with suppress(psutil.Error):
            if "--multiprocessing-fork" in child.cmdline():
                found.append(child)
    return found


def test_a_pool_of_workers_replaces_the_dead_and_prepares_jobs(
    tmp_path: Path, sqlite_url: str, redis_server: RedisServer, now: datetime
) -> None:
    engine = database.connect(sqlite_url)
    config = submitted.store_grid(engine, now)
    job_ids = submitted.submit(engine, config, now, {"Executable": "/bin/true"})
    arguments = ("worker", "--workers", "2", "--database-url", sqlite_url, "--redis-url", redis_server.url)
    env = {**os.environ, "PILOTAGE_HOME": str(tmp_path)}
    with (tmp_path / "worker.log").open("wb") as log:
        pool = subprocess.Popen([str(PILOTAGE), *arguments], env=env, stderr=log)
    try:
        wait_until(lambda: len(_workers_of(pool)) == 2)
        before = _workers_of(pool)
        before[0].kill()
        wait_until(lambda: len(set(_workers_of(pool)) - set(before)) == 1)
        RQNotifier(redis_server.url).ring(job_ids)
        wait_until(lambda: list(submitted.waiting(engine)) == job_ids)
        workers = _workers_of(pool)
        pool.send_signal(signal.SIGTERM)
        assert pool.wait(60) == 0
        _, left = psutil.wait_procs(workers, timeout=30)
        assert not left
    finally:
        pool.kill()
        pool.wait()
        engine.dispose()

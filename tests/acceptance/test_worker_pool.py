"""The optimizers behind a real Redis: a pool of workers that replaces its dead, and `pilotage up --redis`."""

import json
import os
import signal
import socket
import subprocess
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import httpx
import psutil
import pytest
from rq import Queue, Worker
from rq.serializers import JSONSerializer

from examples.servers.redis_server import RedisServer
from examples.servers.starting import wait_until
from optimizers.workers import rq
from optimizers.workers.rq import RQNotifier
from taskqueue.db import database
from tests.support.factories import submitted_jobs
from tests.support.processes import PILOTAGE
from tests.support.service import NO_AUTHORITIES


@pytest.fixture(autouse=True)
def _redis_has_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is."""
    monkeypatch.setattr(rq, "_TIMEOUT", 300.0)


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
    config = submitted_jobs.store_grid(engine, now)
    job_ids = submitted_jobs.submit(engine, config, now, {"Executable": "/bin/true"})
    arguments = ("worker", "--workers", "2", "--database-url", sqlite_url, "--redis-url", redis_server.url)
    env = {**os.environ, "PILOTAGE_HOME": str(tmp_path)}
    with (tmp_path / "worker.log").open("wb") as log:
        pool = subprocess.Popen([str(PILOTAGE), *arguments], env=env, stderr=log)
    try:
        wait_until(lambda: len(_workers_of(pool)) == 2)
        before = _workers_of(pool)
        before[0].kill()
        wait_until(lambda: len(_workers_of(pool)) == 2 and before[0] not in _workers_of(pool))
        RQNotifier(redis_server.url).notify(job_ids)
        wait_until(lambda: list(submitted_jobs.waiting(engine)) == job_ids)
        workers = _workers_of(pool)
        pool.send_signal(signal.SIGTERM)
        assert pool.wait(300) == 0
        _, left = psutil.wait_procs(workers, timeout=300)
        assert not left
    finally:
        pool.kill()
        pool.wait()
        engine.dispose()


def test_up_with_redis_runs_a_worker_that_its_pages_metrics_and_doctor_show(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    resources = tmp_path / "resources.yaml"
    resources.write_text(submitted_jobs.GRID)
    env = {**os.environ, "PILOTAGE_HOME": str(tmp_path / "home")}
    arguments = ("up", "--port", "0", "--json", "--resources", str(resources), "--redis", redis_server.url)
    with (tmp_path / "up.log").open("wb") as log:
        up = subprocess.Popen([str(PILOTAGE), *arguments], env=env, stdout=subprocess.PIPE, stderr=log)
    try:
        assert up.stdout is not None
        banner = json.loads(up.stdout.readline())
        assert banner["redis_url"] == redis_server.url
        with redis_server.client() as client:
            queue = Queue(rq.QUEUE, connection=client, serializer=JSONSerializer)
            wait_until(lambda: Worker.count(connection=client, queue=queue) == 1)
            [name] = [each.name for each in Worker.all(connection=client, queue=queue)]
        assert name.startswith(f"{socket.gethostname()}-")
        variables = dict(
            line.removeprefix("export ").split("=", 1)
            for line in Path(banner["client_env"]).read_text().splitlines()
        )
        token = {"Authorization": f"Bearer {variables['PILOTAGE_TOKEN'].strip(chr(39))}"}
        jobs = [{"Executable": "a", "VO": "cms", "Requirements": {"Memory": 4000}}] * 2
        url = banner["url"]
        submission = httpx.post(f"{url}/api/v1/jobs", json={"jobs": jobs}, headers=token, timeout=300)
        assert submission.status_code == 201, submission.text
        RQNotifier(redis_server.url).notify(submission.json()["job_ids"])

        def metrics() -> str:
            return httpx.get(f"{url}/metrics", headers=token, verify=NO_AUTHORITIES, timeout=300).text

        shown = ("pilotage_optimizer_workers 1.0", "pilotage_redis_up 1.0")
        wait_until(lambda: all(each in metrics() for each in shown))

        def is_good() -> bool:
            command = [str(PILOTAGE), "doctor", "--json", "--redis", redis_server.url]
            checked = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
            found = {each["subject"]: each for each in json.loads(checked.stdout)["findings"]}.get("workers")
            return found is not None and (found["health"], found["message"][:8]) == ("good", "1 listen")

        # On a machine that stands still for its three seconds it finds a Redis that does not answer.
        wait_until(is_good)
        up.send_signal(signal.SIGTERM)
        assert up.wait(300) == 0
        with redis_server.client() as client:
            assert Worker.count(connection=client) == 0
    finally:
        up.kill()
        up.communicate()

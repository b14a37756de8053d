"""An installation under load whose processes are killed at random: every job must end Done, once.

By hand, for longer than the test does:

    python -m tests.acceptance.chaos --minutes 10 [--servers]
"""

import argparse
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from sqlalchemy import Engine, text

from examples.servers.starting import free_port
from taskqueue.db import database
from tests.acceptance.processes import PILOTAGE, Supervised
from tests.postgres import Postgres
from tests.redis_server import RedisServer

log = logging.getLogger(__name__)

#: Short leases, so that what a killed pilot held comes back while we watch; many tries, since we kill often.
RESOURCES = """
Resources:
  Sites:
    LCG.Chaos.org:
      CEs:
        ce01:
          MaxRAM: 4000
          Queues:
            long: {CPUTime: 100000}
            short: {CPUTime: 100000, MaxRAM: 2000}
Operations:
  Defaults:
    JobDescription:
      Memory: {type: number, resource: MaxRAM}
    JobScheduling: {MaxRescheduling: 1000, RescheduleDelays: [0], HoldTime: 1}
    Leases: {Time: 5, StalledTime: 5, StalledGrace: 1}
    Limits: {RequestsPerSecond: 100000}
Registry:
  VO: {chaos: {}}
"""

JOB = """[
  Executable = "/bin/sh";
  Arguments = "-c 'sleep 0.%s'";
  Requirements = [ Memory = 1000; ];
]"""

SUBMITTED_AT_ONCE = 20

#: A late report on a closed attempt is noted with the status that it could not change: no end.
ENDS = "SELECT job_id FROM job_log WHERE to_status = 'Done' AND from_status <> 'Done'"


@dataclass
class Installation:
    """All processes of an installation, each started again when it is gone."""

    home: Path
    database_url: str
    redis_url: str | None = None
    pilots: int = 3
    seed: int = 0
    processes: list[Supervised] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "resources.yaml").write_text(RESOURCES)
        self.url = f"http://127.0.0.1:{free_port()}"
        self._random = random.Random(self.seed)
        self.env = {
            "PILOTAGE_HOME": str(self.home),
            "PILOTAGE_DATABASE_URL": self.database_url,
            "PILOTAGE_URL": self.url,
        }
        if self.redis_url:
            self.env["PILOTAGE_REDIS_URL"] = self.redis_url

    def start(self) -> None:
        port = self.url.rpartition(":")[2]
        resources = str(self.home / "resources.yaml")
        if self.redis_url:
            self._run("db", "upgrade")
            self._add("serve", "serve", "--port", port, "--resources", resources)
            self._add("worker", "worker")
            self._add("agent", "agent", "pools", "lost-jobs", "sweep", "retention")
        else:
            self._add("up", "up", "--port", port, "--resources", resources)
        self._wait_until_ready()
        self.token = self._mint("user", "--user", "ada")
        for number in range(self.pilots):
            queue = ("long", "short")[number % 2]
            self._add(
                f"pilot{number}",
                *("pilot", "--site", "LCG.Chaos.org", "--ce", "ce01", "--queue", queue),
                token=self._mint("pilot", "--queue", f"LCG.Chaos.org/ce01/{queue}"),
            )

    def _add(self, name: str, *arguments: str, token: str | None = None) -> None:
        env = {**self.env, "PILOTAGE_TOKEN": token} if token else self.env
        process = Supervised(name, arguments, env=env, log=self.home / f"{name}.log")
        process.start()
        self.processes.append(process)

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(
            [str(PILOTAGE), *arguments],
            env={**os.environ, **self.env},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        return done.stdout

    def _mint(self, role: str, *arguments: str) -> str:
        answer = self._run("token", "--role", role, "--vo", "chaos", "--ttl", "86400", "--json", *arguments)
        token: str = json.loads(answer)["token"]
        return token

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            self.keep_alive()
            try:
                if httpx.get(f"{self.url}/readyz", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.2)
        raise TimeoutError(f"{self.url} did not get ready; see the logs in {self.home}")

    def keep_alive(self) -> None:
        for process in self.processes:
            process.keep_alive()

    def kill_one(self) -> str:
        victim = self._random.choice(self.processes)
        victim.keep_alive()
        victim.kill()
        return victim.name

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.stop()


class Submitter:
    """Submits in bulks; a bulk without an answer is sent again, the same under the same key."""

    def __init__(self, url: str, token: str) -> None:
        self._client = httpx.Client(
            base_url=f"{url}/api/v1", headers={"Authorization": f"Bearer {token}"}, timeout=10
        )
        self._pending: tuple[str, Mapping[str, object]] | None = None
        self.job_ids: list[int] = []

    def close(self) -> None:
        self._client.close()

    def submit(self) -> None:
        if self._pending is None:
            jdls = [JOB.replace("%s", str(random.randrange(10))) for _ in range(SUBMITTED_AT_ONCE)]
            self._pending = uuid.uuid4().hex, {"jdls": jdls}
        key, body = self._pending
        try:
            answer = self._client.post("/jobs", json=body, headers={"Idempotency-Key": key})
        except httpx.TransportError:
            return
        if answer.status_code in {429, 503}:
            return
        answer.raise_for_status()
        self.job_ids += answer.json()["job_ids"]
        self._pending = None


def torment(installation: Installation, *, seconds: float, every: float, rate: float) -> list[int]:
    """Submit `rate` jobs a second for so long, killing a process every so often; the ids of the jobs."""
    began = time.monotonic()
    next_kill, next_bulk = began + every, began
    with closing(Submitter(installation.url, installation.token)) as submitter:
        while (now := time.monotonic()) < began + seconds:
            installation.keep_alive()
            if now >= next_bulk:
                submitter.submit()
                next_bulk = now + SUBMITTED_AT_ONCE / rate
            if now >= next_kill:
                log.info("%4.0f s: killed %s", now - began, installation.kill_one())
                next_kill = now + every * random.uniform(0.5, 1.5)
            time.sleep(0.05)
        return submitter.job_ids


def wait_until_over(installation: Installation, engine: Engine, *, seconds: float) -> None:
    """Wait until no job is on its way any more, with everything kept alive and nothing killed."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        installation.keep_alive()
        counts = statuses(engine)
        if set(counts) <= {"Done", "Failed", "Killed"}:
            return
        time.sleep(0.5)
    raise TimeoutError(f"after {seconds} s: {counts}; see the logs in {installation.home}")


def statuses(engine: Engine) -> Counter[str]:
    """How many jobs there are in each status."""
    with database.reading(engine) as conn:
        return Counter(dict(conn.execute(text("SELECT status, count(*) FROM jobs GROUP BY status")).all()))


def flaws(engine: Engine, job_ids: Sequence[int]) -> list[str]:
    """Whatever is not as it must be, from the tables: empty if every job is there and Done once."""
    with database.reading(engine) as conn:
        stored = {row.job_id: row.status for row in conn.execute(text("SELECT job_id, status FROM jobs"))}
        ends = Counter(row.job_id for row in conn.execute(text(ENDS)))
        finished = Counter(
            row.job_id
            for row in conn.execute(text("SELECT job_id FROM attempts WHERE closed_as = 'finished'"))
        )
        left = conn.scalar(text("SELECT count(*) FROM waiting_jobs"))
        still_open = conn.scalar(text("SELECT count(*) FROM attempts WHERE closed_at IS NULL"))
    found = [f"job {job_id} was lost" for job_id in job_ids if job_id not in stored]
    found += [f"job {job_id} came from nowhere" for job_id in stored if job_id not in set(job_ids)]
    found += [f"job {job_id} is {status}" for job_id, status in stored.items() if status != "Done"]
    found += [f"job {job_id} was Done {ends[job_id]} times" for job_id in stored if ends[job_id] != 1]
    found += [f"job {job_id} finished {finished[job_id]} times" for job_id in stored if finished[job_id] != 1]
    if left or still_open:
        found.append(f"{left} rows wait and {still_open} attempts are open although all is over")
    return found


def main() -> int:
    """Run it by hand; 1 if a job was lost or doubled."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--servers", action="store_true", help="PostgreSQL, Redis and one process a part")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    home = Path(tempfile.mkdtemp(prefix="pilotage-chaos-"))
    home.chmod(0o755)
    with ExitStack() as stack:
        url, redis_url = _servers(home, stack) if options.servers else (f"sqlite:///{home}/pilotage.db", None)
        installation = Installation(home=home, database_url=url, redis_url=redis_url, seed=options.seed)
        stack.callback(installation.stop)
        installation.start()
        job_ids = torment(installation, seconds=options.minutes * 60, every=5, rate=5)
        engine = database.connect(url)
        stack.callback(engine.dispose)
        wait_until_over(installation, engine, seconds=600)
        found = flaws(engine, job_ids)
    kills = {process.name: process.killed for process in installation.processes}
    log.info("%d jobs, killed %s, %d flaws, logs in %s", len(job_ids), kills, len(found), home)
    for flaw in found:
        log.error(flaw)
    return int(bool(found))


def _servers(home: Path, stack: ExitStack) -> tuple[str, str]:
    for name in ("pg", "redis"):
        (home / name).mkdir()
    postgres, redis = Postgres(home / "pg"), RedisServer(home / "redis")
    postgres.start()
    stack.callback(postgres.stop)
    redis.start()
    stack.callback(redis.stop)
    postgres.execute("CREATE DATABASE chaos")
    return postgres.url("chaos"), redis.url


if __name__ == "__main__":
    sys.exit(main())

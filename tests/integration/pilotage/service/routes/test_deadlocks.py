"""Requests in each other's way: they neither deadlock, nor does the caller learn of one that did."""

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path

import httpx
import pytest
from psycopg.errors import DeadlockDetected
from sqlalchemy import Connection, Engine, ExceptionContext, event, text
from sqlalchemy.exc import OperationalError

from examples.servers.starting import wait_until
from pilotage.cli.processes.agent import AGENTS, AgentContext
from pilotage.service.services import utc_now
from taskqueue.db import database
from tests.support import concurrency, databases
from tests.support.service import Service, running

#: Starts a service.
Serving = Callable[[], AbstractContextManager[Service]]
QUEUE = {"Site": "LCG.A.org", "GridCE": "ce1", "Queue": "long", "CPUTime": 100_000}
JOB = {"Executable": "/bin/true", "Requirements": {"Memory": 2000}}
#: What a rival may have made of a request: the job, the lease or the pool is not as it was.
ORDINARY = {200, 201, 404, 409}


@pytest.fixture
def engine(postgres_url: str) -> Iterator[Engine]:
    """SQLite has one writer at a time. Its locks are waited for, however slow the machine is."""
    engine = databases.connect(postgres_url, pool_size=20)
    yield engine
    engine.dispose()


@pytest.fixture
def serving(engine: Engine, tmp_path: Path, config_text: str) -> Serving:
    return partial(running, engine, tmp_path, config_text)


def _deadlocks(engine: Engine) -> int:
    """After the end of the service: sessions tell what they met when they end.

    An engine in use must not be disposed of: a connection that comes back afterwards is never closed.
    """
    engine.dispose()
    wait_until(lambda: _count_sessions(engine) == 1)
    with database.reading(engine) as conn:
        query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        return int(conn.execute(text(query)).scalar_one())


def _count_sessions(engine: Engine) -> int:
    with database.reading(engine) as conn:
        query = (
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND backend_type = 'client backend'"
        )
        return int(conn.execute(text(query)).scalar_one())


def _pilot(client: httpx.Client, dice: random.Random) -> list[int]:
    asked = client.post("/api/v1/matcher/requestJob", json={**QUEUE, "count": dice.randint(1, 4)})
    seen = [asked.status_code]
    for match in asked.json().get("matches", ()):
        lease = f"/api/v1/leases/{match['lease']}"
        ways = (["release"], ["start", "heartbeat", "finish"], ["start", "release"], ["start"])
        for call in dice.choice(ways):
            body = {"finish": {"status": "Done", "exit_code": 0}, "release": {"reason": "dice"}}.get(call, {})
            seen.append(client.post(f"{lease}/{call}", json=body).status_code)
    return seen


def _user(client: httpx.Client, dice: random.Random) -> list[int]:
    wanted = {"Executable": "/bin/true", "Requirements": {"Memory": dice.choice((1000, 2000, 3000))}}
    seen = [client.post("/api/v1/jobs", json={"jobs": [wanted] * dice.randint(1, 5)}).status_code]
    ids = dice.sample(range(1, 60), 12)
    for call in dice.sample(["kill", "reschedule"], 1):
        seen.append(client.post(f"/api/v1/jobs/{call}", json={"ids": ids}).status_code)
    return seen


def _caretaker(service: Service, number: int) -> Callable[[random.Random], list[int]]:
    its = AgentContext(
        engine=service.engine,
        current=lambda: service.parts.live.current,
        clock=utc_now,
        blobs=service.parts.blobs,
        holder=f"process {number}",
    )

    def care(dice: random.Random) -> list[int]:
        AGENTS[dice.choice(sorted(AGENTS))](its, utc_now())
        return []

    return care


def test_users_pilots_and_agents_at_once_never_deadlock(serving: Serving, engine: Engine) -> None:
    with serving() as service:
        user, pilot = service.user(), service.pilot("LCG.A.org/ce1/long")
        user.post("/api/v1/jobs", json={"jobs": [JOB] * 40}).raise_for_status()

        def act(number: int) -> set[int]:
            dice, seen, agent = random.Random(number), set(), _caretaker(service, number)
            for _ in range(12):
                match number % 3:
                    case 0:
                        seen.update(_pilot(pilot, dice))
                    case 1:
                        seen.update(_user(user, dice))
                    case 2:
                        seen.update(agent(dice))
            return seen

        seen = set().union(*concurrency.at_once(6, act))
    assert 200 in seen
    assert seen <= ORDINARY
    assert _deadlocks(engine) == 0


def test_a_request_that_met_a_deadlock_is_carried_out_again(serving: Serving, engine: Engine) -> None:
    """Somebody locks two rows by hand, in the wrong order."""
    met: list[Connection | None] = []

    @event.listens_for(engine, "handle_error")
    def note(context: ExceptionContext) -> None:
        if isinstance(context.original_exception, DeadlockDetected):
            met.append(context.connection)

    with serving() as service, ThreadPoolExecutor(1) as threads:
        user = service.user()
        while True:
            ids = user.post("/api/v1/jobs", json={"jobs": [JOB] * 2}).json()["job_ids"]
            with suppress(OperationalError), database.writing(engine) as conn:
                # Who looks for deadlocks first is the one whose transaction is given up: let it not be ours.
                conn.execute(text("SET LOCAL deadlock_timeout = '30s'"))
                conn.execute(_LOCK, {"id": ids[1]})
                answer = threads.submit(user.post, "/api/v1/jobs/kill", json={"ids": ids})
                wait_until(lambda: _is_waiting(engine))
                conn.execute(_LOCK, {"id": ids[0]})
            told = answer.result(300)
            if any(each is not conn for each in met):
                break
            # The machine stood still: the request had looked, or had given up, before we waited for it.
            assert told.status_code in (200, 503), told.text
    assert (told.status_code, told.json()["job_ids"]) == (200, ids)
    assert _deadlocks(engine) >= 1  # on a busy machine it may meet another one


_LOCK = text("SELECT 1 FROM waiting_jobs WHERE job_id = :id FOR UPDATE")


def _is_waiting(engine: Engine) -> bool:
    with database.reading(engine) as conn:
        return bool(conn.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar_one())

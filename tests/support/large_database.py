"""A PostgreSQL with as many jobs as an installation has after a year, and what a job's way reads of it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import psycopg
from sqlalchemy import Connection, Engine, Table, func, select, text

from examples.servers.postgres import Postgres
from examples.servers.starting import wait_until
from pilotage.cli.processes.agent import AGENTS, AgentContext
from pilotage.service.services import utc_now
from taskqueue.db import database
from taskqueue.schema.tables import attempts, job_log, job_waits, jobs, waiting_jobs
from tests.support.service import Service, running

QUEUE = "LCG.A.org/ce1/long"
CONFIGURATION = """
Resources:
  Sites:
    LCG.A.org: {VO: [cms], CEs: {ce1: {MaxRAM: 4000, Queues: {long: {CPUTime: 100000}}}}}
Operations:
  Defaults:
    JobDescription: {Memory: {type: number, resource: MaxRAM, min: 1}}
    Limits: {WaitingJobsPerOwner: 100000000, WaitingJobsPerVO: 100000000}
Registry:
  VO: {cms: {}}
  Groups: {cms_user: {VO: cms}}
"""
#: Of the jobs that wait; each has its own pool.
CLASSES = 20
_SESSIONS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend'"""
_READ = """
SELECT relname, t.seq_tup_read, heap_blks_read + heap_blks_hit + COALESCE(idx_blks_read + idx_blks_hit, 0),
    t.n_tup_hot_upd
FROM pg_stat_user_tables t JOIN pg_statio_user_tables USING (relid, relname)"""
#: Tables that grow with what is over.
HISTORY = ("jobs", "job_log", "attempts", "job_waits", "descriptions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What was read of one table."""

    whole: int = 0  #: rows that were read since no index was used
    pages: int = 0  #: of the table and its indexes, cached or not
    in_place: int = 0  #: rows that were changed without a word to any index


def live(service: Service, count: int, *, finish: bool = True) -> list[int]:
    """So many jobs from submission to their end, by one pilot; their ids."""
    described = [
        {"Executable": "/bin/true", "Requirements": {"Memory": 1000 + n % CLASSES}} for n in range(count)
    ]
    answer = service.user().post("/api/v1/jobs", json={"jobs": described})
    answer.raise_for_status()
    for _ in range(count if finish else 0):
        assert run_one(service)
    done: list[int] = answer.json()["job_ids"]
    return done


def run_one(service: Service) -> bool:
    """A job from its match to its end; False: there is none now."""
    site, ce, queue = QUEUE.split("/")
    pilot = service.clients[0]
    offer = {"Site": site, "GridCE": ce, "Queue": queue, "CPUTime": 100_000}
    matches = pilot.post("/api/v1/matcher/requestJob", json=offer).raise_for_status().json()["matches"]
    if not matches:
        return False
    [match] = matches
    lease = f"/api/v1/leases/{match['lease']}"
    for call, body in (
        ("start", {}),
        ("heartbeat", {"progress": "half"}),
        ("finish", {"status": "Done", "exit_code": 0}),
    ):
        pilot.post(f"{lease}/{call}", json=body).raise_for_status()
    return True


def look(service: Service, job_id: int) -> None:
    """What people ask of single jobs and of the newest."""
    user = service.user()
    for path in (f"jobs/{job_id}", f"jobs/{job_id}/log", f"jobs/{job_id}/explain", "jobs?limit=20"):
        user.get(f"/api/v1/{path}").raise_for_status()


def agents(service: Service, *, later: timedelta = timedelta()) -> None:
    """One cycle of each, by a process that has just started, but of retention: it has to read what is old."""
    parts = service.parts
    its = AgentContext(
        engine=parts.engine,
        current=lambda: parts.live.current,
        clock=utc_now,
        blobs=parts.blobs,
        holder="me",
    )
    for name, cycle in AGENTS.items():
        if name != "retention":
            cycle(its, utc_now() + later)


@contextmanager
def service_on(engine: Engine, directory: Path) -> Iterator[Service]:
    """A service with a pilot."""
    with running(engine, directory, CONFIGURATION) as service:
        service.pilot(QUEUE)
        yield service


def fill(engine: Engine, directory: Path, *, waiting: int, finished: int) -> None:
    """Many that wait and many that are over: copies of some that came there by themselves."""
    with service_on(engine, directory) as service:
        over = live(service, CLASSES)
        agents(
            service, later=timedelta(minutes=5)
        )  # the wait of what ended just now is booked a little later
        live(service, CLASSES, finish=False)
    with database.writing(engine) as conn:
        conn.execute(text("SET LOCAL statement_timeout = 0"))
        conn.execute(text("SET LOCAL session_replication_role = replica"))  # copies refer to what there is
        _copy_over(conn, over, finished // CLASSES)
        _copy_waiting(conn, waiting // CLASSES)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        conn.execute(text("SET statement_timeout = 0"))
        conn.execute(text("VACUUM (ANALYZE)"))


def _copy_over(conn: Connection, over: list[int], times: int) -> None:
    first = conn.scalar(select(func.max(jobs.c.job_id)))
    new = f"{first} + (g.n - 1) * {CLASSES} + old.job_id - {min(over)} + 1"
    ago = "g.n * interval '3 seconds'"
    moved = {name: f"old.{name} - {ago}" for name in ("submitted_at", "updated_at", "ended_at")}
    which = f"old.job_id IN ({', '.join(map(str, over))})"
    _copy(conn, jobs, times, which, {"job_id": new, **moved})
    _copy(conn, job_log, times, which, {"job_id": new, "log_id": None, "at": f"old.at - {ago}"})
    lease = f"md5('a' || {new}) || md5('b' || {new})"
    pilot = f"old.stamp || {new} / 10"  # each had ten jobs
    changed = {"job_id": new, "lease": lease, "stamp": pilot, "closed_at": f"old.closed_at - {ago}"}
    _copy(conn, attempts, times, which, changed)
    _copy(conn, job_waits, times, which, {"job_id": new, "ended_at": f"old.ended_at - {ago}"})
    _count_on(conn)


def _copy_waiting(conn: Connection, times: int) -> None:
    [first, least] = conn.execute(
        text("SELECT max(j.job_id), min(w.job_id) FROM jobs j CROSS JOIN waiting_jobs w")
    ).one()
    new = f"{first} + (g.n - 1) * {CLASSES} + old.job_id - {least} + 1"
    _copy(conn, jobs, times, "old.status = 'Waiting'", {"job_id": new})
    _copy(conn, waiting_jobs, times, f"old.job_id <= {first}", {"job_id": new})
    _count_on(conn)


def _copy(conn: Connection, table: Table, times: int, which: str, changed: Mapping[str, str | None]) -> None:
    values = {column.name: changed.get(column.name, f"old.{column.name}") for column in table.c}
    columns = {name: value for name, value in values.items() if value is not None}
    conn.execute(
        text(
            f"INSERT INTO {table.name} ({', '.join(columns)}) SELECT {', '.join(columns.values())} "
            f"FROM {table.name} AS old CROSS JOIN generate_series(1, {times}) AS g(n) WHERE {which}"
        )
    )


def _count_on(conn: Connection) -> None:
    conn.execute(text("SELECT setval('jobs_job_id_seq', (SELECT max(job_id) FROM jobs))"))


def read(postgres: Postgres, engine: Engine) -> dict[str, Read]:
    """What was read of each table so far; the engine's sessions end, so that they tell it."""
    name = engine.url.database
    engine.dispose()
    with psycopg.connect(host=str(postgres.directory), user="postgres", dbname=name, autocommit=True) as own:
        wait_until(lambda: own.execute(_SESSIONS).fetchone() == (1,))
        rows = own.execute(_READ).fetchall()
    return {
        table: Read(whole=whole, pages=pages, in_place=in_place) for table, whole, pages, in_place in rows
    }


def spent(before: Mapping[str, Read], after: Mapping[str, Read]) -> dict[str, Read]:
    """What was read in between."""
    nothing = Read()
    return {
        table: Read(
            whole=now.whole - before.get(table, nothing).whole,
            pages=now.pages - before.get(table, nothing).pages,
            in_place=now.in_place - before.get(table, nothing).in_place,
        )
        for table, now in after.items()
    }

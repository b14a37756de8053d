"""Rows that many tests need, stored the way the program stores them."""

from datetime import datetime
from typing import TypeVar

from sqlalchemy import Connection, Engine, delete, insert, select, update

from requirements.states import JobStatus
from taskqueue.db import database
from taskqueue.jobs import submission
from taskqueue.jobs.descriptions import Description
from taskqueue.jobs.submission import NewJob
from taskqueue.schema.tables import attempts, blobs, pilots, service_uptime
from taskqueue.schema.tables import jobs as jobs_table

T = TypeVar("T")


def job_ids(
    conn: Connection,
    now: datetime,
    count: int = 1,
    *,
    vo: str = "lhcb",
    owner: str = "alice",
    sandbox: str | None = None,
) -> list[int]:
    """New jobs, Received."""
    description = Description(source="Executable = 'x';", body={"Executable": "x"}, sandbox=sandbox)
    new = [NewJob(vo=vo, owner=owner, owner_group=f"{vo}_user") for _ in range(count)]
    return submission.store_jobs(conn, [description], [(0, each) for each in new], now=now)


def job_in(conn: Connection, now: datetime, status: JobStatus, **about: str) -> int:
    """A new job that is put into a state, whatever way leads there."""
    [job_id] = job_ids(conn, now)
    force(conn, job_id, status=status.value, **about)
    return job_id


def force(conn: Connection, job_id: int, **values: object) -> None:
    """Change a job's row past all rules."""
    conn.execute(update(jobs_table).where(jobs_table.c.job_id == job_id).values(**values))


def open_attempt(conn: Connection, job_id: int, now: datetime, epoch: int = 1) -> str:
    """An open attempt of a job; its lease."""
    lease = f"lease-{job_id}-{epoch}"
    conn.execute(
        insert(attempts).values(
            job_id=job_id,
            epoch=epoch,
            lease=lease,
            holder="pilot",
            vo="lhcb",
            opened_at=now,
            lease_expires_at=now,
        )
    )
    force(conn, job_id, epoch=epoch)
    return lease


def service_up(engine: Engine, since: datetime, until: datetime, process: str = "serve") -> None:
    """A process of the service was up in that time, as it would have recorded it."""
    with database.writing(engine) as conn:
        conn.execute(insert(service_uptime).values(process=process, since=since, until=until))


def lose_output(conn: Connection, lease: str) -> None:
    """What remains of an output whose commit was lost: the file, without rows."""
    query = select(attempts.c.output).where(attempts.c.lease == lease)
    digest = conn.execute(query).scalar_one()
    assert digest is not None
    conn.execute(update(attempts).where(attempts.c.lease == lease).values(output=None))
    conn.execute(delete(blobs).where(blobs.c.digest == digest))


def remove(conn: Connection, ids: list[int]) -> None:
    """Take jobs out of the database past all rules."""
    conn.execute(delete(jobs_table).where(jobs_table.c.job_id.in_(ids)))


def force_pilot(conn: Connection, stamp: str, **values: object) -> None:
    """Change a pilot's row past all rules."""
    conn.execute(update(pilots).where(pilots.c.stamp == stamp).values(**values))

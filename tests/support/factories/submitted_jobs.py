"""A small grid, jobs submitted to it the way the service does, and pilots that take them."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import Connection, Engine, select

from cs_config import validate
from cs_config.tree.configuration import Configuration
from cs_config.versions import store
from optimizers.chain import batch
from optimizers.submit import submission
from optimizers.submit.submitter import Submitter
from requirements.resource import Location
from taskqueue.db import database
from taskqueue.jobs import jobs, log
from taskqueue.jobs.jobs import Job
from taskqueue.jobs.log import LogEntry
from taskqueue.leases.opening import ClaimedJob, LeaseHolder
from taskqueue.schema.tables import task_queues, waiting_jobs
from tests.support.factories import queued_jobs
from tests.support.transactions import own_transaction

ANN = Submitter(subject="ann@lhcb", vo="lhcb", owner="ann", owner_group="lhcb_user")
OPERATOR = Submitter(subject="root", operator=True)

GRID = """
Resources:
  Sites:
    A.B.ch:
      CEs: {ce: {Queues: {big: {Memory: 8000}, small: {Memory: 2000}}}}
    C.D.ch:
      CEs: {ce: {Queues: {middle: {Memory: 4000}}}}
"""
#: Where pilots take jobs.
BIG = Location(site="A.B.ch", ce="ce", queue="big")


def grid(text: str = GRID, version: int = 1) -> Configuration:
    """A configuration that is not in the database."""
    return validate.parse(text, "grid.yaml", version)


def store_grid(engine: Engine, now: datetime, text: str = GRID) -> Configuration:
    """A configuration that is the current one of the database."""
    with database.writing(engine) as conn:
        store.store_text(conn, text, author="ann", message="", source="grid.yaml", expected=None, now=now)
        return store.load_version(conn)


def submit(
    engine: Engine,
    config: Configuration,
    now: datetime,
    *sources: str | Mapping[str, object],
    submitter: Submitter = ANN,
    key: str | None = None,
    sandbox: str | None = None,
) -> list[int]:
    """The ids of jobs that were stored as Received, for the optimizers, as those of a large submission."""
    stored = submission.submit(
        engine, config, submitter, sources, now=now, key=key, sandbox=sandbox, steps={}
    )
    return stored.job_ids


def enqueue(
    engine: Engine, config: Configuration, now: datetime, *sources: str | Mapping[str, object]
) -> list[int]:
    """The ids of submitted jobs that the optimizers have put into their task queues."""
    ids = submit(engine, config, now, *sources)
    batch.optimize(engine, config, ids, now=now)
    return ids


@own_transaction
def claim(
    conn: Connection, now: datetime, count: int = 1, *, holder: LeaseHolder = queued_jobs.HOLDER
) -> list[ClaimedJob]:
    """Jobs of any task queue in the hands of a pilot."""
    ids = conn.execute(select(task_queues.c.task_queue_id)).scalars().all()
    return queued_jobs.claim(conn, ids, now, count=count, place=BIG, holder=holder)


def job(engine: Engine, job_id: int) -> Job:
    """A job as it stands."""
    with database.reading(engine) as conn:
        return jobs.get_job(conn, job_id)


def log_of(engine: Engine, job_id: int) -> list[LogEntry]:
    """What happened to a job."""
    with database.reading(engine) as conn:
        return log.read_log(conn, job_id)


def way(engine: Engine, job_id: int) -> list[str]:
    """The statuses that a job has had, in order."""
    return [entry.to_status.value for entry in log_of(engine, job_id)]


def waiting(engine: Engine) -> Sequence[int]:
    """Ids of the jobs that a pilot may take."""
    with database.reading(engine) as conn:
        return conn.execute(select(waiting_jobs.c.job_id).order_by(waiting_jobs.c.job_id)).scalars().all()

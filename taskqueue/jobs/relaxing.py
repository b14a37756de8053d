"""Jobs that wait long and give up some of what they ask for, by rules of their own or of their VO.

Nothing is stored while a job waits: `waiting_ttl.measure` tells how long it could be matched. A step replaces
the description by one that asks for less and has no longer the rule of this step, under the lock of the row
of the waiting job: a process that is killed has made the step or not, and of two at once one makes it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection, and_, bindparam, or_, select

from taskqueue.db import sql
from taskqueue.jobs import edits, waiting_ttl
from taskqueue.jobs.descriptions import Description
from taskqueue.jobs.edits import EditedJob
from taskqueue.jobs.waiting_ttl import LOCK
from taskqueue.leases.uptime import Uptime
from taskqueue.schema.tables import descriptions, jobs, task_queues, waiting_jobs

#: Minor status of what a job gave up.
RELAXED: Final = "Relaxed by a rule"
SOURCE: Final = "Relax"

HAS_OWN_RULES = select(descriptions.c.description_id).where(descriptions.c.relax_after > 0).limit(1)
LAST_OF_PAGE = (
    select(waiting_jobs.c.job_id)
    .where(waiting_jobs.c.job_id > bindparam("after"))
    .order_by(waiting_jobs.c.job_id)
    .offset(bindparam("before_last"))
    .limit(1)
)
#: Jobs of a page whose rules may be due; one that was submitted later has not waited long enough.
PAGE = (
    select(
        *(waiting_jobs.c.job_id, waiting_jobs.c.task_queue_id, task_queues.c.vo),
        *(jobs.c.submitted_at, descriptions.c.relax_after),
    )
    .join(task_queues, task_queues.c.task_queue_id == waiting_jobs.c.task_queue_id)
    .join(jobs, jobs.c.job_id == waiting_jobs.c.job_id)
    .join(descriptions, descriptions.c.description_id == jobs.c.description_id)
    .where(
        waiting_jobs.c.job_id > bindparam("after"),
        waiting_jobs.c.job_id <= bindparam("last"),
        jobs.c.submitted_at <= bindparam("latest"),
        or_(
            descriptions.c.relax_after > 0,
            and_(
                descriptions.c.relax_after.is_(None),
                task_queues.c.vo.in_(bindparam("vos", expanding=True)),
            ),
        ),
    )
    .order_by(waiting_jobs.c.job_id)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LongWaitingPage:
    """Waiting jobs with rules that may be due, and how far this page of all waiting jobs goes."""

    waiting: Mapping[int, int]  #: task queue by job id
    last: int | None  #: id of the last job of the page; None: no further ones


def has_own_rules(conn: Connection) -> bool:
    """Whether a description, also of a job that has ended, states rules."""
    return conn.execute(HAS_OWN_RULES).first() is not None


def read_page(
    conn: Connection, first: Mapping[str, int], *, shortest: int, after: int, most: int, now: datetime
) -> LongWaitingPage:
    """A page of all waiting jobs by id; of it those with rules of which the first may be due.

    `first` has the seconds of the first rule of each VO that has rules; no rule has fewer than `shortest`.
    """
    last = conn.execute(LAST_OF_PAGE, {"after": after, "before_last": most - 1}).scalar()
    rows = conn.execute(
        PAGE,
        {
            "after": after,
            "last": sql.MOST_ID if last is None else last,
            "latest": now - timedelta(seconds=shortest),
            "vos": sorted(first),
        },
    )
    found = {
        row.job_id: row.task_queue_id
        for row in rows
        if row.submitted_at + timedelta(seconds=row.relax_after or first[row.vo]) <= now
    }
    return LongWaitingPage(waiting=found, last=last)


def relax_jobs(
    conn: Connection,
    edited: Sequence[EditedJob],
    new: Sequence[Description],
    waiting: Mapping[int, int],
    waited: Mapping[int, float],
    up: Uptime,
    *,
    now: datetime,
) -> list[int]:
    """Give those of the jobs that wait as long as was planned with their new descriptions; their ids.

    `waiting` has the task queue of each job, `waited` the seconds. Who holds the row of a waiting job decides
    about it: a claim that has it, or had it meanwhile, wins, and so does an edit.
    """
    done: list[int] = []
    for ids in sql.split_batches([each.job_id for each in edited]):
        locked = conn.execute(LOCK, {"ids": ids}).scalars().all()
        times = waiting_ttl.measure(conn, {job_id: waiting[job_id] for job_id in locked}, up, now=now)
        still = {job_id for job_id in locked if times[job_id].seconds >= waited[job_id]}
        relaxed = [each for each in edited if each.job_id in still]
        done += edits.edit_jobs(conn, relaxed, new, minor=RELAXED, source=SOURCE, now=now)
    return done

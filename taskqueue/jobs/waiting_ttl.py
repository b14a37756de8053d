"""Jobs that wait longer for a match than they may: they fail, with the reason that kept them most.

Its log, the causes of its task queues, the service's uptime and the watched times of its VO tell how long it
could be matched. Time counts while it is Waiting, at least one process of the service was up, an agent looked
whether a queue that fits is open, and not all of these were closed or switched off; it begins again with each
match and with each rescheduling.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection, and_, bindparam, select

from requirements.states import PREPARING, JobStatus
from taskqueue.db import sql
from taskqueue.jobs import log, transitions
from taskqueue.jobs.log import LogEntry
from taskqueue.jobs.unmatchable import NO_ELIGIBLE_QUEUE
from taskqueue.leases.uptime import Uptime
from taskqueue.schema.tables import descriptions, jobs, task_queues, unmatched_jobs, waiting_jobs
from taskqueue.task_queues import task_queues as queued
from taskqueue.task_queues import wait_causes, watched_times
from taskqueue.task_queues.wait_causes import BAN_CAUSE, PILOT_CAUSE, WaitCause

#: Minor status of the jobs that failed.
NO_MATCH: Final = "no_match_within_ttl"
SOURCE: Final = "WaitingTTL"
#: Cause of a job without an eligible queue, beside those of `wait_causes`.
QUEUE_CAUSE: Final = "no eligible queue"
#: A job in another status is with a pilot, was, or starts over.
_STILL_WAITS: Final = (PREPARING - {JobStatus.RESCHEDULED}) | {JobStatus.WAITING}

_page = (
    select(waiting_jobs.c.job_id, waiting_jobs.c.task_queue_id)
    .where(waiting_jobs.c.job_id > bindparam("after"))
    .order_by(waiting_jobs.c.job_id)
    .limit(bindparam("most"))
    .subquery()
)
#: In the order of their ids, which is nearly that of their submission. Those of other VOs have no times.
PAGE = (
    select(
        *(_page.c.job_id, _page.c.task_queue_id, task_queues.c.vo),
        *(jobs.c.submitted_at, descriptions.c.waiting_ttl),
    )
    .join(task_queues, task_queues.c.task_queue_id == _page.c.task_queue_id)
    .outerjoin(
        jobs,
        and_(
            jobs.c.job_id == _page.c.job_id,
            task_queues.c.vo.in_(bindparam("vos", expanding=True)),
        ),
    )
    .outerjoin(descriptions, descriptions.c.description_id == jobs.c.description_id)
    .order_by(_page.c.job_id)
)
TTL_OF_JOB = (
    select(descriptions.c.waiting_ttl)
    .join(jobs, jobs.c.description_id == descriptions.c.description_id)
    .where(jobs.c.job_id == bindparam("the_job"))
)
#: A row that a claim has locked is passed over: that job is matched, or the next pass finds it again.
LOCK = (
    select(waiting_jobs.c.job_id)
    .where(sql.is_listed(waiting_jobs.c.job_id))
    .order_by(waiting_jobs.c.job_id)
    .with_for_update(skip_locked=True)
)
COUNT_UNMATCHED = sql.insert_or_add(unmatched_jobs)
UNMATCHED = select(unmatched_jobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingJob:
    """A waiting job whose time since its submission exceeds its TTL."""

    job_id: int
    task_queue_id: int
    vo: str
    ttl: float  #: seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingPage:
    """Waiting jobs that are to be looked at, and how far this page goes."""

    jobs: Sequence[WaitingJob]
    last: int | None  #: id of the last job of the page; None: no further ones


@dataclass(slots=True, kw_only=True)
class MatchableTime:
    """Seconds in which a job could be matched, and what kept it from pilots meanwhile, by cause."""

    seconds: float = 0.0
    causes: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingReason:
    """What kept jobs of a task queue from pilots."""

    word: str  #: for counters
    text: str  #: for people


def limit_ttl(of_vo: float, of_job: float | None) -> float:
    """The TTL of a job: its own, bounded by that of its VO; 0: it may wait without an end."""
    return min(of_vo, of_job) if of_job else of_vo


def read_page(
    conn: Connection, ttls: Mapping[str, float], *, after: int, most: int, now: datetime
) -> WaitingPage:
    """A page of all waiting jobs by id; of it those of the VOs with a TTL (seconds) that may be over."""
    rows = conn.execute(PAGE, {"after": after, "most": most, "vos": sorted(ttls)}).all()
    found = [
        WaitingJob(job_id=row.job_id, task_queue_id=row.task_queue_id, vo=row.vo, ttl=ttl)
        for row in rows
        if row.submitted_at is not None
        and row.submitted_at + timedelta(seconds=(ttl := limit_ttl(ttls[row.vo], row.waiting_ttl))) <= now
    ]
    return WaitingPage(jobs=found, last=rows[-1].job_id if len(rows) == most else None)


def read_ttl(conn: Connection, job_id: int, of_vo: float) -> float:
    """The TTL of one job, seconds."""
    return limit_ttl(of_vo, conn.execute(TTL_OF_JOB, {"the_job": job_id}).scalar()) if of_vo else 0


def measure(
    conn: Connection, waiting: Mapping[int, int], up: Uptime, *, now: datetime
) -> Mapping[int, MatchableTime]:
    """The time in which each of some waiting jobs (task queue by job id) could be matched."""
    logs: defaultdict[int, list[LogEntry]] = defaultdict(list)
    for ids in sql.split_batches(waiting):
        for entry in log.read_logs(conn, ids):
            logs[entry.job_id].append(entry)
    since = min((entries[0].at for entries in logs.values()), default=now)
    causes = wait_causes.read_causes_of_jobs(conn, waiting, since=since)
    watched = watched_times.read_watched(conn, set(waiting.values()), up)
    return {
        job_id: sum_matchable(logs[job_id], causes[job_id], watched[task_queue_id], now=now)
        for job_id, task_queue_id in waiting.items()
    }


def sum_matchable(
    entries: Sequence[LogEntry], causes: Iterable[WaitCause], watched: Uptime, *, now: datetime
) -> MatchableTime:
    """The time in which a job could be matched since its last match, from its log, oldest entry first.

    `watched`: the uptime in which its VO was watched.
    """
    found = MatchableTime()
    stored = list(causes)
    for entry, end in zip(entries, [*(each.at for each in entries[1:]), now], strict=True):
        if entry.to_status not in _STILL_WAITS:
            found = MatchableTime()
        elif entry.to_status is JobStatus.WAITING:
            for each in watched.clip(entry.at, end):
                parts = wait_causes.split_wait(each.since, each.until, stored)
                parts.pop(BAN_CAUSE, None)
                if entry.minor_status == NO_ELIGIBLE_QUEUE:
                    parts[QUEUE_CAUSE] = parts.pop(PILOT_CAUSE, 0.0)
                found.seconds += sum(parts.values())
                found.causes.update(parts)
    return found


def fail_unmatched(
    conn: Connection,
    expired: Collection[WaitingJob],
    reasons: Mapping[int, WaitingReason],
    up: Uptime,
    *,
    now: datetime,
) -> list[int]:
    """Fail the jobs that still wait, and have for longer than they may; their ids.

    `reasons` is by task queue. Who holds the row of a waiting job decides about it: a claim that has it, or
    had it meanwhile, wins.
    """
    done: list[int] = []
    for ids in sql.split_batches([each.job_id for each in expired]):
        locked = set(conn.execute(LOCK, {"ids": ids}).scalars())
        held = {each.job_id: each for each in expired if each.job_id in locked}
        times = measure(conn, {job_id: each.task_queue_id for job_id, each in held.items()}, up, now=now)
        over = [each for job_id, each in held.items() if times[job_id].seconds >= each.ttl]
        moved = transitions.move_jobs(
            conn,
            [each.job_id for each in over],
            JobStatus.FAILED,
            minor=NO_MATCH,
            application={each.job_id: reasons[each.task_queue_id].text for each in over},
            source=SOURCE,
            now=now,
            from_states=frozenset({JobStatus.WAITING}),
        )
        ended = [each.job_id for each in moved]
        queued.dequeue(conn, ended)
        counted = Counter((held[each].vo, reasons[held[each].task_queue_id].word) for each in ended)
        rows: list[dict[str, Any]] = [
            {"vo": vo, "reason": word, "jobs": number} for (vo, word), number in sorted(counted.items())
        ]
        if rows:
            conn.execute(COUNT_UNMATCHED, rows)
        done += ended
    return done


def count_unmatched(conn: Connection) -> Mapping[tuple[str, ...], int]:
    """Numbers of jobs that ever failed so, by VO and reason."""
    return {(row.vo, row.reason): row.jobs for row in conn.execute(UNMATCHED)}

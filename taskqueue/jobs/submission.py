"""Submission: bulk storage of new jobs, idempotency keys, and limits on the number of waiting jobs.

`reserve_key` and `fulfil_key` belong to the transaction that stores the jobs. A second request with the same
key waits in `reserve_key` until that transaction ends, and gets the same ids.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, Row, bindparam, func, select, text, update

from cs_config.cache import Cache
from cs_config.options import bounds
from cs_config.options.options import LimitOptions
from requirements.job_fields import WITH_JOB_ID
from requirements.states import FINAL, PREPARING, JobStatus
from taskqueue import ownership
from taskqueue.db import sql
from taskqueue.errors import IdempotencyConflict, QuotaExceeded
from taskqueue.jobs import descriptions, log
from taskqueue.jobs.descriptions import Description
from taskqueue.jobs.optimizer_queue import DecidedState, StatusUpdate
from taskqueue.jobs.placeholders import Parameters, put_job_id
from taskqueue.schema.tables import idempotency_keys as table
from taskqueue.schema.tables import jobs
from taskqueue.task_queues import task_queues

ACCEPTED = "Job accepted"

#: Columns copied from each `NewJob`, and from the result of the optimizers for it.
_STATED = ("vo", "owner", "owner_group", "job_type", "priority")
_DECIDED = ("minor_status", "application_status", "step", "due_at", "submit_pool")
STORE = sql.bulk_insert(
    jobs,
    *("job_id", *_STATED, *WITH_JOB_ID, "site", "description_id", "parameters"),
    *("status", *_DECIDED, "ended_at", "task_queue_id"),
    *("epoch", "reschedules", "submitted_at", "updated_at"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job to be stored."""

    vo: str  #: lower case
    owner: str
    owner_group: str
    job_name: str = ""
    job_type: str = ""
    job_group: str = ""
    priority: float = 1.0
    parameters: Parameters | None = None  #: for the placeholders of its description
    site: str = "ANY"  #: requested


#: A job with the index of its description.
DescribedJob = tuple[int, NewJob]


def store_jobs(
    conn: Connection,
    described: Sequence[Description],
    placed: Sequence[DescribedJob],
    *,
    decided: Sequence[DecidedState | None] | None = None,
    origins: Sequence[str] = (),
    now: datetime,
) -> list[int]:
    """Store jobs, in their decided state or Received and due for the optimizers; their ids in the same order.

    `decided` has an entry for each job; so has `origins`, or none: where each comes from, for its log.
    The log is the same as if the job had been stored first. The number of statements does not depend on the
    number of jobs.
    """
    if not placed:
        return []
    description_ids = descriptions.store_descriptions(conn, described)
    job_ids = sql.allocate_ids(conn, jobs, len(placed))
    received = DecidedState(
        update=StatusUpdate(status=JobStatus.RECEIVED, minor_status=ACCEPTED, source="JobManager", due_at=now)
    )
    states = [state or received for state in decided or [None] * len(placed)]
    new = [job for _, job in placed]
    updates = [state.update for state in states]
    columns: dict[str, Sequence[object]] = {
        "job_id": job_ids,
        **{name: [getattr(job, name) for job in new] for name in _STATED},
        **{
            name: [put_job_id(getattr(job, name), job_id) for job, job_id in zip(new, job_ids, strict=True)]
            for name in WITH_JOB_ID
        },
        **{name: [getattr(update, name) for update in updates] for name in _DECIDED},
        "site": [
            update.site if update.status is JobStatus.WAITING else job.site
            for update, job in zip(updates, new, strict=True)
        ],
        "description_id": [description_ids[place] for place, _ in placed],
        "parameters": [None if job.parameters is None else json.dumps(job.parameters) for job in new],
        "status": [update.status.value for update in updates],
        "ended_at": [now if update.status in FINAL else None for update in updates],
        "task_queue_id": [state.task_queue_id for state in states],
    }
    STORE.execute(conn, columns, epoch=0, reschedules=0, submitted_at=now, updated_at=now)
    waiting = [
        (job_id, state.task_queue_id, job.priority)
        for job_id, state, job in zip(job_ids, states, new, strict=True)
        if state.task_queue_id is not None
    ]
    if waiting:
        task_queues.add_waiting(conn, waiting)
    _append_log(conn, job_ids, states, received, origins, now)
    return list(job_ids)


def _append_log(
    conn: Connection,
    job_ids: Sequence[int],
    states: Sequence[DecidedState],
    received: DecidedState,
    origins: Sequence[str],
    now: datetime,
) -> None:
    """Log that all were received and then, for jobs with the same state together, what was decided."""
    alike: dict[int, tuple[StatusUpdate, list[int]]] = {}
    for job_id, state in zip(job_ids, states, strict=True):
        if state is not received:
            alike.setdefault(id(state.update), (state.update, []))[1].append(job_id)
    first = replace(received.update.entry(JobStatus.RECEIVED, epoch=0, now=now), from_status=None)
    later = [(update.entry(JobStatus.RECEIVED, epoch=0, now=now), ids) for update, ids in alike.values()]
    came: list[tuple[log.LogEntry, Sequence[int]]] = [
        (replace(first, application_status=origin), [job_id])
        for job_id, origin in zip(job_ids, origins, strict=bool(origins))
    ]
    log.append_repeated(conn, [*(came or [(first, job_ids)]), *later])


RESERVE_KEY = sql.insert_or_skip(table, "key")

_IS_KEY = (table.c.subject == bindparam("the_subject"), table.c.key == bindparam("the_key"))

FIND_KEY = select(table.c.body_digest, table.c.job_ids).where(*_IS_KEY)

FULFIL_KEY = update(table).where(*_IS_KEY).values(job_ids=bindparam("ids"))


def reserve_key(
    conn: Connection, *, subject: str, key: str, body_digest: str, now: datetime
) -> list[int] | None:
    """Insert the idempotency key of a new request, in the transaction that will store its jobs.

    Keys are per token subject. `body_digest` is the SHA-256 of the request; with another one the key is an
    IdempotencyConflict. Returns the ids that the same request got earlier; None: it is new, store its jobs
    and call `fulfil_key`.
    """
    row = {"subject": subject, "key": key, "body_digest": body_digest, "job_ids": "[]", "at": now}
    if conn.execute(RESERVE_KEY, row).first() is not None:
        return None
    earlier = conn.execute(FIND_KEY, {"the_subject": subject, "the_key": key}).one()
    return _read_ids(earlier, key, body_digest)


def find_key(conn: Connection, *, subject: str, key: str, body_digest: str) -> list[int] | None:
    """The ids that the same request got earlier, as from `reserve_key`; None: the key was not used."""
    earlier = conn.execute(FIND_KEY, {"the_subject": subject, "the_key": key}).first()
    return None if earlier is None else _read_ids(earlier, key, body_digest)


def _read_ids(earlier: Row[str, str], key: str, body_digest: str) -> list[int]:
    if earlier.body_digest != body_digest:
        raise IdempotencyConflict(f"the key {key!r} was used for another request; a new one needs a new key")
    ids: list[int] = json.loads(earlier.job_ids)
    return ids


def fulfil_key(conn: Connection, *, subject: str, key: str, job_ids: Sequence[int]) -> None:
    """Store the ids that the request with this key got."""
    conn.execute(FULFIL_KEY, {"the_subject": subject, "the_key": key, "ids": json.dumps(list(job_ids))})


_WAITING = sorted(PREPARING | {JobStatus.WAITING})
#: The first and the last stored job; both come from an index.
FIRST_JOB = select(func.coalesce(func.min(jobs.c.job_id), 1))
LAST_JOB = select(func.coalesce(func.max(jobs.c.job_id), 0))

#: Advisory locks of PostgreSQL, which end with the transaction; on SQLite the transaction is the lock.
LOCK_QUOTA = text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")
#: Without waiting: of two that got it after a wait, and then find the limit near, each waits for the other.
SHARE_QUOTA = text("SELECT pg_try_advisory_xact_lock_shared(hashtextextended(:name, 0))")
#: The same after taking one of the holder's slots; no row if all are taken. Slots come first: of two that
#: share the lock and find no slot, each would wait for the other.
SHARE_WITH_SLOT = text(
    "SELECT pg_try_advisory_xact_lock_shared(hashtextextended(:name, 0))"
    " FROM generate_series(1, :slots) AS slot"
    " WHERE pg_try_advisory_xact_lock(hashtextextended(:name || '/' || slot, 1)) LIMIT 1"
)
CONNECTIONS = text("SELECT current_setting('max_connections')::integer")

#: Limits of at least so many times what all connections may store at once need no slots.
_FAR = 10

#: A VO and an owner; None: the VO as a whole.
_QuotaHolder = tuple[str, str | None]

#: How long a count is reused; jobs that become waiting again meanwhile are not counted.
_CACHE_TIME = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class _CachedCount:
    """Number of waiting jobs at some time."""

    waiting: int
    last: int  #: highest job id at that time
    at: datetime
    exact: bool  #: whether no submission of the holder was under way


#: Cached counts.
_CACHED = 10_000
_CACHED_COUNTS: WeakKeyDictionary[Engine, Cache[_QuotaHolder, _CachedCount]] = WeakKeyDictionary()


def check_quota(
    conn: Connection,
    new: Mapping[tuple[str, str], int],
    limits: Mapping[str, LimitOptions],
    *,
    now: datetime,
    stored_next: bool = False,
) -> None:
    """Reject jobs beyond the limits of their owners and VOs with QuotaExceeded.

    `new` has the number of jobs by VO and owner, `limits` those of each VO. `stored_next`: the
    transaction stores the jobs; others that store jobs of holders near their limits wait for its end.
    """
    of_vos: Counter[str] = Counter()
    for (vo, _), jobs_of_owner in new.items():
        of_vos[vo] += jobs_of_owner
    # On SQLite a transaction is the only writer.
    reserves = stored_next and conn.dialect.name != "sqlite"
    fits = _reserve_room if reserves else partial(_is_within_quota, exact=stored_next)
    # In one order for all transactions, which lock them.
    whole = (((vo, None), jobs_of_vo) for vo, jobs_of_vo in sorted(of_vos.items()))
    for (vo, owner), jobs_of_holder in (*sorted(new.items()), *whole):
        most = limits[vo].waiting_jobs_per_vo if owner is None else limits[vo].waiting_jobs_per_owner
        if not fits(conn, (vo, owner), new=jobs_of_holder, most=most, now=now):
            what = f"{vo} has" if owner is None else f"{owner} has"
            where = "" if owner is None else f" in {vo}"
            message = f"{what} too many waiting jobs{where} for {jobs_of_holder} more, allowed are {most}"
            raise QuotaExceeded(message)


def _reserve_room(conn: Connection, holder: _QuotaHolder, *, new: int, most: int, now: datetime) -> bool:
    """`_is_within_quota` on PostgreSQL, exact until the end of the transaction.

    Near the limit one submission of the holder follows the other. Far from it, small ones share the lock: a
    count misses what they are storing, at most so many jobs as all connections together may store at once;
    and as much again if it comes from the cache. Where that would be much of the limit, a holder has few
    slots.
    """
    name = {"name": f"waiting jobs: {'/'.join(filter(None, holder))}"}
    unseen = _read_connections(conn) * bounds.DECIDED_JOBS
    has_slots = most < _FAR * unseen
    if has_slots:
        unseen = bounds.SUBMISSIONS_AT_ONCE * bounds.DECIDED_JOBS
    is_far = new <= bounds.DECIDED_JOBS and _is_within_quota(
        conn, holder, new=new + 3 * unseen, most=most, now=now
    )
    slots = {"slots": bounds.SUBMISSIONS_AT_ONCE} if has_slots else {}
    share = SHARE_WITH_SLOT if has_slots else SHARE_QUOTA
    is_shared = is_far and conn.execute(share, {**name, **slots}).scalar()
    if is_shared and _is_within_quota(conn, holder, new=new + 2 * unseen, most=most, now=now):
        return True
    conn.execute(LOCK_QUOTA, name)
    return _is_within_quota(conn, holder, new=new, most=most, now=now, exact=True)


_CONNECTIONS: WeakKeyDictionary[Engine, int] = WeakKeyDictionary()


def _read_connections(conn: Connection) -> int:
    """Number of connections that the server allows; fixed while it runs."""
    if conn.engine not in _CONNECTIONS:
        _CONNECTIONS[conn.engine] = conn.execute(CONNECTIONS).scalar_one()
    return _CONNECTIONS[conn.engine]


def _is_within_quota(
    conn: Connection, holder: _QuotaHolder, *, new: int, most: int, now: datetime, exact: bool = False
) -> bool:
    """Whether a VO, or one owner in it, stays within `most` waiting jobs with `new` more.

    Counting may take long, so a recent count is reused as an upper bound: the jobs that waited then and all
    that were stored since. Only where the bound is too high are the jobs counted again. `exact`: no other
    transaction is storing jobs of the holder, nor was while a reused count was made.
    """
    if new > most:
        return False
    last = conn.execute(LAST_JOB).scalar_one()
    if last - conn.execute(FIRST_JOB).scalar_one() + 1 + new <= most:
        return True
    counted = _CACHED_COUNTS.setdefault(conn.engine, Cache(_CACHED))
    known = counted.find(holder)
    if (
        known is not None
        and (known.exact or not exact)
        and abs(now - known.at) < _CACHE_TIME
        and known.waiting + max(0, last - known.last) + new <= most
    ):
        return True
    waiting = _count_waiting(conn, holder, most + 1)
    counted.store(holder, _CachedCount(waiting, last, now, exact))
    return waiting + new <= most


def _count_waiting(conn: Connection, holder: _QuotaHolder, most: int) -> int:
    vo, owner = holder
    some = select(jobs.c.job_id).where(
        jobs.c.status.in_(_WAITING), *ownership.match_values({jobs.c.vo: vo, jobs.c.owner: owner})
    )
    # LIMIT: a VO may have millions of waiting jobs.
    return conn.execute(select(func.count()).select_from(some.limit(most).subquery())).scalar_one()

"""Attempts: each assignment of a job to a pilot, from claim to end.

The fence is `closed_at IS NULL`, tested on the locked row: a pilot whose attempt was closed (lease expired,
job rescheduled or finished) cannot change anything, however late it reports. Only an attempt closed as LOST
may be reopened, by its own holder (`expiry.resume`). Locks are taken attempt first, then job (see
`transitions`).

Answers to match requests are stored by the sender's `request_id`, in the transaction of the claim, so that a
repeated request (after a lost answer) gets the same jobs and cannot claim twice: the second of two waits for
the first at the primary key, or at the row, if the jobs of an earlier answer went back.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection, bindparam, delete, func, select, tuple_, update

from cs_config.options import bounds
from taskqueue.db import sql
from taskqueue.errors import LeaseNotFound, StaleLease
from taskqueue.schema.tables import attempts, jobs
from taskqueue.schema.tables import match_requests as table

#: `closed_as` of an attempt that was started and whose pilot was silent for too long.
LOST: Final = "lost"
#: `closed_as` of an attempt whose payload has ended.
FINISHED: Final = "finished"
#: `closed_as` of an attempt whose job the pilot gave back.
RELEASED: Final = "released"

#: The largest use that reports have told.
PEAKS: Final = ("peak_ram_mb", "peak_scratch_mb", "cpu_seconds")

_OPEN = attempts.c.closed_at.is_(None)

CLOSE_OF_JOBS = (
    update(attempts)
    .where(sql.is_listed(attempts.c.job_id), _OPEN)
    .values(closed_at=bindparam("now"), closed_as=bindparam("as_what"))
)
#: The end of the stored request of an undelivered release; no reason ends like it, since it is quoted.
UNDELIVERED: Final = '"undelivered": true}'
RELEASES = (
    select(attempts.c.job_id, func.count().label("number"))
    .where(
        sql.is_listed(attempts.c.job_id),
        attempts.c.closed_as == RELEASED,
        attempts.c.started_at.is_(None),
        func.coalesce(attempts.c.request, "").not_like(f"%{UNDELIVERED}"),
    )
    .group_by(attempts.c.job_id)
)
REQUEST_END = update(attempts).where(sql.is_listed(attempts.c.job_id), _OPEN).values(ending=True)
REOPEN = (
    update(attempts)
    .where(attempts.c.lease == bindparam("the_lease"), attempts.c.closed_as == LOST)
    .values(lost_at=attempts.c.closed_at, closed_at=None, closed_as=None, heartbeat_at=bindparam("now"))
)
END_LOST = (
    update(attempts)
    .where(
        sql.is_listed(attempts.c.job_id),
        attempts.c.closed_as == LOST,
        attempts.c.epoch == select(jobs.c.epoch).where(jobs.c.job_id == attempts.c.job_id).scalar_subquery(),
    )
    .values(closed_as=bindparam("as_what"))
)
#: What a report changes.
_REPORTED = (
    *("started_at", "heartbeat_at", "lease_expires_at"),
    *("progress", "output_tail", "phases", "local_jobs", "output"),
    *("closed_at", "closed_as", "request", "answer", "exit_code"),
    *PEAKS,
)
STORE_REPORTED = sql.bulk_update(attempts, *_REPORTED, key="lease")


#: Those of open attempts, by VO.
OWN_TIMES = select(attempts.c.vo, attempts.c.times).where(_OPEN, attempts.c.times.is_not(None)).distinct()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptTimes:
    """Times of single attempts in place of those of their VO (`Leases`), in whole seconds.

    For pilots that report less often than ours, and go on without an answer.
    """

    lease: int  #: until the job must have started; every report before the start prolongs it
    stalled: int  #: without a report, until a running job is Stalled
    grace: int  #: Stalled, until it is given up

    def __post_init__(self) -> None:
        """Check the bounds; ValueError."""
        for name, seconds in (("lease", self.lease), ("stalled", self.stalled), ("grace", self.grace)):
            if not 0 < seconds <= bounds.SECONDS:
                raise ValueError(f"{name} of an attempt is {seconds} s, allowed are 1 to {bounds.SECONDS}")

    @classmethod
    def from_text(cls, text: str) -> "AttemptTimes":
        """Read the stored form."""
        lease, stalled, grace = json.loads(text)
        return cls(lease=lease, stalled=stalled, grace=grace)

    def to_text(self) -> str:
        """The stored form: a JSON list."""
        return json.dumps([self.lease, self.stalled, self.grace])

    @property
    def lease_time(self) -> timedelta:
        """How long a report extends the lease."""
        return timedelta(seconds=max(self.lease, self.stalled))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One assignment of a job to a pilot."""

    job_id: int
    epoch: int
    lease: str
    holder: str  #: token subject of the pilot
    stamp: str | None
    vo: str
    site: str
    ce: str
    queue: str
    opened_at: datetime
    lease_expires_at: datetime
    started_at: datetime | None
    heartbeat_at: datetime | None
    ending: bool  #: the job was killed; the pilot gets a kill command
    closed_at: datetime | None
    closed_as: str | None  #: finished, released, expired, lost, rescheduled, …
    request: str | None  #: JSON of the report that closed it, if a report did
    answer: str | None  #: JSON of the answer to it
    exit_code: int | None
    progress: str
    output_tail: str
    output: str | None  #: blob of the output archive
    phases: str | None  #: JSON list of `reports.GridJobPhase`; None: not reported
    local_jobs: str | None  #: JSON object: numbers of local jobs by their state
    quarantined: bool  #: open when commits were lost; reports of its pilot may be among them
    lost_at: datetime | None  #: when it was closed as lost, if it was reopened afterwards
    counted_by: str | None  #: the scope rules that count it, see `scope_rules.Counting`
    claim_number: int | None  #: of the pilot's claims; None: not claimed with a pilot's token
    times: str | None  #: `AttemptTimes` as stored; None: those of its VO
    processors: int | None  #: allotted to the job; None: not recorded
    ram_mb: int | None
    peak_ram_mb: int | None  #: largest use that the pilot reported; None: not reported
    peak_scratch_mb: int | None
    cpu_seconds: float | None


_SELECT = select(*(attempts.c[each.name] for each in fields(Attempt)))
GET = _SELECT.where(attempts.c.lease == bindparam("lease"))
READ = _SELECT.where(sql.is_listed(attempts.c.lease))
LOCK = READ.order_by(attempts.c.job_id).with_for_update()
NEWEST = (
    _SELECT.where(attempts.c.job_id == bindparam("job_id"))
    .order_by(attempts.c.epoch.desc())
    .limit(bindparam("most"))
)

#: Jobs of a pilot, the latest first.
OF_PILOT = (
    select(
        *(attempts.c.job_id, attempts.c.epoch, attempts.c.opened_at, attempts.c.closed_at),
        *(attempts.c.closed_as, attempts.c.exit_code),
        *(jobs.c.vo, jobs.c.owner, jobs.c.job_name, jobs.c.status, jobs.c.site),
    )
    .join(jobs, jobs.c.job_id == attempts.c.job_id)
    .where(attempts.c.stamp == bindparam("stamp"))
    .order_by(attempts.c.opened_at.desc())
    .limit(bindparam("most"))
)
OF_HOLDER = (
    select(attempts.c.job_id)
    .where(sql.is_listed(attempts.c.job_id), attempts.c.holder == bindparam("holder"))
    .distinct()
)
JOBS_OF_PILOTS = select(attempts.c.stamp, attempts.c.job_id).where(sql.is_listed(attempts.c.stamp))


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotJob:
    """A job that a pilot took, with its present status."""

    job_id: int
    epoch: int
    opened_at: datetime
    closed_at: datetime | None
    closed_as: str | None
    exit_code: int | None
    vo: str
    owner: str
    job_name: str
    status: str
    site: str


def list_of_pilot(conn: Connection, stamp: str, *, limit: int) -> list[PilotJob]:
    """The jobs that a pilot took, the latest first."""
    rows = conn.execute(OF_PILOT, {"stamp": stamp, "most": limit})
    return [PilotJob(**row._asdict()) for row in rows]


def list_of_holder(conn: Connection, job_ids: Collection[int], *, holder: str) -> frozenset[int]:
    """The jobs among these of which the holder has, or had, an attempt."""
    found = (
        row.job_id
        for ids in sql.split_batches(job_ids)
        for row in conn.execute(OF_HOLDER, {"ids": ids, "holder": holder})
    )
    return frozenset(found)


def list_jobs_of_pilots(conn: Connection, stamps: Collection[str]) -> Mapping[str, Sequence[int]]:
    """The ids of the jobs that pilots took, by stamp."""
    found: defaultdict[str, set[int]] = defaultdict(set)
    for row in sql.read_batches(conn, JOBS_OF_PILOTS, stamps):
        found[row.stamp].add(row.job_id)
    return {stamp: sorted(job_ids) for stamp, job_ids in found.items()}


def list_own_times(conn: Connection) -> Mapping[str, Sequence[str]]:
    """The distinct times of open attempts that have their own, as stored, by VO."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for row in conn.execute(OWN_TIMES):
        found[row.vo].append(row.times)
    return found


def get_attempt(conn: Connection, lease: str) -> Attempt:
    """The attempt with this lease; LeaseNotFound if there never was one."""
    row = conn.execute(GET, {"lease": lease}).one_or_none()
    if row is None:
        raise LeaseNotFound(lease)
    return Attempt(**row._asdict())


def read_attempts(conn: Connection, leases: Collection[str]) -> list[Attempt]:
    """The attempts with these leases, as far as there are any."""
    return [Attempt(**row._asdict()) for row in sql.read_batches(conn, READ, leases)]


def lock_attempts(conn: Connection, leases: Collection[str]) -> list[Attempt]:
    """The attempts with these leases, locked until the end of the transaction in the order of their jobs."""
    return [Attempt(**row._asdict()) for row in conn.execute(LOCK, {"ids": sorted(leases)})]


def check_open(attempt: Attempt) -> None:
    """Raise StaleLease if the attempt is closed."""
    if attempt.closed_at is not None:
        raise StaleLease(
            f"attempt {attempt.epoch} of job {attempt.job_id} is closed: {attempt.closed_as}; "
            "its reports are no longer accepted"
        )


def get_latest(conn: Connection, job_id: int) -> Attempt | None:
    """The job's latest attempt, open or closed."""
    return next(iter(list_newest(conn, job_id, most=1)), None)


def list_newest(conn: Connection, job_id: int, *, most: int = 100) -> list[Attempt]:
    """The job's attempts, open or closed, latest first."""
    rows = conn.execute(NEWEST, {"job_id": job_id, "most": most})
    return [Attempt(**row._asdict()) for row in rows]


def reopen(conn: Connection, lease: str, *, now: datetime) -> None:
    """Reopen a locked attempt that was closed as LOST, after a report of its holder."""
    conn.execute(REOPEN, {"the_lease": lease, "now": now})


def end_lost(conn: Connection, job_ids: Collection[int], *, closed_as: str) -> None:
    """Change LOST to `closed_as` on the jobs' latest attempts, so that they are never reopened."""
    for ids in sql.split_batches(job_ids):
        conn.execute(END_LOST, {"ids": ids, "as_what": closed_as})


def close_attempts(conn: Connection, job_ids: Collection[int], *, closed_as: str, now: datetime) -> None:
    """Close the jobs' open attempts; later reports of their pilots are refused."""
    for ids in sql.split_batches(job_ids):
        conn.execute(CLOSE_OF_JOBS, {"ids": ids, "as_what": closed_as, "now": now})


def count_releases(conn: Connection, job_ids: Collection[int]) -> Mapping[int, int]:
    """How often each of the jobs was given back before its start; without undelivered ones and noughts."""
    return {row.job_id: row.number for row in sql.read_batches(conn, RELEASES, job_ids)}


def request_end(conn: Connection, job_ids: Collection[int]) -> None:
    """Have the jobs' pilots end them; reports until then are still accepted."""
    for ids in sql.split_batches(job_ids):
        conn.execute(REQUEST_END, {"ids": ids})


def store_reported(conn: Connection, changed: Sequence[Attempt]) -> None:
    """Store locked attempts as reports have changed them; some are closed by that."""
    STORE_REPORTED.execute(
        conn, {name: [getattr(each, name) for each in changed] for name in ("lease", *_REPORTED)}
    )


#: Token subject of the sender, and its id of the request.
RequestKey = tuple[str, str]


RESERVE_KEY = sql.insert_or_skip(table, "subject", "request_id")
_KEY = (table.c.subject, table.c.request_id)
_THIS = (table.c.subject == bindparam("the_subject"), table.c.request_id == bindparam("the_request_id"))
ANSWERS = select(*_KEY, table.c.matches).where(tuple_(*_KEY).in_(sql.KEYS))
LOCK_ANSWERS = ANSWERS.order_by(*_KEY).with_for_update()
#: No UPDATE: an earlier answer that was undeliverable is deleted with its key, maybe after it was seen here.
STORE_ANSWER = sql.insert_or_update(table, "matches", "at")
RELEASE_KEY = delete(table).where(*_THIS)


def read_answers(
    conn: Connection, keys: Collection[RequestKey], *, lock: bool = False
) -> Mapping[RequestKey, list[int]]:
    """Jobs that the requests got before; `lock`: until the transaction ends no other one reads them so."""
    return {
        (row.subject, row.request_id): json.loads(row.matches)
        for row in sql.read_batches(conn, LOCK_ANSWERS if lock else ANSWERS, keys)
    }


def reserve_keys(conn: Connection, keys: Collection[RequestKey], *, now: datetime) -> frozenset[RequestKey]:
    """Insert the keys in this transaction; those that are new. The others were answered meanwhile."""
    new: set[RequestKey] = set()
    for some in sql.split_batches(keys):
        rows = [
            {"subject": subject, "request_id": request_id, "at": now, "matches": "[]"}
            for subject, request_id in some
        ]
        found = conn.execute(RESERVE_KEY, rows)
        new |= {(row.subject, row.request_id) for row in found}
    return frozenset(new)


def store_answers(conn: Connection, given: Mapping[RequestKey, Collection[int]], *, now: datetime) -> None:
    """Store the jobs that requests get, before the transaction commits."""
    rows = [
        {"subject": subject, "request_id": request_id, "matches": json.dumps(sorted(job_ids)), "at": now}
        for (subject, request_id), job_ids in sorted(given.items())
    ]
    if rows:
        conn.execute(STORE_ANSWER, rows)


def release_keys(conn: Connection, keys: Collection[RequestKey]) -> None:
    """Delete reserved keys whose requests got no jobs."""
    rows = [{"the_subject": subject, "the_request_id": request_id} for subject, request_id in sorted(keys)]
    if rows:
        conn.execute(RELEASE_KEY, rows)

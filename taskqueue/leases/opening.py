"""Opening of attempts: one with a lease for each assigned job, logged, in the transaction of its assignment.

`batched_claim.sql` does both in its one statement.
"""

import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select

from requirements.resource import ALLOTTED, Allotment, Location
from requirements.states import JobStatus
from taskqueue.db import sql
from taskqueue.jobs import descriptions, log, placeholders
from taskqueue.jobs.log import LogEntry
from taskqueue.leases.assignment import ASSIGNED, CLAIMED_COLUMNS, TakenRow
from taskqueue.leases.attempts import AttemptTimes
from taskqueue.pilots import slots
from taskqueue.pilots.slots import SlotLimits, SlotRoom
from taskqueue.schema.tables import attempts, jobs

SOURCE = "Matcher"
_LEASE_BYTES = 24

_LEASE = ("lease", "lease_expires_at")

OPEN = insert(attempts)
HELD = (
    select(*CLAIMED_COLUMNS, *(attempts.c[name] for name in (*_LEASE, *ALLOTTED)))
    .join(attempts, (attempts.c.job_id == jobs.c.job_id) & (attempts.c.epoch == jobs.c.epoch))
    .where(
        sql.is_listed(jobs.c.job_id), attempts.c.closed_at.is_(None), attempts.c.holder == bindparam("holder")
    )
    .order_by(jobs.c.job_id)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseHolder:
    """The pilot that gets the jobs, and the time in which it must start them."""

    subject: str  #: of the token
    stamp: str | None  #: of the pilot
    lease_time: timedelta  #: until the job must have started
    slot: SlotLimits | None = None  #: None: the holder is no pilot
    lease_times: Mapping[str, timedelta] = field(default_factory=dict)  #: of jobs of VOs that differ
    times: AttemptTimes | None = None  #: in place of those of the VO, with `lease_time` of its `lease`

    def for_vo(self, vo: str) -> "LeaseHolder":
        """The holder of a job of this VO."""
        time = self.lease_times.get(vo)
        return (
            self if time is None or self.times is not None else replace(self, lease_time=time, lease_times={})
        )


def read_rooms(conn: Connection, holders: Sequence[LeaseHolder], *, now: datetime) -> list[SlotRoom | None]:
    """How much room each holder has, None: it is no pilot; of equal pilots the first one gets it."""
    limits = {each.stamp: each.slot for each in holders if each.stamp is not None and each.slot is not None}
    rooms = slots.read_rooms(conn, limits, now=now) if limits else {}
    found: list[SlotRoom | None] = []
    for each in holders:
        found.append(rooms.get(each.stamp) if each.stamp in limits else None)
        if each.stamp in limits:
            rooms[each.stamp] = slots.NO_ROOM
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedJob:
    """An assigned job with its location and holder."""

    row: TakenRow
    place: Location
    holder: LeaseHolder
    allotment: Allotment = field(default_factory=Allotment)
    counted_by: str | None = None  #: see `scope_rules.format_countings`
    claim_number: int | None = None  #: see `slots`; None: not claimed with a pilot's token


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedJob:
    """A job that was claimed by a pilot."""

    job_id: int
    epoch: int
    vo: str
    lease: str
    lease_expires_at: datetime
    description_json: str  #: placeholders filled, `JobID` added
    sandbox: str | None  #: digest of the input sandbox
    allotment: Allotment
    flags: tuple[str, ...] = ()  #: with which it is submitted to a batch system, if it was asked for so
    owner: str | None = None  #: if it was asked for so

    @property
    def description(self) -> Mapping[str, Any]:
        """The description, parsed."""
        parsed: Mapping[str, Any] = json.loads(self.description_json)
        return parsed


def generate_lease() -> str:
    """A random token."""
    return secrets.token_hex(_LEASE_BYTES)


def generate_leases(number: int) -> list[str]:
    """Random tokens, by one call of the system: during each one other threads take the interpreter."""
    digits = secrets.token_hex(number * _LEASE_BYTES)
    size = 2 * _LEASE_BYTES
    return [digits[start : start + size] for start in range(0, len(digits), size)]


def open_attempts(conn: Connection, given: Sequence[AssignedJob], *, now: datetime) -> list[ClaimedJob]:
    """Open an attempt with a lease for each assigned job, and log it."""
    if not given:
        return []
    held = [(each.row, generate_lease(), now + each.holder.lease_time, each.allotment) for each in given]
    opened = [
        {
            "job_id": row.job_id,
            "epoch": row.epoch,
            "lease": lease,
            "holder": to.holder.subject,
            "stamp": to.holder.stamp,
            "vo": row.vo,
            "site": to.place.site,
            "ce": to.place.ce,
            "queue": to.place.queue,
            "opened_at": now,
            "lease_expires_at": expires,
            "counted_by": to.counted_by,
            "claim_number": to.claim_number,
            "times": to.holder.times.to_text() if to.holder.times else None,
            **allotment.to_columns(),
        }
        for (row, lease, expires, allotment), to in zip(held, given, strict=True)
    ]
    conn.execute(OPEN, opened)
    log.append(
        conn,
        [
            LogEntry(
                job_id=each.row.job_id,
                at=now,
                from_status=JobStatus.WAITING,
                to_status=JobStatus.MATCHED,
                minor_status=ASSIGNED,
                source=SOURCE,
                epoch=each.row.epoch,
            )
            for each in given
        ],
    )
    return _build_claimed(conn, held)


def list_held(conn: Connection, job_ids: Collection[int], *, subject: str) -> list[ClaimedJob]:
    """Jobs among these that the holder still has, to repeat a lost answer."""
    rows = conn.execute(HELD, {"ids": sorted(job_ids), "holder": subject}).all()
    held = [
        (row, row.lease, row.lease_expires_at, Allotment(**{name: getattr(row, name) for name in ALLOTTED}))
        for row in rows
    ]
    return _build_claimed(conn, held)


def _build_claimed(
    conn: Connection, held: Sequence[tuple[TakenRow, str, datetime, Allotment]]
) -> list[ClaimedJob]:
    """Claimed jobs; `held` are assigned jobs with their lease, its expiry and the allotment."""
    written = descriptions.read_shared(conn, {row.description_id for row, *_ in held})
    claimed: list[ClaimedJob] = []
    for row, lease, expires, allotment in held:
        body, sandbox = written[row.description_id]
        claimed.append(
            ClaimedJob(
                job_id=row.job_id,
                epoch=row.epoch,
                vo=row.vo,
                lease=lease,
                lease_expires_at=expires,
                description_json=describe_job(row.job_id, body, row.parameters),
                sandbox=sandbox,
                allotment=allotment,
            )
        )
    return claimed


def describe_job(job_id: int, body: str, parameters: str | None) -> str:
    """The description sent to a pilot, as JSON: placeholders filled, `JobID` added.

    A description without placeholders is passed on as it is stored: parsing it would cost more than a claim.
    """
    is_plain = parameters is None and not placeholders.has_job_id(body)
    if is_plain and body.startswith('{"') and '"JobID"' not in body:
        return f'{body[:-1]},"JobID":{job_id}}}'
    filled = placeholders.fill_placeholders(json.loads(body), json.loads(parameters) if parameters else None)
    text = json.dumps(filled | {"JobID": job_id})
    if not placeholders.has_job_id(text):
        return text
    return json.dumps(placeholders.fill_job_id(filled, job_id) | {"JobID": job_id})

"""Pilots: pullers in batch slots, by our own stamp."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, bindparam, case, func, select, update
from sqlalchemy.sql.dml import Insert

from cs_config.configuration import QueueAddress
from taskqueue.errors import IdempotencyConflict, IllegalTransition, PilotNotFound
from taskqueue.states import PILOT_STEPS, PilotStatus
from taskqueue.tables import pilots as table
from taskqueue.upserts import Twins, Upsert

_ENDED = sorted(status for status, steps in PILOT_STEPS.items() if not steps)


def _register(insert: Upsert) -> Insert:
    return insert.on_conflict_do_nothing(index_elements=["stamp"]).returning(table.c.stamp)


def _see(insert: Upsert) -> Insert:
    # What its batch system said last is older news than the pilot itself, unless it said the end.
    lives = case((table.c.status.in_(_ENDED), table.c.status), else_=PilotStatus.RUNNING.value)
    return insert.on_conflict_do_update(
        index_elements=["stamp"],
        set_={
            "status": lives,
            # Where it does not say its queue, it is where it was.
            **{
                name: func.coalesce(func.nullif(insert.excluded[name], ""), table.c[name])
                for name in ("site", "ce", "queue")
            },
            "updated_at": case(
                (table.c.status == lives, table.c.updated_at), else_=insert.excluded.updated_at
            ),
            "last_seen_at": insert.excluded.last_seen_at,
        },
        where=table.c.vo == insert.excluded.vo,
    )


REGISTER = Twins(table, _register)
SEE = Twins(table, _see)

GET = select(table).where(table.c.stamp == bindparam("stamp"))

IS_AT = select(table.c.stamp).where(
    table.c.stamp == bindparam("stamp"),
    table.c.site == bindparam("the_site"),
    table.c.vo.in_(bindparam("vos", expanding=True)),
)

SET_STATUS = (
    update(table)
    .where(
        table.c.stamp == bindparam("the_stamp"),
        table.c.status.in_(bindparam("from_states", expanding=True)),
    )
    .values(
        status=bindparam("wanted"),
        status_reason=bindparam("reason"),
        reference=func.coalesce(bindparam("new_reference"), table.c.reference),
        updated_at=bindparam("now"),
    )
)

GIVE = (
    update(table).where(table.c.stamp == bindparam("the_stamp")).values(jobs=table.c.jobs + bindparam("more"))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pilot:
    """A pilot as it stands."""

    stamp: str
    vo: str
    status: PilotStatus
    status_reason: str
    site: str
    ce: str
    queue: str
    reference: str | None  #: the CE's id
    submitted_by: str  #: token subject of the director; empty: it came by itself
    jobs: int  #: how many it was given
    created_at: datetime
    updated_at: datetime
    last_seen_at: datetime | None  #: last request of the pilot itself


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotFilter:
    """Which pilots; None asks nothing, an empty set is met by no pilot."""

    vos: Collection[str] | None = None
    sites: Collection[str] | None = None
    statuses: Collection[PilotStatus] | None = None
    submitted_by: str | None = None
    since: datetime | None = None  #: changed then or later


def register(
    conn: Connection, *, stamp: str, vo: str, queue: QueueAddress, submitted_by: str, now: datetime
) -> bool:
    """Store the intent to submit a pilot; whether it is new.

    Raises:
        IdempotencyConflict: The stamp is taken by another pilot.
    """
    row = {
        **_row(stamp=stamp, vo=vo, status=PilotStatus.SUBMITTED, queue=queue, now=now),
        "submitted_by": submitted_by,
    }
    if conn.execute(REGISTER.of(conn), row).first() is not None:
        return True
    there = get(conn, stamp)
    if (there.vo, there.submitted_by) != (vo, submitted_by):
        raise IdempotencyConflict(f"the stamp {stamp} is taken by another pilot")
    return False


def is_at(conn: Connection, stamp: str, *, site: str, vos: Collection[str]) -> bool:
    """Whether there is such a pilot of one of the VOs, and it belongs to a queue of this site."""
    values = {"stamp": stamp, "the_site": site, "vos": sorted(vos)}
    return bool(site) and conn.execute(IS_AT, values).first() is not None


def get(conn: Connection, stamp: str) -> Pilot:
    """One pilot.

    Raises:
        PilotNotFound: There is none with this stamp.
    """
    row = conn.execute(GET, {"stamp": stamp}).mappings().one_or_none()
    if row is None:
        raise PilotNotFound(stamp)
    return _pilot(dict(row))


def set_status(
    conn: Connection,
    stamp: str,
    wanted: PilotStatus,
    *,
    reason: str = "",
    reference: str | None = None,
    now: datetime,
) -> None:
    """Store what the batch system says of a pilot, and its reference when that is known.

    Raises:
        IllegalTransition: It has ended otherwise.
        PilotNotFound: There is none with this stamp.
    """
    sources = [status.value for status, steps in PILOT_STEPS.items() if status is wanted or wanted in steps]
    values = {
        "the_stamp": stamp,
        "wanted": wanted.value,
        "from_states": sources,
        "reason": reason,
        "new_reference": reference,
        "now": now,
    }
    if not conn.execute(SET_STATUS, values).rowcount:
        raise IllegalTransition(stamp, current=get(conn, stamp).status, wanted=wanted)


def seen(conn: Connection, *, stamp: str, vo: str, queue: QueueAddress | None, now: datetime) -> None:
    """Note that a pilot spoke to us: it runs. One that nobody registered came by itself."""
    row = _row(stamp=stamp, vo=vo, status=PilotStatus.RUNNING, queue=queue, now=now)
    conn.execute(SEE.of(conn), {**row, "last_seen_at": now})


def give(conn: Connection, jobs: Mapping[str, int]) -> None:
    """Count the jobs that pilots were given, by stamp."""
    if jobs:
        conn.execute(GIVE, [{"the_stamp": stamp, "more": more} for stamp, more in sorted(jobs.items())])


def find(conn: Connection, which: PilotFilter, *, limit: int, after: str = "") -> list[Pilot]:
    """A page of pilots, by stamp."""
    statement = select(table).where(table.c.stamp > after)
    sets = {table.c.vo: which.vos, table.c.site: which.sites, table.c.status: which.statuses}
    for column, allowed in sets.items():
        if allowed is not None:
            statement = statement.where(column.in_(sorted(allowed)))
    if which.submitted_by is not None:
        statement = statement.where(table.c.submitted_by == which.submitted_by)
    if which.since is not None:
        statement = statement.where(table.c.updated_at >= which.since)
    rows = conn.execute(statement.order_by(table.c.stamp).limit(limit)).mappings()
    return [_pilot(dict(row)) for row in rows]


def _pilot(row: Mapping[str, object]) -> Pilot:
    values: dict[str, object] = {**row, "status": PilotStatus(str(row["status"]))}
    return Pilot(**values)  # type: ignore[arg-type]  # columns and fields are the same


def _row(
    *, stamp: str, vo: str, status: PilotStatus, queue: QueueAddress | None, now: datetime
) -> dict[str, object]:
    return {
        "stamp": stamp,
        "vo": vo,
        "status": status.value,
        "site": queue.site if queue else "",
        "ce": queue.ce if queue else "",
        "queue": queue.queue if queue else "",
        "created_at": now,
        "updated_at": now,
    }

"""Pilots, by our own stamp: registration, status, the queue that each is bound to, and activity by queue.

A pilot's token may name no queue. The first queue that the pilot states is stored for good, so a leaked
token serves no other place. A pilot sent through a broker may state only a queue that the broker could pick.
"""

import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, bindparam, case, exists, func, or_, select, update
from sqlalchemy.sql.dml import Insert

from cs_config.tree.address import QueueAddress
from taskqueue.db.sql import DialectInsert, Upsert
from taskqueue.errors import IdempotencyConflict, IllegalTransition, PilotNotFound
from taskqueue.schema.tables import pilot_outputs, pilots
from taskqueue.schema.tables import pilots as table
from taskqueue.states import PILOT_STEPS, PilotStatus, pilot_may_become

_ENDED = sorted(status for status, steps in PILOT_STEPS.items() if not steps)


def _register(insert: DialectInsert) -> Insert:
    return insert.on_conflict_do_nothing(index_elements=["stamp"]).returning(table.c.stamp)


def _contact(insert: DialectInsert) -> Insert:
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


REGISTER = Upsert(table, _register)
CONTACT = Upsert(table, _contact)

_has_output = exists().where(pilot_outputs.c.stamp == table.c.stamp)
ALL = select(table, _has_output.label("has_output"))
GET = ALL.where(table.c.stamp == bindparam("stamp"))

STATUSES = select(table.c.stamp, table.c.status).where(table.c.stamp.in_(bindparam("stamps", expanding=True)))

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
        empty_reason=func.coalesce(bindparam("why_empty"), table.c.empty_reason),
        reference=func.coalesce(bindparam("new_reference"), table.c.reference),
        updated_at=bindparam("now"),
    )
)

ADD_JOBS = (
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
    landings: tuple[str, ...] = ()  #: `Site/CE/Queue` where it may land; none: it was sent to its queue
    empty_reason: str = ""  #: why it got no job, in a word, as it said itself
    has_output: bool = False  #: the end of what it wrote was stored

    def may_be_at(self, sites: Collection[str]) -> bool:
        """Whether it is at one of the sites, or may land there."""
        if self.site:
            return self.site in sites
        return any(landing.partition("/")[0] in sites for landing in self.landings)


def register(
    conn: Connection,
    *,
    stamp: str,
    vo: str,
    queue: QueueAddress | None,
    landings: Collection[QueueAddress] = (),
    submitted_by: str,
    now: datetime,
) -> bool:
    """Store the intent to submit a pilot; whether it is new.

    Args:
        conn: In a writing transaction.
        stamp: Our name of it.
        vo: Whose it is.
        queue: Where it is sent; None: a broker picks one of the landings.
        landings: Where it may land; nowhere else will it be given anything.
        submitted_by: Token subject of its director.
        now: The time.

    Raises:
        IdempotencyConflict: The stamp is taken by another pilot.
    """
    row = {
        **_build_row(stamp=stamp, vo=vo, status=PilotStatus.SUBMITTED, queue=queue, now=now),
        "submitted_by": submitted_by,
        "landings": json.dumps(sorted(map(str, landings))) if landings else None,
    }
    if conn.execute(REGISTER.to_statement(conn), row).first() is not None:
        return True
    there = get_pilot(conn, stamp)
    if (there.vo, there.submitted_by) != (vo, submitted_by):
        raise IdempotencyConflict(f"the stamp {stamp} is taken by another pilot")
    return False


def is_at(conn: Connection, stamp: str, *, site: str, vos: Collection[str]) -> bool:
    """Whether there is such a pilot of one of the VOs, and it belongs to a queue of this site."""
    values = {"stamp": stamp, "the_site": site, "vos": sorted(vos)}
    return bool(site) and conn.execute(IS_AT, values).first() is not None


def get_pilot(conn: Connection, stamp: str) -> Pilot:
    """One pilot.

    Raises:
        PilotNotFound: There is none with this stamp.
    """
    row = conn.execute(GET, {"stamp": stamp}).mappings().one_or_none()
    if row is None:
        raise PilotNotFound(stamp)
    return from_row(dict(row))


def set_status(
    conn: Connection,
    stamp: str,
    wanted: PilotStatus,
    *,
    reason: str = "",
    reference: str | None = None,
    empty_reason: str | None = None,
    now: datetime,
) -> None:
    """Store what became of a pilot, its reference when that is known, and why it got no job if it says so.

    Raises:
        IllegalTransition: It has ended otherwise.
        PilotNotFound: There is none with this stamp.
    """
    sources = [status.value for status in PilotStatus if pilot_may_become(status, wanted)]
    values = {
        "the_stamp": stamp,
        "wanted": wanted.value,
        "from_states": sources,
        "reason": reason,
        "new_reference": reference,
        "why_empty": empty_reason,
        "now": now,
    }
    if not conn.execute(SET_STATUS, values).rowcount:
        raise IllegalTransition(stamp, current=get_pilot(conn, stamp).status, wanted=wanted)


def record_contact(
    conn: Connection, *, stamp: str, vo: str, queue: QueueAddress | None, now: datetime
) -> None:
    """Note that a pilot spoke to us: it runs. One that nobody registered came by itself."""
    row = _build_row(stamp=stamp, vo=vo, status=PilotStatus.RUNNING, queue=queue, now=now)
    conn.execute(CONTACT.to_statement(conn), {**row, "last_seen_at": now})


def add_jobs(conn: Connection, jobs: Mapping[str, int]) -> None:
    """Count the jobs that pilots were given, by stamp."""
    if jobs:
        conn.execute(ADD_JOBS, [{"the_stamp": stamp, "more": more} for stamp, more in sorted(jobs.items())])


def read_statuses(conn: Connection, stamps: Collection[str]) -> Mapping[str, PilotStatus]:
    """The status of those of the pilots that are there."""
    rows = conn.execute(STATUSES, {"stamps": sorted(stamps)})
    return {row.stamp: PilotStatus(row.status) for row in rows}


def from_row(row: Mapping[str, object]) -> Pilot:
    """A pilot as `ALL` finds it."""
    values: dict[str, object] = {
        **row,
        "status": PilotStatus(str(row["status"])),
        "landings": tuple(json.loads(str(row["landings"] or "[]"))),
    }
    return Pilot(**values)  # type: ignore[arg-type]  # columns and fields are the same


def _build_row(
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


_COMING = sorted({PilotStatus.SUBMITTED.value, PilotStatus.WAITING.value})

_has_asked = pilots.c.last_seen_at >= bindparam("since")
_is_coming = pilots.c.status.in_(_COMING)
ACTIVITY = (
    select(
        pilots.c.site,
        pilots.c.ce,
        pilots.c.queue,
        func.sum(case((_has_asked, 1), else_=0)).label("asked"),
        func.sum(case((_is_coming, 1), else_=0)).label("coming"),
    )
    .where(pilots.c.vo == bindparam("vo"), or_(_has_asked, _is_coming))
    .group_by(pilots.c.site, pilots.c.ce, pilots.c.queue)
)
#: Those whose queue a broker picks, by where they may land.
COMING = (
    select(pilots.c.landings, func.count().label("coming"))
    .where(pilots.c.vo == bindparam("vo"), _is_coming, pilots.c.site == "", pilots.c.landings.is_not(None))
    .group_by(pilots.c.landings)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueActivity:
    """The pilots of a VO at one queue."""

    asked: int  #: how many asked for work in the time looked at
    coming: int  #: how many wait in the batch system, as far as it told, or may land there


def count_by_queue(conn: Connection, vo: str, *, since: datetime) -> Mapping[QueueAddress, QueueActivity]:
    """The queues where pilots of a VO asked since then, or are to come."""
    asked: Counter[QueueAddress] = Counter()
    coming: Counter[QueueAddress] = Counter()
    for row in conn.execute(ACTIVITY, {"vo": vo, "since": since}):
        queue = QueueAddress(site=row.site, ce=row.ce, queue=row.queue)
        asked[queue], coming[queue] = row.asked, row.coming
    for row in conn.execute(COMING, {"vo": vo}):
        coming.update(dict.fromkeys(map(QueueAddress.parse, json.loads(row.landings)), row.coming))
    return {queue: QueueActivity(asked=asked[queue], coming=coming[queue]) for queue in asked.keys() | coming}


BIND = (
    update(table)
    .where(table.c.stamp == bindparam("the_stamp"), table.c.site == "")
    .values(site=bindparam("new_site"), ce=bindparam("new_ce"), queue=bindparam("new_queue"))
)
BOUND = select(table.c.site, table.c.ce, table.c.queue, table.c.landings).where(
    table.c.stamp == bindparam("the_stamp")
)


def bind_queue(
    conn: Connection, *, stamp: str, vo: str, queue: QueueAddress, now: datetime
) -> QueueAddress | None:
    """Note that a pilot spoke to us, and bind it to a queue unless it is bound.

    Returns:
        The queue that it has; None: it has none, and was not sent to this one.
    """
    record_contact(conn, stamp=stamp, vo=vo, queue=None, now=now)
    row = conn.execute(BOUND, {"the_stamp": stamp}).one_or_none()
    if row is not None and not row.site and row.landings and str(queue) not in json.loads(row.landings):
        return None
    # Of two first requests the row's lock lets one through; the other finds the pilot bound.
    values = {"new_site": queue.site, "new_ce": queue.ce, "new_queue": queue.queue}
    conn.execute(BIND, {"the_stamp": stamp, **values})
    return read_bound_queue(conn, stamp) or queue


def read_bound_queue(conn: Connection, stamp: str) -> QueueAddress | None:
    """The queue that a pilot is bound to; None if it has not stated one."""
    row = conn.execute(BOUND, {"the_stamp": stamp}).one_or_none()
    if row is None or not row.site:
        return None
    return QueueAddress(site=row.site, ce=row.ce, queue=row.queue)

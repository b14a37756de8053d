"""Pilots, by our own stamp: registration, status, bound queue, activity by queue, and stored output.

A pilot's token may have no queue. The first queue that the pilot states is stored for good, so that a leaked
token serves no other location. A pilot sent through a broker may state only a queue that the broker could
pick.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection, and_, bindparam, case, exists, func, insert, or_, select, text, update
from sqlalchemy.sql.dml import Update

from cs_config.tree.address import QueueAddress
from requirements.states import PILOT_ACTIVE, PILOT_ENDS, PilotStatus, pilot_may_become
from taskqueue.db import sql
from taskqueue.errors import IdempotencyConflict, IllegalTransition, PilotNotFound, QuotaExceeded
from taskqueue.schema.tables import NOT_ASKED, attempts, pilot_outputs
from taskqueue.schema.tables import pilots as table

# No IN: its list is made for each execution, so that no statement for many rows can have one.
_ENDED = or_(*(table.c.status == each.value for each in sorted(PILOT_ENDS)))
# The pilot's own contact is newer than its batch system's last report, unless that reported the end.
_LIVES = case((_ENDED, table.c.status), else_=PilotStatus.RUNNING.value)


_NEW = sql.insert(table)
CONTACT = _NEW.on_conflict_do_update(
    index_elements=["stamp"],
    set_={
        "status": _LIVES,
        # Without a queue in the request the stored one stays.
        **{
            name: func.coalesce(func.nullif(_NEW.excluded[name], ""), table.c[name])
            for name in ("site", "ce", "queue")
        },
        # The first statement holds: a leaked token cannot enlarge the slot.
        "processors": func.coalesce(table.c.processors, _NEW.excluded.processors),
        "updated_at": case((table.c.status == _LIVES, table.c.updated_at), else_=_NEW.excluded.updated_at),
        "last_seen_at": _NEW.excluded.last_seen_at,
    },
    where=table.c.vo == _NEW.excluded.vo,
)

_IN_ATTEMPTS = (
    select(func.count()).select_from(attempts).where(attempts.c.stamp == table.c.stamp).scalar_subquery()
)
_FINISHED = (
    select(func.count())
    .select_from(attempts)
    .where(attempts.c.stamp == table.c.stamp, attempts.c.closed_as == "finished")
    .scalar_subquery()
)
_has_it_open = (attempts.c.stamp == table.c.stamp, attempts.c.closed_at.is_(None))
#: What an active pilot has at the moment; an attempt without a record of its processors has one.
_OPEN = select(func.count()).select_from(attempts).where(*_has_it_open).scalar_subquery()
_USED = select(func.coalesce(func.sum(func.coalesce(attempts.c.processors, 1)), 0)).where(*_has_it_open)
OPEN_JOBS = case((_ENDED, 0), else_=_OPEN)
USED_CORES = case((_ENDED, 0), else_=_USED.scalar_subquery())
#: Number of jobs that a pilot got: counted in its attempts while it is active, and stored when it ends.
JOBS = case((_ENDED, table.c.jobs), else_=_IN_ATTEMPTS)
#: Number of jobs whose payload ended at a pilot, in the same way; the others were given back, or are open.
ENDED_JOBS = case((_ENDED, table.c.ended_jobs), else_=_FINISHED)

REGISTER = sql.insert_or_skip(table, "stamp")

_has_output = exists().where(pilot_outputs.c.stamp == table.c.stamp, pilot_outputs.c.stored_at.is_not(None))
_has_log = exists().where(pilot_outputs.c.stamp == table.c.stamp, pilot_outputs.c.logged_at.is_not(None))
_UNSEEN = frozenset({"jobs", "ended_jobs", "processors", "process", "restarted_at", "asked_at", "shape"})
ALL = select(
    *(each for each in table.c if each.name not in _UNSEEN),
    JOBS.label("jobs"),
    ENDED_JOBS.label("ended_jobs"),
    OPEN_JOBS.label("open_jobs"),
    USED_CORES.label("used_cores"),
    _has_output.label("has_output"),
    _has_log.label("has_log"),
)
GET = ALL.where(table.c.stamp == bindparam("stamp"))
ALL_AMONG = ALL.where(sql.is_listed(table.c.stamp))

_is_active = or_(*(table.c.status == each.value for each in sorted(PILOT_ACTIVE)))
ACTIVE_OF = (
    select(table.c.stamp)
    .where(_is_active, table.c.submitted_by == bindparam("holder"))
    .limit(bindparam("most"))
)
_SOME_ACTIVE = (
    select(table.c.stamp).where(_is_active, table.c.vo == bindparam("vo")).limit(bindparam("most")).subquery()
)
ACTIVE_OF_VO = select(func.count()).select_from(_SOME_ACTIVE)

STATUSES = select(table.c.stamp, table.c.status).where(sql.is_listed(table.c.stamp))

IS_AT = select(table.c.stamp).where(
    table.c.stamp == bindparam("stamp"),
    table.c.site == bindparam("the_site"),
    table.c.vo.in_(bindparam("vos", expanding=True)),
)

IS_HEARD = select(table.c.stamp).where(
    table.c.stamp == bindparam("stamp"),
    or_(
        table.c.last_seen_at >= bindparam("since"),
        exists().where(
            attempts.c.stamp == table.c.stamp,
            attempts.c.closed_at.is_(None),
            func.coalesce(attempts.c.heartbeat_at, attempts.c.opened_at) >= bindparam("since"),
        ),
    ),
)


def _set_status_to(wanted: PilotStatus) -> Update:
    sources = (status for status in PilotStatus if pilot_may_become(status, wanted))
    return (
        update(table)
        .where(
            table.c.stamp == bindparam("the_stamp"),
            or_(*(table.c.status == each.value for each in sources)),
        )
        .values(
            status=wanted.value,
            # Its attempts are removed before the pilot is: a later count may be lower.
            jobs=case((table.c.jobs < _IN_ATTEMPTS, _IN_ATTEMPTS), else_=table.c.jobs),
            ended_jobs=case((table.c.ended_jobs < _FINISHED, _FINISHED), else_=table.c.ended_jobs),
            # The director may report the end after the pilot itself, which knows more.
            status_reason=case((table.c.host_trouble, table.c.status_reason), else_=bindparam("reason")),
            host_trouble=or_(table.c.host_trouble, bindparam("by_host", type_=table.c.host_trouble.type)),
            empty_reason=func.coalesce(bindparam("why_empty"), table.c.empty_reason),
            reference=func.coalesce(bindparam("new_reference"), table.c.reference),
            updated_at=bindparam("now"),
        )
    )


#: By the wanted status; for one row or for many.
SET_STATUS = {wanted: _set_status_to(wanted) for wanted in PilotStatus}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pilot:
    """A stored pilot."""

    stamp: str
    vo: str
    status: PilotStatus
    status_reason: str
    site: str
    ce: str
    queue: str
    reference: str | None  #: the CE's id
    submitted_by: str  #: token subject of the director; empty: not submitted by one
    jobs: int  #: number of jobs that it got
    created_at: datetime
    updated_at: datetime
    last_seen_at: datetime | None  #: last request of the pilot itself
    possible_queues: tuple[str, ...] = ()  #: possible `Site/CE/Queue` if a broker picks the queue
    empty_reason: str = ""  #: why it got no job, in a word, as it reported
    has_output: bool = False  #: the last part of its output was stored by its director
    has_log: bool = False  #: the last part of its log was stored by itself
    open_jobs: int = 0  #: that it has now
    used_cores: int = 0  #: of these jobs
    ended_jobs: int = 0  #: number of jobs whose payload ended there
    node: str = ""  #: name of its host, as it reported; empty: not known
    host_trouble: bool = False  #: it ended because of its host, as it reported

    def may_be_at(self, sites: Collection[str]) -> bool:
        """Whether it is at one of the sites, or may be sent there by a broker."""
        if self.site:
            return self.site in sites
        return any(each.partition("/")[0] in sites for each in self.possible_queues)


def register(
    conn: Connection,
    *,
    stamp: str,
    vo: str,
    queue: QueueAddress | None,
    possible_queues: Collection[QueueAddress] = (),
    submitted_by: str,
    now: datetime,
) -> bool:
    """Store the intent to submit a pilot; whether it is new. IdempotencyConflict: another one has the stamp.

    `queue` None: a broker picks one of `possible_queues`; at no other queue will the pilot get jobs.
    """
    row = {
        **_build_row(stamp=stamp, vo=vo, status=PilotStatus.SUBMITTED, queue=queue, now=now),
        "submitted_by": submitted_by,
        "possible_queues": json.dumps(sorted(map(str, possible_queues))) if possible_queues else None,
    }
    if conn.execute(REGISTER, row).first() is not None:
        return True
    found = get_pilot(conn, stamp)
    if (found.vo, found.submitted_by) != (vo, submitted_by):
        raise IdempotencyConflict(f"the stamp {stamp} is taken by another pilot")
    return False


def count_active(conn: Connection, submitted_by: str, *, most: int) -> int:
    """How many pilots of one subject have not ended, counted up to `most`."""
    return len(conn.execute(ACTIVE_OF, {"holder": submitted_by, "most": most}).all())


def require_within_quota(conn: Connection, vo: str, *, most: int) -> None:
    """Raise `QuotaExceeded` if a VO, with what this transaction stored, has too many active pilots.

    Transactions do not wait for each other: those of the same time exceed it by at most what they store.
    """
    if conn.execute(ACTIVE_OF_VO, {"vo": vo, "most": most + 1}).scalar_one() > most:
        raise QuotaExceeded(
            f"{vo} would have more than {most:,} pilots that have not ended: Limits/PilotsPerVO allows"
            " no more, until some end or an operator raises it"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IntendedPilot:
    """A pilot that is to be submitted."""

    stamp: str
    queue: QueueAddress | None  #: None: a broker picks one of the possible_queues
    possible_queues: tuple[QueueAddress, ...] = ()


def register_all(
    conn: Connection, intended: Collection[IntendedPilot], *, vo: str, submitted_by: str, now: datetime
) -> None:
    """Store the intents to submit many new pilots, or none; IdempotencyConflict if a stamp is taken."""
    stamps = [each.stamp for each in intended]
    if taken := read_statuses(conn, stamps):
        raise IdempotencyConflict(f"the stamp {min(taken)} is taken by another pilot")
    rows = [
        {
            **_build_row(stamp=each.stamp, vo=vo, status=PilotStatus.SUBMITTED, queue=each.queue, now=now),
            "submitted_by": submitted_by,
            "possible_queues": json.dumps(sorted(map(str, each.possible_queues)))
            if each.possible_queues
            else None,
        }
        for each in sorted(intended, key=lambda each: each.stamp)
    ]
    conn.execute(insert(table), rows)


def is_at(conn: Connection, stamp: str, *, site: str, vos: Collection[str]) -> bool:
    """Whether this pilot exists, is of one of the VOs, and is bound to a queue of the site."""
    values = {"stamp": stamp, "the_site": site, "vos": sorted(vos)}
    return bool(site) and conn.execute(IS_AT, values).first() is not None


def get_pilot(conn: Connection, stamp: str) -> Pilot:
    """One pilot; PilotNotFound."""
    row = conn.execute(GET, {"stamp": stamp}).mappings().one_or_none()
    if row is None:
        raise PilotNotFound(stamp)
    return from_row(dict(row))


def is_heard(conn: Connection, stamp: str, *, since: datetime) -> bool:
    """Whether a pilot has requested jobs, or reported on one that it holds, since then."""
    return conn.execute(IS_HEARD, {"stamp": stamp, "since": since}).first() is not None


def set_status(
    conn: Connection,
    stamp: str,
    wanted: PilotStatus,
    *,
    reason: str = "",
    reference: str | None = None,
    empty_reason: str | None = None,
    host_trouble: bool = False,
    now: datetime,
) -> None:
    """Store the status of a pilot, with its reference and the reason why it got no job, if known.

    `host_trouble`: it ends because of its host, which is counted for its node.
    """
    values = {
        "the_stamp": stamp,
        "reason": reason,
        "new_reference": reference,
        "why_empty": empty_reason,
        "by_host": host_trouble,
        "now": now,
    }
    if not conn.execute(SET_STATUS[wanted], values).rowcount:
        raise IllegalTransition(stamp, current=get_pilot(conn, stamp).status, wanted=wanted)


#: A pilot is lost after so long without a report; longer than a director may let it wait.
LOST_AFTER: Final = timedelta(days=4)
LOST = (
    select(table.c.stamp)
    .where(
        _is_active,
        table.c.updated_at < bindparam("before"),
        or_(table.c.last_seen_at.is_(None), table.c.last_seen_at < bindparam("before")),
        ~exists().where(
            attempts.c.stamp == table.c.stamp,
            attempts.c.closed_at.is_(None),
            func.coalesce(attempts.c.heartbeat_at, attempts.c.opened_at) >= bindparam("before"),
        ),
    )
    .order_by(table.c.stamp)
    .limit(bindparam("most"))
)


def read_public_reason(reported: str) -> str:
    """The line after the empty one with which a report on a pilot's end begins, or an empty text.

    The rest, and all of a report without the empty line (those of pilots, and of directors of 1.0), may be
    output of the pilot, which may show jobs of others: only admins see it.
    """
    before, _, rest = reported.partition("\n")
    return "" if before else rest.partition("\n")[0]


def abort_lost(conn: Connection, *, before: datetime, now: datetime, most: int) -> list[str]:
    """Mark pilots Aborted that neither their director nor themselves reported on since then; their stamps.

    Since then the service was up for `LOST_AFTER`.
    """
    found = list(conn.execute(LOST, {"before": before, "most": most}).scalars())
    reason = f"\nnobody has reported on it for {LOST_AFTER.days} days"
    reports = [StatusReport(stamp=each, status=PilotStatus.ABORTED, reason=reason) for each in found]
    unchanged = set_all(conn, reports, now=now) if reports else frozenset()
    return [stamp for stamp in found if stamp not in unchanged]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusReport:
    """Report of a director about a pilot."""

    stamp: str
    status: PilotStatus
    reference: str | None = None
    reason: str = ""
    node: str = ""  #: where it ended before it could report it; empty: not known


#: Of a pilot that has not reported its node itself.
STORE_UNSTATED_NODE = (
    update(table)
    .where(table.c.stamp == bindparam("the_stamp"), table.c.node == "")
    .values(node=bindparam("the_node"))
)


def set_all(conn: Connection, reports: Collection[StatusReport], *, now: datetime) -> frozenset[str]:
    """Store the statuses of many pilots; the stamps of those that have another one all the same.

    Those have ended meanwhile, or run already, or do not exist. An end before a pilot could report its node
    is one because of the node.
    """
    rows: dict[PilotStatus, list[dict[str, object]]] = defaultdict(list)
    for each in sorted(reports, key=lambda each: each.stamp):
        values = {
            "reason": each.reason,
            "new_reference": each.reference,
            "why_empty": None,
            "by_host": bool(each.node),
            "now": now,
        }
        rows[each.status].append({"the_stamp": each.stamp, **values})
    for status in sorted(rows):
        conn.execute(SET_STATUS[status], rows[status])
    at_nodes = [{"the_stamp": each.stamp, "the_node": each.node} for each in reports if each.node]
    if at_nodes:
        conn.execute(STORE_UNSTATED_NODE, at_nodes)
    stored = read_statuses(conn, [each.stamp for each in reports])
    return frozenset(each.stamp for each in reports if stored.get(each.stamp) != each.status)


def read_pilots(conn: Connection, stamps: Collection[str]) -> Sequence[Pilot]:
    """The pilots that exist."""
    rows = sql.read_batches(conn, ALL_AMONG, stamps)
    return [from_row(dict(row._mapping)) for row in rows]  # noqa: SLF001 - SQLAlchemy's public name


def record_contact(
    conn: Connection, *, stamp: str, vo: str, queue: QueueAddress | None, now: datetime
) -> None:
    """Record a request of a pilot: it is running. An unregistered pilot is inserted."""
    row = _build_row(stamp=stamp, vo=vo, status=PilotStatus.RUNNING, queue=queue, now=now)
    conn.execute(CONTACT, {**row, "last_seen_at": now})


def read_statuses(conn: Connection, stamps: Collection[str]) -> Mapping[str, PilotStatus]:
    """Status of the pilots that exist."""
    rows = conn.execute(STATUSES, {"ids": sorted(stamps)})
    return {row.stamp: PilotStatus(row.status) for row in rows}


def from_row(row: Mapping[str, object]) -> Pilot:
    """Convert a row of `ALL`."""
    values: dict[str, object] = {
        **row,
        "status": PilotStatus(str(row["status"])),
        "possible_queues": tuple(json.loads(str(row["possible_queues"] or "[]"))),
    }
    return Pilot(**values)  # type: ignore[arg-type]  # columns and fields are the same


def _build_row(
    *,
    stamp: str,
    vo: str,
    status: PilotStatus,
    queue: QueueAddress | None,
    processors: int | None = None,
    now: datetime,
) -> dict[str, object]:
    return {
        "stamp": stamp,
        "vo": vo,
        "status": status.value,
        "site": queue.site if queue else "",
        "ce": queue.ce if queue else "",
        "queue": queue.queue if queue else "",
        "processors": processors,
        "created_at": now,
        "updated_at": now,
    }


_QUEUE = (table.c.site, table.c.ce, table.c.queue)
_has_asked = table.c.last_seen_at >= bindparam("since")
_is_coming = table.c.status.in_(sorted({PilotStatus.SUBMITTED.value, PilotStatus.WAITING.value}))
#: Nothing else may have asked since then, by the index over status and time: most pilots ended days ago.
_MAY_HAVE_ASKED = or_(
    table.c.status.in_(sorted(PILOT_ACTIVE)),
    and_(table.c.status.in_(sorted(PILOT_ENDS)), table.c.updated_at >= bindparam("since")),
)
ACTIVITY = (
    select(
        *_QUEUE,
        func.sum(case((_has_asked, 1), else_=0)).label("asked"),
        func.sum(case((_is_coming, 1), else_=0)).label("coming"),
    )
    .where(table.c.vo == bindparam("vo"), _MAY_HAVE_ASKED, or_(_has_asked, _is_coming))
    .group_by(*_QUEUE)
)
#: Pilots whose queue a broker picks, by possible queues.
COMING = (
    select(table.c.possible_queues, func.count().label("coming"))
    .where(
        table.c.vo == bindparam("vo"), _is_coming, table.c.site == "", table.c.possible_queues.is_not(None)
    )
    .group_by(table.c.possible_queues)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueActivity:
    """Numbers of a VO's pilots at one queue."""

    asked: int  #: that requested jobs in the given time
    coming: int  #: that wait in the batch system, as far as it reports, or may be sent here by a broker


def count_by_queue(conn: Connection, vo: str, *, since: datetime) -> Mapping[QueueAddress, QueueActivity]:
    """Queues where pilots of a VO requested jobs since then, or are expected."""
    asked: Counter[QueueAddress] = Counter()
    coming: Counter[QueueAddress] = Counter()
    for row in conn.execute(ACTIVITY, {"vo": vo, "since": since}):
        queue = QueueAddress(site=row.site, ce=row.ce, queue=row.queue)
        asked[queue], coming[queue] = row.asked, row.coming
    for row in conn.execute(COMING, {"vo": vo}):
        coming.update(dict.fromkeys(map(QueueAddress.parse, json.loads(row.possible_queues)), row.coming))
    return {queue: QueueActivity(asked=asked[queue], coming=coming[queue]) for queue in asked.keys() | coming}


#: A pilot asks within seconds of its start; one whose batch job runs for so long has no way to the service.
SILENT_AFTER: Final = timedelta(minutes=10)
#: Places of silent pilots that are read, those with the most first.
_MOST_SILENT: Final = 1_000
_SILENT_PILOTS = func.count().filter(table.c.updated_at <= bindparam("before", type_=table.c.updated_at.type))
#: The time is no condition of the search: SQLite would read all that run, by the index over status and time.
_SILENT = (
    select(table.c.vo, *_QUEUE, _SILENT_PILOTS.label("pilots"))
    .where(text(NOT_ASKED), table.c.last_seen_at.is_(None))
    .group_by(*_QUEUE, table.c.vo)
    .having(_SILENT_PILOTS > 0)
)
SILENT = _SILENT.order_by(_SILENT_PILOTS.desc(), table.c.vo, *_QUEUE).limit(_MOST_SILENT)
SILENT_AT = _SILENT.where(
    table.c.site == bindparam("the_site"),
    table.c.ce == bindparam("the_ce"),
    table.c.queue == bindparam("the_queue"),
)


def count_silent(conn: Connection, *, now: datetime) -> Mapping[tuple[str, QueueAddress], int]:
    """Pilots that run, as their directors report, and never reached the service, by VO and queue."""
    rows = conn.execute(SILENT, {"before": now - SILENT_AFTER})
    return {(row.vo, QueueAddress(site=row.site, ce=row.ce, queue=row.queue)): row.pilots for row in rows}


def count_silent_at(conn: Connection, queue: QueueAddress, *, now: datetime) -> Mapping[str, int]:
    """The same of one queue, by VO."""
    place = {"the_site": queue.site, "the_ce": queue.ce, "the_queue": queue.queue}
    rows = conn.execute(SILENT_AT, {"before": now - SILENT_AFTER, **place})
    return {row.vo: row.pilots for row in rows}


#: Of all VOs: a search for one of them at one site would read its pilots there that have ended.
EXPECTED = (
    select(table.c.vo, table.c.site)
    .where(_is_coming, table.c.created_at >= bindparam("since", type_=table.c.created_at.type))
    .distinct()
)
#: For so long a pilot that waits in a batch system is expected; one that is held there never starts.
_EXPECTED_FOR: Final = timedelta(days=1)


def list_expected(conn: Connection, *, now: datetime) -> frozenset[tuple[str, str]]:
    """VO and site of pilots that wait in batch systems since a day at most, as far as directors report."""
    return frozenset((row.vo, row.site) for row in conn.execute(EXPECTED, {"since": now - _EXPECTED_FOR}))


BIND = (
    update(table)
    .where(table.c.stamp == bindparam("the_stamp"), table.c.site == "")
    .values(site=bindparam("new_site"), ce=bindparam("new_ce"), queue=bindparam("new_queue"))
)
BOUND = select(table.c.vo, table.c.stamp, *_QUEUE, table.c.possible_queues).where(
    sql.is_listed(table.c.stamp)
)
IS_RUNNING = and_(table.c.status == PilotStatus.RUNNING.value, table.c.processors.is_not(None))
# Status and time as `CONTACT` writes them; few rows of few VOs, all with the time of the write.
SEEN = (
    update(table)
    .where(sql.is_listed(table.c.stamp), table.c.vo == bindparam("the_vo"))
    .values(
        status=_LIVES,
        updated_at=case((table.c.status == _LIVES, table.c.updated_at), else_=bindparam("now")),
        last_seen_at=bindparam("now"),
    )
    .returning(table.c.stamp, table.c.site, table.c.processors)
)


#: VO and stamp, as its token has them: an operator may have issued one for a stamp of another VO.
PilotKey = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstRequest:
    """A pilot that states its queue for the first time, as far as is known."""

    stamp: str
    vo: str
    queue: QueueAddress
    processors: int | None = None  #: of its slot; None: not stated yet


def bind_queues(
    conn: Connection, requests: Collection[FirstRequest], *, now: datetime
) -> Mapping[PilotKey, QueueAddress]:
    """Record the contacts, and bind pilots that have no queue; the queue of each.

    At most one request for each stamp. Missing are pilots that have none and were not sent to the one they
    state, and those whose stamp a pilot of another VO has. Of two transactions with one pilot the second
    waits for the first at the pilot's row, which both write before they read it, and finds it bound.
    """
    rows = [
        _build_row(
            stamp=each.stamp,
            vo=each.vo,
            status=PilotStatus.RUNNING,
            queue=None,
            processors=each.processors,
            now=now,
        )
        for each in sorted(requests, key=lambda each: each.stamp)
    ]
    if not rows:
        return {}
    conn.execute(CONTACT, [{**row, "last_seen_at": now} for row in rows])
    stated = {(each.vo, each.stamp): each.queue for each in requests}
    stamps = {stamp for _, stamp in stated}
    found = [row for row in sql.read_batches(conn, BOUND, stamps) if (row.vo, row.stamp) in stated]
    bound = {
        (row.vo, row.stamp): QueueAddress(site=row.site, ce=row.ce, queue=row.queue)
        for row in found
        if row.site
    }
    new = {
        (row.vo, row.stamp): stated[row.vo, row.stamp]
        for row in found
        if not row.site
        and not (
            row.possible_queues and str(stated[row.vo, row.stamp]) not in json.loads(row.possible_queues)
        )
    }
    assign_queues(conn, {stamp: queue for (_, stamp), queue in new.items()})
    return bound | new


def assign_queues(conn: Connection, queues: Mapping[str, QueueAddress]) -> None:
    """Store the queues that pilots were submitted to, by stamp; of no effect on those that have one."""
    rows = [
        {"the_stamp": stamp, "new_site": queue.site, "new_ce": queue.ce, "new_queue": queue.queue}
        for stamp, queue in sorted(queues.items())
    ]
    if rows:
        conn.execute(BIND, rows)


def read_places(conn: Connection, stamps: Collection[str]) -> Mapping[PilotKey, QueueAddress | None]:
    """The pilots that exist, each with the queue that it is bound to, if any."""
    return {
        (row.vo, row.stamp): QueueAddress(site=row.site, ce=row.ce, queue=row.queue) if row.site else None
        for row in sql.read_batches(conn, BOUND, stamps)
    }


def read_bound_queues(
    conn: Connection, stamps: Collection[str], *, in_use: bool = False
) -> Mapping[PilotKey, QueueAddress]:
    """The queues that pilots are bound to; without pilots that are bound to none.

    `in_use`: only of pilots whose first request for jobs is recorded, and which are running.
    """
    return {
        (row.vo, row.stamp): QueueAddress(site=row.site, ce=row.ce, queue=row.queue)
        for row in sql.read_batches(conn, BOUND.where(IS_RUNNING) if in_use else BOUND, stamps)
        if row.site
    }


def record_contacts(
    conn: Connection, stamps_by_vo: Mapping[str, Collection[str]], *, now: datetime
) -> frozenset[str]:
    """Record that pilots have sent requests: they are running, unless they have ended.

    Returns those that are bound to a queue, and whose slot is known. Others were not stored, or the database
    has lost that.
    """
    bound: set[str] = set()
    for vo, stamps in sorted(stamps_by_vo.items()):
        for some in sql.split_batches(stamps):
            found = conn.execute(SEEN, {"ids": some, "the_vo": vo, "now": now})
            bound |= {row.stamp for row in found if row.site and row.processors is not None}
    return frozenset(bound)


RECORD_SLOT = (
    update(table)
    .where(table.c.stamp == bindparam("the_stamp"), table.c.asked_at.is_(None))
    .values(asked_at=bindparam("now"), shape=bindparam("the_shape"))
)


def record_slots(conn: Connection, shapes: Mapping[str, str], *, now: datetime) -> None:
    """Record that pilots have asked for the first time, with the shapes of their slots by stamp."""
    rows = [{"the_stamp": stamp, "the_shape": shapes[stamp], "now": now} for stamp in sorted(shapes)]
    if rows:
        conn.execute(RECORD_SLOT, rows)


#: A pilot that was seen before it reported a process has had another one.
RESTART = (
    update(table)
    .where(
        table.c.stamp == bindparam("the_stamp"),
        table.c.process != bindparam("the_process"),
        or_(table.c.process != "", table.c.last_seen_at.is_not(None)),
    )
    .values(process=bindparam("the_process"), restarted_at=bindparam("now"))
)
STORE_PROCESS = (
    update(table)
    .where(table.c.stamp == bindparam("the_stamp"), table.c.process == "")
    .values(process=bindparam("the_process"))
)


def store_process(conn: Connection, stamp: str, process: str, *, now: datetime) -> bool:
    """Store the process of a pilot, named by a word of its own; whether it was started again."""
    values = {"the_stamp": stamp, "the_process": process}
    if conn.execute(RESTART, {**values, "now": now}).rowcount:
        return True
    conn.execute(STORE_PROCESS, values)
    return False


STORE_OUTPUT = sql.insert_or_update(pilot_outputs, "stdout", "stderr", "stored_at")
STORE_LOG = sql.insert_or_update(pilot_outputs, "log", "logged_at")
GET_OUTPUT = select(pilot_outputs).where(pilot_outputs.c.stamp == bindparam("the_stamp"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotOutput:
    """Last parts of stdout and stderr of a pilot as its director fetched them, and of its own log."""

    stdout: str = ""
    stderr: str = ""
    stored_at: datetime | None = None  #: None: the director has stored nothing
    log: str = ""
    logged_at: datetime | None = None  #: None: the pilot has sent nothing


def store_output(conn: Connection, stamp: str, *, stdout: str, stderr: str, now: datetime) -> None:
    """Store the output of an existing pilot; replaces an earlier one, and leaves its log."""
    values = {"stamp": stamp, "stdout": stdout, "stderr": stderr, "stored_at": now}
    conn.execute(STORE_OUTPUT, values)


def store_log(conn: Connection, stamp: str, log: str, *, now: datetime) -> None:
    """Store the log of an existing pilot; replaces an earlier one."""
    conn.execute(STORE_LOG, {"stamp": stamp, "log": log, "logged_at": now})


def get_output(conn: Connection, stamp: str) -> PilotOutput | None:
    """Stored output of a pilot, if any."""
    row = conn.execute(GET_OUTPUT, {"the_stamp": stamp}).one_or_none()
    if row is None:
        return None
    return PilotOutput(**{each.name: getattr(row, each.name) for each in fields(PilotOutput)})

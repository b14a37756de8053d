"""Processes of the sites: directors and gateways, when they reported last, and what they cannot do.

A process reports in every cycle. Its row is also a lease, so that two processes of one director do not both
send pilots: the second one is refused until the lease has expired. So is one with a token of another bearer,
which could otherwise hide what a director of its VO reports.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection, and_, bindparam, delete, func, or_, select

from cs_config.options import bounds
from requirements.errors import InvalidRequest, Problem
from taskqueue.db import clock, sql
from taskqueue.errors import OtherProcess
from taskqueue.schema.tables import site_processes as table

#: A process that did not report for so long is not expected any more: it was taken out of service.
FORGOTTEN = timedelta(days=7)
#: Reports that may be missed until a process is overdue, and the time in addition.
_MISSED, _MARGIN = 3, timedelta(minutes=1)

_LISTS = ("sites", "problems", "too_small", "queues")
_TOO_LARGE = "the reports of the VO's directors and gateways are too large together: this one was left out"
_REPORTED = (
    "holder",
    "reported_by",
    "expires_at",
    "seen_at",
    "every",
    "sites",
    "problems",
    "too_small",
    "queues",
)


_NEW = sql.insert(table)
STORE = _NEW.on_conflict_do_update(
    index_elements=table.primary_key,
    set_={name: _NEW.excluded[name] for name in _REPORTED},
    where=or_(
        and_(
            table.c.reported_by == _NEW.excluded.reported_by,
            table.c.holder.in_((_NEW.excluded.holder, bindparam("replaced"))),
        ),
        table.c.expires_at <= _NEW.excluded.seen_at,
        # No report is from the future: the clock of the database was set back since.
        table.c.seen_at > bindparam("latest", type_=table.c.seen_at.type),
    ),
).returning(table.c.holder)

_is_other = and_(
    table.c.vo == bindparam("vo"), or_(table.c.kind != bindparam("kind"), table.c.name != bindparam("name"))
)
_CHARACTERS = func.length(table.c.sites) + func.length(table.c.problems) + func.length(table.c.too_small)
_CHARACTERS += func.coalesce(func.length(table.c.queues), 0)
OTHERS = select(func.count(), func.coalesce(func.sum(_CHARACTERS), 0)).where(_is_other)
GET_HOLDER = select(table.c.holder).where(
    table.c.kind == bindparam("kind"), table.c.name == bindparam("name"), table.c.vo == bindparam("vo")
)
ALL = select(table).order_by(table.c.kind, table.c.name, table.c.vo)
REMOVE = delete(table).where(
    *(table.c[name] == bindparam(f"the_{name}") for name in ("kind", "name", "vo", "seen_at"))
)
REMOVE_FORGOTTEN = delete(table).where(table.c.seen_at < bindparam("before", type_=table.c.seen_at.type))


@dataclass(frozen=True, slots=True, kw_only=True)
class TooSmallSlot:
    """Waiting jobs that a queue allows, and for which the slots of its pilots are too small."""

    queue: str  #: `Site/CE/Queue`
    slot: str  #: what the file of the director states
    jobs: int
    task_queues: Sequence[int] = ()


#: Queues in one report.
MOST_QUEUES: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """State of a queue for the pilots of one VO, as its director reports it."""

    queue: str  #: `Site/CE/Queue`
    waiting: int = 0  #: pilots of the VO in the batch system
    running: int = 0
    wanted: int = 0  #: new pilots by the last decision
    room: int = 0  #: pilots that may be added for the VO
    paused_until: datetime | None = None
    reason: str = ""  #: why the last bad pilot ended, for admins
    bad_nodes: Sequence[str] = ()  #: that pilots are kept from, by their names in the batch system

    def is_paused(self, now: datetime) -> bool:
        """Whether it gets no pilots after bad experience."""
        return self.paused_until is not None and now < self.paused_until

    @property
    def is_full(self) -> bool:
        """Whether the pilots that are there are all that may be."""
        return not self.room and self.waiting + self.running > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteProcess:
    """The last report of a process, for one VO."""

    kind: str  #: `director` or `gateway`
    name: str
    vo: str
    holder: str  #: the process itself
    reported_by: str = ""  #: token subject
    every: float  #: seconds between two reports
    sites: Sequence[str] = ()
    problems: Sequence[str] = ()  #: of its last cycle
    too_small: Sequence[TooSmallSlot] = ()
    queues: Sequence[QueueState] | None = None  #: None: not reported, as by gateways and directors of 1.0
    seen_at: datetime

    @property
    def lists_all_queues(self) -> bool:
        """Whether each queue that it sends pilots to is in its report."""
        return self.queues is not None and len(self.queues) < MOST_QUEUES

    def list_paused(self, now: datetime) -> list[QueueState]:
        """Its queues that get no pilots after bad experience."""
        return [each for each in self.queues or () if each.is_paused(now)]

    def is_overdue(self, now: datetime) -> bool:
        """Whether it has missed several reports."""
        return now - self.seen_at > _MISSED * timedelta(seconds=self.every) + _MARGIN


def report(
    conn: Connection, process: SiteProcess, *, lease: timedelta, replaces: str = "", now: datetime
) -> None:
    """Store a report, and extend the lease.

    If the reports of its VO would be too large together, one problem about this replaces slots and problems.

    Raises:
        InvalidRequest: The VO would have too many processes.
        OtherProcess: The lease is held by another process, which is not the one that is replaced, or by the
            bearer of another token.
    """
    row = {
        **{name: getattr(process, name) for name in ("kind", "name", "vo", "holder", "reported_by", "every")},
        "seen_at": now,
        "expires_at": now + lease,
        "sites": json.dumps(sorted(process.sites)),
        "problems": json.dumps(list(process.problems)),
        "too_small": json.dumps([asdict(each) for each in process.too_small]),
        "queues": None if process.queues is None else _dump_queues(process.queues),
    }
    key = {"kind": process.kind, "name": process.name, "vo": process.vo}
    others, characters = conn.execute(OTHERS, key).one()
    if others >= bounds.SITE_PROCESSES:
        message = (
            f"{process.vo} may have {bounds.SITE_PROCESSES} directors and gateways: forget those that ended"
        )
        raise InvalidRequest([Problem(path="name", message=message)])
    if characters + sum(len(str(row[name])) for name in _LISTS) > bounds.SITE_REPORTS:
        row |= {"problems": json.dumps([_TOO_LARGE]), "too_small": "[]", "queues": None}
    values = {**row, "replaced": replaces, "latest": now + clock.MOST_OFFSET}
    if conn.execute(STORE, values).first() is None:
        holder = conn.execute(GET_HOLDER, key).scalar_one()
        raise OtherProcess(f"{process.kind} {process.name}", holder=holder)


def list_processes(conn: Connection, vos: Collection[str] | None = None) -> list[SiteProcess]:
    """All processes that have reported lately, of some VOs or all."""
    wanted = ALL if vos is None else ALL.where(table.c.vo.in_(sorted(vos)))
    return [_read(row) for row in conn.execute(wanted).mappings()]


def forget(conn: Connection, found: Iterable[SiteProcess], *, now: datetime) -> None:
    """Remove processes that were taken out of service, so that nobody expects their reports.

    Raises:
        OtherProcess: One still reports.
    """
    for each in found:
        if not each.is_overdue(now):
            raise OtherProcess(f"{each.kind} {each.name}", holder=each.holder)
        values = {f"the_{name}": getattr(each, name) for name in ("kind", "name", "vo", "seen_at")}
        conn.execute(REMOVE, values)


def remove_forgotten(conn: Connection, *, before: datetime) -> int:
    """Delete the rows of processes that reported last before that time; how many."""
    return conn.execute(REMOVE_FORGOTTEN, {"before": before}).rowcount


def _dump_queues(queues: Iterable[QueueState]) -> str:
    rows = [asdict(each) for each in queues]
    return json.dumps(rows, default=lambda at: at.isoformat())


def _read_queue(stored: Mapping[str, Any]) -> QueueState:
    until = stored["paused_until"]
    at = None if until is None else datetime.fromisoformat(until)
    return QueueState(**{**stored, "paused_until": at, "bad_nodes": tuple(stored["bad_nodes"])})


def _read(row: Mapping[Any, Any]) -> SiteProcess:
    return SiteProcess(
        **{name: row[name] for name in ("kind", "name", "vo", "holder", "reported_by", "every", "seen_at")},
        sites=tuple(json.loads(row["sites"])),
        problems=tuple(json.loads(row["problems"])),
        too_small=tuple(TooSmallSlot(**each) for each in json.loads(row["too_small"])),
        queues=None if row["queues"] is None else tuple(map(_read_queue, json.loads(row["queues"]))),
    )

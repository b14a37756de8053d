"""Heartbeats of many pilots in one transaction: those that change nothing but their attempts.

The commonest thing that a pilot says is that all goes well. Where its attempt is open, nobody has killed the
job and the job runs, that changes one row; so all of them are one statement and one commit. Whatever is
otherwise, stalled, killed, closed, another's, is left out here: `handover.heartbeat` sees to each alone.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ARRAY, BindParameter, Connection, Select, Text, any_, bindparam, column, func, select
from sqlalchemy import update as change

from cs_config.tables import UtcTime
from taskqueue import handover
from taskqueue.progress import Progress
from taskqueue.states import JobStatus
from taskqueue.tables import attempts, jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """One sign of life."""

    lease: str
    holder: str | None  #: token subject of who says it; None: it may speak for others
    said: Progress


_OPEN = attempts.c.closed_at.is_(None)
_WANTED = attempts.c.ending.is_(False)
_BEGUN = attempts.c.started_at.is_not(None)
_RUNS = jobs.c.status.in_([JobStatus.RUNNING.value, JobStatus.COMPLETING.value])
_NAMED: BindParameter[str] = bindparam("leases", expanding=True)


def _lock(dialect: str) -> Select[Any]:
    leases = any_(bindparam("leases", type_=ARRAY(Text)))
    named = attempts.c.lease == leases if dialect == "postgresql" else attempts.c.lease.in_(_NAMED)
    return (
        select(attempts.c.lease, attempts.c.holder, attempts.c.vo)
        .join(jobs, jobs.c.job_id == attempts.c.job_id)
        .where(named, _OPEN, _WANTED, _BEGUN, _RUNS)
        .order_by(attempts.c.job_id)  # the order that all keep
        .with_for_update(of=attempts)
    )


#: Those that are plain, locked: whoever stalls, ends or closes one of them does it before us or after.
LOCK = {dialect: _lock(dialect) for dialect in ("postgresql", "sqlite")}

_TEXTS = ("new_progress", "new_tail", "new_phases", "new_local_jobs")
_said = (
    func.unnest(
        bindparam("leases", type_=ARRAY(Text)),
        bindparam("expire", type_=ARRAY(UtcTime)),
        *(bindparam(name, type_=ARRAY(Text)) for name in _TEXTS),
    )
    .table_valued(
        column("lease", Text),
        column("expires", UtcTime),
        *(column(name, Text) for name in _TEXTS),
        name="said",
    )
    .render_derived()
)
#: All at once. The lock was waited for: whether a job still runs is asked again, in a statement that sees it.
BEAT = (
    change(attempts)
    .where(
        attempts.c.lease == _said.c.lease, _OPEN, _WANTED, _BEGUN, jobs.c.job_id == attempts.c.job_id, _RUNS
    )
    .values(
        heartbeat_at=bindparam("now", type_=UtcTime),
        lease_expires_at=_said.c.expires,
        progress=func.coalesce(_said.c.new_progress, attempts.c.progress),
        output_tail=func.coalesce(_said.c.new_tail, attempts.c.output_tail),
        phases=func.coalesce(_said.c.new_phases, attempts.c.phases),
        local_jobs=func.coalesce(_said.c.new_local_jobs, attempts.c.local_jobs),
    )
    .returning(attempts.c.lease, attempts.c.vo)
)


def beat(
    conn: Connection, beats: Sequence[Beat], *, lease_time: Callable[[str], timedelta], now: datetime
) -> Mapping[str, str]:
    """Note the heartbeats that are plain.

    Args:
        conn: In a writing transaction.
        beats: Any; of several for one lease, one at most is noted.
        lease_time: For how long a sign of life is good, by VO.
        now: The time.

    Returns:
        Those that were noted: their leases, with the VOs. Nothing was changed for the others.
    """
    by_lease = {each.lease: each for each in beats}
    dialect = conn.dialect.name
    found = conn.execute(LOCK[dialect], {"leases": sorted(by_lease)}).all()
    rows = [
        {
            "lease": row.lease,
            "vo": row.vo,
            "expires": now + lease_time(row.vo),
            **by_lease[row.lease].said.values(),
        }
        for row in found
        if by_lease[row.lease].holder in (None, row.holder)
    ]
    if not rows:
        return {}
    return _together(conn, rows, now) if dialect == "postgresql" else _each(conn, rows, now)


def _together(conn: Connection, rows: Sequence[Mapping[str, Any]], now: datetime) -> Mapping[str, str]:
    values = {
        "leases": [row["lease"] for row in rows],
        "expire": [row["expires"] for row in rows],
        **{name: [row[name] for row in rows] for name in _TEXTS},
    }
    return {row.lease: row.vo for row in conn.execute(BEAT, {**values, "now": now})}


def _each(conn: Connection, rows: Collection[Mapping[str, Any]], now: datetime) -> Mapping[str, str]:
    """On SQLite, where the transaction is the lock, and a statement costs nothing like a round trip."""
    conn.execute(
        handover.TOUCH,
        [
            {
                "the_lease": row["lease"],
                "expires": row["expires"],
                "now": now,
                "started": None,
                **{name: row[name] for name in _TEXTS},
            }
            for row in rows
        ],
    )
    return {row["lease"]: row["vo"] for row in rows}

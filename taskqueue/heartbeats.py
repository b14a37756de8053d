"""Heartbeats of many pilots at once: those that change nothing but their attempts.

The commonest thing that a pilot says is that all goes well. Where its attempt is open, nobody has killed the
job and the job runs, that changes one row; so all of them are one statement and one commit. Whatever is
otherwise, stalled, killed, closed, another's, is left out here: `handover.heartbeat` sees to each alone.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import BindParameter, Connection, bindparam, select

from taskqueue import handover, plain_reports
from taskqueue.plain_report_statements import HEARTBEAT, RUNS
from taskqueue.plain_reports import LeaseTime
from taskqueue.progress import Progress
from taskqueue.single_statements import Server
from taskqueue.tables import attempts, jobs

_LEASES: BindParameter[str] = bindparam("leases", expanding=True)
_PLAIN = (
    select(attempts.c.lease, attempts.c.holder, attempts.c.vo)
    .join(jobs, jobs.c.job_id == attempts.c.job_id)
    .where(attempts.c.lease.in_(_LEASES), RUNS)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """One sign of life."""

    lease: str
    holder: str | None  #: token subject of who says it; None: it may speak for others
    said: Progress


def beat(
    server: Server,
    beats: Sequence[Beat],
    *,
    vos: Iterable[str],
    lease_time: LeaseTime,
    now: datetime,
) -> Mapping[str, str]:
    """Note the heartbeats that are plain, in one statement.

    A job that is found silent at this very moment may stay Stalled until it is heard of once more.

    Args:
        server: PostgreSQL.
        beats: Any; of several for one lease, one at most is noted.
        vos: That are known.
        lease_time: For how long a sign of life is good, by VO; by no name for those that are not known.
        now: The time.

    Returns:
        Those that were noted: their leases, with the VOs. Nothing was changed for the others.
    """
    said = [{"lease": each.lease, "holder": each.holder, **each.said.values()} for each in beats]
    values = {
        "said": json.dumps(said),
        "expiry": plain_reports.expiry(vos, lease_time, now),
        "now": now.isoformat(),
    }
    return dict(server.rows(HEARTBEAT.text, HEARTBEAT.values(values)))


def beat_each(
    conn: Connection, beats: Sequence[Beat], *, lease_time: LeaseTime, now: datetime
) -> Mapping[str, str]:
    """The same on SQLite: the transaction is the lock, and a statement is no way to anywhere."""
    by_lease = {each.lease: each for each in beats}
    found = conn.execute(_PLAIN, {"leases": sorted(by_lease)}).all()
    plain = {row.lease: row.vo for row in found if by_lease[row.lease].holder in (None, row.holder)}
    rows = [
        {
            "the_lease": lease,
            "expires": now + lease_time(vo),
            "now": now,
            "started": None,
            **by_lease[lease].said.values(),
        }
        for lease, vo in plain.items()
    ]
    if rows:
        conn.execute(handover.TOUCH, rows)
    return plain

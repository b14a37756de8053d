"""Incarnation of the installation, and recovery after lost commits (restored backup, late replica).

Ids, epochs, leases and watermarks of the lost commits are still in use elsewhere, so they must not be
allocated again: every sequence continues beyond any number that a lost commit can have used. Open attempts
may have ended meanwhile; they are quarantined until their pilots report or a deadline passes.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import (
    BigInteger,
    Connection,
    bindparam,
    case,
    delete,
    insert,
    literal,
    select,
    text,
    update,
)

from cs_config import notifications
from cs_config.versions import store
from cs_config.versions.tables import UtcTime, metadata
from taskqueue.db import sql
from taskqueue.schema.tables import (
    agent_leases,
    attempts,
    changes,
    installation,
    job_log,
    jobs,
    queue_class_versions,
    scopes,
    submit_pools,
)

SOURCE: Final = "Recovery"
QUARANTINED: Final = "Commits were lost; left alone until its pilot reports"
#: How long pilots have to report.
PATIENCE: Final = timedelta(minutes=15)

#: Upper bound of the ids allocated per second and table, and the minimum number of skipped ids.
_IDS_A_SECOND: Final = 10_000
_AT_LEAST: Final = 1_000_000
#: Assumed duration of the loss if the time of the last commit is not known.
_LONGEST: Final = timedelta(days=366)
#: Epochs are at least the seconds since this time.
_EPOCHS_BEGIN: Final = datetime(2020, 1, 1, tzinfo=UTC)

#: Waits for transactions that write jobs, and makes later ones see the new numbers.
WAIT_FOR_WRITERS = (
    text("SET LOCAL statement_timeout = 0"),
    text("SET LOCAL lock_timeout = '60s'"),
    text("LOCK TABLE jobs, attempts IN SHARE ROW EXCLUSIVE MODE"),
)
LAST_COMMIT = select(job_log.c.at).order_by(job_log.c.log_id.desc()).limit(1)

_OPEN = attempts.c.closed_at.is_(None)
_NOW = bindparam("now", type_=UtcTime)
_UNTIL = bindparam("until", type_=UtcTime)
QUARANTINE = (
    update(attempts)
    .where(_OPEN)
    .values(
        quarantined=True,
        heartbeat_at=case((attempts.c.started_at.is_not(None), _NOW), else_=attempts.c.heartbeat_at),
        lease_expires_at=case(
            (attempts.c.lease_expires_at < _UNTIL, _UNTIL), else_=attempts.c.lease_expires_at
        ),
    )
)
LOG_QUARANTINE = insert(job_log).from_select(
    ["job_id", "at", "from_status", "to_status", "minor_status", "application_status", "source", "epoch"],
    select(
        *(jobs.c.job_id, _NOW, jobs.c.status, jobs.c.status),
        *(literal(QUARANTINED), literal(""), literal(SOURCE), attempts.c.epoch),
    )
    .join(attempts, attempts.c.job_id == jobs.c.job_id)
    .where(_OPEN),
)

_JUMP = bindparam("jump", type_=BigInteger)
RAISE_WATERMARKS = update(scopes).values(watermark=scopes.c.watermark + _JUMP)
#: Leases of agents that were held before are over.
RAISE_FENCES = update(agent_leases).values(fence=agent_leases.c.fence + _JUMP, expires_at=_NOW)
#: Mappings may have been computed from a lost version, by a process that still had it.
FORGET_VERSIONS = (
    update(submit_pools).values(config_version=0),
    update(queue_class_versions).values(config_version=0, refreshed_version=0),
)
#: The transaction ids in the feed may be another server's.
EMPTY_FEED = delete(changes)
LOCK = select(installation.c.incarnation, installation.c.epoch_floor).with_for_update()
OPEN = update(installation).values(
    incarnation=bindparam("new_incarnation"), opened_at=_NOW, epoch_floor=bindparam("new_floor"), trimmed_to=0
)

RAISE_SEQUENCE = text(
    "SELECT setval(sequence, nextval(sequence) + :jump) "
    "FROM CAST(pg_get_serial_sequence(:of_table, :of_column) AS regclass) AS sequence"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryResult:
    """Outcome of a recovery."""

    incarnation: int  #: the new one
    quarantined: int  #: number of open attempts
    until: datetime  #: deadline of attempts that were not started
    last_commit: datetime | None  #: the last one that survived, according to the log
    left_out: int  #: ids skipped in each table
    config_version: int  #: new number of the current version; 0: there is none


def recover(conn: Connection, *, now: datetime, patience: timedelta = PATIENCE) -> RecoveryResult:
    """Begin a new incarnation, in a transaction of its own; harmless if nothing was lost.

    Pilots have `patience` to report; for started attempts the usual times begin after it.
    """
    if conn.dialect.name == "postgresql":
        for wait in WAIT_FOR_WRITERS:
            conn.execute(wait)
    was = conn.execute(LOCK).one()
    last = _find_last_commit(conn)
    lost = _LONGEST if last is None else max(now - last, timedelta())
    jump = _AT_LEAST + _IDS_A_SECOND * int(lost.total_seconds())
    _raise_numbers(conn, jump, now)
    conn.execute(LOG_QUARANTINE, {"now": now})
    quarantined = conn.execute(QUARANTINE, {"now": now, "until": now + patience}).rowcount
    for statement in (*FORGET_VERSIONS, EMPTY_FEED):
        conn.execute(statement)
    # From the clock: a counter might be lost too, and have the same value after the next loss.
    incarnation = max(was.incarnation + 1, int(now.timestamp()))
    floor = max(was.epoch_floor, int((now - _EPOCHS_BEGIN).total_seconds()))
    conn.execute(OPEN, {"new_incarnation": incarnation, "new_floor": floor, "now": now})
    notifications.publish_after_commit(conn, notifications.CHANGES)
    return RecoveryResult(
        incarnation=incarnation,
        quarantined=quarantined,
        until=now + patience,
        last_commit=last,
        left_out=jump,
        config_version=store.skip_numbers(conn, int(lost.total_seconds()) + 1, now=now),
    )


def _find_last_commit(conn: Connection) -> datetime | None:
    """Time of the last commit that survived, according to jobs and configuration."""
    logged = conn.execute(LAST_COMMIT).scalars().all()
    stored = [version.created_at for version in store.list_versions(conn, 1)]
    return max([*logged, *stored], default=None)


def _raise_numbers(conn: Connection, jump: int, now: datetime) -> None:
    conn.execute(RAISE_WATERMARKS, {"jump": jump})
    conn.execute(RAISE_FENCES, {"jump": jump, "now": now})
    for numbered in metadata.sorted_tables:
        if (key := numbered.autoincrement_column) is None:
            continue
        if conn.dialect.name == "postgresql":
            conn.execute(RAISE_SEQUENCE, {"of_table": numbered.name, "of_column": key.name, "jump": jump})
        else:
            sql.raise_ids(conn, numbered, sql.read_next_id(conn, numbered) + jump)

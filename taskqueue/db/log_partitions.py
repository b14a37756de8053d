"""The job log in partitions by its number: a partition that is old is dropped, instead of its rows deleted.

PostgreSQL only, and by `pilotage db partition` only; statements on the log are the same on both layouts.

Numbers of the log grow with time, and the number is the key: so no key changes, and the table that was there
becomes the first partition as it is. A partition holds about the rows of one day. There are always empty
ones for some days ahead. The rest (the default partition) holds what fits nowhere: rows of jobs that outlive
the partition of these rows, and new ones if nobody made partitions. Partitions that are made later begin
behind those.

The partitioned table has no foreign key to jobs: with it each deletion of a job would search all partitions,
and each partition that comes or goes would lock the table of jobs. So a job's rows of the log outlive the job
until their partition goes. The first partition keeps its foreign key.

Locks on the whole log are waited for a moment only, since all that writes the log queues up behind that.

Source: PostgreSQL's manual, "Table Partitioning": attaching with a validated constraint reads nothing.
"""

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from requirements.errors import format_count
from taskqueue.db import database, postgresql
from taskqueue.schema.tables import job_log

REST: Final = "job_log_rest"
#: Empty partitions that there are at least: about so many days.
AHEAD: Final = 7
#: Numbers in one partition.
_FEWEST: Final = 1_000_000
_MOST: Final = 100_000_000
#: Numbers from the present one to a new bound: more than are given out between reading it and the lock.
_MARGIN: Final = 100_000
#: Days until numbers reach the bound of a conversion: it is over by then, or what it left was seen.
_DAYS_TO_BOUND: Final = 3
#: Constraint of the table that is being converted: its numbers are smaller than the first partition's.
_BOUND: Final = "ck_job_log_before"
#: Arbitrary key of the advisory lock of a conversion.
_LOCK: Final = 0x50494C4F5450
#: Longer than `deadlock_timeout` (1 s), by which autovacuum gives way to us.
_LOCK_TIMEOUT: Final = text("SET LOCAL lock_timeout = '2s'")
#: Times that a lock is tried for, and seconds between them, in which others go on.
_TRIES: Final = 12
_PAUSE: Final = 5.0

_KEY: Final = "CONSTRAINT pk_job_log PRIMARY KEY (log_id)"
_STORAGE: Final = ", ".join(f"{name} = {value}" for name, value in job_log.kwargs["postgresql_with"].items())

IS_PARTITIONED = text("SELECT relkind = 'p' FROM pg_class WHERE oid = to_regclass('job_log')")
PARTITIONS = text(
    "SELECT relname, pg_get_expr(relpartbound, c.oid) AS bound FROM pg_class c "
    "JOIN pg_inherits ON inhrelid = c.oid WHERE inhparent = to_regclass('job_log')"
)
_RANGE: Final = re.compile(r"FROM \((?:MINVALUE|'(?P<start>\d+)')\) TO \('(?P<end>\d+)'\)")
#: Numbers that were given out, also by transactions under way; not a number that is stored.
GIVEN_OUT = text(
    "SELECT coalesce(pg_sequence_last_value(sequence), 0) "
    "FROM CAST(pg_get_serial_sequence('job_log', 'log_id') AS regclass) AS sequence"
)
SEQUENCE = text("SELECT pg_get_serial_sequence('job_log', 'log_id')")
#: The last row, and one that was written before it, about a partition earlier.
NEWEST = text("SELECT log_id, at FROM job_log ORDER BY log_id DESC LIMIT 1")
FIRST_BEHIND = text("SELECT log_id, at FROM job_log WHERE log_id > :after ORDER BY log_id LIMIT 1")
BOUND = text(
    "SELECT conname FROM pg_constraint "
    "WHERE conrelid = to_regclass('job_log') AND conname = 'ck_job_log_before'"
)
#: Views and triggers belong to the table, so that they would go on with the first partition alone.
DEPENDENTS = text(
    "SELECT CAST(tgname AS text) FROM pg_trigger WHERE tgrelid = to_regclass('job_log') AND NOT tgisinternal "
    "UNION SELECT c.oid::regclass::text FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid "
    "JOIN pg_class c ON c.oid = r.ev_class WHERE d.classid = 'pg_rewrite'::regclass "
    "AND d.refobjid = to_regclass('job_log')"
)
RIGHTS = text(
    "SELECT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE CAST(CAST(grantee AS regrole) AS text) END AS role, "
    "privilege_type AS privilege FROM pg_class, aclexplode(relacl) "
    "WHERE oid = to_regclass('job_log') AND grantee <> relowner"
)
OWNER = text(
    "SELECT CAST(CAST(relowner AS regrole) AS text) FROM pg_class WHERE oid = to_regclass('job_log')"
)


class NotPartitioned(Exception):
    """The job log cannot be partitioned here, or not now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPartition:
    """Rows of a range of numbers."""

    name: str
    start: int  #: the first number
    end: int  #: the first number behind it


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLayout:
    """How the job log is stored."""

    partitions: Sequence[LogPartition] = ()  #: by number, without the rest; empty: it is one table
    ahead: int = 0  #: how many of them no row can be in yet
    is_full: bool = False  #: new rows go to the rest, because no partition is left
    is_bounded: bool = False  #: it is one table, whose conversion is under way or was killed

    def __bool__(self) -> bool:
        return bool(self.partitions)

    def describe(self) -> str:
        """In some words."""
        if not self.partitions:
            return "in one table"
        return (
            f"in {format_count(len(self.partitions), 'partition')}, {self.ahead} of them for the days to come"
        )


def read_layout(conn: Connection) -> LogLayout:
    """The present layout; that of SQLite is always one table."""
    if conn.dialect.name == "sqlite":
        return LogLayout()
    if not is_partitioned(conn):
        return LogLayout(is_bounded=conn.execute(BOUND).scalar_one_or_none() is not None)
    found = [
        LogPartition(name=row.relname, start=int(match["start"] or 0), end=int(match["end"]))
        for row in conn.execute(PARTITIONS)
        if (match := _RANGE.search(row.bound)) is not None
    ]
    found.sort(key=lambda each: each.start)
    last: int = conn.execute(GIVEN_OUT).scalar_one()
    ahead = sum(each.start > last for each in found)
    return LogLayout(partitions=found, ahead=ahead, is_full=bool(found) and found[-1].end <= last + 1)


def is_partitioned(conn: Connection) -> bool:
    """Whether the log is in partitions."""
    return conn.dialect.name == "postgresql" and bool(conn.execute(IS_PARTITIONED).scalar_one_or_none())


def make_ahead(conn: Connection) -> int:
    """Make partitions for the days to come, as far as they are missing; how many.

    The transaction is the caller's, and nothing else is in it. Writers of the log are not held up: only the
    rest is locked, which is read whole: it is small, unless nobody made partitions for long.
    """
    layout = read_layout(conn)
    missing = AHEAD - layout.ahead
    if not layout or missing <= 0:
        return 0
    conn.execute(_LOCK_TIMEOUT)
    size, start = _choose_size(conn), layout.partitions[-1].end
    if layout.is_full:  # behind what is in the rest
        start = int(conn.execute(GIVEN_OUT).scalar_one()) + _MARGIN
    for begin in range(start, start + missing * size, size):
        # Attached, not created as a partition: that would lock the whole log.
        _attach(conn, f"job_log_from_{begin}", f"FOR VALUES FROM ({begin}) TO ({begin + size})")
    return missing


def _choose_size(conn: Connection) -> int:
    """Numbers for one day, as fast as they were given out of late."""
    last = conn.execute(NEWEST).one_or_none()
    if last is None:
        return _FEWEST
    first = conn.execute(FIRST_BEHIND, {"after": last.log_id - _FEWEST}).one()
    seconds = max((last.at - first.at).total_seconds(), 1.0)
    a_day = (last.log_id - first.log_id) * timedelta(days=1).total_seconds() / seconds
    millions: int = max(round(a_day / _FEWEST), 1)
    return min(millions * _FEWEST, _MOST)


def _attach(conn: Connection, name: str, rows: str) -> None:
    owner = conn.execute(OWNER).scalar_one()
    for statement in (
        f"CREATE TABLE {name} (LIKE job_log INCLUDING DEFAULTS) WITH ({_STORAGE})",
        f"ALTER TABLE {name} OWNER TO {owner}",
        f"ALTER TABLE job_log ATTACH PARTITION {name} {rows}",
    ):
        conn.execute(text(statement))


def drop(conn: Connection, partition: LogPartition, *, keep: Sequence[int]) -> None:
    """Drop a partition to which nothing is added any more; some rows of it go to the rest, by their numbers.

    The transaction is the caller's, and nothing else is in it: the whole log is locked. If the lock is not to
    be had in a moment, it fails (`database.is_lock_timeout`).
    """
    name = partition.name
    conn.execute(_LOCK_TIMEOUT)
    conn.execute(text(f"ALTER TABLE job_log DETACH PARTITION {name}"))
    if keep:
        moved = text(f"INSERT INTO job_log SELECT * FROM {name} WHERE log_id = ANY(:keep)")  # noqa: S608  # ours
        conn.execute(moved, {"keep": list(keep)})
    conn.execute(text(f"DROP TABLE {name}"))


def unlink(conn: Connection, partition: LogPartition) -> None:
    """Drop the foreign key to jobs of a partition that has one, before it is dropped.

    In a transaction of its own: it locks the jobs first, as all that writes the log does.
    """
    keys = text(
        "SELECT conname FROM pg_constraint WHERE contype = 'f' AND conrelid = CAST(:name AS regclass)"
    )
    for key in conn.execute(keys, {"name": partition.name}).scalars().all():
        conn.execute(_LOCK_TIMEOUT)
        conn.execute(text(f"LOCK TABLE jobs, {partition.name} IN ACCESS EXCLUSIVE MODE"))
        conn.execute(text(f"ALTER TABLE {partition.name} DROP CONSTRAINT {key}"))


def convert(engine: Engine) -> LogLayout:
    """Put the log into partitions while processes go on; the layout then.

    The connection must not go through a pooler. Three steps, each a transaction that is short or holds up
    nobody: the numbers of the table are bounded, all rows are compared with the bound, and the table becomes
    the first partition. After a failure, or the end of this process at any point, the log is as it was but
    for the bound, which `remove_bound` or the next conversion removes. NotPartitioned: it cannot be, or locks
    were not to be had for a minute.
    """
    if engine.dialect.name == "sqlite":
        raise NotPartitioned("the database is SQLite: only PostgreSQL has partitions")
    with engine.connect() as conn:
        with conn.begin():
            if postgresql.is_pooled(conn):
                raise NotPartitioned("the database is reached through a pooler: set database_direct_url")
        with _converting_alone(conn):
            return _convert(conn)


def _convert(conn: Connection) -> LogLayout:
    with conn.begin():
        is_done = is_partitioned(conn)
        others = [] if is_done else conn.execute(DEPENDENTS).scalars().all()
    if others:
        names = ", ".join(sorted(others))
        raise NotPartitioned(f"views and triggers belong to the table job_log, drop them before: {names}")
    try:
        while not is_done:
            bound = _bound_numbers(conn)
            is_done = _swap(conn, bound)
    except BaseException:
        if not conn.invalidated:
            _repeat_until_locked(conn, _drop_bound)
        raise
    _repeat_until_locked(conn, make_ahead)
    with conn.begin():
        return read_layout(conn)


@contextmanager
def _converting_alone(conn: Connection) -> Iterator[None]:
    """Hold a lock of this session; it ends with the session, also if the process is killed."""
    with conn.begin():
        if not conn.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": _LOCK}).scalar_one():
            raise NotPartitioned("another process is putting the job log into partitions")
    try:
        yield
    finally:
        if not conn.invalidated:
            with conn.begin():
                conn.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": _LOCK})


def _bound_numbers(conn: Connection) -> int:
    """Bound the numbers of the table from above, and check all of its rows; the bound."""
    _repeat_until_locked(conn, _drop_bound)  # of an earlier conversion: too near, perhaps
    with conn.begin():
        bound = int(conn.execute(GIVEN_OUT).scalar_one()) + _DAYS_TO_BOUND * _choose_size(conn)
    add = text(f"ALTER TABLE job_log ADD CONSTRAINT {_BOUND} CHECK (log_id < {bound}) NOT VALID")
    _repeat_until_locked(conn, lambda conn: conn.execute(add))
    with conn.begin():
        for setting in ("statement_timeout", "lock_timeout"):  # neither reads nor writes wait for it
            conn.execute(text(f"SET LOCAL {setting} = 0"))
        conn.execute(text(f"ALTER TABLE job_log VALIDATE CONSTRAINT {_BOUND}"))
    return bound


def _swap(conn: Connection, bound: int) -> bool:
    """Make the table the first partition of a new one; False: its numbers came too near to the bound."""
    is_near = False

    def swap(conn: Connection) -> None:
        nonlocal is_near
        conn.execute(text("LOCK TABLE job_log IN ACCESS EXCLUSIVE MODE"))
        is_near = int(conn.execute(GIVEN_OUT).scalar_one()) + _MARGIN // 2 > bound
        if not is_near:
            _make_first_partition(conn, bound)

    _repeat_until_locked(conn, swap)
    return not is_near


def _make_first_partition(conn: Connection, bound: int) -> None:
    first = f"job_log_before_{bound}"
    rights = conn.execute(RIGHTS).all()
    owner, sequence = (conn.execute(each).scalar_one() for each in (OWNER, SEQUENCE))
    for statement in (
        f"ALTER TABLE job_log RENAME TO {first}",
        f"ALTER TABLE {first} RENAME CONSTRAINT pk_job_log TO pk_{first}",
        f"ALTER INDEX ix_job_log_job_id_log_id RENAME TO ix_{first}",
        f"CREATE TABLE job_log (LIKE {first} INCLUDING DEFAULTS, {_KEY}) PARTITION BY RANGE (log_id)",
        f"ALTER TABLE job_log OWNER TO {owner}",
        "CREATE INDEX ix_job_log_job_id_log_id ON job_log (job_id, log_id)",
        # Otherwise it would go with the first partition.
        f"ALTER SEQUENCE {sequence} OWNED BY job_log.log_id",
        f"ALTER TABLE job_log ATTACH PARTITION {first} FOR VALUES FROM (MINVALUE) TO ({bound})",
        f"ALTER TABLE {first} DROP CONSTRAINT {_BOUND}",
        *(f"GRANT {each.privilege} ON job_log TO {each.role}" for each in rights),
    ):
        conn.execute(text(statement))
    _attach(conn, REST, "DEFAULT")


def remove_bound(conn: Connection) -> bool:
    """Remove what a conversion that was killed has left, unless one is under way; whether there was any.

    It would refuse all new rows once the numbers have come so far.
    """
    if conn.execute(BOUND).scalar_one_or_none() is None:
        return False
    if not conn.execute(text("SELECT pg_try_advisory_xact_lock(:key)"), {"key": _LOCK}).scalar_one():
        return False
    conn.execute(_LOCK_TIMEOUT)
    _drop_bound(conn)
    return True


def _drop_bound(conn: Connection) -> None:
    conn.execute(text(f"ALTER TABLE job_log DROP CONSTRAINT IF EXISTS {_BOUND}"))


def _repeat_until_locked(conn: Connection, work: Callable[[Connection], object]) -> None:
    """Do work in a transaction of its own that waits only a moment for locks, and again for a minute."""
    for left in reversed(range(_TRIES)):
        try:
            with conn.begin():
                conn.execute(_LOCK_TIMEOUT)
                work(conn)
        except DBAPIError as error:
            if not (database.is_lock_timeout(error) or database.is_conflict(error)):
                raise
            if not left:
                raise NotPartitioned(
                    "other transactions held locks on the job log for too long: try again when less goes on"
                ) from None
            threading.Event().wait(_PAUSE)
        else:
            return

"""Indexes of the tables that the database lacks: built beside processes that write.

`CREATE INDEX` keeps writers away while it reads the table: minutes with some million rows. So a migration
leaves out an index of a table that has rows, and `database.upgrade` builds it afterwards, `CONCURRENTLY`,
which no transaction can. Processes work without it meanwhile, only slower. If the build is ended in its
middle, PostgreSQL keeps an invalid index, which the next upgrade replaces.

Source: PostgreSQL's manual, "Building Indexes Concurrently".
"""

import threading
from collections.abc import Callable, Sequence
from typing import Final

from sqlalchemy import Connection, Engine, Index, text
from sqlalchemy.schema import CreateIndex

from taskqueue.db import postgresql
from taskqueue.schema.tables import jobs

#: Arbitrary key of the advisory lock of the session that builds indexes.
_LOCK: Final = 0x50494C4F5458
#: Seconds between two tries to get it.
_PAUSE: Final = 1.0

_BUILT: Final = {
    "sqlite": text("SELECT name FROM sqlite_master WHERE type = 'index'"),
    # That of a partitioned table (relkind I) is built in its partitions.
    "postgresql": text(
        "SELECT relname FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid "
        "WHERE pg_table_is_visible(indexrelid) AND (indisvalid OR relkind = 'I')"
    ),
}


def find_missing(conn: Connection) -> Sequence[Index]:
    """Indexes of the tables that are not there, or not valid; on the schema of this release only."""
    built = set(conn.execute(_BUILT[conn.dialect.name]).scalars())
    indexes = [index for table in jobs.metadata.tables.values() for index in table.indexes]
    return sorted((each for each in indexes if each.name not in built), key=_name)


def build_at_once(conn: Connection, report: Callable[[str], None]) -> bool:
    """Build what is missing in the caller's transaction, where it cannot be built beside writers.

    That is on SQLite, and through a pooler, whose sessions keep neither a lock nor a setting. False: some are
    left, for `build_beside_writers`. `report` gets a line about each, before it is built.
    """
    missing = find_missing(conn)
    if missing and conn.dialect.name == "postgresql" and not postgresql.is_pooled(conn):
        return False
    for index in missing:
        report(f"building the index {_name(index)}; what writes to {index.table} waits")
        conn.exec_driver_sql(f"DROP INDEX IF EXISTS {_name(index)}")
        index.create(conn)
    return True


def build_beside_writers(engine: Engine, report: Callable[[str], None]) -> None:
    """Build what is missing on PostgreSQL, or wait until another process has built it.

    Each index waits for the end of all transactions that are older than it, however long they take.
    """
    with engine.connect() as pooled:
        conn = pooled.execution_options(isolation_level="AUTOCOMMIT")
        conn.detach()  # its settings and its lock end with it
        for setting in ("statement_timeout", "lock_timeout"):  # neither reads nor writes wait for it
            conn.execute(text(f"SET {setting} = 0"))
        # A statement that waited for the lock would be one that the other's index waits for.
        is_told = False
        while not conn.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": _LOCK}).scalar_one():
            if not is_told:
                report("waiting for another process of the database that builds indexes")
                is_told = True
            threading.Event().wait(_PAUSE)
        for index in find_missing(conn):
            report(f"building the index {_name(index)}, beside what writes to {index.table}")
            conn.exec_driver_sql(f"DROP INDEX CONCURRENTLY IF EXISTS {_name(index)}")
            create = str(CreateIndex(index).compile(dialect=conn.dialect))
            conn.exec_driver_sql(create.replace(" INDEX ", " INDEX CONCURRENTLY ", 1))


def _name(index: Index) -> str:
    return str(index.name)

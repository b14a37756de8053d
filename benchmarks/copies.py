"""Copies of waiting or running jobs, made inside PostgreSQL: tens of thousands a second."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psycopg
from sqlalchemy import Connection, Engine, Table, text

from taskqueue.db import database
from taskqueue.schema.tables import attempts, job_log, jobs, waiting_jobs

#: Copies that lie together, as jobs that were submitted together do.
_BULK = 100
_BULKS = """
    CREATE TEMP TABLE bulks (begins bigint, original bigint, task_queue_id bigint, size int) ON COMMIT DROP
"""
_OWN = {
    "job_id": "bulks.begins + number",
    "task_queue_id": "coalesce(bulks.task_queue_id, original.task_queue_id)",
    "lease": "md5('copy ' || bulks.begins + number)",
    # Each belongs to a pilot of its own: one pilot holds no more than its slot has room for.
    "stamp": "'copy ' || bulks.begins + number",
}
_Bulk = tuple[int, int | None, int]
#: What runs was copied with the marks of its original, so the copies count as their originals do.
_COUNT = text("""
    UPDATE scope_rules SET (n, cores) = (
        SELECT count(*), coalesce(sum(coalesce(processors, 1)), 0) FROM attempts
        WHERE closed_at IS NULL AND lower(site) = scope_rules.scope
            AND counted_by LIKE '[[' || rule_id || ',%'
    ) WHERE kind = 'running'
""")
_RENUMBER = "SELECT setval(pg_get_serial_sequence('jobs', 'job_id'), (SELECT max(job_id) FROM jobs))"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Copies of one job."""

    original: int  #: its id
    copies: int
    task_queue_id: int | None = None  #: where they wait; None: where it does


def make(conn: Connection, wanted: Sequence[Wanted], *, running: bool = False, seed: int = 0) -> None:
    """Copy jobs with all that they have, the bulks of all of them mixed.

    All of them wait; or all are `running`, and the lease of each copy is one of its own.
    """
    bulks = [bulk for each in wanted for bulk in _bulks(each)]
    random.Random(seed).shuffle(bulks)
    # What the copies refer to, the originals do as well: nothing has to be looked up again.
    conn.execute(text("SET LOCAL session_replication_role = replica"))
    conn.execute(text(_BULKS))
    _write(conn, bulks)
    _copy(conn, jobs)
    _copy(conn, job_log, without="log_id")
    _copy(conn, attempts if running else waiting_jobs)
    conn.execute(text(_RENUMBER))


def store(engine: Engine, wanted: Sequence[Wanted], *, running: bool = False) -> None:
    """Copy jobs, however long it takes."""
    with database.writing(engine) as conn:
        conn.execute(text("SET LOCAL statement_timeout = 0"))
        make(conn, wanted, running=running)


def count_running(conn: Connection) -> None:
    """Let the limits of sites count the running copies."""
    conn.execute(_COUNT)


def _bulks(wanted: Wanted) -> Iterator[_Bulk]:
    for begin in range(0, wanted.copies, _BULK):
        yield wanted.original, wanted.task_queue_id, min(_BULK, wanted.copies - begin)


def _write(conn: Connection, bulks: Sequence[_Bulk]) -> None:
    """Write down which ids the copies get."""
    begins = int(conn.scalar(text("SELECT max(job_id) FROM jobs")) or 0) + 1
    connection = conn.connection.driver_connection
    assert isinstance(connection, psycopg.Connection)
    with connection.cursor() as cursor, cursor.copy("COPY bulks FROM STDIN") as copy:
        for original, task_queue_id, size in bulks:
            copy.write_row((begins, original, task_queue_id, size))
            begins += size
    conn.execute(text("ANALYZE bulks"))


def _copy(conn: Connection, table: Table, *, without: str = "") -> None:
    names = [column.name for column in table.c if column.name != without]
    values = [_OWN.get(name, f"original.{name}") for name in names]
    conn.execute(
        text(
            f"INSERT INTO {table.name} ({', '.join(names)}) SELECT {', '.join(values)} FROM bulks"
            f" JOIN {table.name} original ON original.job_id = bulks.original"
            " CROSS JOIN LATERAL generate_series(0, bulks.size - 1) number"
        )
    )

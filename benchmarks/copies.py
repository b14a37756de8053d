"""Copies of waiting jobs, made inside PostgreSQL: a hundred thousand a second."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psycopg
from sqlalchemy import Connection, Table, text

from taskqueue.tables import job_log, jobs, waiting_jobs

#: Copies that lie together, as jobs that were submitted together do.
_BULK = 100
_BULKS = """
    CREATE TEMP TABLE bulks (begins bigint, original bigint, task_queue_id bigint, size int) ON COMMIT DROP
"""
_RENUMBER = "SELECT setval(pg_get_serial_sequence('jobs', 'job_id'), (SELECT max(job_id) FROM jobs))"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Copies of one job."""

    original: int  #: its id
    task_queue_id: int  #: where they wait
    copies: int


def make(conn: Connection, wanted: Sequence[Wanted], *, seed: int = 0) -> None:
    """Copy jobs with all that they have; the bulks of all of them lie mixed."""
    bulks = [bulk for each in wanted for bulk in _bulks(each)]
    random.Random(seed).shuffle(bulks)
    # What the copies refer to, the originals do as well: nothing has to be looked up again.
    conn.execute(text("SET LOCAL session_replication_role = replica"))
    conn.execute(text(_BULKS))
    _write(conn, bulks)
    _copy(conn, jobs)
    _copy(conn, job_log, without="log_id")
    _copy(conn, waiting_jobs)
    conn.execute(text(_RENUMBER))


def _bulks(wanted: Wanted) -> Iterator[tuple[int, int, int]]:
    for begin in range(0, wanted.copies, _BULK):
        yield wanted.original, wanted.task_queue_id, min(_BULK, wanted.copies - begin)


def _write(conn: Connection, bulks: Sequence[tuple[int, int, int]]) -> None:
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
    own = {"job_id": "bulks.begins + number", "task_queue_id": "bulks.task_queue_id"}
    names = [column.name for column in table.c if column.name != without]
    values = [own.get(name, f"original.{name}") for name in names]
    conn.execute(
        text(
            f"INSERT INTO {table.name} ({', '.join(names)}) SELECT {', '.join(values)} FROM bulks"
            f" JOIN {table.name} original ON original.job_id = bulks.original"
            " CROSS JOIN LATERAL generate_series(0, bulks.size - 1) number"
        )
    )

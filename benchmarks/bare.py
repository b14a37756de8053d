"""The bare claim: what any queue on PostgreSQL comes down to, without attempt, lease, log and choice.

One `FOR UPDATE SKIP LOCKED LIMIT 1` with its `UPDATE … RETURNING` through psycopg, prepared, each in a
durable transaction of its own.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from benchmarks.clients import Work, repeated

_ROWS = 400_000
_CLAIM = """
    UPDATE bare SET taken = true WHERE id =
      (SELECT id FROM bare WHERE NOT taken ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING id
"""


def fill(url: str) -> None:
    """Make the table."""
    with _connect(url) as conn:
        conn.execute("CREATE TABLE bare (id bigint PRIMARY KEY, taken boolean NOT NULL)")
        conn.execute(f"INSERT INTO bare SELECT n, false FROM generate_series(1, {_ROWS}) n")
        conn.execute("CREATE INDEX ON bare (id) WHERE NOT taken")
        conn.execute("VACUUM ANALYZE bare")


@contextmanager
def claims(url: str, _number: int) -> Iterator[Work]:
    """One client that claims row after row."""
    with _connect(url) as conn:

        def one() -> int:
            assert conn.execute(_CLAIM, prepare=True).fetchone() is not None
            return 1

        yield repeated(one)


def _connect(url: str) -> "psycopg.Connection[tuple[object, ...]]":
    return psycopg.connect(url.replace("+psycopg", ""), autocommit=True)

"""Ids of rows to be stored, taken in one go: so rows that refer to each other need one statement a table."""

from collections.abc import Sequence
from functools import cache

from sqlalchemy import Connection, Select, Table, bindparam, func, literal, select, text

#: SQLite's own list of the highest id that a table ever had.
LATEST = text("SELECT seq FROM sqlite_sequence WHERE name = :name")


def take(conn: Connection, table: Table, count: int) -> Sequence[int]:
    """Ids for new rows, ascending; nobody else has them or will have them.

    Args:
        conn: In a writing transaction, which on SQLite is the only one.
        table: Numbers its rows by itself and gives no number out twice; its key is that number.
        count: How many.
    """
    if conn.dialect.name == "postgresql":
        return conn.execute(_next(table), {"count": count}).scalars().all()
    latest: int = conn.execute(LATEST, {"name": table.name}).scalar_one_or_none() or 0
    return range(latest + 1, latest + 1 + count)


@cache
def _next(table: Table) -> Select[int]:
    [key] = table.primary_key
    sequence = f"{table.name}_{key.name}_seq"
    # The order of a set-returning function is that of its numbers.
    numbers = func.generate_series(literal(1), bindparam("count")).table_valued("number")
    return select(func.nextval(literal(sequence).op("::")(text("regclass")))).select_from(numbers)

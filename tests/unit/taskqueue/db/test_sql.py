"""Statements that are written once for both databases."""

import pytest
from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite

from taskqueue.db import sql
from taskqueue.schema.tables import agent_leases as table


def test_each_value_comes_once_sorted_and_no_statement_gets_more_than_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sql, "BATCH_SIZE", 2)
    assert list(sql.split_batches([5, 3, 1, 3, 2, 4])) == [[1, 2], [3, 4], [5]]
    assert list(sql.split_batches(set[str]())) == []


def test_a_list_of_ids_is_one_value_and_a_plain_condition() -> None:
    """As a Boolean function SQLite would compare it with 1, and use no index."""
    found = select(table.c.fence).where(sql.is_listed(table.c.name))
    [on_postgresql, on_sqlite] = [
        str(found.compile(dialect=dialect)).partition("WHERE ")[2]
        for dialect in (postgresql.psycopg.dialect(), sqlite.dialect())
    ]
    assert on_postgresql == "agent_leases.name = ANY (%(ids)s::TEXT[])"
    assert on_sqlite == "agent_leases.name IN (SELECT value FROM json_each(?))"


def test_a_bulk_statement_is_one_for_each_row_on_sqlite() -> None:
    update = sql.bulk_update(table, "holder", "fence", key="name")
    written = str(update._on_sqlite.compile(dialect=sqlite.dialect()))
    assert written == "UPDATE agent_leases SET holder=?, fence=? WHERE agent_leases.name = ?"

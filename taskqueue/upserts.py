"""INSERT … ON CONFLICT: both databases have it, SQLAlchemy says it for each in a class of its own."""

from collections.abc import Callable, Mapping

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.dml import Insert

Upsert = postgresql.Insert | sqlite.Insert

_INSERTS: Mapping[str, Callable[[Table], Upsert]] = {
    "postgresql": postgresql.insert,
    "sqlite": sqlite.insert,
}


class Twins:
    """One statement in the forms of both databases."""

    def __init__(self, table: Table, build: Callable[[Upsert], Insert]) -> None:
        self._forms = {name: build(insert(table)) for name, insert in _INSERTS.items()}

    def of(self, conn: Connection) -> Insert:
        """The form for this connection's database."""
        return self._forms[conn.dialect.name]

"""Statements that one way to PostgreSQL and back is enough for, compiled once.

Data-changing WITHs: each part sees what the parts before it return, and all of them the same moment.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    JSON,
    ColumnElement,
    CompoundSelect,
    FromClause,
    Insert,
    Select,
    Table,
    Text,
    bindparam,
    cast,
    column,
    func,
    insert,
    literal,
    select,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql.schema import ScalarElementColumnDefault


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A statement as the server takes it, with what never changes written out for the planner."""

    text: str
    names: tuple[str, ...]  #: of what is said each time: the first is $1

    def values(self, said: Mapping[str, Any]) -> tuple[Any, ...]:
        """What is said, in the order of the statement."""
        return tuple(said[name] for name in self.names)


def compiled(statement: Select[Any] | CompoundSelect[Any], *said: str) -> Statement:
    """A statement to which these names, and `now`, are said each time."""
    done = statement.compile(dialect=postgresql.psycopg.dialect())  # type: ignore[no-untyped-call]
    constants = {name: _quoted(value) for name, value in done.params.items() if value is not None}
    names = tuple(name for name in (*said, "now") if name in done.params)
    numbers = {name: f"${number}" for number, name in enumerate(names, 1)}
    return Statement(text=str(done) % {**constants, **numbers}, names=names)


def table_of(parameter: str, columns: Mapping[str, Any], *, name: str) -> FromClause:
    """A JSON list of objects as a table: one value, so that the statement is the same for any number."""
    return (
        func.json_to_recordset(cast(bindparam(parameter, type_=Text), JSON))
        .table_valued(*(column(each, type_) for each, type_ in columns.items()), name=name)
        .render_derived(with_types=True)
    )


def insert_each(table: Table, source: FromClause, row: Mapping[str, ColumnElement[Any]]) -> Insert:
    """A row for each of `source`; with the defaults that are not the database's own."""
    defaults = {
        each.name: literal(each.default.arg)
        for each in table.c
        if each.name not in row and isinstance(each.default, ScalarElementColumnDefault)
    }
    whole = {**row, **defaults}
    return insert(table).from_select(
        list(whole), select(*whole.values()).select_from(source), include_defaults=False
    )


def _quoted(value: str | int) -> str:
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"

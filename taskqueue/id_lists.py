"""Conditions on any number of ids as one value: the statement stays the same however many there are."""

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, Generic, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Dialect,
    Executable,
    Text,
    any_,
    bindparam,
    func,
    select,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.types import TypeDecorator

S = TypeVar("S", bound=Executable)


class _JsonList(TypeDecorator[Collection[Any]]):
    """Ids as SQLite takes them: the text of a JSON list."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Collection[Any] | None, dialect: Dialect) -> str:  # noqa: ARG002  (SQLAlchemy names it)
        return json.dumps(list(value or ()))


def _on_postgresql(column: ColumnElement[Any]) -> ColumnElement[bool]:
    return column == any_(bindparam("ids", type_=ARRAY(column.type)))


def _on_sqlite(column: ColumnElement[Any]) -> ColumnElement[bool]:
    return column.in_(select(func.json_each(bindparam("ids", type_=_JsonList)).table_valued("value").c.value))


class OfIds(Generic[S]):
    """A statement about rows whose id is in the list `ids`, in the forms of both databases."""

    def __init__(self, column: ColumnElement[Any], build: Callable[[ColumnElement[bool]], S]) -> None:
        self._forms: Mapping[str, S] = {
            "postgresql": build(_on_postgresql(column)),
            "sqlite": build(_on_sqlite(column)),
        }

    def of(self, conn: Connection) -> S:
        """The form for this connection's database; its bind `ids` takes a list."""
        return self._forms[conn.dialect.name]

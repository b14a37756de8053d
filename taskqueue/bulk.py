"""Many rows in one statement, in the form in which each database is fastest.

PostgreSQL gets one array a column and unnests them; SQLite, which runs inside this process, gets the rows
one after the other without a word of SQLAlchemy between them.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import (
    Column,
    Connection,
    Dialect,
    Executable,
    Table,
    bindparam,
    cast,
    column,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql.selectable import TableValuedAlias
from sqlalchemy.types import Text, TypeDecorator

#: Before the names of binds: no bind is called like a column of what is updated.
_BIND: Final = "its_"

#: Values of each column, all equally many.
Columns = Mapping[str, Sequence[Any]]


class _Bulk:
    """A statement over many rows, for each of the databases."""

    _columns: Sequence[Column[Any]]  #: in the order of the places in the statement for SQLite
    _on_postgresql: Executable
    _on_sqlite: str

    def execute(self, conn: Connection, columns: Columns, **common: object) -> None:
        """Carry it out for as many rows as the columns have values, in their order."""
        if not len(next(iter(columns.values()))):
            return
        if conn.dialect.name == "postgresql":
            conn.execute(self._on_postgresql, _bound(columns, common))
        else:
            conn.exec_driver_sql(self._on_sqlite, _rows(self._columns, columns, common, conn.dialect))


class BulkInsert(_Bulk):
    """Puts rows into a table; what all of them have in common is sent once."""

    def __init__(self, table: Table, *, varying: Sequence[str], common: Sequence[str] = ()) -> None:
        self._columns = [table.c[name] for name in (*varying, *common)]
        rows = _unnested([table.c[name] for name in varying])
        same = [cast(bindparam(_BIND + name), table.c[name].type) for name in common]
        chosen = select(*(rows.c[name] for name in varying), *same)
        self._on_postgresql = insert(table).from_select([*varying, *common], chosen)
        names = ", ".join((*varying, *common))
        places = ", ".join("?" * len(self._columns))
        self._on_sqlite = f"INSERT INTO {table.name} ({names}) VALUES ({places})"  # noqa: S608, our own names


class BulkUpdate(_Bulk):
    """Gives many rows, found by their key, values of their own; those that are not there are passed over."""

    def __init__(self, table: Table, *, key: str, varying: Sequence[str], common: Sequence[str] = ()) -> None:
        self._columns = [table.c[name] for name in (*varying, *common, key)]
        rows = _unnested([table.c[name] for name in (key, *varying)])
        same: dict[str, Any] = {name: bindparam(_BIND + name) for name in common}
        self._on_postgresql = (
            update(table)
            .where(table.c[key] == rows.c[key])
            .values({name: rows.c[name] for name in varying} | same)
        )
        assigned = ", ".join(f"{name} = ?" for name in (*varying, *common))
        self._on_sqlite = f"UPDATE {table.name} SET {assigned} WHERE {key} = ?"  # noqa: S608, our own names


class _Array(TypeDecorator[Sequence[Any]]):
    """The values of a column as the text of an array, written faster than the driver does it."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Sequence[Any] | None, dialect: Dialect) -> str:  # noqa: ARG002  (SQLAlchemy names it)
        return "{" + _items(value or ()) + "}"


def _items(values: Sequence[Any]) -> str:
    """All in one go if they are texts, as most are; of others each value once, however often it comes."""
    try:
        texts = "\0".join(values)
    except TypeError:
        shown = {each: _item(each) for each in set(values)}
        return ",".join(map(shown.__getitem__, values))
    if texts.count("\0") != len(values) - 1:  # there is none, or one that the server will not take
        return ",".join(map(_item, values))
    return '"' + _escaped(texts).replace("\0", '","') + '"'


def _item(value: object) -> str:
    if isinstance(value, str):
        return f'"{_escaped(value)}"'
    if value is None:
        return "NULL"
    if not isinstance(value, int | float | datetime):
        raise TypeError(f"{value!r} is no value of a column")
    return str(value)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"")


def _unnested(columns: Sequence[Column[Any]]) -> TableValuedAlias:
    arrays = [cast(bindparam(_BIND + each.name, type_=_Array), ARRAY(each.type)) for each in columns]
    names = [column(each.name, each.type) for each in columns]
    return func.unnest(*arrays).table_valued(*names, name="given").render_derived()


def _bound(columns: Columns, common: Mapping[str, object]) -> dict[str, object]:
    return {_BIND + name: value for name, value in {**columns, **common}.items()}


def _rows(
    wanted: Sequence[Column[Any]], columns: Columns, common: Mapping[str, object], dialect: Dialect
) -> list[tuple[Any, ...]]:
    count = len(next(iter(columns.values())))
    return list(zip(*_values(wanted, columns, common, count, dialect), strict=True))


def _values(
    wanted: Sequence[Column[Any]],
    columns: Columns,
    common: Mapping[str, object],
    count: int,
    dialect: Dialect,
) -> Iterator[Sequence[Any]]:
    """The values of each column as the driver takes them."""
    for each in wanted:
        process = each.type.dialect_impl(dialect).bind_processor(dialect) or _as_it_is
        if each.name in common:
            yield [process(common[each.name])] * count
        else:
            values = columns[each.name]
            yield values if process is _as_it_is else [process(value) for value in values]


def _as_it_is(value: Any) -> Any:
    return value

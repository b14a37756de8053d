"""SQL helpers for both databases: batches of values, bulk insert and update, id lists, new ids, upserts.

PostgreSQL gets one array per column, or one list per condition, so that a statement stays the same for any
number of rows. SQLite runs in-process and gets rows one by one, without SQLAlchemy in between.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, Final, Generic, TypeVar

from sqlalchemy import (
    JSON,
    BindParameter,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Dialect,
    Executable,
    FromClause,
    Row,
    Select,
    Table,
    Text,
    any_,
    bindparam,
    case,
    cast,
    column,
    func,
    insert,
    literal,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.dml import Insert
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.selectable import TableValuedAlias
from sqlalchemy.types import TypeDecorator

from cs_config.versions.tables import UtcTime

#: Values in one statement; SQLite allows at most 32,766.
BATCH_SIZE: Final = 1000


_T = TypeVar("_T", bound=Any)


def split_batches(values: Collection[_T]) -> Iterator[Sequence[_T]]:
    """Batches of distinct values, sorted, so that all transactions lock the rows in the same order."""
    ordered = sorted(set(values))
    for start in range(0, len(ordered), BATCH_SIZE):
        yield ordered[start : start + BATCH_SIZE]


class is_not_ascii(FunctionElement[bool]):  # noqa: N801 - written like a SQL function
    """Whether a text has characters beyond ASCII."""

    type = Boolean()
    inherit_cache = True


@compiles(is_not_ascii)
def _compile_is_not_ascii(element: is_not_ascii, compiler: SQLCompiler, **options: Any) -> str:
    value = compiler.process(element.clauses, **options)
    return f"octet_length({value}) <> length({value})"


@compiles(is_not_ascii, "sqlite")
def _compile_for_sqlite(element: is_not_ascii, compiler: SQLCompiler, **options: Any) -> str:
    value = compiler.process(element.clauses, **options)
    return f"length(CAST({value} AS BLOB)) <> length({value})"


#: The bind for a list of values: `column.in_(IDS)`, executed with `{"ids": […]}`.
IDS: BindParameter[Any] = bindparam("ids", expanding=True)


def read_batches(
    conn: Connection, statement: Executable, ids: Collection[Any], **common: object
) -> list[Row[*tuple[Any, ...]]]:
    """All rows of a statement with the bind `ids`, executed for one batch after the other."""
    return [row for some in split_batches(ids) for row in conn.execute(statement, {"ids": some, **common})]


DialectInsert = postgresql.Insert | sqlite.Insert

_INSERTS: Mapping[str, Callable[[Table], DialectInsert]] = {
    "postgresql": postgresql.insert,
    "sqlite": sqlite.insert,
}

#: Prefix of bind names, to differ from the columns of the updated table.
_BIND: Final = "its_"

#: Values of each column, all of the same length.
ColumnValues = Mapping[str, Sequence[Any]]


class _BulkStatement:
    """A statement over many rows, in the forms of both databases."""

    _columns: Sequence[Column[Any]]  #: in the order of the placeholders of the SQLite form
    _on_postgresql: Executable
    _on_sqlite: str

    def execute(self, conn: Connection, columns: ColumnValues, **common: object) -> None:
        """Execute for all rows, whose values are given by column."""
        if not len(next(iter(columns.values()))):
            return
        if conn.dialect.name == "postgresql":
            values = {_BIND + name: value for name, value in {**columns, **common}.items()}
            conn.execute(self._on_postgresql, values)
        else:
            converted = [_convert(each, columns, common, conn.dialect) for each in self._columns]
            conn.exec_driver_sql(self._on_sqlite, list(zip(*converted, strict=True)))


class BulkInsert(_BulkStatement):
    """Insert of many rows; values in `common` are sent once."""

    def __init__(self, table: Table, *, varying: Sequence[str], common: Sequence[str] = ()) -> None:
        self._columns = [table.c[name] for name in (*varying, *common)]
        rows = _unnest([table.c[name] for name in varying])
        same = [cast(bindparam(_BIND + name), table.c[name].type) for name in common]
        chosen = select(*(rows.c[name] for name in varying), *same)
        self._on_postgresql = insert(table).from_select([*varying, *common], chosen)
        names = ", ".join((*varying, *common))
        places = ", ".join("?" * len(self._columns))
        self._on_sqlite = f"INSERT INTO {table.name} ({names}) VALUES ({places})"  # noqa: S608, our own names


class BulkUpsert:
    """An INSERT … ON CONFLICT of rows computed from given ones, in the forms of both databases.

    `compute` makes a query of all columns from a table of the given rows. Its rows must be distinct by key,
    and it must group them: SQLite needs more than a FROM before ON CONFLICT.
    """

    def __init__(
        self,
        table: Table,
        compute: Callable[[FromClause], Select[Any]],
        conflict: Callable[[DialectInsert], Insert],
    ) -> None:
        self._names = [each.name for each in table.c]
        single = select(*(bindparam(_BIND + each.name, type_=each.type).label(each.name) for each in table.c))
        given = {"postgresql": _unnest(list(table.c)), "sqlite": single.subquery("given")}
        self._forms = {
            name: conflict(_INSERTS[name](table).from_select(self._names, compute(rows)))
            for name, rows in given.items()
        }

    def execute(self, conn: Connection, columns: ColumnValues) -> None:
        """Execute for all given rows, whose values are given by column."""
        if not len(columns[self._names[0]]):
            return
        form, arrays = self._forms[conn.dialect.name], {_BIND + name: columns[name] for name in self._names}
        if conn.dialect.name == "postgresql":
            conn.execute(form, arrays)
        else:
            conn.execute(
                form, [dict(zip(arrays, row, strict=True)) for row in zip(*arrays.values(), strict=True)]
            )


class BulkUpdate(_BulkStatement):
    """Update of many rows by key, each with its own values; missing rows are skipped."""

    def __init__(self, table: Table, *, key: str, varying: Sequence[str], common: Sequence[str] = ()) -> None:
        self._columns = [table.c[name] for name in (*varying, *common, key)]
        rows = _unnest([table.c[name] for name in (key, *varying)])
        same: dict[str, Any] = {name: bindparam(_BIND + name) for name in common}
        self._on_postgresql = (
            update(table)
            .where(table.c[key] == rows.c[key])
            .values({name: rows.c[name] for name in varying} | same)
        )
        assigned = ", ".join(f"{name} = ?" for name in (*varying, *common))
        self._on_sqlite = f"UPDATE {table.name} SET {assigned} WHERE {key} = ?"  # noqa: S608, our own names


class _Array(TypeDecorator[Sequence[Any]]):
    """The values of a column as a PostgreSQL array literal; faster than the driver's conversion."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Sequence[Any] | None, dialect: Dialect) -> str:  # noqa: ARG002  (SQLAlchemy names it)
        return "{" + _format_items(value or ()) + "}"


def _format_items(values: Sequence[Any]) -> str:
    """Strings, the most frequent case, are joined at once; other values are converted once each."""
    try:
        texts = "\0".join(values)
    except TypeError:
        shown = {each: _format_item(each) for each in set(values)}
        return ",".join(map(shown.__getitem__, values))
    if texts.count("\0") != len(values) - 1:  # no value, or one with \0, which the server rejects
        return ",".join(map(_format_item, values))
    return '"' + _escape(texts).replace("\0", '","') + '"'


def _format_item(value: object) -> str:
    if isinstance(value, str):
        return f'"{_escape(value)}"'
    if value is None:
        return "NULL"
    if not isinstance(value, int | float | datetime):
        raise TypeError(f"{value!r}: unsupported type of a column value")
    return str(value)


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"")


def _unnest(columns: Sequence[Column[Any]]) -> TableValuedAlias:
    arrays = [cast(bindparam(_BIND + each.name, type_=_Array), ARRAY(each.type)) for each in columns]
    names = [column(each.name, each.type) for each in columns]
    return func.unnest(*arrays).table_valued(*names, name="given").render_derived()


def _convert(
    column: Column[Any], columns: ColumnValues, common: Mapping[str, object], dialect: Dialect
) -> Sequence[Any]:
    """The values of one column in all rows, for the driver."""
    process = column.type.dialect_impl(dialect).bind_processor(dialect)
    if column.name not in common:
        values = columns[column.name]
        return values if process is None else [process(value) for value in values]
    value = common[column.name]
    rows = len(next(iter(columns.values())))
    return [value if process is None else process(value)] * rows


_Statement = TypeVar("_Statement", bound=Executable)


class _JsonList(TypeDecorator[Collection[Any]]):
    """Ids for SQLite: a JSON list."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Collection[Any] | None, dialect: Dialect) -> str:  # noqa: ARG002  (SQLAlchemy names it)
        return json.dumps(list(value or ()))


def _on_postgresql(column: ColumnElement[Any]) -> ColumnElement[bool]:
    return column == any_(bindparam("ids", type_=ARRAY(column.type)))


def _on_sqlite(column: ColumnElement[Any]) -> ColumnElement[bool]:
    return column.in_(select(func.json_each(bindparam("ids", type_=_JsonList)).table_valued("value").c.value))


class _DialectForms(Generic[_Statement]):
    """The forms of a statement for the two databases."""

    _forms: Mapping[str, _Statement]

    def to_statement(self, conn: Connection) -> _Statement:
        """The form for this connection's database."""
        return self._forms[conn.dialect.name]


class IdListStatement(_DialectForms[_Statement]):
    """A statement with the condition that an id is in the bind `ids`, which takes a list."""

    def __init__(
        self, column: ColumnElement[Any], build: Callable[[ColumnElement[bool]], _Statement]
    ) -> None:
        self._forms = {"postgresql": build(_on_postgresql(column)), "sqlite": build(_on_sqlite(column))}


class _JsonTimes(TypeDecorator[Mapping[str, datetime]]):
    """Times by key as a JSON object, each as the database stores it, so that it compares with columns."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Mapping[str, datetime] | None, dialect: Dialect) -> str:
        convert = UtcTime().dialect_impl(dialect).bind_processor(dialect) or str
        return json.dumps({key: str(convert(time)) for key, time in (value or {}).items()})


#: Makes a table with the columns `key` and `time` of a bind that takes a mapping.
TimesByKey = Callable[[str], FromClause]


def _times_on_postgresql(name: str) -> FromClause:
    given = func.json_each_text(cast(bindparam(name, type_=_JsonTimes), JSON)).table_valued("key", "value")
    return select(given.c.key, cast(given.c.value, UtcTime).label("time")).cte(name)


def _times_on_sqlite(name: str) -> FromClause:
    given = func.json_each(bindparam(name, type_=_JsonTimes)).table_valued("key", "value")
    return select(given.c.key, given.c.value.label("time")).cte(name)


class PerKeyStatement(_DialectForms[Select[_T]], Generic[_T]):
    """A query that compares with a time for each key, such as a VO; its binds take mappings of these."""

    def __init__(self, build: Callable[[TimesByKey], Select[_T]]) -> None:
        self._forms = {"postgresql": build(_times_on_postgresql), "sqlite": build(_times_on_sqlite)}


#: SQLite's record of the highest id that a table ever had.
LATEST_ID = text("SELECT seq FROM sqlite_sequence WHERE name = :name")


def allocate_ids(conn: Connection, table: Table, count: int) -> Sequence[int]:
    """Allocate ids for new rows, ascending; none of them is ever allocated again.

    On SQLite valid in a writing transaction, which is the only one. The table needs an autoincrement key.
    """
    if conn.dialect.name == "postgresql":
        return conn.execute(_select_ids(table), {"count": count}).scalars().all()
    latest: int = conn.execute(LATEST_ID, {"name": table.name}).scalar_one_or_none() or 0
    return range(latest + 1, latest + 1 + count)


#: Lock a sequence against `nextval` until the end of the transaction.
_LOCK_SEQUENCE = "ALTER SEQUENCE {} MINVALUE 1"
_READ_SEQUENCE = "SELECT last_value FROM {}"
_RAISE_SEQUENCE = "ALTER SEQUENCE {} RESTART WITH {}"
RAISE_LATEST = text("UPDATE sqlite_sequence SET seq = max(seq, :latest) WHERE name = :name")
_READ_LATEST = text("SELECT seq FROM sqlite_sequence WHERE name = :name")
BEGIN_IDS = text("INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :latest)")


def raise_ids(conn: Connection, table: Table, first: int) -> None:
    """Allocate no ids below `first` from now on; needs the owner of the table, in a writing transaction."""
    [key] = table.primary_key
    if conn.dialect.name == "sqlite":
        values = {"name": table.name, "latest": first - 1}
        if not conn.execute(RAISE_LATEST, values).rowcount:
            conn.execute(BEGIN_IDS, values)
        return
    sequence = f"{table.name}_{key.name}_seq"
    conn.exec_driver_sql(_LOCK_SEQUENCE.format(sequence))
    if conn.exec_driver_sql(_READ_SEQUENCE.format(sequence)).scalar_one() < first:
        conn.exec_driver_sql(_RAISE_SEQUENCE.format(sequence, int(first)))


def read_next_id(conn: Connection, table: Table) -> int:
    """The smallest id that the next row of a table may get, or one less; changes nothing."""
    [key] = table.primary_key
    if conn.dialect.name == "sqlite":
        return int(conn.execute(_READ_LATEST, {"name": table.name}).scalar() or 0) + 1
    return int(conn.exec_driver_sql(_READ_SEQUENCE.format(f"{table.name}_{key.name}_seq")).scalar_one())


@cache
def _select_ids(table: Table) -> Select[int]:
    [key] = table.primary_key
    sequence = f"{table.name}_{key.name}_seq"
    # A set-returning function returns its rows in order.
    numbers = func.generate_series(literal(1), bindparam("count")).table_valued("number")
    return select(func.nextval(literal(sequence).op("::")(text("regclass")))).select_from(numbers)


class Upsert(_DialectForms[Insert]):
    """An INSERT … ON CONFLICT."""

    def __init__(self, table: Table, build: Callable[[DialectInsert], Insert]) -> None:
        self._forms = {name: build(insert(table)) for name, insert in _INSERTS.items()}


def insert_or_skip(table: Table, *returning: str) -> Upsert:
    """Insert rows; those that exist stay as they are. Returns columns of the new ones."""
    return Upsert(table, lambda insert: _return(insert.on_conflict_do_nothing(), table, returning))


def insert_or_update(table: Table, *columns: str, returning: Sequence[str] = ()) -> Upsert:
    """Insert rows; those with an existing primary key replace these columns."""

    def build(insert: DialectInsert) -> Insert:
        new = {name: insert.excluded[name] for name in columns}
        return _return(
            insert.on_conflict_do_update(index_elements=table.primary_key, set_=new), table, returning
        )

    return Upsert(table, build)


def insert_or_raise(table: Table, *columns: str) -> Upsert:
    """Insert rows; those with an existing primary key get the larger value of each of these columns."""

    def build(insert: DialectInsert) -> Insert:
        new = {
            name: case((table.c[name] > insert.excluded[name], table.c[name]), else_=insert.excluded[name])
            for name in columns
        }
        return insert.on_conflict_do_update(index_elements=table.primary_key, set_=new)

    return Upsert(table, build)


def insert_or_add(table: Table) -> Upsert:
    """Insert rows of sums; those with an existing primary key are added to it."""

    def build(insert: DialectInsert) -> Insert:
        sums = [each for each in table.c if not each.primary_key]
        new = {each.name: each + insert.excluded[each.name] for each in sums}
        return insert.on_conflict_do_update(index_elements=table.primary_key, set_=new)

    return Upsert(table, build)


def _return(insert: Insert, table: Table, names: Sequence[str]) -> Insert:
    return insert.returning(*(table.c[name] for name in names)) if names else insert

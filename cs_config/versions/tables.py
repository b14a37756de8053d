"""Tables of the configuration: its versions and file imports.

This metadata is that of the whole database; `taskqueue.schema.tables` adds to it.
"""

import zlib
from datetime import MINYEAR, UTC, datetime

from sqlalchemy import Column, DateTime, Dialect, Integer, LargeBinary, MetaData, String, Table, Text
from sqlalchemy.types import TypeDecorator

#: Named constraints, so that migrations and error handling can refer to them.
metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


class UtcTime(TypeDecorator[datetime]):
    """An aware time in UTC, also on SQLite, which has no time zones."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse a naive time: its meaning is unknown."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone")
        try:
            utc = value.astimezone(UTC)
        except OverflowError:  # beyond the calendar there: its first or last
            utc = _FIRST if value.year == MINYEAR else _LAST
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002  (SQLAlchemy names it)
        """Restore the time zone."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class CompressedText(TypeDecorator[str]):
    """A long text, stored as compressed UTF-8."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> bytes | None:  # noqa: ARG002  (SQLAlchemy names it)
        """Compress."""
        return None if value is None else zlib.compress(value.encode())

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> str | None:  # noqa: ARG002  (SQLAlchemy names it)
        """Decompress."""
        return None if value is None else zlib.decompress(value).decode()


#: One immutable version of the configuration a row; the highest is the current one.
config_versions = Table(
    "config_versions",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),  # the writer assigns the number
    Column("text", CompressedText),  # the original text, YAML; null: removed by retention
    Column("digest", String(64), nullable=False),  # SHA-256 of the text
    Column("source", Text, nullable=False),  # file name or "api"
    Column("author", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("origins", CompressedText),  # JSON: runs of `LineOrigins`; null: every line is its own
    Column("changed", Text),  # JSON list: paths that differ from the version before; null: not stored
)

#: The last digest imported from each file: importing an unchanged file again would undo later edits.
config_imports = Table(
    "config_imports",
    metadata,
    Column("file", Text, primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("version", Integer, nullable=False),
)

#: A value a row that an agent restores when it is due; deleted when it is restored, or changed by anybody.
config_reverts = Table(
    "config_reverts",
    metadata,
    Column("path", Text, primary_key=True),
    Column("version", Integer, nullable=False),  # that made the temporary change
    Column("due", UtcTime, nullable=False),
    Column("author", Text, nullable=False),
    Column("rights", Text, nullable=False),  # JSON: of the author, `everything`, `vos`, `sites`
    Column("depth", Integer, nullable=False),  # names of the section that the change made, if any
    Column("before", Text),  # JSON: to be restored; null: there was no entry
    Column("after", Text),  # JSON: in force until then; null: there is no entry
    Column("tried", Integer, nullable=False),  # version that it could not be restored in; 0: none
    Column("problem", Text, nullable=False),  # why
    # JSON, if the value before is temporary, too: the rows of both and of those around them, from the inside,
    # without path; the row itself has then what was before all of them.
    Column("around", Text),
)

"""Types and functions of columns: sets of a VO's queue classes as bitmaps, and names compared without case.

A bitmap has one bit for the slot of each class: a pool that is eligible for a tenth of 5,000 classes takes
625 bytes instead of 500 rows.

Names of sites, CEs and queues are ASCII, so that folding them here equals `requirements.values.fold` whatever
the locale of the database is.
"""

from functools import partial
from typing import Any

from sqlalchemy import Boolean, Dialect, LargeBinary, Text
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator


class BitsetType(TypeDecorator[int]):
    """An integer as a bitmap of slots, stored as little-endian bytes."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: Dialect) -> bytes | None:  # noqa: ARG002  (SQLAlchemy names it)
        """Convert to bytes, up to the highest slot."""
        return None if value is None else to_bytes(value)

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> int | None:  # noqa: ARG002  (SQLAlchemy names it)
        """Convert to an integer."""
        return None if value is None else int.from_bytes(value, "little")


def to_bytes(slots: int) -> bytes:
    """The stored form of a set."""
    return slots.to_bytes((slots.bit_length() + 7) // 8, "little")


def write_as(function: type[FunctionElement[Any]], *, postgresql: str, sqlite: str) -> None:
    """Define the SQL of a function on each database, whose arguments it has as `{0}` and `{1}`."""
    for dialect, form in (("postgresql", postgresql), ("sqlite", sqlite)):
        compiles(function, dialect)(partial(_write, form))


def _write(form: str, element: FunctionElement[Any], compiler: SQLCompiler, **options: Any) -> str:
    return form.format(*(compiler.process(each, **options) for each in element.clauses))


class has_slot(FunctionElement[bool]):  # noqa: N801  (it is called like a function)
    """Whether a set contains a slot: `has_slot(column, slot)`; null for a null slot."""

    type = Boolean()
    inherit_cache = True
    name = "has_class"


write_as(
    has_slot,
    # CASE: operands of AND may be evaluated in any order, and get_bit beyond the end is an error.
    postgresql="(CASE WHEN {1} < 8 * octet_length({0}) THEN get_bit({0}, {1}) = 1 ELSE FALSE END)",
    # SQLite cannot read a byte as a number: the hex digit of its half is looked up; '00' beyond the end.
    sqlite="(instr('123456789ABCDEF', substr(hex(substr({0}, {1} / 8 + 1, 1)) || '00', 2 - {1} % 8 / 4, 1))"
    " >> {1} % 4 & 1)",
)


class folded_name(FunctionElement[str]):  # noqa: N801  (it is called like a function)
    """A name in lower case: `folded_name(column)`."""

    type = Text()
    inherit_cache = True
    name = "folded_name"


# "C": in Turkish, I in lower case has no dot.
write_as(folded_name, postgresql='lower({0} COLLATE "C")', sqlite="lower({0})")

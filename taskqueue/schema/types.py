"""Types and functions of columns: sets of a VO's queue classes as bitmaps, and names compared without case.

A bitmap has one bit for the slot of each class: a pool that is eligible for a tenth of 5,000 classes takes
625 bytes instead of 500 rows.

Names of sites, CEs and queues are ASCII, so that folding them here equals `requirements.values.fold` whatever
the locale of the database is.
"""

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


class has_slot(FunctionElement[bool]):  # noqa: N801  (it is called like a function)
    """Whether a set contains a slot: `has_slot(column, slot)`; null for a null slot."""

    type = Boolean()
    inherit_cache = True
    name = "has_class"


@compiles(has_slot, "postgresql")
def _bit_postgresql(element: has_slot, compiler: SQLCompiler, **options: Any) -> str:
    classes, slot = (compiler.process(each, **options) for each in element.clauses)
    # CASE: operands of AND may be evaluated in any order, and get_bit beyond the end is an error.
    return (
        f"(CASE WHEN {slot} < 8 * octet_length({classes}) THEN get_bit({classes}, {slot}) = 1 ELSE FALSE END)"
    )


@compiles(has_slot, "sqlite")
def _bit_sqlite(element: has_slot, compiler: SQLCompiler, **options: Any) -> str:
    classes, slot = (compiler.process(each, **options) for each in element.clauses)
    # SQLite cannot read a byte as a number: the hex digit of its half is looked up; '00' beyond the end.
    halves = f"hex(substr({classes}, {slot} / 8 + 1, 1)) || '00'"
    half = f"instr('123456789ABCDEF', substr({halves}, 2 - {slot} % 8 / 4, 1))"
    return f"({half} >> {slot} % 4 & 1)"


class folded_name(FunctionElement[str]):  # noqa: N801  (it is called like a function)
    """A name in lower case: `folded_name(column)`."""

    type = Text()
    inherit_cache = True
    name = "folded_name"


@compiles(folded_name, "postgresql")
def _folded_postgresql(element: folded_name, compiler: SQLCompiler, **options: Any) -> str:
    # "C": in Turkish, I in lower case has no dot.
    return f'lower({compiler.process(element.clauses, **options)} COLLATE "C")'


@compiles(folded_name, "sqlite")
def _folded_sqlite(element: folded_name, compiler: SQLCompiler, **options: Any) -> str:
    return f"lower({compiler.process(element.clauses, **options)})"

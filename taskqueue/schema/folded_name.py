"""Names of sites, CEs and queues as they are compared: without case.

They are ASCII, so that this equals `requirements.values.fold` whatever the locale of the database is.
"""

from typing import Any

from sqlalchemy import Text
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement


class folded_name(FunctionElement[str]):  # noqa: N801  (it is called like a function)
    """A name in lower case: `folded_name(column)`."""

    type = Text()
    inherit_cache = True
    name = "folded_name"


@compiles(folded_name, "postgresql")
def _postgresql(element: folded_name, compiler: SQLCompiler, **options: Any) -> str:
    # "C": in Turkish, I in lower case has no dot.
    return f'lower({compiler.process(element.clauses, **options)} COLLATE "C")'


@compiles(folded_name, "sqlite")
def _sqlite(element: folded_name, compiler: SQLCompiler, **options: Any) -> str:
    return f"lower({compiler.process(element.clauses, **options)})"

"""Changes of rows, each in a transaction of its own where no other is open."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine

from taskqueue.db import database

Given = ParamSpec("Given")
Result = TypeVar("Result")


def own_transaction(
    change: Callable[Concatenate[Connection, Given], Result],
) -> Callable[Concatenate[Connection | Engine, Given], Result]:
    """Let a function take an engine in place of a connection: then what it changes is committed."""

    @wraps(change)
    def changed(where: Connection | Engine, /, *args: Given.args, **named: Given.kwargs) -> Result:
        if isinstance(where, Connection):
            return change(where, *args, **named)
        with database.writing(where) as conn:
            return change(conn, *args, **named)

    return changed

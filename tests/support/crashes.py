"""Processes that die at a place that a test chooses."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from sqlalchemy import Engine, event


class KilledError(Exception):
    """The process ends here."""


@contextmanager
def killed_at(engine: Engine, statement: int) -> Iterator[None]:
    """Whoever carries out so many statements more dies before the next."""
    left = count(statement, -1)

    def die(*_: Any) -> None:
        if next(left) == 0:
            raise KilledError

    event.listen(engine, "before_cursor_execute", die)
    try:
        yield
    finally:
        event.remove(engine, "before_cursor_execute", die)

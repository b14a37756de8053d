"""Processes that die at a place that a test chooses."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from sqlalchemy import Engine, event


class KilledError(Exception):
    """The process ends here."""


@contextmanager
def killed_at(engine: Engine, statement: int) -> Iterator[None]:
    """This thread dies before the next statement when it has carried out so many more."""
    left, thread = count(statement, -1), threading.get_ident()

    def die(*_: Any) -> None:
        if threading.get_ident() == thread and next(left) == 0:  # another one renews a lease
            raise KilledError

    event.listen(engine, "before_cursor_execute", die)
    try:
        yield
    finally:
        event.remove(engine, "before_cursor_execute", die)

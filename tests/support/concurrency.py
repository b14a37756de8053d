"""Calls at the same time, in threads."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sqlalchemy import Connection, Engine

from taskqueue.db import database

T = TypeVar("T")


def at_once(count: int, do: Callable[[int], T]) -> list[T]:
    """Call `do(0)` … `do(count - 1)` in as many threads, which start together."""
    barrier = threading.Barrier(count)

    def start(number: int) -> T:
        barrier.wait(300)
        return do(number)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(start, range(count)))


def meanwhile(
    engine: Engine, first: Callable[[Connection], object], second: Callable[[], T], *, waits: bool = True
) -> T:
    """What `second` returns, which another thread begins after `first` and before its transaction ends.

    If it `waits`, it cannot end before that either.
    """
    with ThreadPoolExecutor(1) as threads:
        with database.writing(engine) as conn:
            first(conn)
            future = threads.submit(second)
            if waits:
                threading.Event().wait(0.3)
                assert not future.done(), "it should have waited for us"
            else:
                future.exception(300)
        return future.result(300)

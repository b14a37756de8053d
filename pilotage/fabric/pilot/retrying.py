"""Trying again while the service is away."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterator
from typing import Callable, TypeVar

from pilotage.fabric.pilot.transport import Away

log = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST = 0.5  # seconds
_LONGEST = 30.0  # seconds; soon after the service is back everybody has noticed


def delays(random_number: Callable[[], float] = random.random) -> Iterator[float]:
    """Seconds to wait before each further try: doubled each time, and scattered so that pilots come apart."""
    delay = _FIRST
    while True:
        yield delay * (0.5 + random_number())
        delay = min(2 * delay, _LONGEST)


def patiently(
    request: Callable[[], T],
    *,
    patience: float,
    stop: threading.Event,
    clock: Callable[[], float] = time.monotonic,
) -> T:
    """Make a request until it is answered.

    Args:
        request: May raise `Away`; all else it raises is an answer.
        patience: Seconds after which it is given up; it is tried once at least.
        stop: Once set it is tried no more.
        clock: Seconds that never go back.

    Raises:
        Away: It was not answered in all this time.
    """
    deadline = clock() + patience
    for number, delay in enumerate(delays()):
        try:
            return request()
        except Away as error:
            pause = max(delay, min(error.retry_after or 0.0, _LONGEST))
            if stop.is_set() or clock() + pause > deadline:
                raise
            if number == 0:
                log.warning("the service is away, trying again: %s", error)
        stop.wait(pause)
    raise AssertionError("delays never end")

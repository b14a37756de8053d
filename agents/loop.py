"""Main loop of an agent: runs one cycle after the other; an error ends only its cycle."""

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from threading import Event

from taskqueue.db import database

log = logging.getLogger(__name__)

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """Current time of this machine."""
    return datetime.now(UTC)


def run(
    cycle: Callable[[datetime], object],
    *,
    name: str,
    every: float,
    stop: Event,
    woken: Event | None = None,
    clock: Clock = utc_now,
) -> None:
    """Call `cycle` until `stop` is set.

    Args:
        cycle: One piece of work; a true result is logged.
        name: Name of the agent in the log.
        every: Seconds between the end of one cycle and the start of the next.
        stop: Ends the loop. It also ends the wait between cycles, unless `woken` is given.
        woken: Starts the next cycle immediately; to be set together with `stop` as well.
        clock: Source of the time that is passed to each cycle.
    """
    woken = woken or stop
    while not stop.is_set():
        run_once(cycle, name=name, clock=clock)
        woken.wait(every)
        if woken is not stop:
            woken.clear()


def run_once(cycle: Callable[[datetime], object], *, name: str, clock: Clock = utc_now) -> bool:
    """Run one cycle and return whether it was completed; errors are logged, not raised."""
    try:
        result = database.run_with_retry(lambda: cycle(clock()))
    except database.UNAVAILABLE as error:
        log.warning("%s: the database is unavailable, retrying in the next cycle: %s", name, error)
        return False
    except Exception:
        log.exception("%s: the cycle failed", name)
        return False
    if result:
        log.info("%s: %s", name, result)
    return True

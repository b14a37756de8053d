"""An agent's life: one cycle after the other, whatever happens in one."""

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from threading import Event

from taskqueue.db import database, retry

log = logging.getLogger(__name__)

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """The time of this machine."""
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
        cycle: One piece of work; what it returns goes to the log where it says anything.
        name: Of the agent, for the log.
        every: Seconds between the end of one cycle and the start of the next.
        stop: Ends the loop, also while it waits, unless there is another event that wakes it.
        woken: Begins the next cycle at once; to be set with `stop` as well.
        clock: Tells the time that each cycle gets.
    """
    woken = woken or stop
    while not stop.is_set():
        run_once(cycle, name=name, clock=clock)
        woken.wait(every)
        if woken is not stop:
            woken.clear()


def run_once(cycle: Callable[[datetime], object], *, name: str, clock: Clock = utc_now) -> bool:
    """One cycle; an error is logged and ends nothing but the cycle.

    Returns:
        Whether it came through.
    """
    try:
        result = retry.run_with_retry(lambda: cycle(clock()))
    except database.UNAVAILABLE as error:
        log.warning("%s: the database is away, next try in the next cycle: %s", name, error)
        return False
    except Exception:
        log.exception("%s: the cycle broke", name)
        return False
    if result:
        log.info("%s: %s", name, result)
    return True

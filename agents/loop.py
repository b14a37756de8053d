"""Loop of an agent, which runs one cycle after the other, its interval, and detection of overdue agents."""

import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from threading import Event

from agents.leader import LeadershipLostError
from taskqueue.db import clock as clocks
from taskqueue.db import database
from taskqueue.errors import StorageAway

log = logging.getLogger(__name__)

Clock = Callable[[], datetime]


def run(
    cycle: Callable[[datetime], object],
    *,
    name: str,
    every: float,
    stop: Event,
    woken: Event | None = None,
    clock: Clock = clocks.utc_now,
) -> None:
    """Call `cycle` until `stop` is set, `every` so many seconds after the end of the last; log true results.

    `woken` starts the next cycle immediately; it is to be set together with `stop` as well.
    """
    woken = woken or stop
    while not stop.is_set():
        run_once(cycle, name=name, clock=clock)
        woken.wait(every)
        if woken is not stop:
            woken.clear()


def run_once(cycle: Callable[[datetime], object], *, name: str, clock: Clock = clocks.utc_now) -> bool:
    """Run one cycle and return whether it was completed; an error is logged, and ends only this cycle."""
    try:
        result = database.run_with_retry(lambda: cycle(clock()))
    except database.UNAVAILABLE as error:
        log.warning("%s: the database is unavailable, retrying in the next cycle: %s", name, error)
        return False
    except (StorageAway, OSError) as error:  # such as a full disk
        log.warning("%s: %s", name, error)
        return False
    except LeadershipLostError as lost:
        log.warning("%s: the cycle was ended: %s", name, lost)
        return False
    except Exception:
        log.exception("%s: the cycle failed", name)
        return False
    if result:
        log.info("%s: %s", name, result)
    return True


#: Seconds between two cycles. Changes of the configuration reach the pools, lost jobs their next pilot, and
#: new task queues their weight within seconds.
INTERVALS: Mapping[str, float] = {
    "pools": 0.5,
    "lost-jobs": 1.0,
    "priorities": 1.0,
    "sweep": 1.0,
    "reverts": 5.0,
    "waits": 5.0,
    "traces": 15.0,
    "accounting": 5.0,
    "web-hooks": 5.0,
    "scope-counters": 30.0,
    "retention": 600.0,
}
#: Agents that run only where they are configured; none of them is ever overdue.
_OPTIONAL = frozenset({"traces"})
#: An agent is overdue if its latest cycle began longer ago than this and than three intervals.
_TOLERANCE = timedelta(minutes=1)


def list_overdue(latest: Mapping[str, datetime | None], *, now: datetime) -> list[str]:
    """List the agents that no process seems to run; `latest` is the start of each one's latest cycle."""
    return [
        name
        for name, every in INTERVALS.items()
        if name not in _OPTIONAL
        if (began := latest.get(name)) is None or now - began > max(_TOLERANCE, timedelta(seconds=3 * every))
    ]

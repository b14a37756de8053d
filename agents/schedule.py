"""Polling interval of each agent, and detection of overdue agents."""

from collections.abc import Mapping
from datetime import datetime, timedelta

#: Seconds between two cycles. Changes of the configuration reach the pools, lost jobs their next pilot, and
#: new task queues their weight within seconds.
INTERVALS: Mapping[str, float] = {
    "pools": 0.5,
    "lost-jobs": 1.0,
    "priorities": 1.0,
    "sweep": 1.0,
    "waits": 5.0,
    "accounting": 5.0,
    "retention": 600.0,
}
#: An agent is overdue if its latest cycle began longer ago than this and than three intervals.
_TOLERANCE = timedelta(minutes=1)


def list_overdue(latest: Mapping[str, datetime | None], *, now: datetime) -> list[str]:
    """List the agents that no process seems to run; `latest` is the start of each one's latest cycle."""
    return [
        name
        for name, every in INTERVALS.items()
        if (began := latest.get(name)) is None or now - began > max(_TOLERANCE, timedelta(seconds=3 * every))
    ]

"""Polling interval of each agent, and the agents that are overdue: no process runs them."""

from collections.abc import Mapping
from datetime import datetime, timedelta

#: Seconds between two cycles. A change of the configuration reaches the pools, a lost job its next pilot, and
#: a new task queue the weight that it is due within seconds.
INTERVALS: Mapping[str, float] = {
    "pools": 0.5,
    "lost-jobs": 1.0,
    "priorities": 1.0,
    "sweep": 1.0,
    "waits": 5.0,
    "accounting": 5.0,
    "retention": 600.0,
}
#: An agent is at work if its latest cycle is not older than this, or than three of its cycles.
_TOLERANCE = timedelta(minutes=1)


def list_overdue(latest: Mapping[str, datetime | None], *, now: datetime) -> list[str]:
    """The agents that are not at work.

    Args:
        latest: When the latest cycle of each began, as `agent_cycles.latest` says.
        now: The time.
    """
    return [
        name
        for name, every in INTERVALS.items()
        if (began := latest.get(name)) is None or now - began > max(_TOLERANCE, timedelta(seconds=3 * every))
    ]

"""For how long a lease is good, and how often its pilot has to say that it lives."""

from datetime import timedelta

from cs_config.configuration import Configuration
from cs_config.operations import operations

#: Seconds between heartbeats at most: so soon a pilot learns that its job was killed.
_HEARTBEAT = 20.0
#: Seconds between them at least, however short the configured times: the service has to hear them all.
_SHORTEST = 0.1


def length(config: Configuration, vo: str) -> timedelta:
    """For how long a sign of life from a running job is good."""
    leases = operations(config, vo).leases
    return timedelta(seconds=max(leases.time, leases.stalled_time))


def heartbeat_every(config: Configuration, vo: str) -> float:
    """Seconds between heartbeats: some may get lost before the job counts as stalled."""
    return max(_SHORTEST, min(_HEARTBEAT, operations(config, vo).leases.stalled_time / 4))

"""Pilots as a director sees them, for tests of what it decides."""

from datetime import UTC, datetime

from pilotage.fabric.director.recorded_pilots import DirectorPilot, Status

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def pilot(
    stamp: str, *, queue: str = "", possible_queues: tuple[str, ...] = (), status: Status = Status.WAITING
) -> DirectorPilot:
    return DirectorPilot(
        stamp=stamp,
        vo="cms",
        queue=queue,
        status=status,
        reference="1",
        jobs=0,
        created_at=NOW,
        updated_at=NOW,
        last_seen_at=None,
        possible_queues=possible_queues,
    )

"""What one round of a gateway did, and what it has."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(slots=True, kw_only=True)
class GatewaySummary:
    """Numbers of one round, and what stood in its way."""

    at: datetime
    grid_jobs: Counter[str] = field(default_factory=Counter)  #: by state of the manager
    local_jobs: Counter[str] = field(default_factory=Counter)  #: by state
    taken: int = 0
    killed: int = 0  #: whose end the service wants
    lost: int = 0  #: whose attempts the service has closed
    refused: Counter[str] = field(default_factory=Counter)  #: why queues got nothing, by reason
    advertised: int = 0  #: scopes
    away: list[str] = field(default_factory=list)  #: what could not be asked
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        told = [
            f"grid jobs: {_numbers(self.grid_jobs) or 'none'}",
            f"local jobs: {_numbers(self.local_jobs) or 'none'}",
        ]
        counts = {"taken": self.taken, "to be killed": self.killed, "lost": self.lost}
        told += [f"{number} {what}" for what, number in counts.items() if number]
        if self.refused:
            told.append(f"no work: {_numbers(self.refused)}")
        return "; ".join(told)


def _numbers(counted: Counter[str]) -> str:
    return ", ".join(f"{number} {what}" for what, number in sorted(counted.items()) if number)

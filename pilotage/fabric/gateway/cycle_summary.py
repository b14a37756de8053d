"""Summary of one round of a gateway."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(slots=True, kw_only=True)
class GatewaySummary:
    """Counts and problems of one round."""

    at: datetime
    grid_jobs: Counter[str] = field(default_factory=Counter)  #: by phase
    local_jobs: Counter[str] = field(default_factory=Counter)  #: by state
    taken: int = 0
    killed: int = 0  #: the service has requested their end
    lost: int = 0  #: the service has closed their attempts
    refused: Counter[str] = field(default_factory=Counter)  #: empty responses by reason
    advertised: int = 0  #: scopes
    away: list[str] = field(default_factory=list)  #: errors of the service
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

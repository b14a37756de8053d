"""Summary of one cycle of a director."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from pilotage.fabric.client import ApiError


@dataclass(slots=True, kw_only=True)
class DirectorSummary:
    """Counts and problems of one cycle."""

    at: datetime
    jobs: int = 0  #: that wait and that some queue of ours could take
    waiting: int = 0  #: pilots, at the begin of the cycle
    running: int = 0
    wanted: int = 0  #: new pilots by decision
    submitted: int = 0
    uncertain: int = 0  #: without an answer; the next cycles find out
    refused: int = 0
    adopted: int = 0  #: found by their stamps
    ended: Counter[str] = field(default_factory=Counter)  #: by how
    killed: int = 0  #: batch jobs whose pilots had ended
    paused: list[str] = field(default_factory=list)  #: queues that get nothing after bad experience
    away: list[str] = field(default_factory=list)  #: what could not be asked
    problems: list[str] = field(default_factory=list)
    refusals: dict[str, ApiError] = field(default_factory=dict)  #: by VO, the first that the service refused

    @contextmanager
    def noting_refusals(self, vo: str) -> Iterator[None]:
        """What is done for a VO; where the service refuses something of it, the others' work goes on."""
        try:
            yield
        except ApiError as error:
            if vo not in self.refusals:
                self.refusals[vo] = error
                self.problems.append(f"nothing more is done for the VO {vo} in this cycle: {error}")

    def __str__(self) -> str:
        told = [
            f"{self.jobs} jobs wait",
            f"pilots: {self.waiting} waiting, {self.running} running, {self.submitted} of {self.wanted} new",
        ]
        counts = {
            "without an answer": self.uncertain,
            "refused": self.refused,
            "adopted": self.adopted,
            "killed": self.killed,
            **{f"now {status}": number for status, number in sorted(self.ended.items())},
        }
        told += [f"{number} {what}" for what, number in counts.items() if number]
        if self.paused:
            told.append(f"paused: {', '.join(self.paused)}")
        return "; ".join(told)

"""A simulated gateway: the truth about what is at a site, and what it says of that."""

from collections import Counter
from dataclasses import dataclass, field

from taskqueue.sites.reservations import Advertisement

SUBMITTING, POLLING, GATHERING = "submitting", "polling", "gathering"


@dataclass
class Gateway:
    """The jobs that are really there, by lease. A job is there before it reports its start."""

    phases: dict[str, str] = field(default_factory=dict)

    def number(self, *phases: str) -> int:
        counts = Counter(self.phases.values())
        return sum(counts[phase] for phase in phases)

    @property
    def total(self) -> int:
        return len(self.phases)

    def count(self, as_of: int | None, *, with_list: bool = False) -> Advertisement:
        """What it counts now."""
        return Advertisement(
            attributes={
                "CurrentJobs": self.total,
                "CurrentSubmittingJobs": self.number(SUBMITTING),
                "CurrentGatheringOutputJobs": self.number(GATHERING),
            },
            as_of=as_of,
            leases_seen=tuple(self.phases) if with_list else (),
        )

"""What a pilot or job manager tells of a payload that runs, and how it is kept with the attempt."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """How far one phase of a grid job is, over all of its local jobs. Source: SAM-Grid."""

    name: str
    done: int
    of: int
    unit: str = ""  #: what is counted, such as events


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What one heartbeat tells; None: as it was said before."""

    text: str | None = None  #: for people
    output_tail: str | None = None
    phases: Sequence[Phase] | None = None
    local_jobs: Mapping[str, int] | None = None  #: numbers of a grid job's local jobs, by state

    def values(self) -> Mapping[str, str | None]:
        """For the statement that stores them."""
        phases = None if self.phases is None else json.dumps([asdict(each) for each in self.phases])
        return {
            "new_progress": self.text,
            "new_tail": self.output_tail,
            "new_phases": phases,
            "new_local_jobs": None if self.local_jobs is None else json.dumps(dict(self.local_jobs)),
        }


NOTHING = Progress()

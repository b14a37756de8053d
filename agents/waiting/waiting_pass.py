"""A pass through all waiting jobs by id, thousands in a cycle, which begins again at most each half minute.

A process that is killed, or a second one, begins at the first job: what was done is in the database.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

#: From the start of a pass through all waiting jobs to that of the next one.
_EVERY: Final = timedelta(seconds=30)


@dataclass(slots=True)
class WaitingPass:
    """How far the pass through the waiting jobs has come."""

    after: int = 0
    began: datetime | None = None  #: None: no pass so far

    def is_due(self, now: datetime) -> bool:
        """Whether a pass is under way, or the next one is to begin, which is noted."""
        if self.after:
            return True
        if self.began is not None and self.began <= now < self.began + _EVERY:
            return False
        self.began = now
        return True

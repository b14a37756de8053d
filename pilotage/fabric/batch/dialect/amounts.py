"""What queues have and do, added up from the records of several commands."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from pilotage.fabric.batch.batch_system import Capacity

#: The queue of a record that names none: it counts for all.
_ALL = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Records so far, by queue."""

    of: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    closed: set[str] = field(default_factory=set)

    def add(self, record: Mapping[str, str]) -> None:
        """Count a record; a group that is empty says nothing."""
        queue = record.get("queue", _ALL)
        found = self.of[queue]  # a queue that has nothing is one, too
        if record.get("closed"):
            self.closed.add(queue)
        found.update({name: _number(record.get(name)) for name in ("running", "waiting")})
        if not record.get("down"):
            cores = _number(record.get("cores"))
            used = cores if record.get("full") else min(cores, _number(record.get("used")))
            found.update(cores=cores, used=used)

    def queues(self) -> dict[str, Capacity]:
        """What each queue has; one that is closed has no cores for us."""
        return {name: self._capacity(name) for name in self.of if name != _ALL}

    def _capacity(self, queue: str) -> Capacity:
        sums = self.of[queue] + self.of.get(_ALL, Counter())
        cores = 0 if queue in self.closed else sums["cores"]
        return Capacity(
            cores=cores,
            free_cores=max(0, cores - sums["used"]),
            waiting=sums["waiting"],
            running=sums["running"],
        )


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0

"""What it takes to believe something of a batch system: that looks agree, several times and for long."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """When looks that agree are believed; by default, that a job is gone."""

    listings: int = 3  #: that agree, one after the other
    seconds: float = 300.0  #: between the first and the last of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """Looks that agreed, one after the other."""

    times: int
    seconds: float  #: between the first and the last of them

    def convince(self, evidence: Evidence) -> bool:
        """Whether that is enough."""
        return self.times >= evidence.listings and self.seconds >= evidence.seconds


@dataclass(slots=True)
class Agreement:
    """Counts looks that agree, by what was looked at; in memory only: begun anew it is late, never wrong."""

    _first: dict[str, tuple[int, float]] = field(default_factory=dict)

    def once_more(self, what: str, now: float) -> Looks:
        """Another look said the same."""
        times, since = self._first.get(what, (0, now))
        self._first[what] = (times + 1, since)
        return Looks(times=times + 1, seconds=now - since)

    def end(self, what: str) -> None:
        """A look said something else."""
        self._first.pop(what, None)

    def keep_only(self, those: frozenset[str]) -> None:
        """All else was not seen any more."""
        for what in self._first.keys() - those:
            del self._first[what]

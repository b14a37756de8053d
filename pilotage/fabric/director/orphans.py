"""Batch jobs that bear a director's name and are nobody's pilots any more: found, and after a while ended.

Such a job is one that the service does not know, of this or any other VO, or knows to have ended longer ago
than its director looks back. An intent is stored before its batch job exists, so whatever is listed is known,
unless something was lost. One look proves nothing: a job is ended when several, one after the other and over
some time, said the same.
"""

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from pilotage.fabric.batch.batch_system import Handle
from pilotage.fabric.batch.errors import BatchSystemAway
from pilotage.fabric.batch.evidence import Agreement
from pilotage.fabric.batch.idealizer import Idealized
from pilotage.fabric.client import Client
from pilotage.fabric.director.outlets import Sites
from pilotage.fabric.director.posts import prefix, sent_as
from pilotage.fabric.director.summary import Summary

_AT_ONCE = 1000  #: stamps in one question
_ACTIVE = "active"


@dataclass(slots=True, kw_only=True)
class Orphans:
    """The director's eye on what it does not follow."""

    sites: Sites
    client: Client  #: of any VO: the service says of all stamps whether they are known
    clock: Callable[[], float] = time.monotonic  #: seconds
    _agreement: Agreement = field(default_factory=Agreement)
    _ended: dict[str, set[str]] = field(default_factory=dict)  #: by batch system what we ended

    def end(self, followed: Collection[str], summary: Summary) -> None:
        """Look at all batch systems, and end what was found to be nobody's often enough.

        Args:
            followed: Stamps of pilots that are looked after anyhow.
            summary: Is told what was done.
        """
        found: set[str] = set()
        for name, system in sorted(self.sites.systems.items()):
            try:
                found |= self._end_at(name, system, followed, summary)
            except BatchSystemAway as error:
                summary.away.append(str(error))
                return  # what was not seen now may be there: it is counted on later
        self._agreement.keep_only(frozenset(found))

    def _end_at(
        self, name: str, system: Idealized, followed: Collection[str], summary: Summary
    ) -> frozenset[str]:
        """The suspects of a batch system; those that are proven are ended."""
        listed = system.stamps(prefix(self.sites.habits.name))
        suspects = frozenset(self._suspects(listed.difference(followed)))
        proven = sorted(stamp for stamp in suspects if self._is_proven(stamp))
        if proven:
            system.kill([Handle(stamp=stamp) for stamp in proven])
            summary.killed += len(proven)
            summary.problems += [f"{stamp}: nobody knew of this batch job, it is ended" for stamp in proven]
        over = self._ended.get(name, set()) - listed
        if over:
            system.forget([Handle(stamp=stamp) for stamp in sorted(over)])
        self._ended[name] = (self._ended.get(name, set()) | set(proven)) - over
        return suspects

    def _suspects(self, stamps: Collection[str]) -> Iterator[str]:
        """Those that are nobody's living pilot; it is asked after the listing, so what is new is known."""
        ours = sorted(stamp for stamp in stamps if sent_as(stamp, self.sites.habits.name))
        for begin in range(0, len(ours), _AT_ONCE):
            some = ours[begin : begin + _AT_ONCE]
            standings = self.client.pilot_standings(some)
            yield from (stamp for stamp in some if standings[stamp] != _ACTIVE)

    def _is_proven(self, stamp: str) -> bool:
        looks = self._agreement.once_more(stamp, self.clock())
        return looks.convince(self.sites.habits.orphans)

"""Pilots that found nothing to do: what they say, so that they can be told so again from memory.

"Nothing for you" is the commonest answer. It rests on the classes that wait, the mapping and the
configuration, and on nothing else: what would hold a pilot back, bans, limits, throttles, is not even asked
where no task queue has a job that fits, and who is no hindrance is noted for nobody. So where the same is
said of the same place again, it is enough to see that these three are what they were.

What can be stale is a job that came within the last second, by a process whose ring got lost. That pilot asks
again in twenty seconds, and another one gets the job: nothing is ever handed out by this.
"""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from threading import Lock

from cs_config.configuration import Configuration
from matcher.resource import Resource
from matcher.served import Served
from matcher.waiting import Waiting

#: What pilots say that is remembered; beyond that we start anew.
_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Vain:
    """A question to which the answer was nothing, with all that the answer rests on."""

    resource: Resource
    served: Served  #: where it is, and which pools may run there
    warnings: tuple[str, ...]
    config: Configuration
    age: int  #: of the mapping
    changed: int  #: how often the classes had


class Idle:
    """What is remembered of them; written by the thread that serves requests, read by any."""

    def __init__(self) -> None:
        self._config: Configuration | None = None  # of all of them: no older one is held on to
        self._known: dict[Hashable, Vain] = {}

    def note(self, likeness: Hashable, vain: Vain) -> None:
        """Nothing was found for who says this."""
        if vain.config is not self._config or len(self._known) >= _REMEMBERED:
            self._config, self._known = vain.config, {}
        self._known[likeness] = vain

    def found(
        self, likeness: Hashable, config: Configuration, *, age: int, waiting: Waiting, lock: Lock
    ) -> Vain | None:
        """What there is still nothing for; None: it is not known, or it has to be looked at again."""
        vain = self._known.get(likeness)
        if vain is None or vain.config is not config or vain.age != age:
            return None
        if vain.changed == waiting.changed:
            return vain
        return self._looked_at(likeness, vain, waiting, lock)

    def _looked_at(self, likeness: Hashable, vain: Vain, waiting: Waiting, lock: Lock) -> Vain | None:
        """Look at the classes again, unless somebody is changing them: then that is not worth the wait."""
        if not lock.acquire(blocking=False):
            return None
        try:
            changed, found = waiting.changed, waiting.candidates(vain.resource, vain.served.pools)
        finally:
            lock.release()
        if found:
            return None
        vain = replace(vain, changed=changed)
        self.note(likeness, vain)
        return vain

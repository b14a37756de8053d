"""Places that count and gave jobs a moment ago: there a claim is tried at once, without a look first."""

import time
from collections.abc import Callable

from taskqueue.claims import Place

#: Seconds for which a place is taken for open; a claim that finds it closed says so.
_OPEN = 1.0
#: Places that are remembered; beyond that we start anew.
_REMEMBERED = 10_000


class OpenPlaces:
    """What is remembered of them; by the thread that claims."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: dict[Place, float] = {}

    def __contains__(self, place: Place) -> bool:
        return self._clock() < self._until.get(place, 0.0)

    def note(self, place: Place, *, gave: bool) -> None:
        """It gave a job, or none."""
        if not gave:
            self._until.pop(place, None)
            return
        if len(self._until) >= _REMEMBERED:
            self._until.clear()
        self._until[place] = self._clock() + _OPEN

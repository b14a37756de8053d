"""Watching a payload until it ends, and ending it when it has to."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Callable

from pilotage.fabric.pilot.heart import Heart
from pilotage.fabric.pilot.limits import Excess, Limits
from pilotage.fabric.pilot.memory import Account
from pilotage.fabric.pilot.payload import End, Payload
from pilotage.fabric.pilot.processes import Usage

#: Seconds between two looks at what others want.
_TICK = 0.25
#: Seconds between two looks at what the payload uses.
_MEASURE = 1.0
#: Seconds that our own order to end may come later than that of the payload.
_ORDERED_TOGETHER = 2.0

#: Why it was ended, if not for an `Excess`.
KILL_WANTED, STALE, STOPPED = "killed", "stale", "stopped"


@dataclass(frozen=True)
class Watched:
    """How a payload ended, and why we ended it, if we did."""

    end: End
    why: str | Excess | None


class Watch:
    """Looks after one payload."""

    def __init__(
        self,
        payload: Payload,
        limits: Limits,
        memory: Account,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.usage = Usage(processes=0, cpu_seconds=0.0, resident=0)  #: as measured last
        self._payload = payload
        self._limits = limits
        self._memory = memory
        self._clock = clock
        self._began = clock()
        self._measure_at = self._began

    @property
    def elapsed(self) -> float:
        """Seconds since the payload began."""
        return self._clock() - self._began

    def until_end(self, heart: Heart, stop: threading.Event, *, grace: float) -> Watched:
        """Wait for the end of the payload.

        A batch system that ends a slot signals every process of it, and the payload may be gone before our
        own signal comes: a failure counts as the payload's own only when none comes for a moment.

        Args:
            heart: Hears when the job was killed or the attempt closed.
            stop: Set when the pilot itself has to end.
            grace: Seconds between TERM and KILL.
        """
        why: str | Excess | None = None
        try:
            while (end := self._payload.wait(_TICK)) is None:
                if why is None and (why := self._why_end(heart, stop)) is not None:
                    self._payload.end(grace)
        finally:
            self._memory.close()
        if why is None and stop.wait(_ORDERED_TOGETHER if end.exit_code else 0.0):
            why = STOPPED
        return Watched(end, why)

    def _why_end(self, heart: Heart, stop: threading.Event) -> str | Excess | None:
        if heart.stale.is_set():
            return STALE
        if heart.killed.is_set():
            return KILL_WANTED
        if stop.is_set():
            return STOPPED
        return self._limits.passed_by_time(self.elapsed) or self._excess_of_memory()

    def _excess_of_memory(self) -> Excess | None:
        if self._clock() < self._measure_at:
            return None
        self._measure_at = self._clock() + _MEASURE
        self.usage = self._payload.usage()
        resident, proportional = self.usage.resident, self._payload.proportional_memory
        return self._limits.passed_by_memory(resident, proportional) or self._memory.passed(
            resident, proportional
        )

"""The pilot's loop: ask for work while there is room for it, until there is a reason to end."""

from __future__ import annotations

import itertools
import logging
import random
import time
import uuid
from typing import Callable

from pilotage.fabric.pilot import retrying
from pilotage.fabric.pilot.attempt import Outcome, Surroundings
from pilotage.fabric.pilot.crew import Crew
from pilotage.fabric.pilot.ending import AWAY, FINE, HOST, REFUSED, Ending
from pilotage.fabric.pilot.orders import Orders
from pilotage.fabric.pilot.service import Work
from pilotage.fabric.pilot.settings import Ends
from pilotage.fabric.pilot.share import Room
from pilotage.fabric.pilot.transport import Away, Refused

log = logging.getLogger(__name__)

#: Seconds until the next question where the service does not say; and between two looks at all else.
_POLL = 20.0
_SHORTEST_POLL = 0.2
#: Seconds after which a slot that has no end is emptied, for jobs that need all of it.
_WHOLE_EVERY = 24 * 3600.0
#: Jobs in one answer at most: what the service allows.
_MOST = 1000


class Agent:
    """Works for one slot. It asks for as much as is free, and again as soon as a payload has ended."""

    def __init__(
        self,
        around: Surroundings,
        room: Room,
        ends: Ends,
        orders: Orders,
        refusal: Callable[[], str] = str,
        clock: Callable[[], float] = time.monotonic,
        began: float | None = None,
    ) -> None:
        """Make it.

        Args:
            around: What all attempts share.
            room: The slot.
            ends: When it ends by itself.
            orders: When others end it.
            refusal: Why our token is not renewed any more; empty as long as it is.
            clock: Seconds that never go back.
            began: When the pilot did, by this clock; None: now.
        """
        self._around = around
        self._room = room
        self._ends = ends
        self._orders = orders
        self._refusal = refusal
        self._clock = clock
        self._crew = Crew(around, room, seconds_left=self._seconds_left, ended=self._payload_ended)
        self._ask_at = self._busy_until = self._whole_at = clock()
        self._began = self._ask_at if began is None else began
        self._begun = 0  #: jobs
        self._freed = 0  #: times that there was more room
        self._vain = 0  #: answers without work in a row, while nothing ran
        self._last_reason = ""
        self._given_up: Ending | None = None  #: by an answer of the service, or by none

    @property
    def outcomes(self) -> list[Outcome]:
        """What became of each job so far."""
        return self._crew.outcomes

    @property
    def why_empty(self) -> str | None:
        """The service's last word for why there was no job; None: there was one, or no answer."""
        return None if self._begun else self._last_reason or None

    def run(self) -> Ending:
        """Work until there is a reason to end; the reason. What runs then runs to its end."""
        while (ending := self._reason_to_end()) is None:
            self._look_at_room()
            if self._may_ask():
                self._ask()
            else:
                self._orders.pause(self._pause())
        log.info("no more jobs: %s", ending.reason)
        self._crew.wait()
        return self._ordered() or self._trouble() or ending

    def _seconds_left(self) -> float | None:
        return self._around.offer.seconds_left(self._clock() - self._began)

    def _payload_ended(self) -> None:
        self._freed += 1
        self._ask_at = self._busy_until = self._clock()
        self._orders.wake()

    def _look_at_room(self) -> None:
        if self._room.is_empty:
            self._whole_at = self._clock()
        else:
            self._busy_until = self._clock()

    # Whether to end.

    def _reason_to_end(self) -> Ending | None:
        return self._ordered() or self._trouble() or self._given_up or self._enough()

    def _ordered(self) -> Ending | None:
        if self._around.stop.is_set():
            return Ending(FINE, "told to end by a signal")
        return Ending(FINE, "told to take no more work") if self._orders.drain else None

    def _trouble(self) -> Ending | None:
        if self._crew.trouble is not None:
            return Ending(HOST, f"trouble with this host: {self._crew.trouble}")
        if refusal := self._refusal():
            return Ending(REFUSED, f"the service does not renew our token: {refusal}")
        return None

    def _enough(self) -> Ending | None:
        ends, left = self._ends, self._seconds_left()
        if ends.max_jobs is not None and self._begun >= ends.max_jobs:
            return Ending(FINE, f"ran {self._begun} jobs, as many as it was told to")
        if left is not None and self._around.offer.is_over(left):
            return Ending(FINE, f"{left:.0f} s of the slot are left")
        if ends.max_empty and self._vain >= ends.max_empty:
            return Ending(FINE, f"no work: {self._vain} answers in a row without a job ({self._last_reason})")
        if ends.max_idle is not None and self._idle_for() >= ends.max_idle:
            return Ending(FINE, f"no work for {ends.max_idle:g} s")
        return None

    def _idle_for(self) -> float:
        """Seconds since something ran."""
        return self._clock() - self._busy_until if self._room.is_empty else 0.0

    # Asking.

    def _may_ask(self) -> bool:
        return not self._is_closed() and self._clock() >= self._ask_at

    def _is_closed(self) -> bool:
        """Whether nothing more is taken until a payload ends."""
        return self._room.is_full or self._is_emptied()

    def _is_emptied(self) -> bool:
        """Whether small jobs have kept the slot from large ones for long enough."""
        every = self._ends.whole_every
        if every is None:
            every = 0.0 if self._around.offer.lifetime else _WHOLE_EVERY
        return bool(every) and not self._room.is_empty and self._clock() - self._whole_at >= every

    def _pause(self) -> float:
        """Seconds until the next look."""
        return _POLL if self._is_closed() else min(max(self._ask_at - self._clock(), 0.0), _POLL)

    def _ask(self) -> None:
        """Ask once; a question whose answer was lost is asked again under the same id."""
        freed, alone = self._freed, self._room.is_empty
        try:
            work = self._answer()
        except Refused as error:
            self._given_up = Ending(REFUSED, f"the service refuses us: {error}")
        except Away as error:
            self._ask_at = self._clock() + _POLL
            if self._room.is_empty:
                self._given_up = Ending(AWAY, f"the service stays away: {error}")
        else:
            self._accept(work, freed, alone=alone)

    def _answer(self) -> Work:
        request_id, free = str(uuid.uuid4()), self._room.free
        offer = self._around.offer.at(self._clock() - self._began, free)
        count = min(
            free.processors, _MOST if self._ends.max_jobs is None else self._ends.max_jobs - self._begun
        )
        tries = itertools.count()
        return retrying.patiently(
            lambda: self._around.service.request_job(
                offer, count=count, request_id=request_id, said_before=next(tries) > 0
            ),
            patience=self._ends.patience,
            stop=self._around.stop,
        )

    def _accept(self, work: Work, freed: int, *, alone: bool) -> None:
        """Take the jobs, or wait; but not if there has been more room since it was asked.

        Only an answer to who had the whole slot free says that there is nothing for it.
        """
        if work.matches:
            self._vain = 0
            self._begun += len(work.matches)
            self._crew.begin(work)
            return
        self._vain += alone
        self._last_reason = work.reason
        pause = max(_SHORTEST_POLL, _POLL if work.retry_after is None else work.retry_after)
        self._ask_at = self._clock() + pause * random.uniform(0.9, 1.2)
        if freed != self._freed:  # asked last: a payload that ends from here on says so itself
            self._ask_at = self._clock()
        elif self._reason_to_end() is None:
            log.info("no job (%s), asking again in %.0f s", work.reason, pause)

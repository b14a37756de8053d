"""The pilot's loop: ask for work, run it, ask again, until there is a reason to end."""

from __future__ import annotations

import logging
import random
import threading
import time
import uuid
from dataclasses import dataclass, field
from typing import Callable

from pilotage.fabric.pilot import attempt, retrying
from pilotage.fabric.pilot.attempt import Outcome, Surroundings
from pilotage.fabric.pilot.ending import AWAY, FINE, HOST, REFUSED, Ending
from pilotage.fabric.pilot.host import HostTrouble
from pilotage.fabric.pilot.service import Work
from pilotage.fabric.pilot.settings import Ends
from pilotage.fabric.pilot.transport import Away, Refused

log = logging.getLogger(__name__)

#: Seconds until the next question where the service does not say.
_POLL = 20.0
_SHORTEST_POLL = 0.2


@dataclass
class Agent:
    """Works for one slot. One job at a time; `count` of a request is what is free."""

    around: Surroundings
    ends: Ends
    refusal: Callable[[], str] = str  #: why our token is not renewed any more; empty as long as it is
    clock: Callable[[], float] = time.monotonic
    outcomes: list[Outcome] = field(default_factory=list)  #: what became of each job so far

    def __post_init__(self) -> None:
        self._began = self._busy_until = self.clock()
        self._empty = 0  #: answers without work in a row
        self._last_reason = ""

    def run(self) -> Ending:
        """Work until there is a reason to end; the reason."""
        try:
            while (ending := self._reason_to_end()) is None:
                work = self._ask()
                for match in work.matches:
                    self._work(attempt.run(match, self.around, seconds_left=self._seconds_left()))
                if not work.matches:
                    self._pause(work)
        except HostTrouble as error:
            return Ending(HOST, f"trouble with this host: {error}")
        except Refused as error:
            return Ending(REFUSED, f"the service refuses us: {error}")
        except Away as error:
            if self._stop.is_set():
                return self._told_to_end()
            return Ending(AWAY, f"the service stays away: {error}")
        return ending

    @property
    def _stop(self) -> threading.Event:
        return self.around.stop

    def _seconds_left(self) -> float | None:
        return self.around.offer.seconds_left(self.clock() - self._began)

    def _reason_to_end(self) -> Ending | None:
        ends, left = self.ends, self._seconds_left()
        if self._stop.is_set():
            return self._told_to_end()
        if refusal := self.refusal():
            return Ending(REFUSED, f"the service does not renew our token: {refusal}")
        if ends.max_jobs is not None and len(self.outcomes) >= ends.max_jobs:
            return Ending(FINE, f"ran {len(self.outcomes)} jobs, as many as it was told to")
        if left is not None and self.around.offer.is_over(left):
            return Ending(FINE, f"{left:.0f} s of the slot are left")
        if ends.max_empty and self._empty >= ends.max_empty:
            return Ending(
                FINE, f"no work: {self._empty} answers in a row without a job ({self._last_reason})"
            )
        if ends.max_idle is not None and self.clock() - self._busy_until >= ends.max_idle:
            return Ending(FINE, f"no work for {ends.max_idle:g} s")
        return None

    def _told_to_end(self) -> Ending:
        return Ending(FINE, "told to end by a signal")

    def _ask(self) -> Work:
        """Ask once; a question whose answer was lost is asked again under the same id."""
        request_id = str(uuid.uuid4())
        offer = self.around.offer.at(self.clock() - self._began)
        return retrying.patiently(
            lambda: self.around.service.request_job(offer, count=1, request_id=request_id),
            patience=self.ends.patience,
            stop=self._stop,
        )

    def _work(self, outcome: Outcome) -> None:
        log.info("job %d (attempt %d): %s %s", outcome.job_id, outcome.epoch, outcome.ended, outcome.detail)
        self.outcomes.append(outcome)
        self._empty = 0
        self._busy_until = self.clock()

    def _pause(self, work: Work) -> None:
        self._empty += 1
        self._last_reason = work.reason
        if self._reason_to_end() is not None:
            return
        pause = max(_SHORTEST_POLL, _POLL if work.retry_after is None else work.retry_after)
        log.info("no job (%s), asking again in %.0f s", work.reason, pause)
        self._stop.wait(pause * random.uniform(0.9, 1.2))

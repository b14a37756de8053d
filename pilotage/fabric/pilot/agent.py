"""The attempts under way on one slot, each in a thread of its own.

What the pilot is told while it runs: by signals, or by a file.

The pilot's loop: ask for work while there is room for it, until there is a reason to end.
"""

from __future__ import annotations

import itertools
import logging
import random
import signal
import threading
import time
import uuid
from pathlib import Path
from typing import Callable

from pilotage.fabric.pilot import allotment, attempt
from pilotage.fabric.pilot.allotment import Allotment, SlotRoom
from pilotage.fabric.pilot.attempt import AttemptContext, AttemptOutcome
from pilotage.fabric.pilot.errors import AWAY, FINE, HOST, REFUSED, Ending, HostTrouble
from pilotage.fabric.pilot.service import service_client
from pilotage.fabric.pilot.service.service_client import Match, Work
from pilotage.fabric.pilot.service.transport import Away, Refused
from pilotage.fabric.pilot.settings import StopConditions

log = logging.getLogger(__name__)


class RunningAttempts:
    """Runs jobs beside each other; each has its part of the slot, and gives it back at its end."""

    def __init__(
        self,
        around: AttemptContext,
        room: SlotRoom,
        *,
        seconds_left: Callable[[], float | None],
        ended: Callable[[], None],
    ) -> None:
        """Make it.

        Args:
            around: What all attempts share.
            room: The slot.
            seconds_left: Tells the time until the slot ends; None: it does not.
            ended: Called after the end of each attempt, from its thread.
        """
        self.outcomes: list[AttemptOutcome] = []  #: of those that have ended
        self.trouble: HostTrouble | None = None  #: with this host
        self._around = around
        self._room = room
        self._seconds_left = seconds_left
        self._ended = ended
        self._threads: list[threading.Thread] = []

    def begin(self, work: Work) -> None:
        """Run these jobs."""
        needs = {match.lease: _need(match) for match in work.matches}
        shares = self._room.take(needs)
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        for match in work.matches:
            arguments = (match, shares[match.lease])
            thread = threading.Thread(target=self._run, args=arguments, name=f"job {match.job_id}")
            self._threads.append(thread)
            thread.start()

    def wait(self) -> None:
        """Until all have ended."""
        for thread in self._threads:
            thread.join()

    def _run(self, match: Match, part: Allotment) -> None:
        trouble: HostTrouble | None = HostTrouble(f"the attempt at job {match.job_id} broke off")
        try:
            self._note(attempt.run_attempt(match, self._around, share=part, seconds_left=self._seconds_left))
            trouble = None
        except HostTrouble as error:
            trouble = error
        finally:
            self.trouble = trouble or self.trouble
            self._room.give_back(part)
            self._ended()

    def _note(self, outcome: AttemptOutcome) -> None:
        log.info("job %d (attempt %d): %s %s", outcome.job_id, outcome.epoch, outcome.ended, outcome.detail)
        self.outcomes.append(outcome)


def _need(match: Match) -> allotment.JobNeed:
    return allotment.job_need(
        match.description, processors=match.processors, ram_mb=match.ram_mb, gpus=match.gpus
    )


#: End now, hand back what runs; end when what runs has finished. Grid Engine sends USR2 before it kills.
_STOP = {signal.SIGTERM, signal.SIGINT, signal.SIGUSR2}
_DRAIN = {signal.SIGUSR1}


class PilotControl:
    """Orders that came; none is ever taken back, but the file may go again."""

    def __init__(self, drain_file: Path | None = None) -> None:
        """Make it; while the file is there, the pilot drains."""
        self.stop = threading.Event()  #: end now
        self._drain = threading.Event()
        self._drain_file = drain_file
        self._woken = threading.Event()

    @property
    def drain(self) -> bool:
        """Whether to take no new work, and to end when what runs has finished."""
        return self._drain.is_set() or (self._drain_file is not None and self._drain_file.exists())

    def wake(self) -> None:
        """End the pause that somebody makes, or the next one."""
        self._woken.set()

    def pause(self, seconds: float) -> None:
        """Wait for so long, or until something has happened."""
        self._woken.wait(seconds)
        self._woken.clear()

    def listen(self) -> None:
        """Take orders from signals, from now on.

        A thread waits for them, since a handler would run in the middle of anything: an event that is just
        being waited for cannot be set from there.
        """
        asked = _STOP | _DRAIN
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
            asked = asked | {signal.SIGHUP}
        signal.pthread_sigmask(signal.SIG_BLOCK, asked)
        threading.Thread(target=self._obey, args=(asked,), name="signals", daemon=True).start()

    def _obey(self, asked: set[signal.Signals]) -> None:
        while not self.stop.is_set():
            (self._drain if signal.sigwait(asked) in _DRAIN else self.stop).set()
            self.wake()


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
        around: AttemptContext,
        room: SlotRoom,
        ends: StopConditions,
        orders: PilotControl,
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
        self._crew = RunningAttempts(around, room, seconds_left=self._seconds_left, ended=self._payload_ended)
        self._ask_at = self._busy_until = self._whole_at = clock()
        self._began = self._ask_at if began is None else began
        self._begun = 0  #: jobs
        self._freed = 0  #: times that there was more room
        self._vain = 0  #: answers without work in a row, while nothing ran
        self._last_reason = ""
        self._given_up: Ending | None = None  #: by an answer of the service, or by none

    @property
    def outcomes(self) -> list[AttemptOutcome]:
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
        return service_client.retry_while_away(
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

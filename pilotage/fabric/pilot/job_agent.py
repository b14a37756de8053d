"""The pilot's main loop: request jobs while the slot has room, run each in a thread, until a stop condition.

`PilotControl` receives orders from outside: signals, or a drain file.
"""

from __future__ import annotations

import itertools
import logging
import random
import signal
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Callable

from pilotage.fabric.pilot import allotment, attempt
from pilotage.fabric.pilot.allotment import Allotment, SlotRoom
from pilotage.fabric.pilot.attempt import AttemptContext, AttemptOutcome
from pilotage.fabric.pilot.errors import AWAY, FINE, HOST, REFUSED, Ending, HostTrouble
from pilotage.fabric.pilot.payload import work_area
from pilotage.fabric.pilot.service import service_client
from pilotage.fabric.pilot.service.service_client import Match, Work
from pilotage.fabric.pilot.service.transport import Away, Refused
from pilotage.fabric.pilot.settings import StopConditions

log = logging.getLogger(__name__)


#: Signals to end now and hand jobs back; signals to drain. Grid Engine sends USR2 before it kills.
_STOP = {signal.SIGTERM, signal.SIGINT, signal.SIGUSR2}
_DRAIN = {signal.SIGUSR1}


class PilotControl:
    """Stop and drain orders. Stop is final; draining by file ends when the file is removed."""

    def __init__(self, drain_file: Path | None = None) -> None:
        """Without orders; the pilot drains while `drain_file` exists."""
        self.stop = threading.Event()  #: end now
        self._drain = threading.Event()
        self._drain_file = drain_file
        self._woken = threading.Event()

    @property
    def drain(self) -> bool:
        """Whether to take no new jobs, and to end when the running ones have finished."""
        return self._drain.is_set() or (self._drain_file is not None and self._drain_file.exists())

    def wake(self) -> None:
        """End the current pause, or the next one."""
        self._woken.set()

    def pause(self, seconds: float) -> None:
        """Wait for this time, or until `wake` is called."""
        self._woken.wait(seconds)
        self._woken.clear()

    def listen(self) -> None:
        """Stop or drain, from now on, when the process gets one of their signals.

        A thread waits for the signals: a handler could interrupt `Event.wait` and would then be unable to
        set that event.
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


#: Seconds until the next request where the service suggests none; also the longest pause of the loop.
_POLL = 20.0
_SHORTEST_POLL = 0.2
#: Seconds after which a slot without an end is emptied, for jobs that need all of it.
_WHOLE_EVERY = 24 * 3600.0
#: Maximum jobs per request: the service's limit.
_MOST = 1000


#: Measures the DB12 power of a processor, until it is stopped: then, or if it cannot be measured, None.
Benchmark = Callable[[Callable[[], bool]], "float | None"]


class JobAgent:
    """Main loop of one slot: requests all free resources, and again as soon as a payload has ended.

    Jobs run concurrently, each in a thread; each takes an allotment of the slot and returns it at its end.
    """

    def __init__(
        self,
        context: AttemptContext,
        room: SlotRoom,
        conditions: StopConditions,
        orders: PilotControl,
        refusal: Callable[[], str],
        began: float,
        benchmark: Benchmark | None = None,
    ) -> None:
        """Create it.

        `refusal` returns why the token cannot be renewed any more, empty while it can; `began` is the start
        of the pilot; `benchmark` measures the DB12 power while there is no job, None: it is known.
        """
        self.outcomes: list[AttemptOutcome] = []  #: of ended attempts
        self._context = context
        self._room = room
        self._conditions = conditions
        self._orders = orders
        self._refusal = refusal
        self._began = began
        self._benchmark = benchmark
        self._measuring: threading.Thread | None = None
        self._threads: list[threading.Thread] = []
        self._ask_at = self._busy_until = self._whole_at = time.monotonic()
        self._begun = 0  #: number of jobs
        self._freed = 0  #: number of times that resources became free, or more is offered
        self._empty_responses = 0  #: empty responses in a row, while nothing ran
        self._last_reason = ""
        self._host_trouble: HostTrouble | None = None
        self._given_up: Ending | None = None  #: after a refusal, or no response

    @property
    def why_empty(self) -> str | None:
        """The service's last reason for sending no job; None if there was a job, or no response."""
        return None if self._begun else self._last_reason or None

    def run(self) -> Ending:
        """Work until there is a reason to end, wait for the running jobs, and return the reason."""
        while (ending := self._reason_to_end()) is None:
            if self._room.is_empty:
                self._whole_at = time.monotonic()
            else:
                self._busy_until = time.monotonic()
            if self._room.is_full or self._is_emptied():  # no job is requested until a payload ends
                self._orders.pause(_POLL)
            elif (pause := self._ask_at - time.monotonic()) > 0:
                self._orders.pause(min(pause, _POLL))
            else:
                self._ask()
        log.info("no more jobs: %s", ending.reason)
        for thread in self._threads:
            thread.join()
        return self._stop_requested() or self._fault() or ending

    def _seconds_left(self) -> float | None:
        return self._context.offer.seconds_left(time.monotonic() - self._began)

    def _begin(self, matches: Sequence[Match]) -> None:
        self._begun += len(matches)
        needs = {
            each.lease: allotment.job_need(
                each.description, processors=each.processors, ram_mb=each.ram_mb, gpus=each.gpus
            )
            for each in matches
        }
        shares = self._room.take(needs)
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        for match in matches:
            arguments = (match, shares[match.lease])
            thread = threading.Thread(target=self._run_attempt, args=arguments, name=f"job {match.job_id}")
            self._threads.append(thread)
            thread.start()

    def _run_attempt(self, match: Match, part: Allotment) -> None:
        trouble: HostTrouble | None = HostTrouble(f"the attempt at job {match.job_id} broke off")
        try:
            done = attempt.run_attempt(match, self._context, share=part, seconds_left=self._seconds_left)
            log.info("job %d (attempt %d): %s %s", done.job_id, done.epoch, done.ended, done.detail)
            self.outcomes.append(done)
            trouble = None
        except HostTrouble as error:
            trouble = error
        finally:
            self._host_trouble = trouble or self._host_trouble
            self._room.give_back(part)
            self._freed += 1
            self._ask_at = self._busy_until = time.monotonic()
            self._orders.wake()

    def _reason_to_end(self) -> Ending | None:
        return self._stop_requested() or self._fault() or self._given_up or self._limit_reached()

    def _stop_requested(self) -> Ending | None:
        if self._context.stop.is_set():
            return Ending(FINE, "ended by a signal")
        return Ending(FINE, "drained") if self._orders.drain else None

    def _fault(self) -> Ending | None:
        if self._host_trouble is not None:
            reason = f"trouble with this host: {self._host_trouble}"
            return Ending(HOST, reason, host_trouble=True)
        if refusal := self._refusal():
            return Ending(REFUSED, f"the service does not renew our token: {refusal}")
        return None

    def _limit_reached(self) -> Ending | None:
        conditions, left = self._conditions, self._seconds_left()
        if conditions.max_jobs is not None and self._begun >= conditions.max_jobs:
            return Ending(FINE, "reached --max-jobs")
        if left is not None and self._context.offer.is_over(left):
            return Ending(FINE, f"{left:.0f} s of the slot are left")
        if conditions.max_empty and self._empty_responses >= conditions.max_empty:
            answers = "answer" if self._empty_responses == 1 else f"{self._empty_responses} answers"
            return Ending(FINE, f"no work in the last {answers}: {self._last_reason}")
        idle_for = time.monotonic() - self._busy_until if self._room.is_empty else 0.0
        if conditions.max_idle is not None and idle_for >= conditions.max_idle:
            return Ending(FINE, f"no work for {conditions.max_idle:g} s")
        return None

    def _is_emptied(self) -> bool:
        """Whether small jobs have kept large ones out for so long that the slot is emptied."""
        every = self._conditions.whole_every
        if every is None:
            every = 0.0 if self._context.offer.lifetime else _WHOLE_EVERY
        return bool(every) and not self._room.is_empty and time.monotonic() - self._whole_at >= every

    def _ask(self) -> None:
        freed, alone = self._freed, self._room.is_empty
        options = self._context.payload_options
        if missing := work_area.missing_space(options.work_dir, options.least_space):
            self._ask_at = time.monotonic() + _POLL
            if alone:  # else the payloads that run may use the space
                self._host_trouble = HostTrouble(missing)
            return
        try:
            work = self._answer()
        except Refused as error:
            self._given_up = Ending(REFUSED, f"the service rejects it: {error}")
        except Away as error:
            self._ask_at = time.monotonic() + _POLL
            if self._room.is_empty:
                self._given_up = Ending(AWAY, f"the service stays away: {error}")
        else:
            self._accept(work, freed, alone=alone)

    def _answer(self) -> Work:
        # One id for all tries, so that a lost response is repeated.
        request_id, free = str(uuid.uuid4()), self._room.free
        offer = self._context.offer.at(time.monotonic() - self._began, free)
        count = min(
            free.processors,
            _MOST if self._conditions.max_jobs is None else self._conditions.max_jobs - self._begun,
        )
        tries = itertools.count()
        return service_client.retry_while_away(
            lambda: self._context.service.request_job(
                offer, count=count, request_id=request_id, said_before=next(tries) > 0
            ),
            patience=self._conditions.patience,
            stop=self._context.stop,
        )

    def _accept(self, work: Work, freed: int, *, alone: bool) -> None:
        """Start the jobs, or wait, unless resources became free since the request.

        Only an empty response to an offer of the whole slot counts as empty.
        """
        if work.matches:
            self._empty_responses = 0
            self._begin(work.matches)
            return
        self._empty_responses += alone
        self._last_reason = work.reason
        pause = max(_SHORTEST_POLL, _POLL if work.retry_after is None else work.retry_after)
        self._ask_at = time.monotonic() + pause * random.uniform(0.9, 1.2)
        if freed != self._freed:  # checked last: a payload that ends from here on sets `_ask_at` itself
            self._ask_at = time.monotonic()
        elif self._reason_to_end() is None:
            log.info("no job (%s), next request in %.0f s", work.reason, pause)
            if self._benchmark and not (self._measuring and self._measuring.is_alive()):
                # The next request states the power.
                self._measuring = threading.Thread(
                    target=self._run_benchmark, args=(self._benchmark,), name="benchmark", daemon=True
                )
                self._measuring.start()

    def _run_benchmark(self, benchmark: Benchmark) -> None:
        power = benchmark(lambda: not self._room.is_empty or self._stop_requested() is not None)
        if power is None:
            return
        log.info("a processor of this node has the DB12 power %g", power)
        self._benchmark = None
        self._context = replace(self._context, offer=self._context.offer.with_db12(power))
        self._freed += 1
        self._ask_at = time.monotonic()
        self._orders.wake()

"""The heartbeat of an attempt: reports its progress to the service and receives commands, in a thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Callable, Protocol

from pilotage.fabric.pilot.service.service_client import LeaseAnswer
from pilotage.fabric.pilot.service.transport import Away, Refused


@contextmanager
def call_periodically(
    action: Callable[[], float | None], *, name: str, first: float | None = 0.0
) -> Iterator[None]:
    """Call a function in a thread while in a `with` block, at first after `first` seconds.

    It returns the seconds until its next call; None: never.
    """
    stop = threading.Event()

    def run() -> None:
        pause = first
        while pause is not None and not stop.wait(pause):
            pause = action()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


log = logging.getLogger(__name__)

KILL = "kill"
_SHORTEST, _LONGEST = 1.0, 3600.0  # seconds, limits of the interval that the service wishes


#: Counts while the host is suspended as well, unlike `time.monotonic`.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def elapsed_time() -> float:
    """Seconds since some moment, whatever is done to the clock of this host."""
    return time.clock_gettime(_CLOCK)


class HeartbeatListener(Protocol):
    """Receiver of heartbeats: usually the service."""

    def heartbeat(self, lease: str, facts: Mapping[str, object]) -> LeaseAnswer:
        """Receive the facts of a running payload; return commands for it."""
        ...


class Heartbeat:
    """Heartbeat of one attempt, sent in a thread of its own (`beating`).

    A service that hangs must not delay the monitoring of the payload. Without an answer for as long as the
    service has set, the payload has to end: then the service gives the job to another pilot.
    """

    def __init__(
        self,
        service: HeartbeatListener,
        lease: str,
        *,
        every: float,
        news: Callable[[], Mapping[str, object]],
        started: float | None = None,
        clock: Callable[[], float] = elapsed_time,
    ) -> None:
        """Create it; `every` is the seconds between two heartbeats until the service sets others.

        `news` returns their content. `started` is the time by `clock` at which the start was reported; None:
        now.
        """
        self.killed = threading.Event()  #: the job was killed: end the payload, send its output
        self.stale = threading.Event()  #: the attempt is closed: reports are not accepted any more
        self._service = service
        self._lease = lease
        self._every = every
        self._news = news
        self._away = False
        self._clock = clock
        self._answered = (
            clock() if started is None else started
        )  #: when the last report that was answered was sent
        self._run_on: float | None = None

    def running(self) -> AbstractContextManager[None]:
        """Send heartbeats while in a `with` block."""
        return call_periodically(self._beat, name="heartbeat", first=self._every)

    def send_last(self) -> None:
        """Send one more after the payload has ended, unless the service is away: it has the final use."""
        if not self._away:
            self._beat()

    @property
    def silence(self) -> float | None:
        """Seconds without an answer, if they are so many that the payload has to end."""
        seconds = self._clock() - self._answered
        return seconds if self._run_on is not None and seconds >= self._run_on else None

    def obey(self, news: LeaseAnswer) -> None:
        """Follow the commands and the intervals in a response."""
        if KILL in news.commands:
            self.killed.set()
        self._run_on = news.run_on_seconds
        if news.heartbeat_seconds is not None:
            self._every = min(max(news.heartbeat_seconds, _SHORTEST), _LONGEST)

    def _beat(self) -> float | None:
        """Send one heartbeat; return the seconds until the next, None: the attempt is closed."""
        sent = self._clock()
        try:
            self.obey(self._service.heartbeat(self._lease, self._news()))
            # Not when the answer came: the service counts from a moment in between.
            self._answered = sent
            self._note(away=False, why="")
        except (Away, OSError) as error:
            self._note(away=True, why=str(error))
        except Refused as error:
            if error.ends_attempt:
                log.warning("the attempt is closed: %s", error)
                self.stale.set()
                return None
            self._note(away=True, why=str(error))  # not the payload's fault
        return self._every

    def _note(self, *, away: bool, why: str) -> None:
        if away and not self._away:
            log.warning("a heartbeat failed, the payload runs on: %s", why)
        elif self._away and not away:
            log.info("heartbeats arrive again")
        self._away = away

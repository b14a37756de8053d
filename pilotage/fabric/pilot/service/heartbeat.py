"""The heartbeat of an attempt: reports its progress to the service and receives commands, in a thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Callable, Protocol

from pilotage.fabric.pilot.service.service_client import News
from pilotage.fabric.pilot.service.transport import Away, Refused


@contextmanager
def call_periodically(
    turn: Callable[[], float | None], *, name: str, first: float | None = 0.0
) -> Iterator[None]:
    """Call a function in a thread while in a `with` block, at first after `first` seconds.

    It returns the seconds until its next call; None: never.
    """
    stop = threading.Event()

    def run() -> None:
        pause = first
        while pause is not None and not stop.wait(pause):
            pause = turn()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


log = logging.getLogger(__name__)

KILL = "kill"
_SHORTEST, _LONGEST = 1.0, 300.0  # seconds, limits of the interval that the service wishes


class HeartbeatListener(Protocol):
    """Receiver of heartbeats: usually the service."""

    def heartbeat(self, lease: str, facts: Mapping[str, object]) -> News:
        """Receive the facts of a running payload; return commands for it."""
        ...


class Heartbeat:
    """Heartbeat of one attempt, sent in a thread of its own (`beating`).

    A service that hangs must not delay the monitoring of the payload.
    """

    def __init__(
        self,
        service: HeartbeatListener,
        lease: str,
        *,
        every: float,
        news: Callable[[], Mapping[str, object]],
    ) -> None:
        """With the seconds between two heartbeats, until the service wishes otherwise, and their content."""
        self.killed = threading.Event()  #: the job was killed: end the payload, send its output
        self.stale = threading.Event()  #: the attempt is closed: reports are not accepted any more
        self._service = service
        self._lease = lease
        self._every = every
        self._news = news
        self._away = False

    def beating(self) -> AbstractContextManager[None]:
        """Send heartbeats while in a `with` block."""
        return call_periodically(self._beat, name="heartbeat", first=self._every)

    def obey(self, news: News) -> None:
        """Follow the commands and the interval in a response."""
        if KILL in news.commands:
            self.killed.set()
        if news.heartbeat_seconds is not None:
            self._every = min(max(news.heartbeat_seconds, _SHORTEST), _LONGEST)

    def _beat(self) -> float | None:
        """Send one heartbeat; return the seconds until the next, None: the attempt is closed."""
        try:
            self.obey(self._service.heartbeat(self._lease, self._news()))
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

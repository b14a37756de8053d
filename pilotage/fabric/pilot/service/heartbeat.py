"""The heartbeat of an attempt: reports its progress to the service and receives commands, in a thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Callable, Protocol

from pilotage.fabric.pilot.service.service_client import News
from pilotage.fabric.pilot.service.transport import Away, Refused


class PeriodicThread:
    """Calls a function periodically while in a `with` block."""

    def __init__(self, turn: Callable[[], float | None], *, name: str, first: float | None = 0.0) -> None:
        """Set up the thread.

        Args:
            turn: Called each time; returns the seconds until the next call, None: end.
            name: Name of the thread.
            first: Seconds until the first call; None: never.
        """
        self._turn = turn
        self._first = first
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> PeriodicThread:  # noqa: PYI034 - Self is of Python 3.11
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        pause = self._first
        while pause is not None and not self._stop.wait(pause):
            pause = self._turn()


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
        """Set up the heartbeat.

        Args:
            service: Receiver.
            lease: Lease of the attempt.
            every: Seconds between two heartbeats, until the service wishes otherwise.
            news: Returns the content of each heartbeat.
        """
        self.killed = threading.Event()  #: the job was killed: end the payload, send its output
        self.stale = threading.Event()  #: the attempt is closed: reports are not accepted any more
        self._service = service
        self._lease = lease
        self._every = every
        self._news = news
        self._away = False

    def beating(self) -> PeriodicThread:
        """Send heartbeats while in a `with` block."""
        return PeriodicThread(self.turn, name="heartbeat", first=self._every)

    def turn(self) -> float | None:
        """Send one heartbeat; return the seconds until the next, None: the attempt is closed."""
        self._beat()
        return None if self.stale.is_set() else self._every

    def obey(self, news: News) -> None:
        """Follow the commands and the interval in a response."""
        if KILL in news.commands:
            self.killed.set()
        if news.heartbeat_seconds is not None:
            self._every = min(max(news.heartbeat_seconds, _SHORTEST), _LONGEST)

    def _beat(self) -> None:
        try:
            self.obey(self._service.heartbeat(self._lease, self._news()))
            self._note(away=False, why="")
        except (Away, OSError) as error:
            self._note(away=True, why=str(error))
        except Refused as error:
            self._refused(error)

    def _refused(self, error: Refused) -> None:
        """End only if the attempt is over: any other refusal is not the payload's fault."""
        if error.ends_attempt:
            log.warning("the attempt is closed: %s", error)
            self.stale.set()
        else:
            self._note(away=True, why=str(error))

    def _note(self, *, away: bool, why: str) -> None:
        if away and not self._away:
            log.warning("a heartbeat failed, the payload runs on: %s", why)
        elif self._away and not away:
            log.info("heartbeats arrive again")
        self._away = away

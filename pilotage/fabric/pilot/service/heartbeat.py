"""Doing something again and again in a thread of its own, until told to stop.

The heartbeat of an attempt: tells the service that the payload lives, and hears what it wants.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Callable, Protocol

from pilotage.fabric.pilot.service.service_client import News
from pilotage.fabric.pilot.service.transport import Away, Refused


class PeriodicThread:
    """Takes turns from the beginning of a `with` block to its end."""

    def __init__(self, turn: Callable[[], float | None], *, name: str, first: float | None = 0.0) -> None:
        """Make it.

        Args:
            turn: Does what is to be done now; says the seconds until the next turn, None: there is none.
            name: Of the thread.
            first: Seconds until the first turn; None: there is none.
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
_SHORTEST, _LONGEST = 1.0, 300.0  # seconds, whatever the service asks for


class HeartbeatListener(Protocol):
    """Who wants to hear of an attempt: the service, as a rule."""

    def heartbeat(self, lease: str, facts: Mapping[str, object]) -> News:
        """Take the news of a payload that runs; what is wanted of it."""
        ...


class Heartbeat:
    """What is told and heard; it beats in a thread of its own, `beating`.

    A service that hangs must not keep us from watching the payload.
    """

    def __init__(
        self,
        service: HeartbeatListener,
        lease: str,
        *,
        every: float,
        news: Callable[[], Mapping[str, object]],
    ) -> None:
        """Make it.

        Args:
            service: Where to.
            lease: Of the attempt.
            every: Seconds between two beats, until the service wishes otherwise.
            news: What to tell each time.
        """
        self.killed = threading.Event()  #: the job was killed: end the payload, deliver what there is
        self.stale = threading.Event()  #: the attempt is closed: nobody wants to hear of it any more
        self._service = service
        self._lease = lease
        self._every = every
        self._news = news
        self._away = False

    def beating(self) -> PeriodicThread:
        """Beats until the end of a `with` block."""
        return PeriodicThread(self.turn, name="heartbeat", first=self._every)

    def turn(self) -> float | None:
        """Beat once; seconds until the next beat, None: nobody wants to hear of it any more."""
        self._beat()
        return None if self.stale.is_set() else self._every

    def obey(self, news: News) -> None:
        """Do what an answer of the service says."""
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
        """Let the payload run on unless the attempt is over: it is not to blame for another refusal."""
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

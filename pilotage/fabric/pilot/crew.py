"""The attempts under way on one slot, each in a thread of its own."""

from __future__ import annotations

import logging
import threading
from typing import Callable

from pilotage.fabric.pilot import attempt, share
from pilotage.fabric.pilot.attempt import Outcome, Surroundings
from pilotage.fabric.pilot.host import HostTrouble
from pilotage.fabric.pilot.service import Match, Work
from pilotage.fabric.pilot.share import Room, Share

log = logging.getLogger(__name__)


class Crew:
    """Runs jobs beside each other; each has its part of the slot, and gives it back at its end."""

    def __init__(
        self,
        around: Surroundings,
        room: Room,
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
        self.outcomes: list[Outcome] = []  #: of those that have ended
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

    def _run(self, match: Match, part: Share) -> None:
        trouble: HostTrouble | None = HostTrouble(f"the attempt at job {match.job_id} broke off")
        try:
            self._note(attempt.run(match, self._around, share=part, seconds_left=self._seconds_left))
            trouble = None
        except HostTrouble as error:
            trouble = error
        finally:
            self.trouble = trouble or self.trouble
            self._room.give_back(part)
            self._ended()

    def _note(self, outcome: Outcome) -> None:
        log.info("job %d (attempt %d): %s %s", outcome.job_id, outcome.epoch, outcome.ended, outcome.detail)
        self.outcomes.append(outcome)


def _need(match: Match) -> share.Need:
    return share.need(match.description, processors=match.processors, ram_mb=match.ram_mb, gpus=match.gpus)

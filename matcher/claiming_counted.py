"""Requests for one job at places that count: counted one after the other, then claimed for together.

Where a task queue tells all that a limit or throttle asks about its jobs, nothing of a job has to be read
before it is taken. So under the locks of the places each request is counted with the first task queue that it
may have, and one statement claims for all; what it does not find is counted back. For PostgreSQL.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Connection

from cs_config.configuration import Configuration
from matcher import claiming_quickly, gates
from matcher.claiming import Look, Wish
from matcher.gate import Gate
from taskqueue import quick_claims
from taskqueue.quick_claims import Ask, Outcome
from taskqueue.single_statements import InTransaction
from taskqueue.task_queues import TaskQueue

#: Task queues that are tried for each; who found nothing then goes step by step.
_TRIES = 4


def claim(
    conn: Connection, wishes: Sequence[Wish], *, config: Configuration, now: datetime
) -> dict[int, Look]:
    """What they got, by their place in the list; who is left out has to go step by step.

    Raises:
        DBAPIError: Nobody got anything.
    """
    doors = gates.lock(conn, config, {wish.place for wish in wishes}, now)
    left = [_Counted(wish, doors.at(wish.place)) for wish in wishes]
    found: dict[int, Look] = {}
    for _ in range(_TRIES):
        asks = {
            number: ask for number, each in enumerate(left) if number not in found and (ask := each.ask())
        }
        if not asks:
            break
        outcomes = quick_claims.claim(InTransaction(conn), list(asks.values()), now=now)
        for number, outcome in zip(asks, outcomes, strict=True):
            if look := left[number].told(outcome):
                found[number] = look
    doors.write(conn)
    for number, wish in enumerate(wishes):
        if number not in found:
            wish.drawn.start_over()
    return found


@dataclass(slots=True)
class _Counted:
    """A request at a place that counts, and how far it has come."""

    wish: Wish
    gate: Gate | None  #: None: nothing is counted there any more
    asked: list[TaskQueue] = field(default_factory=list)  #: those it was counted with; the last one still is
    over: bool = False

    def ask(self) -> Ask | None:
        """What to ask for it next; None: it has to go step by step."""
        while not self.over and (found := self._next()) is not None:
            if self.gate is None or self._is_counted(self.gate, found):
                self.asked.append(found)
                return claiming_quickly.ask(self.wish, found)
        self.over = True
        return None

    def told(self, outcome: Outcome) -> Look | None:
        """What it got; None: nothing so far."""
        claimed, gate = outcome.claimed, self.gate
        if claimed is not None:
            if gate is not None:
                gate.reserve(claimed.job_id, claimed.epoch)
            # Not those that a limit kept it from: they have jobs, and others are to draw them.
            return Look(claimed=(claimed,), emptied=claiming_quickly.in_vain(self.asked))
        if gate is not None:
            gate.count(self.asked[-1], -1)
        self.over = outcome.repeated
        return None

    def _next(self) -> TaskQueue | None:
        drawn = self.wish.drawn
        return drawn.next() if len(drawn.tried) < _TRIES else None

    def _is_counted(self, gate: Gate, found: TaskQueue) -> bool:
        """Whether one of its jobs may be taken; it is counted then."""
        self.over = not (gate.is_told_by(found) and gate.most(1))
        may = not self.over and gate.concerns(found)
        if may:
            gate.count(found, 1)
        return may

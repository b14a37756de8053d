"""What a matcher passes by and why, told to `sightings` as requests are served."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Engine

from matcher.candidates import by_and_by
from matcher.claim_steps import Found
from matcher.claiming import Look, Wish
from matcher.gate import LIMITS, Gate
from matcher.resource import Resource
from matcher.sightings import IDLE_PIECE, Sightings
from matcher.view import View
from taskqueue import database, hindrances
from taskqueue.claims import Place
from taskqueue.hindrances import TURN
from taskqueue.task_queues import TaskQueue


class Notes:
    """Of one process; for the thread that serves its requests."""

    def __init__(self) -> None:
        self._sightings = Sightings()

    def kept_out(
        self, cause: str, task_queues: Sequence[TaskQueue], place: Place, resource: Resource, now: datetime
    ) -> None:
        """Task queues were kept from a pilot at a place."""
        if task_queues and self._sightings.is_due((cause, place, resource.vos), now):
            self._sightings.note(cause, by_and_by(task_queues), now)

    def are_due(self, place: Place, resource: Resource, now: datetime) -> bool:
        """Whether it is to be noted what a place has work for; not again if it was just now."""
        return self._sightings.is_due((place, resource.vos), now)

    def let_in(
        self, view: View, gate: Gate | None, candidates: Sequence[TaskQueue], place: Place
    ) -> Sequence[TaskQueue]:
        """Those that a place which is open has work for, the others noted."""
        if gate is None:
            return candidates
        fitting = gate.worth(view.conn, candidates, place)
        let_in = {each.task_queue_id for each in fitting}
        kept_out = [each for each in candidates if each.task_queue_id not in let_in]
        self._sightings.note(gate.refused or LIMITS, kept_out, view.now)
        return fitting

    def served(self, wishes: Sequence[Wish], claimed: Found, now: datetime) -> None:
        """Pilots that fit tried to take jobs."""
        for wish in wishes:
            look = claimed[id(wish.request)]
            if isinstance(look, Look) and wish.job_id is None and wish.fitting:
                cause = TURN if look.claimed else look.refused
                if cause is not None:
                    self._sightings.note(cause, by_and_by(wish.fitting), now)

    def go_on(self) -> None:
        """Note more of what was passed by, while nobody waits."""
        self._sightings.go_on(most=IDLE_PIECE)

    def write_down(self, engine: Engine, now: datetime, *, at_end: bool = False) -> None:
        """Write what kept jobs from pilots, about once a minute."""
        self._sightings.go_on()
        if seen := self._sightings.due(now, at_end=at_end):
            with database.writing(engine) as conn:
                hindrances.write(conn, seen)
            self._sightings.written()

"""Requests for one job at places where nothing is counted: one statement for all that have come in.

Requests for one job at places that count: counted one after the other, then claimed for together.

Where a task queue tells all that a limit or throttle asks about its jobs, nothing of a job has to be read
before it is taken. So under the locks of the places each request is counted with the first task queue that it
may have, and one statement claims for all; what it does not find is counted back. For PostgreSQL.

Claims for a batch in steps, each of which is committed: so none fails for what another does.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from cs_config.tree.configuration import Configuration
from matcher.claim import claim_loop
from matcher.claim.allotment import SlotAllotment
from matcher.claim.claim_loop import ClaimRequest, ClaimResult
from matcher.claim.undelivered import InDoubtClaims
from matcher.errors import Unserved
from matcher.limits import place_policy
from matcher.limits.place_policy import PlacePolicy
from matcher.request.match_request import MatchRequest
from requirements.errors import PilotageError
from taskqueue.db import database
from taskqueue.db.compiled_sql import AutocommitRunner, TransactionRunner
from taskqueue.leases import claim as leases_claim
from taskqueue.leases import claim_batch
from taskqueue.leases.assignment import TakeRequest
from taskqueue.leases.claim_batch import BatchClaim, BatchClaimResult
from taskqueue.task_queues.task_queues import TaskQueue

log = logging.getLogger(__name__)

#: Task queues that are tried for each; who found nothing then goes step by step.
_TRIES = 4


def claim_unlimited(
    server: AutocommitRunner, wishes: Sequence[ClaimRequest], doubts: InDoubtClaims, *, now: datetime
) -> dict[int, ClaimResult]:
    """What they got, by their place in the list; who is left out has to go step by step.

    Each statement is a transaction: what one request got stays, whatever becomes of the others.

    Raises:
        OperationalError, InterfaceError: The database is away; `doubts` has what may have been claimed.
    """
    found: dict[int, ClaimResult] = {}
    left: Sequence[int] = range(len(wishes))
    for _ in range(_TRIES):
        asks = {
            number: build_ask(wishes[number], drawn)
            for number in left
            if (drawn := wishes[number].drawn.next())
        }
        if not asks:
            break
        try:
            outcomes = _try(server, wishes, asks, doubts, now)
        except Exception as error:  # whatever it is, what is claimed has to be delivered
            if not found:
                raise
            log.warning("claims of one statement fail, those that are left go step by step: %s", error)
            break
        for number, outcome in outcomes.items():
            if outcome.claimed is not None:
                found[number] = ClaimResult(
                    claimed=(outcome.claimed,), emptied=in_vain(wishes[number].drawn.tried)
                )
        left = [number for number, each in outcomes.items() if each.claimed is None and not each.repeated]
        for number in asks.keys() - outcomes.keys() | {n for n, each in outcomes.items() if each.repeated}:
            wishes[number].drawn.start_over()
    return found


def in_vain(asked: Sequence[TaskQueue]) -> frozenset[int]:
    """All but the last, which had a job: whoever settles it looks whether the others are empty."""
    return frozenset(each.task_queue_id for each in asked[:-1])


def build_ask(wish: ClaimRequest, task_queue: TaskQueue) -> BatchClaim:
    """A job of a task queue, for a wish."""
    filling = SlotAllotment(wish.resource)
    filling.take(task_queue.requirement_class, 1)
    [allotment] = filling.allotments()
    return BatchClaim(
        want=TakeRequest(
            task_queue_id=task_queue.task_queue_id,
            count=1,
            place=wish.place,
            has_pool=task_queue.requirement_class.submit_pool is not None,
        ),
        holder=wish.holder,
        lease=leases_claim.generate_lease(),
        allotment=allotment,
        request_id=wish.request.request_id,
    )


def _try(
    server: AutocommitRunner,
    wishes: Sequence[ClaimRequest],
    asks: dict[int, BatchClaim],
    doubts: InDoubtClaims,
    now: datetime,
) -> dict[int, BatchClaimResult]:
    """One statement; nobody got anything if the database refuses it, and each is to go step by step."""
    maybe = [(wishes[number].request, (ask.lease,)) for number, ask in asks.items()]
    try:
        with doubts.about(maybe):
            outcomes = claim_batch.claim_jobs(server, list(asks.values()), now=now)
    except DBAPIError as error:
        if database.is_unavailable(error):
            raise
        return {}
    return dict(zip(asks, outcomes, strict=True))


def claim_limited(
    conn: Connection, wishes: Sequence[ClaimRequest], *, config: Configuration, now: datetime
) -> dict[int, ClaimResult]:
    """What they got, by their place in the list; who is left out has to go step by step.

    Raises:
        DBAPIError: Nobody got anything.
    """
    doors = place_policy.lock_policies(conn, config, {wish.place for wish in wishes}, now)
    left = [_LimitedRequest(wish, doors.find_policy(wish.place)) for wish in wishes]
    found: dict[int, ClaimResult] = {}
    for _ in range(_TRIES):
        asks = {
            number: ask for number, each in enumerate(left) if number not in found and (ask := each.ask())
        }
        if not asks:
            break
        outcomes = claim_batch.claim_jobs(TransactionRunner(conn), list(asks.values()), now=now)
        for number, outcome in zip(asks, outcomes, strict=True):
            if look := left[number].take_outcome(outcome):
                found[number] = look
    doors.write(conn)
    for number, wish in enumerate(wishes):
        if number not in found:
            wish.drawn.start_over()
    return found


@dataclass(slots=True)
class _LimitedRequest:
    """A request at a place that counts, and how far it has come."""

    wish: ClaimRequest
    gate: PlacePolicy | None  #: None: nothing is counted there any more
    asked: list[TaskQueue] = field(default_factory=list)  #: those it was counted with; the last one still is
    over: bool = False

    def ask(self) -> BatchClaim | None:
        """What to ask for it next; None: it has to go step by step."""
        while not self.over and (found := self._next()) is not None:
            if self.gate is None or self._is_counted(self.gate, found):
                self.asked.append(found)
                return build_ask(self.wish, found)
        self.over = True
        return None

    def take_outcome(self, outcome: BatchClaimResult) -> ClaimResult | None:
        """What it got; None: nothing so far."""
        claimed, gate = outcome.claimed, self.gate
        if claimed is not None:
            if gate is not None:
                gate.reserve(claimed.job_id, claimed.epoch)
            # Not those that a limit kept it from: they have jobs, and others are to draw them.
            return ClaimResult(claimed=(claimed,), emptied=in_vain(self.asked))
        if gate is not None:
            gate.count(self.asked[-1], -1)
        self.over = outcome.repeated
        return None

    def _next(self) -> TaskQueue | None:
        drawn = self.wish.drawn
        return drawn.next() if len(drawn.tried) < _TRIES else None

    def _is_counted(self, gate: PlacePolicy, found: TaskQueue) -> bool:
        """Whether one of its jobs may be taken; it is counted then."""
        self.over = not (gate.is_told_by(found) and gate.most(1))
        may = not self.over and gate.concerns(found)
        if may:
            gate.count(found, 1)
        return may


#: What became of wishes, by the identity of their requests.
Results = dict[int, ClaimResult | PilotageError]
_Step = Callable[[Sequence[ClaimRequest], Configuration, datetime], dict[int, ClaimResult]]


class BatchClaimer:
    """Of one process; used by the thread that claims."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._server = AutocommitRunner(engine)
        self.doubts = InDoubtClaims()  #: what may have been claimed for nobody

    def claim(self, wishes: Sequence[ClaimRequest], *, config: Configuration, now: datetime) -> Results:
        """Claim for all of them; those first who cannot take just any job.

        What one step claimed has to be delivered, whatever becomes of the next.
        """
        ways: dict[_Step, list[ClaimRequest]] = {
            self._step_by_step: [],
            self._claim_limited: [],
            self._claim_unlimited: [],
        }
        for wish in wishes:
            ways[self._way(wish, config)].append(wish)
        steps = [
            *ways.items(),
            (self._step_by_step, [*ways[self._claim_limited], *ways[self._claim_unlimited]]),
        ]
        found: Results = {}
        for claim, some in steps:
            left = [wish for wish in some if id(wish.request) not in found]
            try:
                found |= claim(left, config, now) if left else {}
            except Exception as error:  # whatever it is
                if not found:
                    raise
                return {id(wish.request): Unserved(error) for wish in wishes} | found
        return found

    def _way(self, wish: ClaimRequest, config: Configuration) -> _Step:
        """Where one statement may claim for it, together with others; SQLite has no such statement."""
        if not wish.is_single or self._engine.dialect.name == "sqlite":
            return self._step_by_step
        return (
            self._claim_limited
            if wish.counted or place_policy.counts_jobs(config, wish.place)
            else self._claim_unlimited
        )

    def _claim_limited(
        self, wishes: Sequence[ClaimRequest], config: Configuration, now: datetime
    ) -> dict[int, ClaimResult]:
        maybe: list[tuple[MatchRequest, tuple[str, ...]]] = []
        try:
            with self.doubts.about(maybe), database.writing(self._engine) as conn:
                looks = claim_limited(conn, wishes, config=config, now=now)
                maybe += (
                    (wishes[number].request, tuple(each.lease for each in look.claimed))
                    for number, look in looks.items()
                )
        except DBAPIError as error:
            if database.is_unavailable(error):
                raise
            for wish in wishes:
                wish.drawn.start_over()
            return {}
        return {id(wishes[number].request): look for number, look in looks.items()}

    def _claim_unlimited(
        self, wishes: Sequence[ClaimRequest], _config: Configuration, now: datetime
    ) -> dict[int, ClaimResult]:
        looks = claim_unlimited(self._server, wishes, self.doubts, now=now)
        return {id(wishes[number].request): look for number, look in looks.items()}

    def _step_by_step(
        self, wishes: Sequence[ClaimRequest], config: Configuration, now: datetime
    ) -> dict[int, ClaimResult]:
        maybe: list[tuple[MatchRequest, tuple[str, ...]]] = []
        with self.doubts.about(maybe), database.writing(self._engine) as conn:
            looks = claim_loop.claim_all(conn, wishes, config=config, now=now)
            maybe += (
                (wish.request, tuple(each.lease for each in look.claimed))
                for wish, look in zip(wishes, looks, strict=True)
            )
        return {id(wish.request): wish.complete(look) for wish, look in zip(wishes, looks, strict=True)}

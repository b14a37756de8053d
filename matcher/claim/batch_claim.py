"""Claims for many requests in few statements, in steps that are committed one by one.

A single-job request at a place without limits goes into one statement with all others (`claim_unlimited`).
Where the task queue alone decides what a limit or throttle counts, each request is counted first, under the
locks of its place, with the first task queue that it may use, and one statement claims for all; counts of
requests that got nothing are taken back (`claim_limited`). All others are claimed step by step. The batch
statements need PostgreSQL.
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

#: Task queues tried per request; afterwards it goes step by step.
_TRIES = 4


def claim_unlimited(
    server: AutocommitRunner, wishes: Sequence[ClaimRequest], doubts: InDoubtClaims, *, now: datetime
) -> dict[int, ClaimResult]:
    """Results by position in the list; a missing one must be claimed step by step.

    Each statement is a transaction: claimed jobs stay claimed whatever happens to other requests.

    Raises:
        OperationalError, InterfaceError: The database is unavailable; `doubts` has the possible claims.
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
        except Exception as error:  # of any kind: claimed jobs must still be delivered
            if not found:
                raise
            log.warning("a batch claim failed, the remaining requests go step by step: %s", error)
            break
        for number, outcome in outcomes.items():
            if outcome.claimed is not None:
                found[number] = ClaimResult(
                    claimed=(outcome.claimed,), emptied=tried_before_last(wishes[number].drawn.tried)
                )
        left = [number for number, each in outcomes.items() if each.claimed is None and not each.repeated]
        for number in asks.keys() - outcomes.keys() | {n for n, each in outcomes.items() if each.repeated}:
            wishes[number].drawn.reset()
    return found


def tried_before_last(asked: Sequence[TaskQueue]) -> frozenset[int]:
    """All but the last, which had a job; `settle` later checks whether the others are empty."""
    return frozenset(each.task_queue_id for each in asked[:-1])


def build_ask(wish: ClaimRequest, task_queue: TaskQueue) -> BatchClaim:
    """A claim for one job of a task queue."""
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
    """Run one statement; empty if the database rejects it, in which case no job was claimed."""
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
    """Results by position in the list; a missing one must be claimed step by step.

    Raises:
        DBAPIError: No job was claimed.
    """
    policies = place_policy.lock_policies(conn, config, {wish.place for wish in wishes}, now)
    left = [_LimitedRequest(wish, policies.find_policy(wish.place)) for wish in wishes]
    found: dict[int, ClaimResult] = {}
    for _ in range(_TRIES):
        asks = {
            number: ask for number, each in enumerate(left) if number not in found and (ask := each.ask())
        }
        if not asks:
            break
        outcomes = claim_batch.claim_jobs(TransactionRunner(conn), list(asks.values()), now=now)
        for number, outcome in zip(asks, outcomes, strict=True):
            if result := left[number].take_outcome(outcome):
                found[number] = result
    policies.write(conn)
    for number, wish in enumerate(wishes):
        if number not in found:
            wish.drawn.reset()
    return found


@dataclass(slots=True)
class _LimitedRequest:
    """A request at a place that counts jobs, and its progress."""

    wish: ClaimRequest
    gate: PlacePolicy | None  #: None: the place no longer counts jobs
    #: task queues it was counted with; the last one is still counted
    asked: list[TaskQueue] = field(default_factory=list)
    over: bool = False

    def ask(self) -> BatchClaim | None:
        """The next claim for this request; None: it must go step by step."""
        while not self.over and (found := self._next()) is not None:
            if self.gate is None or self._is_counted(self.gate, found):
                self.asked.append(found)
                return build_ask(self.wish, found)
        self.over = True
        return None

    def take_outcome(self, outcome: BatchClaimResult) -> ClaimResult | None:
        """The result of a claim; None: nothing so far."""
        claimed, gate = outcome.claimed, self.gate
        if claimed is not None:
            if gate is not None:
                gate.reserve(claimed.job_id, claimed.epoch)
            # Not the task queues closed by a limit: they have jobs, and other requests may draw them.
            return ClaimResult(claimed=(claimed,), emptied=tried_before_last(self.asked))
        if gate is not None:
            gate.count(self.asked[-1], -1)
        self.over = outcome.repeated
        return None

    def _next(self) -> TaskQueue | None:
        drawn = self.wish.drawn
        return drawn.next() if len(drawn.tried) < _TRIES else None

    def _is_counted(self, gate: PlacePolicy, found: TaskQueue) -> bool:
        """Count one job of the task queue, if it may be taken."""
        self.over = not (gate.is_decided_by(found) and gate.most(1))
        may = not self.over and gate.concerns(found)
        if may:
            gate.count(found, 1)
        return may


#: Results by the `id()` of their requests.
Results = dict[int, ClaimResult | PilotageError]
_Step = Callable[[Sequence[ClaimRequest], Configuration, datetime], dict[int, ClaimResult]]


class BatchClaimer:
    """Claims of one process; for the claim thread only."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._server = AutocommitRunner(engine)
        self.doubts = InDoubtClaims()  #: claims with unknown outcome

    def claim(self, wishes: Sequence[ClaimRequest], *, config: Configuration, now: datetime) -> Results:
        """Claim for all requests, the most restricted ones first.

        Jobs claimed by one step must be delivered even if a later step fails.
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
            except Exception as error:  # of any kind
                if not found:
                    raise
                return {id(wish.request): Unserved(error) for wish in wishes} | found
        return found

    def _way(self, wish: ClaimRequest, config: Configuration) -> _Step:
        """The step for a request; batches are not possible on SQLite."""
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
                results = claim_limited(conn, wishes, config=config, now=now)
                maybe += (
                    (wishes[number].request, tuple(each.lease for each in result.claimed))
                    for number, result in results.items()
                )
        except DBAPIError as error:
            if database.is_unavailable(error):
                raise
            for wish in wishes:
                wish.drawn.reset()
            return {}
        return {id(wishes[number].request): result for number, result in results.items()}

    def _claim_unlimited(
        self, wishes: Sequence[ClaimRequest], _config: Configuration, now: datetime
    ) -> dict[int, ClaimResult]:
        results = claim_unlimited(self._server, wishes, self.doubts, now=now)
        return {id(wishes[number].request): result for number, result in results.items()}

    def _step_by_step(
        self, wishes: Sequence[ClaimRequest], config: Configuration, now: datetime
    ) -> dict[int, ClaimResult]:
        maybe: list[tuple[MatchRequest, tuple[str, ...]]] = []
        with self.doubts.about(maybe), database.writing(self._engine) as conn:
            results = claim_loop.claim_all(conn, wishes, config=config, now=now)
            maybe += (
                (wish.request, tuple(each.lease for each in result.claimed))
                for wish, result in zip(wishes, results, strict=True)
            )
        return {id(wish.request): wish.complete(result) for wish, result in zip(wishes, results, strict=True)}

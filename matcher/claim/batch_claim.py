"""Claims for many requests in few statements, in steps that are committed one by one.

A single-job request at a place without limits goes into one statement with all others (`claim_unlimited`).
Where the task queue alone decides what a limit or throttle counts, each request is counted first, under the
locks of its place, with the first task queue that it may use, and one statement claims for all; counts of
requests that got nothing are taken back (`claim_limited`). All others are claimed step by step. The batch
statements need PostgreSQL.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Protocol

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from cs_config.tree.configuration import Configuration
from matcher.claim import claim_loop
from matcher.claim.claim_loop import ClaimRequest, ClaimResult
from matcher.claim.in_doubt_claims import InDoubtClaims
from matcher.limits import place_policy
from matcher.limits.compiled_rules import RuleFollower
from matcher.limits.place_policy import PlacePolicy
from matcher.request.match_request import MatchRequest, Unserved
from requirements.errors import PilotageError
from requirements.resource import Location
from taskqueue.db import database
from taskqueue.db.compiled_sql import AutocommitRunner, TransactionRunner
from taskqueue.leases import batched_claim
from taskqueue.leases import opening as leases_claim
from taskqueue.leases.batched_claim import BatchClaim, BatchClaimResult, CountingRules
from taskqueue.task_queues.task_queues import TaskQueue

log = logging.getLogger(__name__)

#: Task queues tried per request; afterwards it goes step by step.
TRIES = 4


def claim_unlimited(
    server: AutocommitRunner, requests: Sequence[ClaimRequest], doubts: InDoubtClaims, *, now: datetime
) -> dict[int, ClaimResult]:
    """Results by position in the list; a missing one must be claimed step by step.

    Each statement is a transaction: claimed jobs stay claimed whatever happens to other requests.

    Raises:
        OperationalError, InterfaceError: The database is unavailable; `doubts` has the possible claims.
    """
    found: dict[int, ClaimResult] = {}
    left: Sequence[int] = range(len(requests))
    for _ in range(TRIES):
        batch = {
            number: build_claim(requests[number], drawn, lease=leases_claim.generate_lease())
            for number in left
            if (drawn := requests[number].drawn.next())
        }
        if not batch:
            break
        try:
            outcomes = _try(server, requests, batch, doubts, now)
        except Exception as error:  # of any kind: claimed jobs must still be delivered
            if not found:
                raise
            log.warning("a batch claim failed, the remaining requests go step by step: %s", error)
            break
        for number, outcome in outcomes.items():
            if outcome.claimed is not None:
                found[number] = ClaimResult(
                    claimed=(outcome.claimed,), emptied=tried_before_last(requests[number].drawn.tried)
                )
            elif outcome.refused:
                found[number] = ClaimResult(refused=outcome.refused)
        left = [n for n, each in outcomes.items() if each == BatchClaimResult()]
        for number in batch.keys() - outcomes.keys() | {
            n for n, each in outcomes.items() if each.is_undecided
        }:
            requests[number].drawn.reset()
    return found


def tried_before_last(tried: Sequence[TaskQueue]) -> frozenset[int]:
    """All but the last, which had a job; `settle` later checks whether the others are empty."""
    return frozenset(each.task_queue_id for each in tried[:-1])


def build_claim(
    prepared: ClaimRequest,
    task_queue: TaskQueue,
    *,
    lease: str,
    counted_by: str | None = None,
    counting: CountingRules | None = None,
) -> BatchClaim:
    """A claim for one job of a task queue.

    If its place has limits, `counted_by` is what has counted it, or `counting` what the statement counts.
    """
    counted_by = counted_by if counting is None else counting.counted_by
    job_types = task_queue.requirement_class.job_types
    return BatchClaim(
        task_queue_id=task_queue.task_queue_id,
        place=prepared.place,
        holder=prepared.holder.for_vo(task_queue.vo),
        lease=lease,
        allotment=prepared.allot_one(task_queue),
        request_id=prepared.request.request_id,
        counted_by=counted_by,
        counting=counting,
        job_type=min(job_types, default="") if counted_by is not None else None,
    )


def _try(
    server: AutocommitRunner,
    requests: Sequence[ClaimRequest],
    batch: dict[int, BatchClaim],
    doubts: InDoubtClaims,
    now: datetime,
) -> dict[int, BatchClaimResult]:
    """Run one statement; empty if the database rejects it, in which case no job was claimed."""
    maybe = [(requests[number].request, (claim.lease,)) for number, claim in batch.items()]
    try:
        with doubts.about(maybe):
            outcomes = batched_claim.claim_jobs(server, list(batch.values()), now=now)
    except DBAPIError as error:
        if database.is_unavailable(error):
            raise
        log_rejection(error, len(batch))
        return {}
    return dict(zip(batch, outcomes, strict=True))


def log_rejection(error: DBAPIError, claims: int) -> None:
    """Log that the database rejected a statement, a warning if not by a rival's request: it costs much."""
    level = (
        logging.INFO if isinstance(error, IntegrityError) or database.is_conflict(error) else logging.WARNING
    )
    log.log(level, "a batch of %d claims was rejected, they go step by step: %s", claims, error)


def claim_limited(
    conn: Connection, requests: Sequence[ClaimRequest], *, now: datetime, wait: bool = False
) -> dict[int, ClaimResult]:
    """Results by position in the list; a missing one must be claimed step by step.

    Where another transaction has a place locked, its requests get nothing now, or are waited for (`wait`).

    Raises:
        DBAPIError: No job was claimed.
    """
    places = {prepared.place for prepared in requests}
    policies = place_policy.lock_policies(conn, places, now, wait=wait, reads_bans=False)
    left = [
        _LimitedRequest(prepared, policies.policy_at(prepared.place, vos=prepared.resource.named_vos))
        for prepared in requests
    ]
    found = {
        number: ClaimResult(in_other_hands=True)
        for number, prepared in enumerate(requests)
        if policies.is_busy(prepared.place, prepared.resource.named_vos)
    }
    for _ in range(TRIES):
        batch = {
            number: claim
            for number, each in enumerate(left)
            if number not in found and (claim := each.next_claim())
        }
        if not batch:
            break
        outcomes = batched_claim.claim_jobs(TransactionRunner(conn), list(batch.values()), now=now)
        for number, outcome in zip(batch, outcomes, strict=True):
            if result := left[number].take_outcome(outcome):
                found[number] = result
    policies.write(conn)
    for number, prepared in enumerate(requests):
        if number not in found:
            prepared.drawn.reset()
    return found


@dataclass(slots=True)
class _LimitedRequest:
    """A request at a place that counts jobs, and its progress."""

    prepared: ClaimRequest
    gate: PlacePolicy | None  #: None: the place no longer counts jobs
    #: task queues it was counted with; the last one is still counted
    tried: list[TaskQueue] = field(default_factory=list)
    over: bool = False

    def next_claim(self) -> BatchClaim | None:
        """The next claim for this request; None: it must go step by step."""
        while not self.over and (found := self._next()) is not None:
            if self.gate is None or self._is_counted(self.gate, found):
                self.tried.append(found)
                counted_by = None if self.gate is None else self.gate.format_countings(found)
                lease = leases_claim.generate_lease()
                return build_claim(self.prepared, found, lease=lease, counted_by=counted_by)
        self.over = True
        return None

    def take_outcome(self, outcome: BatchClaimResult) -> ClaimResult | None:
        """The result of a claim; None: nothing so far."""
        claimed, gate = outcome.claimed, self.gate
        if claimed is not None:
            if gate is not None:
                gate.reserve(claimed.job_id, claimed.epoch)
            # Not the task queues closed by a limit: they have jobs, and other requests may draw them.
            return ClaimResult(claimed=(claimed,), emptied=tried_before_last(self.tried))
        if gate is not None:
            gate.count(self.tried[-1], -1)
        self.over = outcome.is_undecided
        return ClaimResult(refused=outcome.refused) if outcome.refused else None

    def _next(self) -> TaskQueue | None:
        drawn = self.prepared.drawn
        return drawn.next() if len(drawn.tried) < TRIES else None

    def _is_counted(self, gate: PlacePolicy, found: TaskQueue) -> bool:
        """Count one job of the task queue, if it may be taken."""
        self.over = not (gate.is_decided_by(found) and gate.most(1))
        may = not self.over and gate.concerns(found)
        if may:
            gate.count(found, 1)
        return may


#: Passes over a locked place after which it is waited for.
_PASSES = 3


class _LockedClaim(Protocol):
    """Claims for some requests in one transaction, under the locks of their places."""

    def __call__(
        self, conn: Connection, requests: Sequence[ClaimRequest], *, now: datetime, wait: bool
    ) -> dict[int, ClaimResult]:
        """Results by position in the list; `wait` for locked places."""


#: Results by the `id()` of their requests.
Results = dict[int, ClaimResult | PilotageError]
_Step = Callable[[Sequence[ClaimRequest], datetime], dict[int, ClaimResult]]


class BatchClaimer:
    """Claims of one process; for the claim thread only."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._server = AutocommitRunner(engine)
        self.rules = RuleFollower(engine)  #: to bring up to date before requests are prepared
        self._passed: Counter[Location] = Counter()  # claims in a row that found a place locked
        self.doubts = InDoubtClaims()  #: claims with unknown outcome

    def claim(self, requests: Sequence[ClaimRequest], *, config: Configuration, now: datetime) -> Results:
        """Claim for all requests, the most restricted ones first.

        Jobs claimed by one step must be delivered even if a later step fails.
        """
        single: list[ClaimRequest] = []
        limited: list[ClaimRequest] = []
        unlimited: list[ClaimRequest] = []
        stamps: set[str | None] = set()
        for prepared in requests:
            # Two claims of one pilot in a statement would not count each other.
            is_alone = prepared.holder.slot is None or prepared.holder.stamp not in stamps
            stamps.add(prepared.holder.stamp)
            if self._engine.dialect.name == "sqlite" or not (prepared.is_single and is_alone):
                single.append(prepared)
            elif prepared.counted or place_policy.counts_jobs(config, prepared.place):
                limited.append(prepared)
            else:
                unlimited.append(prepared)
        step_by_step = partial(self._claim_locked, claim_loop.claim_all)
        steps: list[tuple[_Step, list[ClaimRequest]]] = [
            (step_by_step, single),
            (self._claim_limited, limited),
            (self._claim_unlimited, unlimited),
            (step_by_step, [*limited, *unlimited]),
        ]
        found: Results = {}
        for claim, chosen in steps:
            left = [prepared for prepared in chosen if id(prepared.request) not in found]
            try:
                found |= claim(left, now) if left else {}
            except Exception as error:  # of any kind
                if not found:
                    raise
                return {id(prepared.request): Unserved(error) for prepared in requests} | found
        return found

    def _claim_limited(self, requests: Sequence[ClaimRequest], now: datetime) -> dict[int, ClaimResult]:
        try:
            return self._claim_locked(claim_limited, requests, now)
        except DBAPIError as error:
            if database.is_unavailable(error):
                raise
            log_rejection(error, len(requests))
            for each in requests:
                each.drawn.reset()
            return {}

    def _claim_unlimited(self, requests: Sequence[ClaimRequest], now: datetime) -> dict[int, ClaimResult]:
        results = claim_unlimited(self._server, requests, self.doubts, now=now)
        return {id(requests[number].request): result for number, result in results.items()}

    def _claim_locked(
        self, claim: _LockedClaim, requests: Sequence[ClaimRequest], now: datetime
    ) -> dict[int, ClaimResult]:
        """Claim where scopes are locked: all free ones together, then one that was passed over too often."""
        overdue = next((each.place for each in requests if self._passed[each.place] >= _PASSES), None)
        free = [each for each in requests if each.place != overdue]
        found = self._in_transaction(free, claim, now, wait=False) if free else {}
        if overdue is not None:
            late = [each for each in requests if each.place == overdue]
            try:
                found |= self._in_transaction(late, claim, now, wait=True)
            except OperationalError as error:
                if not database.is_lock_timeout(error):
                    raise
                found |= {id(each.request): ClaimResult(in_other_hands=True) for each in late}
        results = [(each.place, found.get(id(each.request))) for each in requests]
        passed = {place for place, result in results if result is not None and result.in_other_hands}
        for place in {place for place, _ in results} - passed:
            self._passed.pop(place, None)
        self._passed.update(passed)
        return found

    def _in_transaction(
        self, requests: Sequence[ClaimRequest], claim: _LockedClaim, now: datetime, *, wait: bool
    ) -> dict[int, ClaimResult]:
        """Results by the `id()` of their requests; claims whose commit is not confirmed are in doubt."""
        maybe: list[tuple[MatchRequest, tuple[str, ...]]] = []
        with self.doubts.about(maybe), database.writing(self._engine) as conn:
            results = claim(conn, requests, now=now, wait=wait)
            maybe += (
                (requests[number].request, tuple(each.lease for each in result.claimed))
                for number, result in results.items()
            )
        return {id(requests[number].request): result for number, result in results.items()}

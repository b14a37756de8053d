"""The claimers of one process of the service, as its route uses them."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Engine

from matcher.claim.async_claimer import AsyncClaimer
from matcher.claim.claim_thread import ClaimWorker
from matcher.claim.matcher import Matcher
from matcher.request.match_request import MatchRequest, MatchResult
from taskqueue.db.compiled_sql import AutocommitRunner
from taskqueue.leases import batched_claim
from taskqueue.leases.batched_claim import BatchClaim, BatchClaimResult

Answer = TypeVar("Answer")


@dataclass(slots=True)
class ClaimingProcess:
    """The claimers of one process."""

    matcher: Matcher
    worker: ClaimWorker
    claimer: AsyncClaimer
    in_loop: int = 0  #: requests answered in the event loop
    leases: list[str] = field(default_factory=list)  #: of all answers

    async def ask(self, asked: MatchRequest, is_gone: Callable[[], bool] = lambda: False) -> MatchResult:
        """As the route does."""
        answer = await self.claimer.claim(asked, is_gone)
        if answer is None:
            answer = await asyncio.wrap_future(self.worker.submit(asked).future)
        else:
            self.in_loop += 1
            if is_gone():
                self.claimer.give_back(asked, answer)
        self.leases += (match.lease for match in answer.matches)
        return answer


@contextlib.contextmanager
def claiming(engine: Engine, matcher: Matcher) -> Iterator[ClaimingProcess]:
    """A process with its claim thread, which is stopped afterwards."""
    worker = ClaimWorker(engine, matcher)
    worker.start()
    try:
        yield ClaimingProcess(matcher, worker, AsyncClaimer(engine, matcher, worker.give_back))
    finally:
        worker.stop()


def run(work: Callable[[], Coroutine[Any, Any, Answer]], *processes: ClaimingProcess) -> Answer:
    """Do the work in an event loop, and close the processes' claimers."""

    async def carry_out() -> Answer:
        try:
            return await work()
        finally:
            for each in processes:
                await each.claimer.close()

    return asyncio.run(carry_out())


def claim_together(
    server: AutocommitRunner, claims: Sequence[BatchClaim], *, now: datetime
) -> list[BatchClaimResult]:
    """The outcomes of claims in one statement."""
    rows = server.rows(*batched_claim.build_statement(claims, now=now))
    return batched_claim.read_results(claims, rows, now=now)

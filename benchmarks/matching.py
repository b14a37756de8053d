"""Clients that take jobs from our matcher in process, as the service does: one at a time, or many."""

import asyncio
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import uvloop
from sqlalchemy import Engine

from benchmarks import lhcb, population
from benchmarks.clients import Work
from cs_config import gc_tuning, validate
from matcher.claim.async_claimer import AsyncClaimer
from matcher.claim.claim_thread import ClaimWorker
from matcher.claim.matcher import Matcher
from matcher.request import match_request
from matcher.request.match_request import MatchCaller, MatchRequest
from taskqueue.db import database

_CALLER = MatchCaller(subject="bench", vos=frozenset({lhcb.VO}))
_PATIENCE = 30.0  # seconds


def singly(
    url: str, offers: Sequence[Mapping[str, object]], number: int, *, tree: str = ""
) -> AbstractContextManager[Work]:
    """One client that asks, waits for its answer, and asks again; each claim is a transaction.

    `tree`: the configuration, by default that without limits.
    """
    return together(url, offers, 1, number, tree=tree)


@contextmanager
def together(
    url: str, offers: Sequence[Mapping[str, object]], at_a_time: int, number: int, *, tree: str = ""
) -> Iterator[Work]:
    """One process in which so many requests wait at any time, as in the service."""
    with (
        _matcher(url, tree) as (engine, matcher),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        worker = ClaimWorker(engine, matcher)
        claimer = AsyncClaimer(engine, matcher, worker.give_back)
        worker.start()
        requests = _requests(offers, number)

        def work(seconds: float, most: int) -> list[float]:
            crowd = _Crowd(
                claimer=claimer,
                worker=worker,
                requests=requests,
                until=time.perf_counter() + seconds,
                most=most,
            )
            return runner.run(crowd.serve(at_a_time))

        yield work
        runner.run(claimer.close())
        worker.stop()


@dataclass(slots=True, kw_only=True)
class _Crowd:
    """Requests that are under way; each that is answered is followed by another."""

    claimer: AsyncClaimer
    worker: ClaimWorker
    requests: Iterator[MatchRequest]
    until: float
    most: int
    latencies: list[float] = field(default_factory=list)

    async def serve(self, at_a_time: int) -> list[float]:
        """The seconds that each took."""
        await asyncio.gather(*(self._ask_repeatedly() for _ in range(at_a_time)))
        return self.latencies

    async def _ask_repeatedly(self) -> None:
        began = time.perf_counter()
        while began < self.until and len(self.latencies) < self.most:
            request = next(self.requests)
            answer = await self.claimer.claim(request, lambda: False)
            if answer is None:
                answer = await asyncio.wrap_future(self.worker.submit(request).future)
            now = time.perf_counter()
            if answer.matches:
                self.latencies.append(now - began)
            began = now


@contextmanager
def _matcher(url: str, tree: str) -> Iterator[tuple[Engine, Matcher]]:
    gc_tuning.collect_seldom()  # as each process of the service
    config = validate.parse(tree or lhcb.tree())
    engine = database.connect(url)
    try:
        yield engine, Matcher(engine, lambda: config, lambda: population.NOW)
    finally:
        engine.dispose()


def _requests(offers: Sequence[Mapping[str, object]], number: int) -> Iterator[MatchRequest]:
    """Pilots of all queues, in any order."""
    draw = random.Random(number)
    read = [(number, match_request.read_resource(offer)) for number, offer in enumerate(offers)]
    while True:
        cache_key, said = draw.choice(read)
        yield MatchRequest(
            presented=said, caller=_CALLER, deadline=time.monotonic() + _PATIENCE, cache_key=cache_key
        )
